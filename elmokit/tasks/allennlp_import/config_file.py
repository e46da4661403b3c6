"""Read the file of an AllenNLP config, which is JSON or Jsonnet.

Most files need no more than ``simple_jsonnet.py``. The others are evaluated by Jsonnet, an optional dependency, in a
process of its own with limits on time and memory.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elmokit.errors import ConfigError, MissingExtraError
from elmokit.storage.text_files import read_text
from elmokit.tasks.allennlp_import import jsonnet_process
from elmokit.tasks.allennlp_import.simple_jsonnet import MAX_DEPTH, UNSET, NotSimpleError, parse_simple, starts_with_key

MAX_BYTES = 1 << 20  # published configs have a few KB
MAX_MEMORY = 1 << 30  # bytes of address space of the process that evaluates Jsonnet
MAX_SECONDS = 20


def read_config_file(path: str | Path, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
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
    if starts_with_key(text):  # as tutorials print a part of a config
        text = f"{{{text}\n}}"
    try:
        content = parse_simple(text, variables)
    except NotSimpleError as error:
        if importlib.util.find_spec("_jsonnet") is None:
            if error.computing is None:
                raise ConfigError(f"{path}, {error}. The file must be JSON or Jsonnet.") from None
            where = f"{error.computing.text!r} in line {error.computing.line}"
            raise MissingExtraError(f"{path} computes values with Jsonnet ({where}); reading it", "jsonnet") from None
        content = _evaluate_jsonnet(path, text, variables)
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a table of named values, found {str(content)[:60]}.")
    _check_size(content, path)
    return content


def _evaluate_jsonnet(path: str | Path, text: str, variables: Mapping[str, str]) -> Any:
    limits = {"max_bytes": MAX_BYTES, "max_memory": MAX_MEMORY, "max_seconds": MAX_SECONDS}
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
        try:
            return json.loads(answer["value"])
        except RecursionError:
            raise ConfigError(f"{path}: its tables and lists are nested more than {MAX_DEPTH} deep.") from None
    if "error" not in answer:
        raise ConfigError(
            f"{path}: evaluating it with Jsonnet needs more than {MAX_SECONDS} seconds or {MAX_MEMORY >> 20:,} MiB of "
            "memory, or the evaluator failed."
        )
    missing = ", ".join(answer["unset"])
    hint = f" External variables without a value: {missing}; give them with --var." if missing else ""
    raise ConfigError(f"{path} is neither JSON nor valid Jsonnet: {answer['error']}.{hint}")


def _check_size(content: dict[str, Any], path: str | Path) -> None:
    """Raise a ConfigError if a config is nested too deeply or is too large.

    A local name can be used any number of times, so that a short file can have a value of any size and depth.
    """
    size = 0
    pending: list[tuple[dict[str, Any] | list[Any], int]] = [(content, 1)]
    while pending:
        value, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise ConfigError(f"{path}: its tables and lists are nested more than {MAX_DEPTH} deep.")
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        size += sum(len(part) if isinstance(part, str) else 1 for part in inner)
        if size > MAX_BYTES:
            raise ConfigError(f"{path} has more than {MAX_BYTES:,} values, so it is not a config of AllenNLP.")
        pending += [(part, depth + 1) for part in inner if isinstance(part, dict | list)]
