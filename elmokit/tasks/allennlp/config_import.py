"""Import AllenNLP's training configs for the tasks of elmokit (JSON, Jsonnet).

A config is converted to the tables of a TOML file. Values without a counterpart are listed at the top of the file, so
nothing is ignored silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from elmokit.config import check_choice, to_dict, to_toml
from elmokit.errors import ConfigError
from elmokit.tasks.allennlp.archived_configs import added_settings
from elmokit.tasks.allennlp.config_table import (
    DEFAULT_BATCH_SIZE,
    ConfigTable,
    Difference,
    read_config_file,
    to_json,
    unset_variable,
)
from elmokit.tasks.allennlp.model_configs import Counterpart, convert_model, counterpart_of, local_path, report_reader
from elmokit.tasks.allennlp.variants import ARCHIVED_TASKS
from elmokit.tasks.config_file import config_of
from elmokit.tasks.task_config import TaskDataConfig

Tables = dict[str, Any]
"""A config of elmokit, or a part of one, as plain values."""
TABLES = ("data", "words", "chars", "elmo", "model")
ELMO_SETTINGS = ("model", "trainable", "input", "output")
"""The settings of ELMo that AllenNLP's configs contain."""
DATA_PATHS = {"train_data_path": "train", "validation_data_path": "dev", "test_data_path": "test"}
MIX_WEIGHTS = ("scalar_parameters", ".*scalar_parameters.*")
"""Regular expressions of a ``regularizer`` that match only the mix weights."""
SEEDS = ("pytorch_seed", "random_seed", "numpy_seed")
OPTIMIZERS: dict[str, Tables] = {  # AllenNLP uses PyTorch's defaults
    "adam": {"learning_rate": 1e-3, "betas": [0.9, 0.999], "epsilon": 1e-8},
    "adadelta": {"learning_rate": 1.0, "rho": 0.9, "epsilon": 1e-6},
    "sgd": {},
}
OPTIMIZER_SETTINGS = {
    "lr": "learning_rate",
    "rho": "rho",
    "eps": "epsilon",
    "momentum": "momentum",
    "betas": "betas",
}
"""Our names of an optimizer's settings."""


def import_config(path: str | Path, variables: Mapping[str, str] | None = None) -> tuple[str, list[Difference]]:
    """Convert an AllenNLP training config to TOML.

    Args:
        path: A JSON or Jsonnet file.
        variables: Values of external variables in the file. Missing ones are reported.

    Returns:
        The text of a TOML file for ``elmokit task train``, and the differences that are listed at its top.

    Raises:
        ConfigError: The file is not an AllenNLP training config, or its model or a value has no counterpart.
    """
    tables, differences = convert_config(read_config_file(path, variables))
    config_of(tables, str(path))  # raises an error now if the result is not a valid config
    header = _header(Path(path).name, tables["task"], differences)
    return header + to_toml(tables), differences


def convert_config(content: Any) -> tuple[Tables, list[Difference]]:
    """Convert the tables of a training config. Returns our tables, and the differences."""
    top = ConfigTable(content)
    if "model" not in top.content:
        found = ", ".join(content) or "none"
        raise ConfigError(f"Expected a training config of AllenNLP, with a model; found the keys: {found}.")
    model, reader = top.table("model"), top.table("dataset_reader")
    counterpart = counterpart_of(model)
    paths = convert_data(top)
    config, _ = convert_model(counterpart, model, reader)
    tables = tables_of(counterpart.task, config)
    tables["data"] = paths | tables["data"]
    if model.content.pop("initializer", None):
        model.differs("initializer", f": here the initial weights are {counterpart.initial_weights}")
    convert_penalty(model, tables)
    report_reader(reader)
    top.drop("validation_dataset_reader")  # dev data is read like training data, but for SST only whole sentences
    tables["train"] = convert_training(top, tables.get("elmo", {}), counterpart)
    convert_counts(top, tables)
    top.report_unused()
    return tables, top.differences


def tables_of(task: str, config: Any) -> Tables:
    """Return a converted config as tables, without settings that AllenNLP's config does not determine.

    These are all training settings, most settings of ELMo and the data, and settings that only AllenNLP's models have,
    if they have the value of the task's own model.
    """
    content = to_dict(config)
    for name, added in added_settings(task).items():
        for key, default in to_builtins(added).items():
            if content[name] is not None and content[name][key] == default:
                del content[name][key]
    for field in fields(TaskDataConfig):
        del content["data"][field.name]
    tables: Tables = {"task": task}
    for name in TABLES:
        tables[name] = content[name]
    if content["elmo"] is None:
        del tables["elmo"]
    else:
        tables["elmo"] = {name: content["elmo"][name] for name in ELMO_SETTINGS}
    return tables


def _header(name: str, task: str, differences: list[Difference]) -> str:
    """Return the comment at the top of the TOML file."""
    readable = name.encode("utf-8", "replace").decode()  # file names can contain any bytes
    lines = [f"Imported from {readable} (AllenNLP), for the task {task}."]
    if differences:
        lines += ["", "Not supported here, or to be checked:"]
        lines += [f"  {line}" for line, _ in differences]
    comment = ""
    for line in lines:
        one_line = line.replace("\r", " ").replace("\n", " ")
        comment += f"# {one_line}".rstrip() + "\n"
    return comment + "\n"


def convert_counts(top: ConfigTable, tables: Tables) -> None:
    """Add the vocabulary's minimum counts to the tables of words and characters."""
    counts = top.table("vocabulary").table("min_count")
    if not counts.exists:
        return
    for name, theirs in (("words", "tokens"), ("chars", "token_characters")):
        if tables[name] is not None:
            tables[name]["min_count"] = counts.take(theirs, int, 1)


def convert_penalty(model: ConfigTable, tables: Tables) -> None:
    """Convert a ``regularizer`` of the mix weights. Others are reported."""
    penalty = 0.0
    for entry in _regularizer_entries(model.content.pop("regularizer", None)):
        alpha = _mix_penalty(entry, model.path_of("regularizer"))
        if alpha is None:
            model.differs("regularizer", f": {to_json(entry)}")
        else:
            penalty += alpha
    elmo = tables.get("elmo", {})
    for mix in (elmo.get("input"), elmo.get("output")):
        if isinstance(mix, dict):
            mix["penalty"] = penalty
    if penalty and not elmo:
        model.differs("regularizer", f": {penalty} on the mix weights, but there is no mix")


def _regularizer_entries(regularizer: Any) -> list[Any]:
    """Return the entries of a ``regularizer``, which is a list, or since version 1.0 a table with one."""
    if not regularizer:
        return []
    if isinstance(regularizer, dict):
        regularizer = regularizer.get("regexes") or [regularizer]
    return regularizer if isinstance(regularizer, list) else [regularizer]


def _mix_penalty(entry: Any, path: str) -> float | None:
    """Return the penalty in an entry of a ``regularizer``; None if the entry is not for the mix weights."""
    if not isinstance(entry, list) or len(entry) != 2:
        return None
    pattern, settings = entry
    if settings == "l2":
        settings = {"type": "l2"}
    if pattern not in MIX_WEIGHTS or not isinstance(settings, dict):
        return None
    if settings.get("type") != "l2" or not settings.keys() <= {"type", "alpha"}:
        return None
    return ConfigTable(settings, path).take("alpha", float, 0.01)  # AllenNLP's default


def convert_data(top: ConfigTable) -> Tables:
    """Convert the data paths to ``data``."""
    data: Tables = {}
    for theirs, ours in DATA_PATHS.items():
        variable = unset_variable(str(top.content.get(theirs)))
        if variable:
            top.drop(theirs)
            advice = f"pass --var {variable}=VALUE, or set data.{ours}"
            top.differs(theirs, f": the external variable {variable} has no value: {advice}")
            continue
        path = local_path(top, theirs, f"data.{ours}")
        if path:
            data[ours] = path
    top.unsupported("evaluate_on_test", "use elmokit task evaluate")
    return data


def convert_training(top: ConfigTable, elmo: Tables, counterpart: Counterpart) -> Tables:
    """Convert ``iterator`` or ``data_loader``, ``trainer`` and the seeds to ``train``.

    The learning rate of a trainable biLM is added to ``elmo``.
    """
    off = ("patience", "max_grad_norm", "clip_value", "plateau", "average", "step_decay", "eval_every")
    train: Tables = dict.fromkeys(off, False)
    train["l2"] = 0.0
    train |= convert_batches(top)
    trainer = top.table("trainer")
    if not trainer.exists:
        return train
    optimizer = trainer.table("optimizer")
    optimizer.unsupported("parameter_groups", "only the biLM can have its own learning rate, elmo.learning_rate")
    train["optimizer"] = _convert_optimizer(optimizer)
    if elmo.get("trainable"):
        # AllenNLP trains the biLM at the optimizer's learning rate unless it has its own parameter group.
        elmo["learning_rate"] = train["optimizer"].get("learning_rate", False)
    train["epochs"] = trainer.take("num_epochs", int, 20)
    train["patience"] = trainer.take("patience", int, False)
    train["max_grad_norm"] = trainer.take("grad_norm", float, False)
    train["clip_value"] = trainer.take("grad_clipping", float, False)
    # The device is chosen on the command line; the best model and the newest checkpoint are always kept.
    trainer.drop("cuda_device", "num_serialized_models_to_keep", "checkpointer")
    _convert_scheduler(trainer, train)
    average = trainer.table("moving_average")
    if average.exists:
        average.expect("type", "exponential")
        train["average"] = average.take("decay", float, 0.9999)
    _convert_metric(trainer, counterpart)
    for key in SEEDS:
        if "seeds" not in train and top.content.get(key) is not None:
            train["seeds"] = [top.take(key, int, 0)]
        top.drop(key)  # the first seed is used
    return train


def _convert_scheduler(trainer: ConfigTable, train: Tables) -> None:
    """Convert a learning rate schedule that waits for a plateau. Others are reported."""
    scheduler = trainer.table("learning_rate_scheduler")
    if scheduler.content.get("type") != "reduce_on_plateau":
        return
    scheduler.drop("type")
    scheduler.expect("mode", "max", "min")
    # The defaults are PyTorch's.
    factor = scheduler.take("factor", float, 0.1)
    patience = scheduler.take("patience", int, 10)
    train["plateau"] = {"factor": factor, "patience": patience}


def _convert_metric(trainer: ConfigTable, counterpart: Counterpart) -> None:
    """Report a validation metric that differs from ours, so it may select another epoch."""
    metric = ARCHIVED_TASKS[counterpart.task].metric
    if "validation_metric" not in trainer.content:
        trainer.differs("validation_metric", f": not given, so AllenNLP uses the loss; here {metric} is used")
    elif trainer.content["validation_metric"] == counterpart.metric:
        trainer.drop("validation_metric")
    else:
        trainer.unsupported("validation_metric", f"here {metric} selects the best epoch")


def convert_batches(top: ConfigTable) -> Tables:
    """Convert the ``iterator`` of AllenNLP before version 1.0, or the ``data_loader`` of later versions."""
    train: Tables = {}
    iterator, loader = top.table("iterator"), top.table("data_loader")
    sampler = loader.table("batch_sampler")
    for batches in (iterator, sampler, loader):
        if batches.exists:
            kind = batches.content.get("type", "basic")
            if kind in ("basic", "bucket"):
                batches.drop("type")
            train["bucketed"] = kind == "bucket"
            train["batch_size"] = batches.take("batch_size", int, DEFAULT_BATCH_SIZE)
            batches.drop("sorting_keys")  # batches are sorted by the longest sentence
            batches.expect("padding_noise", 0.1)
            batches.expect("shuffle", True)
            break
    loader.expect("shuffle", True)
    top.drop("validation_iterator", "validation_data_loader")  # evaluation batches are sorted by length
    return train


def _convert_optimizer(table: ConfigTable) -> Tables:
    kind = table.take("type", str, "adam")
    if kind == "dense_sparse_adam":
        kind = "adam"
    name = check_choice(table.path_of("type"), kind, OPTIMIZERS)
    optimizer = {"name": name, **OPTIMIZERS[name]}
    for theirs, ours in OPTIMIZER_SETTINGS.items():
        if table.content.get(theirs) is not None:
            optimizer[ours] = table.take(theirs, list if theirs == "betas" else float, None)
    return optimizer
