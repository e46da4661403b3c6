"""Convert what AllenNLP's configs of all tasks have in common: embedders, data, optimizer and trainer."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elmokit.config import check_choice
from elmokit.formats import published
from elmokit.formats.sidecars import OPTIONS, own_file
from elmokit.tasks.allennlp_import.config_file import unset_variable
from elmokit.tasks.allennlp_import.config_table import ConfigTable, to_json

Tables = dict[str, Any]
"""A config of ours, or a part of one, as plain values."""
MIX_WEIGHT = "text_field_embedder.token_embedder_elmo._elmo.scalar_mix_0.scalar_parameters.0"
OTHER_WEIGHTS = ("text_field_embedder.token_embedder_elmo._elmo.scalar_mix_0.gamma", "encoder._module.weight_ih_l0")
BILM_WEIGHTS = (
    "text_field_embedder.token_embedder_elmo._elmo._elmo_lstm._token_embedder._char_embedding_weights",
    "text_field_embedder.token_embedder_elmo._elmo._elmo_lstm._elmo_lstm.forward_layer_0.input_linearity.weight",
)
TASK_WEIGHTS = ("text_field_embedder.token_embedder_tokens.weight", "encoder._module.weight_ih_l0")
EXCLUDED_BELOW = -1e4  # a raw mix weight this low gives its layer the weight 0
CHAR_LAYERS = ("cnn", "lstm", "gru")
EMBEDDERS = ("embedding", "character_encoding", "elmo_token_embedder")
SPELLINGS: dict[str, dict[str, Any]] = {
    "bytes": {"byte_encoding": "utf-8"},
    "marked bytes": {"byte_encoding": "utf-8", "start_tokens": [259], "end_tokens": [260]},
}
"""AllenNLP's character tokenizers by our ``chars.spelling``."""
ADADELTA = {"learning_rate": 1.0, "rho": 0.9, "epsilon": 1e-6}  # PyTorch's defaults, which AllenNLP uses
ADAM = {"learning_rate": 1e-3, "betas": [0.9, 0.999], "epsilon": 1e-8}


def convert_embedders(model: ConfigTable, reader: ConfigTable, is_fragment: bool = False) -> Tables:
    """Convert a text field embedder and the indexers with the same names to ``words``, ``chars`` and ``elmo``.

    In a fragment, what an indexer says about words or characters is kept if their embedder is not in it.
    """
    field = model.table("text_field_embedder")
    indexers = reader.table("token_indexers")
    given = _read_indexers(indexers)
    tables: Tables = {"words": False, "chars": False}
    field.expect("type", "basic")
    field.expect("allow_unmatched_keys", False)
    inner = field.table("token_embedders")
    for name, embedder in sorted((inner if inner.exists else field).tables().items()):
        kind = embedder.take("type", str, "embedding")  # AllenNLP's default
        if kind == "embedding" and tables["words"] is False:
            tables["words"] = _convert_words(embedder) | given["words"].pop(name, {})
        elif kind == "character_encoding" and tables["chars"] is False:
            tables["chars"] = _convert_chars(embedder) | given["chars"].pop(name, {})
        elif kind == "elmo_token_embedder" and "elmo" not in tables:
            tables["elmo"] = convert_elmo(embedder)
        elif kind in EMBEDDERS:
            embedder.replace(f"type = {to_json(kind)}: a second one; a model has one here")
        else:
            embedder.put_back("type", kind)
    for kind, unread in given.items():
        for name, settings in unread.items():
            if is_fragment and tables[kind] is False:
                tables[kind] = settings
            elif any(settings.values()):
                indexers.differs(name, f" = {to_json(settings)}: no embedder has its name")
    return tables


def _read_indexers(indexers: ConfigTable) -> dict[str, dict[str, Tables]]:
    """Return what each indexer says about ``words`` (whether they are lowercased) or ``chars`` (how they are spelled).

    The other indexers are explained.
    """
    given: dict[str, dict[str, Tables]] = {"words": {}, "chars": {}}
    for name, indexer in indexers.tables().items():
        kind = indexer.take("type", str, "single_id")
        if kind == "single_id":
            given["words"][name] = {"lowercase": indexer.take("lowercase_tokens", bool, False)}
        elif kind == "characters":
            indexer.redundant("a word's features do not depend on padding", "min_padding_length")
            if (tokenizer := indexer.content.get("character_tokenizer")) in SPELLINGS.values():
                spelling = next(ours for ours, theirs in SPELLINGS.items() if theirs == tokenizer)
                given["chars"][name] = {"spelling": spelling}
                indexer.content.pop("character_tokenizer")
            indexer.unsupported(f"only these can be read: {to_json(SPELLINGS)}", "character_tokenizer")
        elif kind == "elmo_characters":
            indexer.report.redundant.append(f"{indexer.path}: the biLM brings its own characters")
        else:
            indexer.put_back("type", kind)
    return given


def _convert_words(embedder: ConfigTable) -> Tables:
    """Convert an ``embedding`` to ``words``."""
    words: Tables = {"lowercase": False, "min_count": 1, "unit_length": False, "unknown": "random"}
    if embedder.content.get("pretrained_file") is None:
        embedder.content.pop("pretrained_file", None)
    else:
        words["vectors"] = _local_path(embedder, "pretrained_file", "words.vectors")
    if "embedding_dim" in embedder.content:
        words["dim"] = embedder.take("embedding_dim", int, 0)
    words["train"] = embedder.take("trainable", bool, True)
    embedder.redundant("there is one vocabulary of words", "vocab_namespace")
    embedder.redundant("gradients are the same", "sparse")
    embedder.redundant("derived from the training text", "num_embeddings")
    embedder.redundant("row 0 is padding", "padding_index")
    return words


def _convert_chars(embedder: ConfigTable) -> Tables:
    """Convert a ``character_encoding`` to ``chars``."""
    chars: Tables = {"dropout": embedder.take("dropout", float, 0.0), "min_count": 1, "max_chars": False}
    embedding = embedder.table("embedding")
    if embedding.exists:
        chars["dim"] = embedding.take("embedding_dim", int, 16)
    embedding.redundant("derived from the characters of the training text", "num_embeddings")
    embedding.redundant("there is one vocabulary of characters", "vocab_namespace")
    encoder = embedder.table("encoder")
    kind = encoder.take("type", str, "")
    if kind not in CHAR_LAYERS:
        encoder.replace(f"type = {to_json(kind)}: only {', '.join(CHAR_LAYERS)} read characters here")
        return chars
    chars["layer"] = kind
    if kind != "cnn":
        chars["hidden"] = encoder.take("hidden_size", int, 0)
        chars["n_layers"] = encoder.take("num_layers", int, 1)
        chars["bidirectional"] = encoder.take("bidirectional", bool, False)
        encoder.expect("bias", True)
        encoder.expect("dropout", 0.0)
        encoder.redundant("derived from other sizes", "input_size")
        return chars
    widths, count = encoder.take("ngram_filter_sizes", list, [2, 3, 4, 5]), encoder.take("num_filters", int, 0)
    chars["filters"] = [[width, count] for width in widths]
    chars["activation"] = encoder.take("conv_layer_activation", str, "relu")
    encoder.redundant("derived from other sizes", "embedding_dim")
    return chars


def convert_elmo(embedder: ConfigTable) -> Tables:
    """Convert an ``elmo_token_embedder`` to ``elmo`` with an input mix."""
    model = elmo_model(embedder)
    mix = elmo_mix(embedder)
    embedder.unsupported("the mix is not projected", "projection_dim")
    cached = ("namespace_to_cache", "vocab_to_cache")
    if model.get("trainable"):
        embedder.unsupported("the char CNN is trained, and not a table of token vectors", *cached)
    embedder.redundant("layers are cached", *cached)
    return {**model, "input": mix, "output": False}


def elmo_model(elmo: ConfigTable) -> Tables:
    """Convert the biLM's two files to ``elmo.model``, and whether it is trained to ``elmo.trainable``.

    Published files become the name of their model.
    """
    training = {"trainable": elmo.take("requires_grad", bool, False)} if "requires_grad" in elmo.content else {}
    return {**_elmo_files(elmo), **training}


def _elmo_files(elmo: ConfigTable) -> Tables:
    weights, options = elmo.take("weight_file", str, ""), elmo.take("options_file", str, "")
    if not weights:
        if options:
            elmo.differs("options_file", f" = {to_json(options)}: there is no weight_file")
        return {"model": "original"}  # AllenNLP's default
    for model in published.models():
        for location in model.locations:
            if location.weights == weights and location.options in (options, None):
                return {"model": model.name}
    # Split and joined as strings, because a path object would change a URL.
    start = weights.rfind("/") + 1
    expected = [weights[:start] + name for name in (own_file(Path("folder", weights[start:]), OPTIONS).name, OPTIONS)]
    if options and options not in expected:
        elmo.differs("options_file", f" = {to_json(options)}: options are expected next to the weights")
    return {"model": weights}


def elmo_mix(elmo: ConfigTable) -> Tables:
    """Convert the dropout, layer norm and fixed weights of a mix."""
    mix: Tables = {
        "dropout": elmo.take("dropout", float, 0.5),
        "layer_norm": elmo.take("do_layer_norm", bool, False),
    }
    # Fixed weights can be expressed here if they choose some layers, or give all layers the same weight.
    raw = elmo.content.get("scalar_mix_parameters")
    if isinstance(raw, list) and raw and all(isinstance(number, int | float) for number in raw):
        kept = [layer for layer, number in enumerate(raw) if number > EXCLUDED_BELOW]
        if len(kept) == 1 or (len({raw[layer] for layer in kept}) == 1 and len(kept) == len(raw)):
            mix["layers"] = kept if len(kept) < len(raw) else "average"
            elmo.redundant(f"elmo.input.layers = {to_json(mix['layers'])}, with gamma trained", "scalar_mix_parameters")
    elmo.unsupported("weights cannot be given; choose layers with elmo.input.layers", "scalar_mix_parameters")
    return mix


def mix_penalty(model: ConfigTable) -> float:
    """Return lambda on the raw mix weights from a ``regularizer``; other regularizers are unsupported."""
    penalty = 0.0
    given = model.content.pop("regularizer", None)
    entries = given.get("regexes", []) if isinstance(given, dict) else given or []
    for entry, pattern, settings in _patterns(entries if isinstance(entries, list) else [entries]):
        is_l2 = isinstance(settings, dict) and settings.get("type") == "l2" and set(settings) <= {"type", "alpha"}
        if is_l2 and _matches(pattern, MIX_WEIGHT) and not any(_matches(pattern, name) for name in OTHER_WEIGHTS):
            penalty += ConfigTable(settings, model.path_of("regularizer"), model.report).take("alpha", float, 0.01)
        else:
            model.differs("regularizer", f": {to_json(entry)}")
    return penalty


def explain_initializers(model: ConfigTable, ours: Collection[tuple[str, str]], initial_weights: str) -> None:
    """Remove an ``initializer`` and report each entry that does not match how weights are initialized here."""
    path = model.path_of("initializer")
    given = model.content.pop("initializer", None)
    table = model.add_table(given if isinstance(given, dict) else {"regexes": given}, path)
    entries = table.content.pop("regexes", None)
    if not isinstance(entries, list):
        entries = [] if entries is None else [entries]
    for entry, pattern, settings in _patterns(entries):
        line = f"{path}: {to_json(entry)}"
        if any(pattern == known and settings == {"type": name} for known, name in ours):
            model.report.redundant.append(f"{line}: always the case here")
        else:
            model.report.unsupported.append(f"{line}: here weights are initialized {initial_weights}")


def _patterns(entries: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Return each entry with its pattern and settings, which are None if it is not a pair."""
    for entry in entries:
        pattern, settings = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        yield entry, pattern, {"type": settings} if isinstance(settings, str) else settings


def _matches(pattern: Any, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except (TypeError, re.error, OverflowError):
        return True  # no regular expression: it is reported, as one that matches other weights too


def convert_data(top: ConfigTable) -> Tables:
    """Convert the paths of the data to ``data``."""
    data: Tables = {}
    for theirs, ours in (("train_data_path", "train"), ("validation_data_path", "dev"), ("test_data_path", "test")):
        if top.content.get(theirs) is None:
            top.content.pop(theirs, None)
        elif variable := unset_variable(str(top.content[theirs])):
            top.content.pop(theirs)
            advice = f"give it with --var {variable}=VALUE, or set data.{ours}"
            top.differs(theirs, f": the external variable {variable} has no value: {advice}")
        else:
            data[ours] = _local_path(top, theirs, f"data.{ours}")
    top.unsupported("use elmokit task evaluate", "evaluate_on_test")
    return data


def _local_path(table: ConfigTable, key: str, ours: str) -> str:
    """Take a path. Of a URL, return the name of the file, and report that the user must download it."""
    name = table.take(key, str, "")
    if "://" not in name:
        return name
    table.differs(key, f" = {to_json(name)}: download it, and set {ours} to its path")
    return re.split(r"[/#]", name.rstrip(")"))[-1]


def group_learning_rate(optimizer: ConfigTable) -> float | None:
    """Take the ``parameter_groups`` of an optimizer, and return the learning rate that they give to the biLM."""
    groups = optimizer.content.pop("parameter_groups", None)
    if not isinstance(groups, list):
        return None
    bilm_rate = None
    for group, patterns, settings in _patterns(groups):

        def is_matched(name: str, patterns: Any = patterns) -> bool:
            return isinstance(patterns, list) and any(_matches(one, name) for one in patterns)

        rate = settings.get("lr") if isinstance(settings, dict) and set(settings) == {"lr"} else None
        is_of_bilm = all(map(is_matched, BILM_WEIGHTS)) and not any(map(is_matched, TASK_WEIGHTS))
        if not is_of_bilm or not isinstance(rate, int | float):
            optimizer.differs("parameter_groups", f": {to_json(group)}: only the biLM has its own learning rate here")
            continue
        bilm_rate = float(rate)
        if is_matched(MIX_WEIGHT):
            optimizer.differs("parameter_groups", f": {to_json(group)}: the mixes keep the optimizer's rate here")
    return bilm_rate


def convert_training(top: ConfigTable, elmo: Tables, metric: str, their_metrics: Sequence[str]) -> Tables:
    """Convert ``iterator`` or ``data_loader``, ``trainer`` and the seeds to ``train``.

    The learning rate of a trainable biLM is added to ``elmo``.
    """
    off = ("patience", "max_grad_norm", "clip_value", "plateau", "average", "step_decay", "eval_every")
    train: Tables = {**dict.fromkeys(off, False), "l2": 0.0, **convert_batches(top)}
    trainer = top.table("trainer")
    if not trainer.exists:
        return train
    optimizer = trainer.table("optimizer")
    if elmo.get("trainable"):
        rate = group_learning_rate(optimizer)
    train["optimizer"] = _convert_optimizer(optimizer)
    if elmo.get("trainable"):
        # AllenNLP trains the biLM at the optimizer's learning rate unless it has a group of its own.
        elmo["learning_rate"] = rate or train["optimizer"].get("learning_rate", False)
    train["epochs"] = trainer.take("num_epochs", int, 20)  # AllenNLP's default
    for theirs, ours, kind in (
        ("patience", "patience", int),
        ("grad_norm", "max_grad_norm", float),
        ("grad_clipping", "clip_value", float),
    ):
        if trainer.content.get(theirs) is not None:
            train[ours] = trainer.take(theirs, kind, 0)
        trainer.content.pop(theirs, None)
    scheduler = trainer.table("learning_rate_scheduler")
    if scheduler.content.get("type") == "reduce_on_plateau":
        scheduler.content.pop("type")
        scheduler.expect("mode", "max", "min")
        factor, patience = (
            scheduler.take("factor", float, 0.1),
            scheduler.take("patience", int, 10),
        )  # PyTorch's defaults
        train["plateau"] = {"factor": factor, "patience": patience}
    average = trainer.table("moving_average")
    if average.exists:
        average.expect("type", "exponential")
        train["average"] = average.take("decay", float, 0.9999)
    if trainer.content.get("validation_metric") in list(their_metrics):
        trainer.redundant(f"{metric} selects the best epoch", "validation_metric")
    elif "validation_metric" not in trainer.content:
        trainer.differs("validation_metric", f": not given, so that AllenNLP uses the loss; here {metric} is used")
    trainer.unsupported(f"here {metric} selects the best epoch", "validation_metric")
    trainer.redundant("chosen on the command line: --device cuda", "cuda_device")
    trainer.redundant(
        "the best model and the newest checkpoint are kept", "num_serialized_models_to_keep", "checkpointer"
    )
    for key in ("pytorch_seed", "random_seed", "numpy_seed"):
        if "seeds" not in train and top.content.get(key) is not None:
            train["seeds"] = [top.take(key, int, 0)]
        top.redundant("there is one seed", key)
    return train


def convert_batches(top: ConfigTable) -> Tables:
    """Convert the iterator of AllenNLP before version 1, or the data loader of later versions."""
    train: Tables = {}
    iterator, loader = top.table("iterator"), top.table("data_loader")
    sampler = loader.table("batch_sampler")
    given = next((table for table in (iterator, sampler, loader) if table.exists), None)
    if given is not None:
        kind = given.take("type", str, "basic")
        if kind not in ("basic", "bucket"):
            given.put_back("type", kind)
        train["bucketed"] = kind == "bucket"
        train["batch_size"] = given.take("batch_size", int, 32)  # AllenNLP's default
        given.redundant("batches are sorted by the longest sentence", "sorting_keys")
        given.expect("padding_noise", 0.1)
        given.expect("shuffle", True)
    loader.expect("shuffle", True)
    top.redundant("evaluation batches are sorted by length", "validation_iterator", "validation_data_loader")
    return train


def _convert_optimizer(given: ConfigTable) -> Tables:
    kinds = ("adam", "dense_sparse_adam", "adadelta", "sgd")
    name = check_choice(given.path_of("type"), given.take("type", str, "adam"), kinds)
    defaults: Mapping[str, Any] = {"adadelta": ADADELTA, "sgd": {}}.get(name, ADAM)
    optimizer = {"name": "adam" if name == "dense_sparse_adam" else name, **defaults}
    for theirs, ours in (("lr", "learning_rate"), ("rho", "rho"), ("eps", "epsilon"), ("momentum", "momentum")):
        if theirs in given.content:
            optimizer[ours] = given.take(theirs, float, 0.0)
    if "betas" in given.content:
        optimizer["betas"] = given.take("betas", list, [])
    return optimizer
