"""Import AllenNLP's training configs of the six tasks (JSON, Jsonnet), or fragments of them.

The config is converted to the tables of a TOML file. Values without a counterpart are listed at the head of the file,
so that nothing is dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elmokit.config import check_choice, did_you_mean, to_toml
from elmokit.errors import ConfigError
from elmokit.tasks.allennlp.config_table import ConfigTable, Difference, Row, read_config_file, to_json, unset_variable
from elmokit.tasks.allennlp.model_tables import (
    ALTERNATING,
    COUNTERPARTS,
    INSTEAD,
    Counterpart,
    Tables,
    convert_embedders,
    local_path,
    needless,
)
from elmokit.tasks.task_table import TASKS, config_of

TABLE_ORDER = ("task", "data", "words", "chars", "elmo", "model", "train")
DATA_PATHS = {"train_data_path": "train", "validation_data_path": "dev", "test_data_path": "test"}
SEEDS = ("pytorch_seed", "random_seed", "numpy_seed")
BESIDE_MODEL = {"dataset_reader", "vocabulary", "trainer", "iterator", "data_loader", *DATA_PATHS, *SEEDS}
"""What a fragment can have, alone or in one table with embedders."""
READERS = {"conll2003", "sst_tokens", "snli", "srl", "coref", "squad"}
MIX_WEIGHT = "text_field_embedder.token_embedder_elmo._elmo.scalar_mix_0.scalar_parameters.0"
OTHER_WEIGHTS = ("text_field_embedder.token_embedder_elmo._elmo.scalar_mix_0.gamma", "encoder._module.weight_ih_l0")
BILM_WEIGHTS = (
    "text_field_embedder.token_embedder_elmo._elmo._elmo_lstm._token_embedder._char_embedding_weights",
    "text_field_embedder.token_embedder_elmo._elmo._elmo_lstm._elmo_lstm.forward_layer_0.input_linearity.weight",
)
TASK_WEIGHTS = ("text_field_embedder.token_embedder_tokens.weight", "encoder._module.weight_ih_l0")
OPTIMIZERS: dict[str, Tables] = {  # with PyTorch's defaults, which AllenNLP uses
    "adam": {"learning_rate": 1e-3, "betas": [0.9, 0.999], "epsilon": 1e-8},
    "adadelta": {"learning_rate": 1.0, "rho": 0.9, "epsilon": 1e-6},
    "sgd": {},
}
TRAINER = (
    Row("num_epochs", "epochs", int, 20),
    Row("patience", "patience", int, False),
    Row("grad_norm", "max_grad_norm", float, False),
    Row("grad_clipping", "clip_value", float, False),
    # The device is chosen on the command line; the best model and the newest checkpoint are kept.
    *needless("cuda_device", "num_serialized_models_to_keep", "checkpointer"),
)
PLATEAU = (Row("factor", "factor", float, 0.1), Row("patience", "patience", int, 10))  # PyTorch's defaults
OPTIMIZER = (
    Row("lr", "learning_rate", float, rule="given"),
    Row("rho", "rho", float, rule="given"),
    Row("eps", "epsilon", float, rule="given"),
    Row("momentum", "momentum", float, rule="given"),
    Row("betas", "betas", list, rule="given"),
)


def import_config(path: str | Path, variables: Mapping[str, str] | None = None) -> tuple[str, list[Difference]]:
    """Convert an AllenNLP config, or a fragment of one, to TOML.

    Args:
        path: A JSON or Jsonnet file.
        variables: Values of the external variables that the file uses. Missing ones are reported.

    Returns:
        The text for a TOML file that ``elmokit task train`` reads, and the differences that are listed at its head.
    """
    content = read_config_file(path, variables)
    tables, differences = convert_config(content, isinstance(content, dict) and _is_fragment(content))
    if "task" in tables:
        config_of(tables, str(path))  # raises an error now if the result is not a valid config
    elif tables.get("elmo", {}).get("trainable") and "learning_rate" not in tables["elmo"]:
        line = (
            "requires_grad: AllenNLP trains the biLM at the optimizer's learning rate, elmokit at a hundredth of it by "
            "default (elmo.learning_rate)"
        )
        differences.append(Difference(line, "training"))
    ordered = {name: tables[name] for name in TABLE_ORDER if name in tables}
    return _header(Path(path).name, tables, differences) + to_toml(ordered), differences


def convert_config(content: Any, is_fragment: bool = False) -> tuple[Tables, list[Difference]]:
    """Convert the tables of a config, or of a fragment of one. Returns ours, and what differs."""
    top = ConfigTable(_completed(content) if is_fragment else content)
    model, reader = top.table("model"), top.table("dataset_reader")
    counterpart = _counterpart(model, is_fragment)
    tables: Tables = {"data": convert_data(top), "model": {}}
    tables |= convert_embedders(model, reader, is_fragment)
    metric, their_metrics = "the task's metric", [name for one in COUNTERPARTS.values() for name in one.metrics]
    if counterpart is not None:
        has_mark = "binary_feature_dim" in model.content
        tables["model"] |= counterpart.constants
        model.convert(counterpart.rows, tables["model"])
        if counterpart.convert is not None:
            counterpart.convert(model, reader, tables)
        reader.convert(counterpart.reader_rows, tables["model"])
        _report_initializers(model, counterpart)
        if is_fragment and not has_mark:
            del tables["model"]["predicate_dim"]
        else:
            metric, their_metrics = TASKS[counterpart.task].metric, list(counterpart.metrics)
    if not is_fragment or "regularizer" in model.content:
        convert_penalty(model, tables)
    _report_reader(reader)
    top.drop("validation_dataset_reader")  # dev data is read like training data, for SST as whole sentences
    if is_fragment and "trainer" not in top.content:
        tables["train"] = convert_batches(top)
    else:
        tables["train"] = convert_training(top, tables.get("elmo", {}), metric, their_metrics)
    convert_counts(top, tables)
    top.report_unused()
    if is_fragment:
        return {name: table for name, table in tables.items() if table}, top.differences
    assert counterpart is not None
    return {"task": counterpart.task, **tables}, top.differences


def _counterpart(model: ConfigTable, is_fragment: bool) -> Counterpart | None:
    """Return the counterpart of a model; in a fragment, that of the encoder of ``srl``, which few others have."""
    if is_fragment:
        encoder = model.content.get("encoder")
        is_srl = isinstance(encoder, dict) and encoder.get("type") in ALTERNATING
        return COUNTERPARTS["srl"] if is_srl else None
    kind = model.take("type", str, "")
    if kind not in COUNTERPARTS:
        raise ConfigError(
            f"model.type is {kind!r}, expected one of: {', '.join(COUNTERPARTS)}."
            f"{f' {INSTEAD[kind]}' if kind in INSTEAD else did_you_mean(kind, COUNTERPARTS)}"
        )
    return COUNTERPARTS[kind]


def _is_fragment(content: Mapping[str, Any]) -> bool:
    model = content.get("model", {})
    return "model" not in content or (isinstance(model, dict) and "type" not in model and "trainer" not in content)


def _completed(content: dict[str, Any]) -> dict[str, Any]:
    """Return a fragment with the tables around it that a config has.

    It can be a text field embedder, its token embedders, one of these, the indexers with the same names, the trainer
    with its batches, or the encoder of ``srl``.
    """
    if content.get("type") == "elmo_token_embedder":
        return {"model": {"text_field_embedder": {"token_embedders": {"elmo": content}}}}
    if content.get("type") in ALTERNATING:
        return {"model": {"encoder": content}}
    if "model" in content:
        return content
    whole = {key: value for key, value in content.items() if key in BESIDE_MODEL}
    model = {key: value for key, value in content.items() if key not in BESIDE_MODEL}
    if "token_indexers" in model:
        whole.setdefault("dataset_reader", {})["token_indexers"] = model.pop("token_indexers")
    kinds = [str(value.get("type", "")) for value in model.values() if isinstance(value, dict)]
    if "token_embedders" in model or "elmo_token_embedder" in kinds or "embedding" in kinds:
        model = {"text_field_embedder": model}
    has_encoder = any(kind in ALTERNATING for kind in kinds)
    if not (whole or has_encoder or "text_field_embedder" in model):
        raise ConfigError(
            "Expected a training config of AllenNLP with a model, or a fragment with a text_field_embedder, "
            "token_embedders, token_indexers, trainer or the encoder of srl; found the keys: "
            f"{', '.join(content) or 'none'}."
        )
    return {**whole, "model": model}


def _header(name: str, tables: Tables, differences: Sequence[Difference]) -> str:
    """Return the comment at the head of the TOML file."""
    owner = "a config of the task srl" if "model" in tables else "a task's config"
    kind = f"for the task {tables['task']}" if "task" in tables else f"a fragment: copy its tables to {owner}"
    readable = name.encode("utf-8", "replace").decode()  # the name of a file can be any bytes
    lines = [f"Imported from {readable} (AllenNLP), {kind}."]
    if differences:
        lines += ["", "Not supported here, or to be checked:", *(f"  {line}" for line, _ in differences)]
    clean = (line.replace("\r", " ").replace("\n", " ") for line in lines)
    return "".join(f"# {line}".rstrip() + "\n" for line in clean) + "\n"


def convert_counts(top: ConfigTable, tables: Tables) -> None:
    """Add the minimum counts of a vocabulary to the tables of words and characters."""
    counts = top.table("vocabulary").table("min_count")
    for name, theirs in (("words", "tokens"), ("chars", "token_characters")):
        if counts.exists and isinstance(tables[name], dict):
            tables[name]["min_count"] = counts.take(theirs, int, 1)


def _report_reader(reader: ConfigTable) -> None:
    kind = reader.take("type", str, "")
    if kind and kind not in READERS:
        reader.differs("type", f" = {to_json(kind)}: see docs/reference/tasks.md for the formats that are read here")
    reader.drop("lazy")


def convert_penalty(model: ConfigTable, tables: Tables) -> None:
    """Convert a ``regularizer`` of the mix weights. Others are reported."""
    penalty = 0.0
    given = model.content.pop("regularizer", None)
    for entry, pattern, settings in _patterns(given.get("regexes") if isinstance(given, dict) else given):
        is_l2 = isinstance(settings, dict) and settings.get("type") == "l2" and set(settings) <= {"type", "alpha"}
        if is_l2 and _matches(pattern, MIX_WEIGHT) and not any(_matches(pattern, name) for name in OTHER_WEIGHTS):
            penalty += ConfigTable(settings, model.path_of("regularizer")).take("alpha", float, 0.01)
        else:
            model.differs("regularizer", f": {to_json(entry)}")
    elmo = tables.get("elmo", {})
    for mix in (elmo.get("input"), elmo.get("output")):
        if isinstance(mix, dict):
            mix["penalty"] = penalty
    if penalty and not elmo:
        model.differs("regularizer", f": {penalty} on the mix weights, but there is no mix")


def _report_initializers(model: ConfigTable, counterpart: Counterpart) -> None:
    """Remove an ``initializer`` and report each entry that does not match how weights are initialized here."""
    given = model.content.pop("initializer", None)
    table = model.add_table(given if isinstance(given, dict) else {"regexes": given}, "initializer")
    ours = [(pattern, {"type": name}) for pattern, name in counterpart.initializers]
    for entry, pattern, settings in _patterns(table.content.pop("regexes", None)):
        if (pattern, settings) not in ours:
            how = f"here weights are initialized {counterpart.initial_weights}"
            model.differs("initializer", f": {to_json(entry)}: {how}")


def _patterns(entries: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Return each entry with its pattern and settings, which are None if it is not a pair."""
    for entry in entries if isinstance(entries, list) else [entries] if entries else []:
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
    for theirs, ours in DATA_PATHS.items():
        if variable := unset_variable(str(top.content.get(theirs))):
            top.drop(theirs)
            advice = f"give it with --var {variable}=VALUE, or set data.{ours}"
            top.differs(theirs, f": the external variable {variable} has no value: {advice}")
        elif path := local_path(top, theirs, f"data.{ours}"):
            data[ours] = path
    top.unsupported("evaluate_on_test", "use elmokit task evaluate")
    return data


def _group_learning_rate(optimizer: ConfigTable) -> float | None:
    """Take the ``parameter_groups`` of an optimizer, and return the learning rate that they give to the biLM."""
    bilm_rate = None
    for group, patterns, settings in _patterns(optimizer.content.pop("parameter_groups", None)):

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
    rate = _group_learning_rate(optimizer) if elmo.get("trainable") else None
    train["optimizer"] = _convert_optimizer(optimizer)
    if elmo.get("trainable"):
        # AllenNLP trains the biLM at the optimizer's learning rate unless it has a group of its own.
        elmo["learning_rate"] = rate or train["optimizer"].get("learning_rate", False)
    trainer.convert(TRAINER, train)
    scheduler = trainer.table("learning_rate_scheduler")
    if scheduler.content.get("type") == "reduce_on_plateau":
        scheduler.drop("type")
        scheduler.expect("mode", "max", "min")
        train["plateau"] = {}
        scheduler.convert(PLATEAU, train["plateau"])
    average = trainer.table("moving_average")
    if average.exists:
        average.expect("type", "exponential")
        train["average"] = average.take("decay", float, 0.9999)
    if "validation_metric" not in trainer.content:
        trainer.differs("validation_metric", f": not given, so that AllenNLP uses the loss; here {metric} is used")
    elif trainer.content["validation_metric"] in list(their_metrics):
        trainer.drop("validation_metric")
    trainer.unsupported("validation_metric", f"here {metric} selects the best epoch")
    for key in SEEDS:
        if "seeds" not in train and top.content.get(key) is not None:
            train["seeds"] = [top.take(key, int, 0)]
        top.drop(key)  # there is one seed
    return train


def convert_batches(top: ConfigTable) -> Tables:
    """Convert the iterator of AllenNLP before version 1, or the data loader of later versions."""
    train: Tables = {}
    iterator, loader = top.table("iterator"), top.table("data_loader")
    sampler = loader.table("batch_sampler")
    given = next((table for table in (iterator, sampler, loader) if table.exists), None)
    if given is not None:
        kind = given.content.get("type", "basic")
        if kind in ("basic", "bucket"):
            given.drop("type")
        train["bucketed"] = kind == "bucket"
        train["batch_size"] = given.take("batch_size", int, 32)  # AllenNLP's default
        given.drop("sorting_keys")  # batches are sorted by the longest sentence
        given.expect("padding_noise", 0.1)
        given.expect("shuffle", True)
    loader.expect("shuffle", True)
    top.drop("validation_iterator", "validation_data_loader")  # evaluation batches are sorted by length
    return train


def _convert_optimizer(given: ConfigTable) -> Tables:
    kind = given.take("type", str, "adam")
    name = check_choice(given.path_of("type"), "adam" if kind == "dense_sparse_adam" else kind, OPTIMIZERS)
    optimizer = {"name": name, **OPTIMIZERS[name]}
    given.convert(OPTIMIZER, optimizer)
    return optimizer
