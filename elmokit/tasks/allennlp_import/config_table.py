"""Read the tables of an AllenNLP config and report every value that was not used.

A table removes each key when it is read or explained. What is left in the end has no counterpart here and is reported,
so that nothing of the config is dropped silently.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, TypeVar

from elmokit.errors import ConfigError
from elmokit.tasks.allennlp_import.config_file import unset_variable

Value = TypeVar("Value")
LONGEST_SHOWN = 1000


@dataclass
class ImportReport:
    """The values of a config that were not imported."""

    unsupported: list[str] = field(default_factory=list)
    """Values without a counterpart here, and what else the user must check."""
    redundant: list[str] = field(default_factory=list)
    """Values that need not be set here, and why."""


class ConfigTable:
    """One table of the config."""

    def __init__(self, content: Any, path: str, report: ImportReport, exists: bool = True) -> None:
        if not isinstance(content, dict):
            raise ConfigError(f"{path or 'the file'}: expected a table of named values, found {to_json(content)}.")
        self.content, self.path, self.report, self.exists = dict(content), path, report, exists
        self.inner: list[ConfigTable] = []

    def path_of(self, key: str) -> str:
        """Return the full path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def add_table(self, content: Any, path: str, exists: bool = True) -> ConfigTable:
        """Return a table whose unused keys ``report_unused`` reports together with those of this table."""
        table = ConfigTable(content, path, self.report, exists)
        self.inner.append(table)
        return table

    def take(self, key: str, kind: type[Value], default: Value) -> Value:
        """Remove and return a value, or return the default if the key is absent.

        AllenNLP converts strings to numbers and truth values, because external variables are always strings.
        """
        if key not in self.content:
            return default
        value = self.content.pop(key)
        if isinstance(value, str) and (name := unset_variable(value)):
            raise ConfigError(
                f"{self.path_of(key)}: the external variable {name} has no value; give it with --var {name}=VALUE."
            )
        if isinstance(value, str) and kind in (int, float, bool):
            value = _from_string(value)
        if kind is float and isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 1024:
            value = float(value)
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)  # Jsonnet has a single type of numbers
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise ConfigError(f"{self.path_of(key)}: expected {KINDS[kind]}, found {to_json(value)}.")
        return value

    def table(self, key: str) -> ConfigTable:
        """Remove and return a table inside this one; if it is absent or null, one that is empty and does not exist.

        AllenNLP allows a string instead of a table, which is the table's type.
        """
        content = self.content.pop(key, None)
        content = {"type": content} if isinstance(content, str) else content
        return self.add_table({} if content is None else content, self.path_of(key), exists=content is not None)

    def tables(self) -> dict[str, ConfigTable]:
        """Remove and return every table inside this one."""
        names = [key for key, value in self.content.items() if isinstance(value, dict)]
        return {key: self.table(key) for key in names}

    def put_back(self, key: str, value: Any) -> None:
        """Return a value that turned out to have no counterpart, so that it is reported, before the other keys."""
        self.content = {key: value, **self.content}

    def expect(self, key: str, ours: Any, default: Any = None) -> None:
        """Remove a value that cannot be chosen here: it is redundant if it is ours, and else unsupported."""
        value = self.content.pop(key, default)
        if value is None:
            return
        line = f"{self.path_of(key)} = {to_json(value)}"
        if value == ours:
            self.report.redundant.append(f"{line}: always the case here")
        else:
            self.report.unsupported.append(f"{line}: always {to_json(ours)} here")

    def redundant(self, why: str, *keys: str) -> None:
        """Remove keys that need not be set here."""
        self.report.redundant += [f"{line}: {why}" for key in keys for line in self._remove(key)]

    def unsupported(self, why: str, *keys: str) -> None:
        """Remove keys that have no counterpart here."""
        self.report.unsupported += [f"{line}: {why}" for key in keys for line in self._remove(key)]

    def differs(self, key: str, message: str) -> None:
        """Report that a value, which was taken, has a different meaning or value here."""
        self.report.unsupported.append(f"{self.path_of(key)}{message}")

    def replace(self, message: str) -> None:
        """Report one of the values as the reason why the whole table has no counterpart, and remove all of them."""
        self.content, self.inner = {}, []
        self.report.unsupported.append(f"{self.path}.{message}")

    def report_unused(self) -> None:
        """Report every key that was not removed, in this table and those taken from it."""
        self.report.unsupported += [line for key in list(self.content) for line in self._remove(key)]
        for table in self.inner:
            table.report_unused()

    def _remove(self, key: str) -> list[str]:
        """Remove a key and return one line per value inside it, or none if it is absent."""
        return _lines(self.path_of(key), self.content.pop(key)) if key in self.content else []


def _from_string(text: str) -> Any:
    """Return the number or truth value that a string contains; any other string unchanged."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


def _lines(path: str, value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for key, inner in value.items() for line in _lines(f"{path}.{key}", inner)]
    return [f"{path} = {to_json(value)}"]


KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string", list: "a list"}


def to_json(value: Any) -> str:
    """Format a value as JSON, truncated if it is long."""
    text = json.dumps(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 4] + " ..."
