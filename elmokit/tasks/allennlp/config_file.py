"""Read the file of an AllenNLP config, which is JSON or Jsonnet.

Jsonnet is evaluated in a process of its own with limits on time and memory.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
