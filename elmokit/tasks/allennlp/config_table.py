"""Read AllenNLP's configs (JSON, Jsonnet) table by table, and list all values that elmokit does not support.

Each key is removed from its table when it is read or reported. The keys that are left in the end have no counterpart
here and are reported, so nothing in a config is ignored silently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from elmokit.config import decode_json
from elmokit.errors import ConfigError, needs_extra
from elmokit.storage.text_files import read_text

UNSET = 'std.extVar("{}")'
"""The value of a missing external variable, with its name in the braces."""
DEFAULT_BATCH_SIZE = 32  # AllenNLP's


def unset_variable(value: str) -> str | None:
    """Return the name of the first missing external variable in a string, or None."""
    match = re.search(r'std\.extVar\("(.*?)"\)', value)
    return None if match is None else match[1]


def read_config_file(path: str | Path, variables: Mapping[str, str] | None = None) -> Any:
    """Read an AllenNLP config as plain values.

    Args:
        path: A JSON or Jsonnet file.
        variables: Values of external variables in the file. A missing one becomes ``UNSET`` with its name.
    """
    variables = variables or {}
    for name, value in variables.items():
        # Python represents bytes that are not UTF-8 as surrogates.
        if any("\ud800" <= letter <= "\udfff" for letter in name + value):
            raise ConfigError(f"The external variable {name!r} has the value {value!r}; expected UTF-8 text.")
    text = read_text(path)
    try:
        return decode_json(text)
    except (ValueError, RecursionError):
        return _evaluate_jsonnet(path, text, variables)


def _evaluate_jsonnet(path: str | Path, text: str, variables: Mapping[str, str]) -> Any:
    with needs_extra(f"{path} is not JSON; reading it as Jsonnet", "tasks"):
        import _jsonnet
    home = Path(path).parent.resolve()

    def read_import(folder: str, imported: str) -> tuple[str, bytes]:
        # Otherwise, a config from the internet could read any of the user's files.
        found = (Path(folder) / imported).resolve()
        if not found.is_relative_to(home):
            raise RuntimeError(f"{imported} is outside the directory of {Path(path).name}")
        return str(found), found.read_bytes()

    unset: dict[str, str] = {}
    # The error about a missing variable names it, so it is defined, and the file is evaluated again.
    while True:
        given = {**unset, **variables}
        try:
            evaluated = _jsonnet.evaluate_snippet(str(path), text, ext_vars=given, import_callback=read_import)
            return json.loads(evaluated)
        except (RuntimeError, ValueError) as error:
            missing = re.search(r"[Uu]ndefined external variable: (\w+)", str(error))
            if missing is not None and missing[1] not in given:
                unset[missing[1]] = UNSET.format(missing[1])
                continue
            first_lines = str(error).split("\n")[:2]
            reason = " ".join(line.strip() for line in first_lines)
            hint = ""
            if unset:
                names = ", ".join(sorted(unset))
                hint = f" External variables without a value: {names}; pass them with --var."
            raise ConfigError(f"{path} is neither JSON nor valid Jsonnet: {reason}.{hint}") from None


Value = TypeVar("Value")
LONGEST_SHOWN = 1000


Mark = Literal["weights", "training", "text"]
"""What a difference affects: the results of a trained model, only its training, or how text is read."""
OF_TABLE: dict[str, Mark] = {"model": "weights", "dataset_reader": "text"}
"""The default marks for values in some tables of the config; for others, it is "training"."""


class Difference(NamedTuple):
    """A value without a counterpart here, or something else that the user must check."""

    line: str
    mark: Mark


class ConfigTable:
    """A table of the config.

    Attributes:
        differences: The differences found so far, in all tables of the config.
        exists: Whether the config has the table. A missing table is empty.
    """

    def __init__(
        self,
        content: Any,
        path: str = "",
        differences: list[Difference] | None = None,
        exists: bool = True,
        mark: Mark = "training",
    ) -> None:
        if not isinstance(content, dict):
            raise ConfigError(f"{path or 'the file'}: expected a table of named values, found {to_json(content)}.")
        self.content = dict(content)
        self.path = path
        self.exists = exists
        self.differences: list[Difference] = [] if differences is None else differences
        self.mark: Mark = OF_TABLE.get(path, mark)
        self.inner: list[ConfigTable] = []

    def path_of(self, key: str) -> str:
        """Return the full path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def take(self, key: str, kind: type[Value], default: Value) -> Value:
        """Remove and return a value, or return the default if the key is missing or null.

        Like in AllenNLP, strings are converted to numbers and truth values, because external variables are strings.
        """
        value = self.content.pop(key, None)
        if value is None:
            return default
        if isinstance(value, str):
            name = unset_variable(value)
            if name:
                raise ConfigError(
                    f"{self.path_of(key)}: the external variable {name} has no value; pass --var {name}=VALUE."
                )
        value = _as_kind(value, kind)
        is_wrong_bool = isinstance(value, bool) and kind is not bool  # Python's bool is a kind of int
        if not isinstance(value, kind) or is_wrong_bool:
            raise ConfigError(f"{self.path_of(key)}: expected {KINDS[kind]}, found {to_json(value)}.")
        return value

    def choose(self, key: str, choices: Mapping[str, Value], what: str) -> Value | None:
        """Remove a name and return its choice. For an unknown name, report that the table has no counterpart."""
        name = self.take(key, str, "")
        if name not in choices:
            self.refuse(key, f" = {to_json(name)}: only {', '.join(choices)} {what}")
            return None
        return choices[name]

    def same(self, key: str, ours: float, name: str, mark: Mark | None = None, default: float | None = None) -> None:
        """Remove a number that must equal our setting ``model.NAME``, whose value is ``ours``; report another one.

        ``default`` is AllenNLP's, if a missing number means another one than ours.
        """
        value = self.take(key, type(ours), ours if default is None else default)
        if value != ours:
            self.differs(key, f" = {to_json(value)}: here it is model.{name}", mark)

    def table(self, key: str) -> ConfigTable:
        """Remove and return a table inside this one. If it is missing or null, it is empty and ``exists`` is False.

        AllenNLP allows a string instead of a table, which is the table's type. ``report_unused`` of this table also
        reports the unused keys of the returned one.
        """
        content = self.content.pop(key, None)
        exists = content is not None
        if content is None:
            content = {}
        elif isinstance(content, str):
            content = {"type": content}
        table = ConfigTable(content, self.path_of(key), self.differences, exists, self.mark)
        self.inner.append(table)
        return table

    def layers(self, key: str) -> ConfigTable:
        """Remove and return a table of layers. Lists with the same value for each layer become that value."""
        layers = self.table(key)
        n_layers = layers.content.get("num_layers")
        for name, value in layers.content.items():
            if isinstance(value, list) and len(value) > 0 and len(value) == n_layers:
                are_equal = value.count(value[0]) == len(value)
                if are_equal:
                    layers.content[name] = value[0]
        return layers

    def tables(self) -> dict[str, ConfigTable]:
        """Remove and return all tables inside this one."""
        names = [key for key, value in self.content.items() if isinstance(value, dict)]
        return {key: self.table(key) for key in names}

    def expect(self, key: str, ours: Any, default: Any = None, mark: Mark | None = None) -> None:
        """Remove a value that is fixed here, and report it unless it is ``ours`` (a value, or a tuple of several)."""
        value = self.content.pop(key, default)
        allowed = ours if isinstance(ours, tuple) else (ours,)
        if isinstance(value, str) and not isinstance(allowed[0], str):
            value = _from_string(value)
        if value not in (None, *allowed):
            self.differs(key, f" = {to_json(value)}: always {to_json(allowed[0])} here", mark)

    def drop(self, *keys: str) -> None:
        """Remove keys that need no setting here."""
        for key in keys:
            self.content.pop(key, None)

    def unsupported(self, key: str, why: str = "", mark: Mark | None = None) -> None:
        """Remove a key without a counterpart here, and report each value in it."""
        if key not in self.content:
            return
        reason = f": {why}" if why else ""
        for path, value in _leaves(self.path_of(key), self.content.pop(key)):
            self.differences.append(Difference(f"{path} = {to_json(value)}{reason}", mark or self.mark))

    def differs(self, key: str, message: str, mark: Mark | None = None) -> None:
        """Report that a value, which was already removed, has a different meaning or value here."""
        self.differences.append(Difference(f"{self.path_of(key)}{message}", mark or self.mark))

    def refuse(self, key: str, message: str) -> None:
        """Report a value as the reason why the whole table has no counterpart, and empty the table."""
        self.content = {}
        self.inner = []
        self.differs(key, message)

    def report_unused(self) -> None:
        """Report all keys that were not removed, in this table and the tables taken from it."""
        for key in list(self.content):
            self.unsupported(key)
        for table in self.inner:
            table.report_unused()


def _as_kind(value: Any, kind: type) -> Any:
    """Convert a value to a type like AllenNLP, if that is possible without a loss."""
    if isinstance(value, str) and kind in (int, float, bool):
        value = _from_string(value)
    if isinstance(value, bool):
        return value
    # Jsonnet has a single type of numbers.
    if kind is float and isinstance(value, int) and value.bit_length() < 1024:
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _from_string(text: str) -> Any:
    """Convert a string to a number or truth value, if it contains one."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    """Return all values inside a value, with their paths."""
    if not isinstance(value, dict) or not value:
        return [(path, value)]
    leaves = []
    for key, inner in value.items():
        leaves += _leaves(f"{path}.{key}", inner)
    return leaves


KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string", list: "a list"}


def to_json(value: Any) -> str:
    """Format a value as JSON, truncated if it is long."""
    text = json.dumps(value)
    if len(text) > LONGEST_SHOWN:
        text = text[: LONGEST_SHOWN - 4] + " ..."
    return text
