"""Read AllenNLP's configs (JSON, Jsonnet) table by table, and list every value that differs here.

A table removes each key when it is read or explained. What is left in the end has no counterpart here and is listed, so
that nothing of the config is dropped silently.
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
"""The value of an external variable that was not given, with its name in place of the braces."""


def unset_variable(value: str) -> str | None:
    """Return the name of the first external variable in a string that was not given; None if there is none."""
    match = re.search(r'std\.extVar\("(.*?)"\)', value)
    return match[1] if match else None


def read_config_file(path: str | Path, variables: Mapping[str, str] | None = None) -> Any:
    """Return the content of a config of AllenNLP as plain values.

    Args:
        path: A JSON or Jsonnet file.
        variables: Values of the external variables that the file uses. A missing one becomes ``UNSET`` with its name.
    """
    variables = variables or {}
    for name, value in variables.items():
        if any("\ud800" <= letter <= "\udfff" for letter in name + value):  # how Python shows bytes that are not UTF-8
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
        # A config from the internet could otherwise read any file of the user.
        found = (Path(folder) / imported).resolve()
        if not found.is_relative_to(home):
            raise RuntimeError(f"{imported} is outside the directory of {Path(path).name}")
        return str(found), found.read_bytes()

    unset: dict[str, str] = {}
    # A variable without a value is an error that names it, so we define it and evaluate the file again.
    while True:
        given = {**unset, **variables}
        try:
            return json.loads(_jsonnet.evaluate_snippet(str(path), text, ext_vars=given, import_callback=read_import))
        except (RuntimeError, ValueError) as error:
            missing = re.search(r"[Uu]ndefined external variable: (\w+)", str(error))
            if missing is not None and missing[1] not in given:
                unset[missing[1]] = UNSET.format(missing[1])
                continue
            reason = " ".join(line.strip() for line in str(error).split("\n")[:2])
            names = ", ".join(sorted(unset))
            hint = f" External variables without a value: {names}; pass them with --var." if unset else ""
            raise ConfigError(f"{path} is neither JSON nor valid Jsonnet: {reason}.{hint}") from None


Value = TypeVar("Value")
LONGEST_SHOWN = 1000


Mark = Literal["weights", "training", "text"]
"""What depends on a difference: what a trained model computes; its training alone; how text is read."""
OF_TABLE: dict[str, Mark] = {"model": "weights", "dataset_reader": "text"}
"""The mark of what is in a table of the config unless another one is given; that of the others is "training"."""


class Difference(NamedTuple):
    """A value without a counterpart here, or what else the user must check."""

    line: str
    mark: Mark


class ConfigTable:
    """One table of the config.

    Attributes:
        differences: Those found so far, in all tables of the config.
        exists: Whether the config has the table; otherwise it is empty.
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
        self.content, self.path, self.exists = dict(content), path, exists
        self.differences: list[Difference] = [] if differences is None else differences
        self.mark: Mark = OF_TABLE.get(path, mark)
        self.inner: list[ConfigTable] = []

    def path_of(self, key: str) -> str:
        """Return the full path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def add_table(self, content: Any, key: str, exists: bool = True) -> ConfigTable:
        """Return a table whose unused keys ``report_unused`` reports together with those of this table."""
        table = ConfigTable(content, self.path_of(key), self.differences, exists, self.mark)
        self.inner.append(table)
        return table

    def take(self, key: str, kind: type[Value], default: Value) -> Value:
        """Remove and return a value, or return the default if the key is absent or null.

        AllenNLP converts strings to numbers and truth values, because external variables are always strings.
        """
        value = self.content.pop(key, None)
        if value is None:
            return default
        if isinstance(value, str) and (name := unset_variable(value)):
            raise ConfigError(
                f"{self.path_of(key)}: the external variable {name} has no value; pass --var {name}=VALUE."
            )
        value = _as_kind(value, kind)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise ConfigError(f"{self.path_of(key)}: expected {KINDS[kind]}, found {to_json(value)}.")
        return value

    def choose(self, key: str, choices: Mapping[str, Value], what: str) -> Value | None:
        """Remove a name and return its choice; if it has none, report that as the reason why the table has no
        counterpart.
        """
        name = self.take(key, str, "")
        if name not in choices:
            self.refuse(key, f" = {to_json(name)}: only {', '.join(choices)} {what}")
            return None
        return choices[name]

    def same(
        self,
        key: str,
        kind: type[Value],
        ours: Value,
        name: str,
        mark: Mark | None = None,
        default: Value | None = None,
    ) -> Value:
        """Remove a value that is a setting ``model.NAME`` here with the value ``ours``, which is returned."""
        value = self.take(key, kind, ours if default is None else default)
        if value != ours:
            self.differs(key, f" = {to_json(value)}: here it is model.{name}", mark)
        return ours

    def table(self, key: str) -> ConfigTable:
        """Remove and return a table inside this one; if it is absent or null, one that is empty and does not exist.

        AllenNLP allows a string instead of a table, which is the table's type.
        """
        content = self.content.pop(key, None)
        content = {"type": content} if isinstance(content, str) else content
        return self.add_table({} if content is None else content, key, exists=content is not None)

    def layers(self, key: str) -> ConfigTable:
        """Remove and return a table of layers, in which a list of equal values for each layer is one value."""
        layers = self.table(key)
        for name, value in layers.content.items():
            is_list = isinstance(value, list) and len(value) > 0
            if is_list and value == [value[0]] * len(value) and len(value) == layers.content.get("num_layers"):
                layers.content[name] = value[0]
        return layers

    def tables(self) -> dict[str, ConfigTable]:
        """Remove and return every table inside this one."""
        names = [key for key, value in self.content.items() if isinstance(value, dict)]
        return {key: self.table(key) for key in names}

    def expect(self, key: str, ours: Any, default: Any = None, mark: Mark | None = None) -> None:
        """Remove a value that cannot be chosen here, and report one that is not ours, or one of ours."""
        value = self.content.pop(key, default)
        allowed = ours if isinstance(ours, tuple) else (ours,)
        if isinstance(value, str) and not isinstance(allowed[0], str):
            value = _from_string(value)
        if value not in (None, *allowed):
            self.differs(key, f" = {to_json(value)}: always {to_json(allowed[0])} here", mark)

    def drop(self, *keys: str) -> None:
        """Remove keys that need not be set here."""
        for key in keys:
            self.content.pop(key, None)

    def unsupported(self, key: str, why: str = "", mark: Mark | None = None) -> None:
        """Remove a key that has no counterpart here, and report it."""
        for path, value in self._remove(key):
            reason = f": {why}" if why else ""
            self.differences.append(Difference(f"{path} = {to_json(value)}{reason}", mark or self.mark))

    def differs(self, key: str, message: str, mark: Mark | None = None) -> None:
        """Report that a value, which was taken, has a different meaning or value here."""
        self.differences.append(Difference(f"{self.path_of(key)}{message}", mark or self.mark))

    def refuse(self, key: str, message: str) -> None:
        """Report one of the values as the reason why the whole table has no counterpart, and remove all of them."""
        self.content, self.inner = {}, []
        self.differs(key, message)

    def report_unused(self) -> None:
        """Report every key that was not removed, in this table and those taken from it."""
        for key in list(self.content):
            self.unsupported(key)
        for table in self.inner:
            table.report_unused()

    def _remove(self, key: str) -> list[tuple[str, Any]]:
        """Remove a key, if it is there, and return every value inside it with its path."""
        if key not in self.content:
            return []
        return _leaves(self.path_of(key), self.content.pop(key))


def _as_kind(value: Any, kind: type) -> Any:
    """Return a value as AllenNLP converts it to a type, if it can be converted without a loss."""
    if isinstance(value, str) and kind in (int, float, bool):
        value = _from_string(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 1024:
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # Jsonnet has a single type of numbers
    return value


def _from_string(text: str) -> Any:
    """Return the number or truth value that a string contains; any other string unchanged."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [leaf for key, inner in value.items() for leaf in _leaves(f"{path}.{key}", inner)]
    return [(path, value)]


KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string", list: "a list"}


def to_json(value: Any) -> str:
    """Format a value as JSON, truncated if it is long."""
    text = json.dumps(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 4] + " ..."
