"""The tasks by name, and a config file to its task and config."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elmokit.config import deep_merge, from_dict, read_toml, to_dict
from elmokit.errors import ConfigError
from elmokit.tasks.config import with_setting
from elmokit.tasks.coref import CorefTask
from elmokit.tasks.ner import NerTask
from elmokit.tasks.nli import NliTask
from elmokit.tasks.qa import QaTask
from elmokit.tasks.srl import SrlTask
from elmokit.tasks.sst import SstTask
from elmokit.tasks.task import Task

TASKS: dict[str, Task[Any, Any, Any, Any]] = {
    task.name: task for task in (NerTask(), SstTask(), NliTask(), SrlTask(), CorefTask(), QaTask())
}
DEFAULT_PRESET = "published"


def load_config(path: str | Path, settings: Sequence[str] = ()) -> tuple[Task[Any, Any, Any, Any], Any]:
    """A TOML file's task and config.

    Args:
        settings: values to put in place of the file's, each ``table.key=value``.

    Raises:
        ConfigError: the file cannot be read, or a key or value cannot be; the nearest valid key is named.
    """
    content = read_toml(path)
    for setting in settings:
        content = with_setting(content, setting)
    return config_of(content, str(path))


def config_of(content: dict[str, Any], where: str) -> tuple[Task[Any, Any, Any, Any], Any]:
    """As ``load_config``, from the tables themselves; ``where`` is what the user calls them."""
    content = dict(content)
    task = TASKS[_chosen(content.pop("task", None), TASKS, "task", where)]
    preset = task.presets[_chosen(content.pop("preset", DEFAULT_PRESET), task.presets, "preset", where)]
    kind = type(preset)
    base = to_dict(preset)
    if isinstance(content.get("elmo"), dict):
        base["elmo"] = to_dict(task.elmo)
    for name in task.word_tables:
        given = content.get(name)
        if isinstance(given, dict) and given.get("vectors") and isinstance(base[name], dict):
            base[name]["dim"] = None  # the preset's was for words without files; the files say their own
    return task, from_dict(kind, deep_merge(base, content), where)


def _chosen(name: Any, among: Any, what: str, where: str) -> str:
    if isinstance(name, str) and name in among:
        return name
    names = ", ".join(among)
    if name is None:
        raise ConfigError(
            f"{where} names no {what}. Begin it with, for example: {what} = {next(iter(among))!r} ({names})."
        )
    nearest = difflib.get_close_matches(str(name), list(among), n=1, cutoff=0.0)
    raise ConfigError(f"{where}: there is no {what} {name!r}. Did you mean {nearest[0]!r}? There are: {names}.")
