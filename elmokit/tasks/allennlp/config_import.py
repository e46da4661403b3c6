"""Import AllenNLP's training configs of the six tasks (JSON, Jsonnet), or fragments of them.

The config is converted to the tables of a TOML file. Values without a counterpart are listed at the head of the file,
so that nothing is dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elmokit.config import check_choice, did_you_mean, to_toml
from elmokit.errors import ConfigError
from elmokit.tasks.allennlp.config_table import (
    ConfigTable,
    Difference,
    ImportReport,
    Row,
    read_config_file,
    to_json,
    unset_variable,
)
from elmokit.tasks.allennlp.model_tables import (
    ALTERNATING,
    COUNTERPARTS,
    INSTEAD,
    Tables,
    convert_elmo,
    convert_embedders,
    convert_srl,
    local_path,
    needless,
)
from elmokit.tasks.task_table import TASKS, config_of

TABLE_ORDER = ("task", "data", "words", "chars", "elmo", "model", "train")
BESIDE_EMBEDDERS = {"token_indexers", "vocabulary", "trainer", "iterator", "data_loader", "train_data_path"}
"""What a fragment can have, alone or in one table with embedders."""
READERS = {"conll2003", "sst_tokens", "snli", "srl", "coref", "squad"}
MIX_WEIGHT = "text_field_embedder.token_embedder_elmo._elmo.scalar_mix_0.scalar_parameters.0"
OTHER_WEIGHTS = ("text_field_embedder.token_embedder_elmo._elmo.scalar_mix_0.gamma", "encoder._module.weight_ih_l0")
BILM_WEIGHTS = (
    "text_field_embedder.token_embedder_elmo._elmo._elmo_lstm._token_embedder._char_embedding_weights",
    "text_field_embedder.token_embedder_elmo._elmo._elmo_lstm._elmo_lstm.forward_layer_0.input_linearity.weight",
)
TASK_WEIGHTS = ("text_field_embedder.token_embedder_tokens.weight", "encoder._module.weight_ih_l0")
ADADELTA = {"learning_rate": 1.0, "rho": 0.9, "epsilon": 1e-6}  # PyTorch's defaults, which AllenNLP uses
ADAM = {"learning_rate": 1e-3, "betas": [0.9, 0.999], "epsilon": 1e-8}
TRAINER = (
    Row("num_epochs", "epochs", int, 20),
    Row("patience", "patience", int, False, "take unless null"),
    Row("grad_norm", "max_grad_norm", float, False, "take unless null"),
    Row("grad_clipping", "clip_value", float, False, "take unless null"),
)
PLATEAU = (Row("factor", "factor", float, 0.1), Row("patience", "patience", int, 10))  # PyTorch's defaults
TRAINER_NEEDLESS = (
    *needless("chosen on the command line: --device cuda", "cuda_device"),
    *needless("the best model and the newest checkpoint are kept", "num_serialized_models_to_keep", "checkpointer"),
)
OPTIMIZER = (
    Row("lr", "learning_rate", float),
    Row("rho", "rho", float),
    Row("eps", "epsilon", float),
    Row("momentum", "momentum", float),
    Row("betas", "betas", list),
)


def import_config(path: str | Path, variables: Mapping[str, str] | None = None) -> tuple[str, ImportReport]:
    """Convert an AllenNLP config, or a fragment of one, to TOML.

    Args:
        path: A JSON or Jsonnet file.
        variables: Values of the external variables that the file uses. Missing ones are reported.

    Returns:
        The text for a TOML file that ``elmokit task train`` reads, and the report that is at its head.
    """
    report = ImportReport()
    top = ConfigTable(read_config_file(path, variables), "", report)
    tables = _convert_fragment(top) if _is_fragment(top.content) else convert_config(top)
    top.report_unused()
    if "task" in tables:
        config_of(tables, str(path))  # raises an error now if the result is not a valid config
    elif tables.get("elmo", {}).get("trainable") and "learning_rate" not in tables["elmo"]:
        line = (
            "requires_grad: AllenNLP trains the biLM at the optimizer's learning rate, elmokit at a hundredth of it by "
            "default (elmo.learning_rate)"
        )
        report.differences.append(Difference(line, "training"))
    ordered = {name: tables[name] for name in TABLE_ORDER if name in tables}
    return _header(Path(path).name, tables, report) + to_toml(ordered), report


def _is_fragment(content: Mapping[str, Any]) -> bool:
    model = content.get("model", {})
    return "model" not in content or (isinstance(model, dict) and "type" not in model and "trainer" not in content)


def _convert_fragment(top: ConfigTable) -> Tables:
    """Convert a part of a config.

    It can be a text field embedder, its token embedders, one of these, the indexers with the same names, the trainer
    with its batches, or the encoder of ``srl``, which other models rarely have. The first and the last can be in a
    ``model`` without a type.
    """
    if top.content.get("type") == "elmo_token_embedder":
        top.content.pop("type")
        return {"elmo": convert_elmo(top)}
    if top.content.get("type") in ALTERNATING:
        content, top.content = top.content, {}
        top = top.add_table({"encoder": content}, "")
    whole, reader = top, top.table("dataset_reader")
    if "model" in top.content:
        top = top.table("model")
    srl = _convert_srl_fragment(top, reader)
    indexers = reader if reader.exists else top
    is_embedders = "token_embedders" in top.content or any(
        isinstance(value, dict) and str(value.get("type", "")) in ("elmo_token_embedder", "embedding")
        for value in top.content.values()
    )
    if "text_field_embedder" in top.content:
        model = top
    elif is_embedders:
        names = [key for key in top.content if key not in BESIDE_EMBEDDERS]
        model = top.add_table({"text_field_embedder": {key: top.content.pop(key) for key in names}}, "")
    elif reader.exists or srl or not BESIDE_EMBEDDERS.isdisjoint(top.content):
        model = top.add_table({}, "")
    else:
        raise ConfigError(
            "Expected a training config of AllenNLP with a model, or a fragment with a text_field_embedder, "
            "token_embedders, token_indexers, trainer or the encoder of srl; found the keys: "
            f"{', '.join(top.content) or 'none'}."
        )
    tables = convert_embedders(model, indexers, is_fragment=True) | srl
    if "regularizer" in model.content:
        convert_penalty(model, tables)
    explain_reader(reader)
    convert_counts(whole, tables)
    tables["data"] = convert_data(whole)
    if "trainer" in whole.content:
        metrics = [metric for counterpart in COUNTERPARTS.values() for metric in counterpart.metrics]
        tables["train"] = convert_training(whole, tables.get("elmo", {}), "the task's metric", metrics)
    else:
        tables["train"] = convert_batches(whole)
    return {name: table for name, table in tables.items() if table}


def _convert_srl_fragment(top: ConfigTable, reader: ConfigTable) -> Tables:
    """Convert what a fragment contains of the model ``srl``. Return nothing if its encoder can be of other models."""
    encoder = top.content.get("encoder")
    if not isinstance(encoder, dict) or encoder.get("type") not in ALTERNATING:
        return {}
    has_mark = "binary_feature_dim" in top.content
    tables: Tables = {"model": {}}
    convert_srl(top, reader, tables)
    if not has_mark:
        del tables["model"]["predicate_dim"]
    explain_initializers(top, COUNTERPARTS["srl"].initializers, COUNTERPARTS["srl"].initial_weights)
    return tables


def _header(name: str, tables: Tables, report: ImportReport) -> str:
    """Return the comment at the head of the TOML file."""
    owner = "a config of the task srl" if "model" in tables else "a task's config"
    kind = f"for the task {tables['task']}" if "task" in tables else f"a fragment: copy its tables to {owner}"
    readable = name.encode("utf-8", "replace").decode()  # the name of a file can be any bytes
    lines = [f"Imported from {readable} (AllenNLP), {kind}."]
    for title, entries in (
        ("Not supported here, or to be checked:", report.unsupported),
        ("Not needed here:", report.redundant),
    ):
        if entries:
            lines += ["", title, *(f"  {entry}" for entry in entries)]
    clean = (line.replace("\r", " ").replace("\n", " ") for line in lines)
    return "".join(f"# {line}".rstrip() + "\n" for line in clean) + "\n"


def convert_config(top: ConfigTable) -> Tables:
    """Convert the tables of a config."""
    model, reader = top.table("model"), top.table("dataset_reader")
    kind = model.take("type", str, "")
    if kind not in COUNTERPARTS:
        raise ConfigError(
            f"model.type is {kind!r}, expected one of: {', '.join(COUNTERPARTS)}. "
            f"{INSTEAD.get(kind) or did_you_mean(kind, COUNTERPARTS)}"
        )
    counterpart = COUNTERPARTS[kind]
    tables: Tables = {"task": counterpart.task, "data": convert_data(top), "model": {}}
    tables |= convert_embedders(model, reader)
    counterpart.convert(model, reader, tables)
    convert_penalty(model, tables)
    explain_initializers(model, counterpart.initializers, counterpart.initial_weights)
    explain_reader(reader)
    top.redundant("dev data is read like training data, for SST as whole sentences", "validation_dataset_reader")
    tables["train"] = convert_training(top, tables.get("elmo", {}), TASKS[counterpart.task].metric, counterpart.metrics)
    convert_counts(top, tables)
    return tables


def convert_counts(top: ConfigTable, tables: Tables) -> None:
    """Add the minimum counts of a vocabulary to the tables of words and characters."""
    counts = top.table("vocabulary").table("min_count")
    for name, theirs in (("words", "tokens"), ("chars", "token_characters")):
        if counts.exists and isinstance(tables[name], dict):
            tables[name]["min_count"] = counts.take(theirs, int, 1)


def explain_reader(reader: ConfigTable) -> None:
    kind = reader.take("type", str, "")
    if reader.exists and kind not in READERS:
        reader.differs("type", f" = {to_json(kind)}: see docs/reference/tasks.md for the formats that are read here")
    reader.redundant("examples are read once", "lazy")


def convert_penalty(model: ConfigTable, tables: Tables) -> None:
    """Convert a regularizer of the mix weights."""
    penalty, elmo = mix_penalty(model), tables.get("elmo", {})
    for mix in (elmo.get("input"), elmo.get("output")):
        if isinstance(mix, dict):
            mix["penalty"] = penalty
    if penalty and not elmo:
        model.differs("regularizer", f": {penalty} on the mix weights, but there is no mix")


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
        if any(pattern == known and settings == {"type": name} for known, name in ours):
            model.report.redundant.append(f"{path}: {to_json(entry)}: always the case here")
        else:
            model.differs("initializer", f": {to_json(entry)}: here weights are initialized {initial_weights}")


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
            data[ours] = local_path(top, theirs, f"data.{ours}")
    top.unsupported("use elmokit task evaluate", "evaluate_on_test")
    return data


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
    trainer.convert(TRAINER, train)
    scheduler = trainer.table("learning_rate_scheduler")
    if scheduler.content.get("type") == "reduce_on_plateau":
        scheduler.content.pop("type")
        scheduler.expect("mode", "max", "min")
        train["plateau"] = {}
        scheduler.convert(PLATEAU, train["plateau"])
    average = trainer.table("moving_average")
    if average.exists:
        average.expect("type", "exponential")
        train["average"] = average.take("decay", float, 0.9999)
    if trainer.content.get("validation_metric") in list(their_metrics):
        trainer.redundant(f"{metric} selects the best epoch", "validation_metric")
    elif "validation_metric" not in trainer.content:
        trainer.differs("validation_metric", f": not given, so that AllenNLP uses the loss; here {metric} is used")
    trainer.unsupported(f"here {metric} selects the best epoch", "validation_metric")
    trainer.convert(TRAINER_NEEDLESS, train)
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
    given.convert([row for row in OPTIMIZER if row.theirs in given.content], optimizer)
    return optimizer
