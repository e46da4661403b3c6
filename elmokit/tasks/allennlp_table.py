"""The tables of an AllenNLP config, whose keys are ticked off, so that nothing of it is dropped in silence."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, TypeVar

from elmokit.errors import ConfigError

Value = TypeVar("Value")
LONGEST_SHOWN = 1000


@dataclass
class Findings:
    """What the import leaves for the user to read."""

    without: list[str] = field(default_factory=list)
    """What has no counterpart here."""
    needless: list[str] = field(default_factory=list)
    """What need not be said here, and why."""


class Given:
    """One table of the file; a key that is read, or explained, is ticked off.

    Args:
        path: of the table in the file, such as ``model.encoder``.
    """

    def __init__(self, content: Any, path: str, findings: Findings) -> None:
        if not isinstance(content, dict):
            raise ConfigError(f"{path or 'the file'}: expected a table of named values, found {shown(content)}.")
        self.content, self.path, self.findings = dict(content), path, findings

    def place(self, key: str) -> str:
        """The key with its table's path."""
        return f"{self.path}.{key}" if self.path else key

    def take(self, key: str, kind: type[Value], default: Value) -> Value:
        """A value, ticked off; the default where it is absent.

        Raises:
            ConfigError: it is of another kind.
        """
        if key not in self.content:
            return default
        value = self.content.pop(key)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)  # Jsonnet knows one kind of number
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise ConfigError(f"{self.place(key)}: expected {_KINDS[kind]}, found {shown(value)}.")
        return value

    def table(self, key: str) -> Given | None:
        """A table inside this one, ticked off; None where it is absent or null. A text stands for a table's type."""
        content = self.content.pop(key, None)
        content = {"type": content} if isinstance(content, str) else content
        return None if content is None else Given(content, self.place(key), self.findings)

    def tables(self) -> dict[str, Given]:
        """Every table inside this one, all ticked off; other values stay."""
        names = [key for key, value in self.content.items() if isinstance(value, dict)]
        return {key: Given(self.content.pop(key), self.place(key), self.findings) for key in names}

    def expect(self, key: str, ours: Any, default: Any = None) -> None:
        """Tick off a value that is fixed here: needless where it is ours, else without a counterpart."""
        value = self.content.pop(key, default)
        if value is None:
            return
        line = f"{self.place(key)} = {shown(value)}"
        if value == ours:
            self.findings.needless.append(f"{line}: always so here")
        else:
            self.findings.without.append(f"{line}: here it is always {shown(ours)}")

    def needless(self, key: str, why: str) -> None:
        """Tick off a key that need not be said here."""
        self.findings.needless += [f"{line}: {why}" for line in self._lines(key)]

    def without(self, key: str, why: str) -> None:
        """Tick off a key that has no counterpart here."""
        self.findings.without += [f"{line}: {why}" for line in self._lines(key)]

    def leave(self) -> None:
        """List every key that nothing has ticked off."""
        self.findings.without += [line for key in list(self.content) for line in self._lines(key)]

    def _lines(self, key: str) -> list[str]:
        """The key, ticked off, with each value under it; nothing where it is absent."""
        return _leaves(self.place(key), self.content.pop(key)) if key in self.content else []


def _leaves(place: str, value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for key, inner in value.items() for line in _leaves(f"{place}.{key}", inner)]
    return [f"{place} = {shown(value)}"]


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", list: "a list"}


def shown(value: Any) -> str:
    """A value as JSON, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 4] + " ..."
