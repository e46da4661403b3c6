"""Import AllenNLP's training configs of the six tasks (JSON, Jsonnet).

The config is converted to the tables of a TOML file. Values without a counterpart are listed at the head of the file,
so that nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elmokit.config import check_choice, to_toml
from elmokit.errors import ConfigError
from elmokit.tasks.allennlp.config_table import ConfigTable, Difference, Row, read_config_file, to_json, unset_variable
from elmokit.tasks.allennlp.model_tables import (
    Counterpart,
    Tables,
    convert_model,
    counterpart_of,
    local_path,
    needless,
    report_reader,
)
from elmokit.tasks.allennlp.variants import ARCHIVED_TASKS
from elmokit.tasks.config_file import config_of

TABLE_ORDER = ("task", "data", "words", "chars", "elmo", "model", "train")
DATA_PATHS = {"train_data_path": "train", "validation_data_path": "dev", "test_data_path": "test"}
SEEDS = ("pytorch_seed", "random_seed", "numpy_seed")
MIX_WEIGHTS = ("scalar_parameters", ".*scalar_parameters.*")
"""The patterns by which AllenNLP's configs name the weights of mixes."""
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
    """Convert a training config of AllenNLP to TOML.

    Args:
        path: A JSON or Jsonnet file.
        variables: Values of the external variables that the file uses. Missing ones are reported.

    Returns:
        The text for a TOML file that ``elmokit task train`` reads, and the differences that are listed at its head.
    """
    tables, differences = convert_config(read_config_file(path, variables))
    config_of(tables, str(path))  # raises an error now if the result is not a valid config
    ordered = {name: tables[name] for name in TABLE_ORDER if name in tables}
    return _header(Path(path).name, tables["task"], differences) + to_toml(ordered), differences


def convert_config(content: Any) -> tuple[Tables, list[Difference]]:
    """Convert the tables of a training config. Returns ours, and what differs."""
    top = ConfigTable(content)
    if "model" not in top.content:
        found = ", ".join(content) or "none"
        raise ConfigError(f"Expected a training config of AllenNLP, which has a model; found the keys: {found}.")
    model, reader = top.table("model"), top.table("dataset_reader")
    counterpart = counterpart_of(model)
    data = convert_data(top)
    tables = convert_model(counterpart, model, reader)
    tables["data"] = data | tables["data"]
    _report_initializers(model, counterpart)
    convert_penalty(model, tables)
    report_reader(reader)
    top.drop("validation_dataset_reader")  # dev data is read like training data, for SST as whole sentences
    metric = ARCHIVED_TASKS[counterpart.task].metric
    tables["train"] = convert_training(top, tables.get("elmo", {}), metric, counterpart.metrics)
    convert_counts(top, tables)
    top.report_unused()
    return tables, top.differences


def _header(name: str, task: str, differences: Sequence[Difference]) -> str:
    """Return the comment at the head of the TOML file."""
    readable = name.encode("utf-8", "replace").decode()  # the name of a file can be any bytes
    lines = [f"Imported from {readable} (AllenNLP), for the task {task}."]
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


def convert_penalty(model: ConfigTable, tables: Tables) -> None:
    """Convert a ``regularizer`` of the mix weights. Others are reported."""
    penalty = 0.0
    given = model.content.pop("regularizer", None)
    for entry, pattern, settings in _patterns(given.get("regexes") if isinstance(given, dict) else given):
        is_l2 = isinstance(settings, dict) and settings.get("type") == "l2" and set(settings) <= {"type", "alpha"}
        if is_l2 and pattern in MIX_WEIGHTS:
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
    optimizer.unsupported("parameter_groups", "only the biLM can have its own learning rate, elmo.learning_rate")
    train["optimizer"] = _convert_optimizer(optimizer)
    if elmo.get("trainable"):
        # AllenNLP trains the biLM at the optimizer's learning rate unless it has a group of its own.
        elmo["learning_rate"] = train["optimizer"].get("learning_rate", False)
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
