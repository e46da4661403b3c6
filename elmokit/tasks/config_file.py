"""Read the config file of a task or of an AllenNLP model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elmokit.config import check_choice, deep_merge, from_dict, read_toml, to_dict
from elmokit.tasks.allennlp.archived_configs import is_archived
from elmokit.tasks.allennlp.variants import ARCHIVED_TASKS
from elmokit.tasks.task import AnyTask
from elmokit.tasks.task_config import apply_override
from elmokit.tasks.task_table import TASKS

DEFAULT_PRESET = "published"


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> tuple[AnyTask, Any]:
    """Read a task and its config from a TOML file.

    Args:
        path: The file.
        overrides: Values that replace the file's, each ``table.key=value``.

    Raises:
        ConfigError: The file cannot be read, or a key or value is invalid. The message suggests the most similar key.
    """
    content = read_toml(path)
    for override in overrides:
        content = apply_override(content, override)
    return config_of(content, str(path))


def config_of(content: dict[str, Any], where: str) -> tuple[AnyTask, Any]:
    """Build a task and its config from the tables of a config file.

    Args:
        content: The tables. Missing settings are taken from the preset.
        where: The name of the file, for errors.

    Raises:
        ConfigError: A key or value is invalid.
    """
    content = dict(content)
    name = check_choice(f"{where}: task", content.pop("task", None), {**TASKS, **ARCHIVED_TASKS})
    if name not in TASKS or (name in ARCHIVED_TASKS and is_archived(name, content)):
        task = ARCHIVED_TASKS[name]
    else:
        task = TASKS[name]
    return task, read_config(task, content, where)


def read_config(task: AnyTask, content: Mapping[str, Any], where: str) -> Any:
    """Build the config of a given task from the tables of a config file, like ``config_of``."""
    content = dict(content)
    name = check_choice(f"{where}: preset", content.pop("preset", DEFAULT_PRESET), task.presets)
    preset = task.presets[name]
    base = to_dict(preset)
    if isinstance(content.get("elmo"), dict):
        base["elmo"] = to_dict(task.elmo)
    for table in task.word_tables:
        words = content.get(table)
        has_files = isinstance(words, dict) and words.get("vectors")
        if has_files and isinstance(base[table], dict):
            base[table]["dim"] = None  # the preset's size is for words without files; files have their own
    return from_dict(type(preset), deep_merge(base, content), where)
