"""Evaluate a Jsonnet file. Run as a script, in a process of its own, by ``config_table.py``.

Jsonnet has no limit on time or memory, and a few lines can ask for any amount of both. The operating system limits a
process, so the evaluation is one. This script imports nothing of elmokit, to start quickly and to need little memory.

Standard input is one JSON table: the arguments of ``evaluate`` and of ``limit_process``. Standard output is another:
``value``, the result as JSON text, or ``error``, with the external variables that were ``unset``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

MAX_EVALUATIONS = 10


def limit_process(max_memory: int, max_seconds: int) -> None:
    """Limit the memory and computing time of this process, where the operating system can."""
    try:
        import resource
    except ImportError:  # Windows; the parent's limit on time remains
        return
    for kind, limit in (
        (resource.RLIMIT_AS, max_memory),
        (resource.RLIMIT_CPU, max_seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        _, most = resource.getrlimit(kind)
        soft = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(kind, (soft, most))


def evaluate(name: str, text: str, variables: dict[str, str], unset: str) -> dict[str, Any]:
    """Evaluate a file.

    Args:
        name: The path of the file, which imports are relative to.
        text: Its content.
        variables: Values of the external variables.
        unset: The value of a variable that was not given, with ``{}`` for its name.
    """
    import _jsonnet

    home = Path(name).parent.resolve()

    def read_import(folder: str, imported: str) -> tuple[str, bytes]:
        # A config from the internet could otherwise read any file of the user.
        path = (Path(folder) / imported).resolve()
        if not path.is_relative_to(home):
            raise RuntimeError(f"{imported} is outside the directory of {Path(name).name}")
        return str(path), path.read_bytes()

    named = re.findall(r"""std\.extVar\(\s*["'](\w+)["']""", text)
    given = {name: unset.format(name) for name in named} | variables
    # Imported files can use more variables. One that is not defined is an error that names it, so we define it and
    # evaluate the file again.
    for _ in range(MAX_EVALUATIONS):
        try:
            value = _jsonnet.evaluate_snippet(name, text, ext_vars=given, import_callback=read_import)
        except (RuntimeError, ValueError) as error:
            missing = re.search(r"[Uu]ndefined external variable: (\w+)", str(error))
            if missing is None or missing[1] in given:
                reason = " ".join(line.strip() for line in str(error).split("\n")[:2])
                return {"error": reason, "unset": sorted(given.keys() - variables.keys())}
            given[missing[1]] = unset.format(missing[1])
            continue
        return {"value": value}
    return {"error": f"its imports use more than {MAX_EVALUATIONS} external variables without a value", "unset": []}


def main() -> None:
    """Read the request, evaluate the file and write the answer."""
    request = json.loads(sys.stdin.buffer.read())
    limit_process(request.pop("max_memory"), request.pop("max_seconds"))
    sys.stdout.write(json.dumps(evaluate(**request)))


if __name__ == "__main__":
    main()
