"""What AllenNLP's configs of all tasks share, to tables of ours: embedders, data, optimiser, trainer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from elmokit.errors import ConfigError
from elmokit.tasks.allennlp_table import Given, shown
from elmokit.weights import published

Content = dict[str, Any]
MIX_WEIGHT = "text_field_embedder.token_embedder_elmo._elmo.scalar_mix_0.scalar_parameters.0"
OTHER_WEIGHTS = ("text_field_embedder.token_embedder_elmo._elmo.scalar_mix_0.gamma", "encoder._module.weight_ih_l0")
CHOSEN_ALONE = -1e4  # a raw weight so low leaves a layer out
UNSET = "std.extVar:"
"""Marks the value of an external variable that was not given."""
ADADELTA = {"learning_rate": 1.0, "rho": 0.9, "epsilon": 1e-6}  # PyTorch's, which AllenNLP takes where nothing is said
ADAM = {"learning_rate": 1e-3, "betas": [0.9, 0.999], "epsilon": 1e-8}


def embedders(model: Given, reader: Given | None) -> Content:
    """``words``, ``chars`` and ``elmo`` from a text field embedder and the indexers of the same names.

    Raises:
        ConfigError: an embedder without a type, or values of the wrong kind.
    """
    field = model.table("text_field_embedder")
    indexers = None if reader is None else reader.table("token_indexers")
    lowercase = _indexers(indexers)
    content: Content = {"words": False, "chars": False}
    if field is None:
        return content
    field.expect("type", "basic")
    field.expect("allow_unmatched_keys", False)
    inner = field.table("token_embedders")
    for name, embedder in sorted((inner or field).tables().items()):
        kind = embedder.take("type", str, "embedding")  # AllenNLP's default
        if kind == "embedding" and content["words"] is False:
            content["words"] = words(embedder, lowercase.get(name, False))
        elif kind == "character_encoding" and content["chars"] is False:
            content["chars"] = chars(embedder)
        elif kind == "elmo_token_embedder" and "elmo" not in content:
            content["elmo"] = elmo(embedder)
        else:
            embedder.content = {"type": kind, **embedder.content}
        embedder.leave()
    for given in (inner, field):
        if given is not None:
            given.leave()
    return content


def _indexers(indexers: Given | None) -> dict[str, bool]:
    """Whether each indexer of words lower-cases; the others need no counterpart, or have none."""
    lowercase: dict[str, bool] = {}
    if indexers is None:
        return lowercase
    for name, indexer in indexers.tables().items():
        kind = indexer.take("type", str, "single_id")
        if kind == "single_id":
            lowercase[name] = indexer.take("lowercase_tokens", bool, False)
        elif kind == "characters":
            indexer.needless("min_padding_length", "a word's features do not depend on padding")
            indexer.without("character_tokenizer", "characters are read as they are, not bytes, and without marks")
        elif kind == "elmo_characters":
            indexer.findings.needless.append(f"{indexer.path}: the biLM brings its own characters")
        else:
            indexer.content = {"type": kind, **indexer.content}
        indexer.leave()
    indexers.leave()
    return lowercase


def words(embedder: Given, lowercase: bool) -> Content:
    """An ``embedding`` to ``words``."""
    content: Content = {"lowercase": lowercase, "min_count": 1, "unit_length": False, "unknown": "random"}
    if "pretrained_file" in embedder.content:
        name = embedder.take("pretrained_file", str, "")
        content["vectors"] = _file_here(embedder, "pretrained_file", name, "words.vectors")
    if "embedding_dim" in embedder.content:
        content["dim"] = embedder.take("embedding_dim", int, 0)
    content["train"] = embedder.take("trainable", bool, True)
    embedder.needless("vocab_namespace", "there is one vocabulary of words")
    embedder.needless("sparse", "gradients are the same")
    embedder.needless("num_embeddings", "derived from the training text")
    embedder.needless("padding_index", "row 0 is padding")
    return content


def chars(embedder: Given) -> Content:
    """A ``character_encoding`` with a CNN to ``chars``."""
    content: Content = {"dropout": embedder.take("dropout", float, 0.0), "min_count": 1, "max_chars": False}
    table = embedder.table("embedding")
    if table is not None:
        content["dim"] = table.take("embedding_dim", int, 16)
        table.needless("num_embeddings", "derived from the characters of the training text")
        table.needless("vocab_namespace", "there is one vocabulary of characters")
        table.leave()
    encoder = embedder.table("encoder")
    if encoder is None:
        raise ConfigError(f"{embedder.path}: expected an encoder of type cnn, found none.")
    kind = encoder.take("type", str, "")
    if kind != "cnn":
        raise ConfigError(f"{encoder.path}.type is {kind!r}; only character encoders of type 'cnn' have a counterpart.")
    width_counts = encoder.take("ngram_filter_sizes", list, [2, 3, 4, 5]), encoder.take("num_filters", int, 0)
    content["filters"] = [[width, width_counts[1]] for width in width_counts[0]]
    content["activation"] = encoder.take("conv_layer_activation", str, "relu")
    encoder.needless("embedding_dim", "derived")
    encoder.leave()
    return content


def elmo(embedder: Given) -> Content:
    """An ``elmo_token_embedder`` to ``elmo`` with a mix at the input."""
    model = elmo_model(embedder)
    mix = elmo_mix(embedder)
    if embedder.content.get("requires_grad"):
        embedder.without("requires_grad", "the biLM is frozen; it can be fine-tuned first (elmo.finetune)")
    embedder.expect("requires_grad", False)
    embedder.without("projection_dim", "the mix is not projected")
    embedder.needless("namespace_to_cache", "layers are cached")
    embedder.needless("vocab_to_cache", "layers are cached")
    return {**model, "input": mix, "output": False}


def elmo_model(given: Given) -> Content:
    """The biLM's two files to ``elmo.model``: a published name where they are published files."""
    weights, options = given.take("weight_file", str, ""), given.take("options_file", str, "")
    if not weights:
        return {}
    for model in published.models():
        for location in model.locations:
            if location.weights == weights and location.options in (options, None):
                return {"model": model.name}
    if options and options != _beside(weights):
        given.findings.without.append(
            f"{given.place('options_file')} = {shown(options)}: options are looked for beside the weights"
        )
    return {"model": weights}


def elmo_mix(given: Given) -> Content:
    """Dropout, layer norm and given weights of a mix."""
    mix: Content = {
        "dropout": given.take("dropout", float, 0.5),
        "layer_norm": given.take("do_layer_norm", bool, False),
    }
    raw = given.content.get("scalar_mix_parameters")
    if isinstance(raw, list) and raw and all(isinstance(number, int | float) for number in raw):
        kept = [layer for layer, number in enumerate(raw) if number > CHOSEN_ALONE]
        if len(kept) == 1 or (len({raw[layer] for layer in kept}) == 1 and len(kept) == len(raw)):
            mix["layers"] = kept if len(kept) < len(raw) else "average"
            given.needless("scalar_mix_parameters", f"elmo.input.layers = {shown(mix['layers'])}, with gamma trained")
    given.without("scalar_mix_parameters", "weights cannot be given; choose layers by elmo.input.layers")
    return mix


def _beside(weights: str) -> str:
    return weights.removesuffix("_weights.hdf5") + "_options.json" if weights.endswith("_weights.hdf5") else ""


def penalty(model: Given) -> float:
    """Lambda on the raw mix weights from a ``regularizer``; all other regularizers have no counterpart."""
    found = 0.0
    given = model.content.pop("regularizer", None)
    entries = given.get("regexes", []) if isinstance(given, dict) else given or []
    if not isinstance(entries, list):
        raise ConfigError(f"{model.place('regularizer')}: expected a list of pairs, found {shown(given)}.")
    for entry in entries:
        pattern, settings = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        if isinstance(settings, str):
            settings = {"type": settings}
        if not isinstance(pattern, str) or not isinstance(settings, dict):
            raise ConfigError(
                f"{model.place('regularizer')}: expected a pair of pattern and table, found {shown(entry)}."
            )
        is_l2 = settings.get("type") == "l2" and set(settings) <= {"type", "alpha"}
        if is_l2 and _matches(pattern, MIX_WEIGHT) and not any(_matches(pattern, name) for name in OTHER_WEIGHTS):
            found += Given(settings, model.place("regularizer"), model.findings).take("alpha", float, 0.01)
        else:
            model.findings.without.append(f"{model.place('regularizer')}: {shown(entry)}")
    return found


def initializers(model: Given, ours: Collection[tuple[str, str]], start: str) -> None:
    """Tick off an ``initializer``, telling each entry that is not how weights start here.

    Args:
        ours: pattern and type of those that are.
        start: how weights start here.
    """
    given = model.content.pop("initializer", None)
    table = Given(given if isinstance(given, dict) else {"regexes": given}, model.place("initializer"), model.findings)
    entries = table.content.pop("regexes", None)
    for entry in entries if isinstance(entries, list) else [] if entries is None else [entries]:
        pattern, settings = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        kind = {"type": settings} if isinstance(settings, str) else settings
        line = f"{table.path}: {shown(entry)}"
        if any(pattern == known and kind == {"type": name} for known, name in ours):
            model.findings.needless.append(f"{line}: always so here")
        else:
            model.findings.without.append(f"{line}: here weights start {start}")
    table.leave()


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error as error:
        raise ConfigError(f"model.regularizer: {pattern!r} is no regular expression ({error}).") from None


def data(top: Given) -> Content:
    """Paths of the data."""
    content: Content = {}
    for theirs, ours in (("train_data_path", "train"), ("validation_data_path", "dev"), ("test_data_path", "test")):
        if top.content.get(theirs) is None:
            top.content.pop(theirs, None)
            continue
        name = top.take(theirs, str, "")
        if name.startswith(UNSET):
            variable = name.removeprefix(UNSET)
            top.findings.without.append(f"{theirs}: the external variable {variable}: set data.{ours}, or give --var")
        else:
            content[ours] = _file_here(top, theirs, name, f"data.{ours}")
    top.without("evaluate_on_test", "run: elmokit task evaluate")
    return content


def _file_here(given: Given, key: str, name: str, ours: str) -> str:
    """A file's path; of an address the file's name, which the user must download."""
    if "://" not in name:
        return name
    file = re.split(r"[/#]", name.rstrip(")"))[-1]
    given.findings.without.append(f"{given.place(key)} = {shown(name)}: download it, and set {ours} to where it is")
    return file


def training(top: Given, metric: str, names: Sequence[str]) -> Content:
    """``iterator`` or ``data_loader``, ``trainer`` and seeds to ``train``.

    Args:
        metric: ours.
        names: what AllenNLP calls it.
    """
    content: Content = {
        "patience": False,
        "max_grad_norm": False,
        "clip_value": False,
        "plateau": False,
        "average": False,
    }
    content |= {"step_decay": False, "eval_every": False, "l2": 0.0}
    content |= _batches(top)
    trainer = top.table("trainer")
    if trainer is None:
        return content
    optimizer = trainer.table("optimizer")
    content["optimizer"] = _optimizer(optimizer)
    content["epochs"] = trainer.take("num_epochs", int, 20)  # AllenNLP's default
    for theirs, ours, kind in (
        ("patience", "patience", int),
        ("grad_norm", "max_grad_norm", float),
        ("grad_clipping", "clip_value", float),
    ):
        if trainer.content.get(theirs) is not None:
            content[ours] = trainer.take(theirs, kind, 0)
        trainer.content.pop(theirs, None)
    _scheduler(trainer.table("learning_rate_scheduler"), content)
    average = trainer.table("moving_average")
    if average is not None:
        average.expect("type", "exponential")
        content["average"] = average.take("decay", float, 0.9999)
        average.leave()
    if trainer.content.get("validation_metric") in list(names):
        trainer.needless("validation_metric", f"{metric} decides")
    elif "validation_metric" not in trainer.content:
        place = trainer.place("validation_metric")
        trainer.findings.without.append(f"{place}: not given, so that AllenNLP takes the loss; here {metric} decides")
    trainer.without("validation_metric", f"here {metric} decides")
    trainer.needless("cuda_device", "given in the shell: --device cuda")
    for key in ("num_serialized_models_to_keep", "checkpointer"):
        trainer.needless(key, "the best model and the newest checkpoint are kept")
    trainer.leave()
    for key in ("pytorch_seed", "random_seed", "numpy_seed"):
        if "seeds" not in content and top.content.get(key) is not None:
            content["seeds"] = [top.take(key, int, 0)]
        top.needless(key, "there is one seed")
    return content


def _batches(top: Given) -> Content:
    content: Content = {}
    given, later = top.table("iterator"), top.table("data_loader")
    if given is None and later is not None:
        given = later.table("batch_sampler") or later
    if given is not None:
        kind = given.take("type", str, "basic")
        if kind not in ("basic", "bucket"):
            given.content = {"type": kind, **given.content}
        content["bucketed"] = kind == "bucket"
        content["batch_size"] = given.take("batch_size", int, 32)  # AllenNLP's default
        given.needless("sorting_keys", "batches are sorted by the longest sentence")
        given.expect("padding_noise", 0.1)
        given.expect("shuffle", True)
        given.leave()
    if later is not None:
        later.expect("shuffle", True)
        later.leave()
    for key in ("validation_iterator", "validation_data_loader"):
        top.needless(key, "evaluation batches are sorted by length")
    return content


def _optimizer(given: Given | None) -> Content:
    if given is None:
        return {"name": "adam", **ADAM}
    name = given.take("type", str, "adam")
    if name not in ("adam", "dense_sparse_adam", "adadelta", "sgd"):
        raise ConfigError(f"{given.path}.type is {name!r}; adam, adadelta and sgd have a counterpart.")
    defaults: Mapping[str, Any] = {"adadelta": ADADELTA, "sgd": {}}.get(name, ADAM)
    content = {"name": "adam" if name == "dense_sparse_adam" else name, **defaults}
    for theirs, ours in (("lr", "learning_rate"), ("rho", "rho"), ("eps", "epsilon"), ("momentum", "momentum")):
        if theirs in given.content:
            content[ours] = given.take(theirs, float, 0.0)
    if "betas" in given.content:
        content["betas"] = given.take("betas", list, [])
    given.leave()
    return content


def _scheduler(given: Given | None, content: Content) -> None:
    if given is None:
        return
    kind = given.take("type", str, "")
    if kind == "reduce_on_plateau":
        given.expect("mode", "max", "min")
        factor, patience = given.take("factor", float, 0.1), given.take("patience", int, 10)  # PyTorch's defaults
        content["plateau"] = {"factor": factor, "patience": patience}
    else:
        given.content = {"type": kind, **given.content}
    given.leave()
