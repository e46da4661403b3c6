"""Read AllenNLP's configs (JSON, Jsonnet) through rows, and list every value that differs here.

A table removes each key when it is read or explained. What is left in the end has no counterpart here and is listed, so
that nothing of the config is dropped silently. Jsonnet is evaluated in a process of its own with limits on time and
memory.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from elmokit.config import decode_json
from elmokit.errors import ConfigError, MissingExtraError
from elmokit.storage.text_files import read_text
from elmokit.tasks.allennlp import jsonnet_process

UNSET = 'std.extVar("{}")'
"""The value of an external variable that was not given, with its name in place of the braces."""
MAX_MEMORY = 1 << 30  # bytes of address space of the process that evaluates Jsonnet
MAX_SECONDS = 20
# A key and a colon after blanks and comments.
_KEY_FIRST = re.compile(
    r"""(?: \s | (?://|\#)[^\n]* | /\*.*?\*/ )*+ (?: "[^"\n]*" | '[^'\n]*' | [A-Za-z_]\w* ) \s* :""",
    re.VERBOSE | re.DOTALL,
)


def unset_variable(value: str) -> str | None:
    """Return the name of the first external variable in a string that was not given; None if there is none."""
    match = re.search(r'std\.extVar\("(.*?)"\)', value)
    return match[1] if match else None


def read_config_file(path: str | Path, variables: Mapping[str, str] | None = None) -> Any:
    """Return the content of a config of AllenNLP as plain values.

    Args:
        path: A JSON or Jsonnet file. Its outer braces may be missing.
        variables: Values of the external variables that the file uses. A missing one becomes ``UNSET`` with its name.
    """
    variables = variables or {}
    for name, value in variables.items():
        if any("\ud800" <= letter <= "\udfff" for letter in name + value):  # how Python shows bytes that are not UTF-8
            raise ConfigError(f"The external variable {name!r} has the value {value!r}; expected UTF-8 text.")
    text = read_text(path)
    if _KEY_FIRST.match(text):  # as tutorials print a part of a config
        text = f"{{{text}\n}}"
    try:
        return decode_json(text)
    except (ValueError, RecursionError):
        return _evaluate_jsonnet(path, text, variables)


def _evaluate_jsonnet(path: str | Path, text: str, variables: Mapping[str, str]) -> Any:
    if importlib.util.find_spec("_jsonnet") is None:
        raise MissingExtraError(f"{path} is not JSON; reading it as Jsonnet", "tasks")
    limits = {"max_memory": MAX_MEMORY, "max_seconds": MAX_SECONDS}
    request = {"name": str(path), "text": text, "variables": dict(variables), "unset": UNSET, **limits}
    # -P: otherwise Python would import modules from the directory of the script first.
    command = [sys.executable, "-P", jsonnet_process.__file__]
    try:
        ran = subprocess.run(
            command, input=json.dumps(request).encode(), capture_output=True, timeout=2 * MAX_SECONDS, check=False
        )
        answer = json.loads(ran.stdout) if ran.returncode == 0 else {}
    except subprocess.TimeoutExpired:
        answer = {}
    if "value" in answer:
        return json.loads(answer["value"])
    failed = f"evaluating it failed, or needs more than {MAX_SECONDS} seconds or {MAX_MEMORY >> 20:,} MiB of memory"
    missing = ", ".join(answer.get("unset", ()))
    hint = f" External variables without a value: {missing}; give them with --var." if missing else ""
    raise ConfigError(f"{path} is neither JSON nor valid Jsonnet: {answer.get('error', failed)}.{hint}")


Value = TypeVar("Value")
LONGEST_SHOWN = 1000


Mark = Literal["weights", "training", "text"]
"""What depends on a difference: what a trained model computes; its training alone; how text is read."""
OF_TABLE: dict[str, Mark] = {"model": "weights", "dataset_reader": "text"}
"""The mark of what is in a table of the config; that of the others is "training"."""
TRAINING_WORDS = (
    *("dropout", "label_smoothing", "initializer", "regularizer", "verbose", "metric", "requires_grad"),
    *("pretrained_file", "options_file"),  # an archive has their content
)
"""Parts of a model's keys that only matter in training."""
SPELLING = {"character_tokenizer", "start_tokens", "end_tokens"}
"""Keys of a reader that change which ids a model gets."""


class Row(NamedTuple):
    """What becomes of a key of AllenNLP's."""

    theirs: str
    ours: Any
    """Our setting; with the rule "always" the only value that it has here, with "needless" why it need not be set."""
    kind: type = object
    default: Any = None
    """AllenNLP's."""
    rule: Literal["take", "take unless null", "always", "needless"] = "take"


class Difference(NamedTuple):
    """A value without a counterpart here, or what else the user must check."""

    line: str
    mark: Mark


@dataclass
class ImportReport:
    """The values of a config that were not imported."""

    differences: list[Difference] = field(default_factory=list)
    redundant: list[str] = field(default_factory=list)
    """Values that need not be set here, and why."""

    @property
    def unsupported(self) -> list[str]:
        """The differences, in words."""
        return [difference.line for difference in self.differences]


class ConfigTable:
    """One table of the config."""

    def __init__(
        self, content: Any, path: str, report: ImportReport, exists: bool = True, mark: Mark = "training"
    ) -> None:
        if not isinstance(content, dict):
            raise ConfigError(f"{path or 'the file'}: expected a table of named values, found {to_json(content)}.")
        self.content, self.path, self.report, self.exists = dict(content), path, report, exists
        self.mark: Mark = OF_TABLE.get(path, mark)
        self.inner: list[ConfigTable] = []

    def path_of(self, key: str) -> str:
        """Return the full path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def add_table(self, content: Any, path: str, exists: bool = True) -> ConfigTable:
        """Return a table whose unused keys ``report_unused`` reports together with those of this table."""
        table = ConfigTable(content, path, self.report, exists, self.mark)
        self.inner.append(table)
        return table

    def convert(self, rows: Iterable[Row], settings: dict[str, Any]) -> None:
        """Add to our settings what rows say about this table."""
        for theirs, ours, kind, default, rule in rows:
            if rule == "always":
                self.expect(theirs, ours, default)
            elif rule == "needless":
                self.redundant(ours, theirs)
            else:
                if rule == "take unless null":
                    self.drop_null(theirs)
                settings[ours] = self.take(theirs, kind, default)

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

    def drop_null(self, key: str) -> None:
        """Remove a key whose value is null, which is AllenNLP's default."""
        if self.content.get(key) is None:
            self.content.pop(key, None)

    def put_back(self, key: str, value: Any) -> None:
        """Return a value that turned out to have no counterpart, so that it is reported, before the other keys."""
        self.content = {key: value, **self.content}

    def expect(self, key: str, ours: Any, default: Any = None) -> None:
        """Remove a value that cannot be chosen here: it is redundant if it is ours, and else unsupported."""
        value = self.content.pop(key, default)
        if value is None:
            return
        if value == ours:
            self.report.redundant.append(f"{self.path_of(key)} = {to_json(value)}: always the case here")
        else:
            self.differs(key, f" = {to_json(value)}: always {to_json(ours)} here")

    def redundant(self, why: str, *keys: str) -> None:
        """Remove keys that need not be set here."""
        for path, value in self._remove(*keys):
            self.report.redundant.append(f"{path} = {to_json(value)}: {why}")

    def unsupported(self, why: str, *keys: str) -> None:
        """Remove keys that have no counterpart here."""
        for path, value in self._remove(*keys):
            self._report(path, f" = {to_json(value)}: {why}")

    def differs(self, key: str, message: str) -> None:
        """Report that a value, which was taken, has a different meaning or value here."""
        self._report(self.path_of(key), message)

    def replace(self, key: str, message: str) -> None:
        """Report one of the values as the reason why the whole table has no counterpart, and remove all of them."""
        self.content, self.inner = {}, []
        self._report(f"{self.path}.{key}", message)

    def report_unused(self) -> None:
        """Report every key that was not removed, in this table and those taken from it."""
        for path, value in self._remove(*self.content):
            self._report(path, f" = {to_json(value)}")
        for table in self.inner:
            table.report_unused()

    def _report(self, path: str, message: str) -> None:
        mark, names = self.mark, path.split(".")
        if mark == "text" and not SPELLING.isdisjoint(names):
            mark = "weights"
        elif mark == "weights" and any(word in path for word in TRAINING_WORDS):
            mark = "training"
        self.report.differences.append(Difference(f"{path}{message}", mark))

    def _remove(self, *keys: str) -> list[tuple[str, Any]]:
        """Remove keys, if they are there, and return every value inside them with its path."""
        return [
            leaf for key in keys if key in self.content for leaf in _leaves(self.path_of(key), self.content.pop(key))
        ]


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
