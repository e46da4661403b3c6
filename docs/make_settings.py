"""Write the reference of all settings from their dataclasses: ``python docs/make_settings.py`` prints it.

The documentation site makes the pages each time that it is built (``hooks.py``), so they are not stored.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Collection, Iterator
from typing import Any

from elmokit.config import describe_type, to_toml
from elmokit.engine.architecture import PRESETS
from elmokit.tasks.task_config import TaskDataConfig
from elmokit.tasks.task_table import TASKS
from elmokit.training.training_config import (
    FINETUNING,
    FINETUNING_SETTINGS,
    NEW_MODEL_SETTINGS,
    RECIPES,
    TRAINING,
    BaseConfig,
    DataConfig,
    TrainingConfig,
)

INDEX = """\
# Settings

All settings of config files, with their types and defaults.

| settings of | page |
|---|---|
| `elmokit train`, `elmokit distill` and `elmokit finetune` | [Train a biLM](bilm.md) |
| `elmokit task train`, for every task | [Train a task model](task.md) |
| `elmokit task train`, for one task | [Each task](tasks.md) |

A config file is TOML. `elmokit train` and `elmokit finetune` also accept the `options.json` of bilm-tf
([how its keys are used](../../how-to/migrate/bilm-tf-training.md#bilm-tfs-optionsjson)). In every TOML file, `false`
switches off a setting that can be absent (type "or none").
"""
BILM = """\
# Settings of a biLM's training

These are the settings of `elmokit train`, `elmokit distill` and `elmokit finetune`, and of the Python functions of the
same names. Settings without a table are at the top of the file. They are also options of the commands (`batch_size` is
`--batch-size`) and keyword arguments of the functions.
"""
BASE_VALUES = "`elmokit train` starts from these values. All other settings override them."
TASK = """\
# Settings of every task

These are the settings of `elmokit task train` that all tasks have. [Each task](tasks.md) has its own in addition. A
file starts with `task = "ner"` or another task. `preset` chooses the values to start from; without it, those of the
preset `published` apply, which are listed for each task.
"""
TASKS_OF_THE_PAPER = """\
# Settings of each task

These are the settings of `elmokit task train` that one task has, in addition to those of [every task](task.md).
"""


def settings_pages() -> dict[str, str]:
    """Return the content of each page by the name of its file."""
    pages = {"index": [INDEX], "bilm": [BILM, *_bilm_parts()], **_task_pages()}
    return {f"{name}.md": "\n\n".join(map(str.rstrip, parts)) + "\n" for name, parts in pages.items()}


def _bilm_parts() -> Iterator[str]:
    yield from ("## Base values", BASE_VALUES, _table(BaseConfig, names=NEW_MODEL_SETTINGS))
    yield from ("## Top level", _table(TrainingConfig), *_section("data", DataConfig))
    for name, (cls, _) in _tables(TrainingConfig):
        yield from _section(name, cls)
    for name, recipe in RECIPES.items():
        sizes = next(preset for preset, model in PRESETS.items() if model == recipe.model)
        changes = _changes(recipe, model=False)
        values = "these values:" if changes else "the defaults listed above."
        yield from (f"## Recipe `{name}`", f"The sizes of the preset `{sizes}`, and {values}", *changes)
    yield "## Fine-tuning"
    yield "`elmokit finetune` has these settings in place of the base values above."
    yield _table(BaseConfig, names=FINETUNING_SETTINGS)
    yield (
        "Fine-tuning starts from the values of its recipe and from the values below. With the recipe `bilm-tf`, the "
        "learning rate is that of the recipe; if the softmax is new, `learning_rate` is that of a training.\n\n"
        f"```toml\n{to_toml(FINETUNING).rstrip()}\n```"
    )


def _task_pages() -> dict[str, list[str]]:
    """Return the paragraphs of the page about what tasks share, and of the page about each."""
    tables = {name: dict(_tables(type(task.presets["published"]))) for name, task in TASKS.items()}
    first, *others = tables.values()
    shared = {name: table for name, table in first.items() if all(other.get(name) == table for other in others)}
    seen: dict[type, str] = {}
    task_parts = [TASK, *_section("data", TaskDataConfig)]
    for name, (cls, help) in shared.items():
        task_parts += _section(name, cls, help) if cls not in seen else _repeated_section(name, seen[cls], help)
        seen.setdefault(cls, name)
    parts = [TASKS_OF_THE_PAPER]
    for task_name, task in TASKS.items():
        parts.append(f"## Task `{task_name}`")
        for name, (cls, help) in tables[task_name].items():
            if cls in seen and name not in shared:
                parts += _repeated_section(name, seen[cls], help, level=3)
            elif name not in shared and cls is not TaskDataConfig:
                parts += _section(name, cls, help, but=TaskDataConfig, level=3)
        parts += ["### Preset `published`", *_changes(task.presets["published"])]
    return {"task": task_parts, "tasks": parts}


def _section(name: str, cls: type, help: str = "", but: type | None = None, level: int = 2) -> list[str]:
    """Return the heading, summary and table of a config, without the settings that another one has too."""
    summary = help or (cls.__doc__ or "").split("\n\n")[0]
    return [f"{'#' * level} `[{name}]`", " ".join(summary.replace("``", "`").split()), _table(cls, but)]


def _repeated_section(name: str, first: str, help: str, level: int = 2) -> list[str]:
    """Return the heading and summary of a table with the settings of an earlier one."""
    return [f"{'#' * level} `[{name}]`", f"{help} Settings as in `[{first}]`.".strip()]


def _changes(config: Any, model: bool = True) -> list[str]:
    """Return the values of a config that are not the defaults, as TOML."""
    changes = _changed(config)
    if not model:
        changes.pop("model", None)
    return [f"```toml\n{to_toml(changes).rstrip()}\n```"] if changes else []


def _changed(config: Any) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            if inner := _changed(value):
                changes[field.name] = inner
        elif value != field.default and not (value is None and field.default is dataclasses.MISSING):
            changes[field.name] = value
    return changes


def _tables(cls: type, prefix: str = "") -> Iterator[tuple[str, tuple[type, str]]]:
    """Yield the name in a file of each nested table of a config, with its class and its help text."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        for inner in [kind for kind in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(kind)]:
            yield f"{prefix}{field.name}", (typing.cast(type, inner), field.metadata.get("help", ""))
            yield from _tables(typing.cast(type, inner), f"{prefix}{field.name}.")


def _table(cls: type, but: type | None = None, names: Collection[str] | None = None) -> str:
    hints = typing.get_type_hints(cls)
    left_out = {field.name for field in dataclasses.fields(but)} if but is not None and issubclass(cls, but) else set()
    lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if "help" not in field.metadata or (names is not None and field.name not in names):
            continue
        if field.name in left_out or any(map(dataclasses.is_dataclass, (hint, *typing.get_args(hint)))):
            continue
        value = (
            TRAINING.get(field.name) if field.default is None and cls in (TrainingConfig, DataConfig) else field.default
        )
        text, _, stated = field.metadata["help"].removesuffix("]").partition("  [default: ")
        if value is None:
            default = stated or ("see right" if bool in typing.get_args(hint) or "efault" in text else "none")
        else:
            default = "required" if value is dataclasses.MISSING else f"`{_value(value)}`"
        cells = (
            f"`{field.name}`",
            describe_type(hint, literal="`{}`"),
            default,
            " ".join(text.replace("``", "`").split()),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return to_toml({"x": value}).removeprefix("x = ").strip()


if __name__ == "__main__":
    print("\n".join(settings_pages().values()), end="")
