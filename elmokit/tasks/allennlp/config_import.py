"""Import AllenNLP's training configs of the six tasks (JSON, Jsonnet).

The config is converted to the tables of a TOML file. Values without a counterpart are listed at the head of the file,
so that nothing is dropped silently.
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
from elmokit.tasks.allennlp.config_table import ConfigTable, Difference, read_config_file, to_json, unset_variable
from elmokit.tasks.allennlp.model_configs import Counterpart, convert_model, counterpart_of, local_path, report_reader
from elmokit.tasks.allennlp.variants import ARCHIVED_TASKS
from elmokit.tasks.config_file import config_of
from elmokit.tasks.task_config import TaskDataConfig

Tables = dict[str, Any]
"""A config of ours, or a part of one, as plain values."""
TABLES = ("data", "words", "chars", "elmo", "model")
ELMO_SETTINGS = ("model", "trainable", "input", "output")
"""What AllenNLP's configs say of ELMo."""
DATA_PATHS = {"train_data_path": "train", "validation_data_path": "dev", "test_data_path": "test"}
SEEDS = ("pytorch_seed", "random_seed", "numpy_seed")
OPTIMIZERS: dict[str, Tables] = {  # with PyTorch's defaults, which AllenNLP uses
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
    """Convert a training config of AllenNLP to TOML.

    Args:
        path: A JSON or Jsonnet file.
        variables: Values of the external variables that the file uses. Missing ones are reported.

    Returns:
        The text for a TOML file that ``elmokit task train`` reads, and the differences that are listed at its head.
    """
    tables, differences = convert_config(read_config_file(path, variables))
    config_of(tables, str(path))  # raises an error now if the result is not a valid config
    return _header(Path(path).name, tables["task"], differences) + to_toml(tables), differences


def convert_config(content: Any) -> tuple[Tables, list[Difference]]:
    """Convert the tables of a training config. Returns ours, and what differs."""
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
    top.drop("validation_dataset_reader")  # dev data is read like training data, for SST as whole sentences
    tables["train"] = convert_training(top, tables.get("elmo", {}), counterpart)
    convert_counts(top, tables)
    top.report_unused()
    return tables, top.differences


def tables_of(task: str, config: Any) -> Tables:
    """Return the tables of a config without its training, and of ELMo and the data only what AllenNLP's config says.

    A setting that only models of AllenNLP have is left out where it is as in the task's own model.
    """
    content = to_dict(config)
    for name, added in added_settings(task).items():
        for key, default in to_builtins(added).items():
            if content[name] is not None and content[name][key] == default:
                del content[name][key]
    for field in fields(TaskDataConfig):
        del content["data"][field.name]
    tables = {"task": task, **{name: content[name] for name in TABLES}}
    if tables["elmo"] is None:
        del tables["elmo"]
    else:
        tables["elmo"] = {name: tables["elmo"][name] for name in ELMO_SETTINGS}
    return tables


def _header(name: str, task: str, differences: list[Difference]) -> str:
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
        if counts.exists and tables[name] is not None:
            tables[name]["min_count"] = counts.take(theirs, int, 1)


def convert_penalty(model: ConfigTable, tables: Tables) -> None:
    """Convert a ``regularizer`` of the mix weights. Others are reported."""
    penalty = 0.0
    given = model.content.pop("regularizer", None) or []
    if isinstance(given, dict):
        given = given.get("regexes") or [given]
    for entry in given if isinstance(given, list) else [given]:
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


def _mix_penalty(entry: Any, path: str) -> float | None:
    """Return the penalty of an entry of a ``regularizer``; None if it is not one of the mix weights."""
    match entry:
        case [("scalar_parameters" | ".*scalar_parameters.*"), {"type": "l2", **rest}] if set(rest) <= {"alpha"}:
            return ConfigTable(rest, path).take("alpha", float, 0.01)
        case [("scalar_parameters" | ".*scalar_parameters.*"), "l2"]:
            return 0.01  # AllenNLP's default
    return None


def convert_data(top: ConfigTable) -> Tables:
    """Convert the paths of the data to ``data``."""
    data: Tables = {}
    for theirs, ours in DATA_PATHS.items():
        if variable := unset_variable(str(top.content.get(theirs))):
            top.drop(theirs)
            advice = f"pass --var {variable}=VALUE, or set data.{ours}"
            top.differs(theirs, f": the external variable {variable} has no value: {advice}")
        elif path := local_path(top, theirs, f"data.{ours}"):
            data[ours] = path
    top.unsupported("evaluate_on_test", "use elmokit task evaluate")
    return data


def convert_training(top: ConfigTable, elmo: Tables, counterpart: Counterpart) -> Tables:
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
    train["epochs"] = trainer.take("num_epochs", int, 20)
    train["patience"] = trainer.take("patience", int, False)
    train["max_grad_norm"] = trainer.take("grad_norm", float, False)
    train["clip_value"] = trainer.take("grad_clipping", float, False)
    # The device is chosen on the command line; the best model and the newest checkpoint are kept.
    trainer.drop("cuda_device", "num_serialized_models_to_keep", "checkpointer")
    scheduler = trainer.table("learning_rate_scheduler")
    if scheduler.content.get("type") == "reduce_on_plateau":
        scheduler.drop("type")
        scheduler.expect("mode", "max", "min")
        # PyTorch's defaults.
        train["plateau"] = {
            "factor": scheduler.take("factor", float, 0.1),
            "patience": scheduler.take("patience", int, 10),
        }
    average = trainer.table("moving_average")
    if average.exists:
        average.expect("type", "exponential")
        train["average"] = average.take("decay", float, 0.9999)
    _convert_metric(trainer, counterpart)
    for key in SEEDS:
        if "seeds" not in train and top.content.get(key) is not None:
            train["seeds"] = [top.take(key, int, 0)]
        top.drop(key)  # there is one seed
    return train


def _convert_metric(trainer: ConfigTable, counterpart: Counterpart) -> None:
    """Report a metric that selects another epoch than ours."""
    metric = ARCHIVED_TASKS[counterpart.task].metric
    if "validation_metric" not in trainer.content:
        trainer.differs("validation_metric", f": not given, so AllenNLP uses the loss; here {metric} is used")
    elif trainer.content["validation_metric"] == counterpart.metric:
        trainer.drop("validation_metric")
    trainer.unsupported("validation_metric", f"here {metric} selects the best epoch")


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
    for theirs, ours in OPTIMIZER_SETTINGS.items():
        if given.content.get(theirs) is not None:
            optimizer[ours] = given.take(theirs, list if theirs == "betas" else float, None)
    return optimizer
