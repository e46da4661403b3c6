"""How long it takes until a model is open: our folder, its HDF5 file opened by us, and AllenNLP with the same file.

    python benchmarks/loading.py FOLDER OPTIONS.json WEIGHTS.hdf5 [--peer-python PYTHON --peer-runner RUNNER]

FOLDER is ``elmokit convert WEIGHTS.hdf5 FOLDER``. RUNNER is a script that loads the file in AllenNLP and prints a line
of JSON with ``seconds.load``. Each load is a process of its own, they alternate, and the clock starts after the
imports; the files are in the page cache. Prints a Markdown table of medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

OURS = """
import sys, time
from elmokit import Elmo
from elmokit.weights.open import open_model
started = time.perf_counter()
model = open_model(sys.argv[1])
opened = time.perf_counter()
elmo = Elmo(model)
elmo.embed([["One", "sentence", "."]])
print(opened - started, time.perf_counter() - started)
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("options", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--peer-python")
    parser.add_argument("--peer-runner", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    seconds: dict[str, list[tuple[float, float | None]]] = {}
    for _ in range(arguments.rounds):
        for what, path in (("elmokit, folder", arguments.folder), ("elmokit, HDF5", arguments.weights)):
            opened, ready = map(float, _printed(sys.executable, "-c", OURS, str(path)).split())
            seconds.setdefault(what, []).append((opened, ready))
        if arguments.peer_python:
            opened = _allennlp(arguments.peer_python, arguments.peer_runner, arguments.options, arguments.weights)
            seconds.setdefault("AllenNLP, HDF5", []).append((opened, None))
    print("| what | seconds to open | of several | seconds to the first sentence's vectors |")
    print("|---|---|---|---|")
    for what, pairs in seconds.items():
        opened_all = [opened for opened, _ in pairs]
        ready_all = [ready for _, ready in pairs if ready is not None]
        ready_text = f"{statistics.median(ready_all):.2f}" if ready_all else ""
        spread = f"{min(opened_all):.3f} to {max(opened_all):.3f}"
        print(f"| {what} | {statistics.median(opened_all):.3f} | {spread} | {ready_text} |")


def _allennlp(python: str, runner: Path, options: Path, weights: Path) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as sentences:
        sentences.write("One sentence .\n")
        sentences.flush()
        printed = _printed(python, str(runner), "run", str(options), str(weights), sentences.name, "1")
    return float(json.loads(printed)["seconds"]["load"])


def _printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
