"""Compare the time to load a model: from a model directory, from HDF5, and with AllenNLP from the same HDF5 file.

    python benchmarks/loading.py FOLDER OPTIONS.json WEIGHTS.hdf5 [--peer-python PYTHON --peer-runner RUNNER]

Make FOLDER with ``elmokit convert WEIGHTS.hdf5 FOLDER``. RUNNER is a script that loads the file with AllenNLP and
prints a line of JSON with ``seconds.load``. Each load runs in its own process, the loads alternate, and the clock
starts after the imports. Files are in the page cache. The script prints a Markdown table of medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LOAD_SCRIPT = """
import sys, time
from elmokit import Elmo, open_model
started = time.perf_counter()
model = open_model(sys.argv[1])
opened = time.perf_counter()
elmo = Elmo(model)
elmo.embed([["One", "sentence", "."]])
print(opened - started, time.perf_counter() - started)
"""


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="model directory")
    parser.add_argument("options", type=Path, help="options file of the HDF5 file")
    parser.add_argument("weights", type=Path, help="HDF5 file of the same model")
    parser.add_argument("--peer-python", help="Python interpreter with AllenNLP")
    parser.add_argument("--peer-runner", type=Path, help="script that loads the file with AllenNLP")
    parser.add_argument("--rounds", type=int, default=5, help="number of measurements of each load  [default: 5]")
    arguments = parser.parse_args()
    seconds: dict[str, list[tuple[float, float | None]]] = {}
    for _ in range(arguments.rounds):
        for loader, path in (("elmokit, model directory", arguments.folder), ("elmokit, HDF5", arguments.weights)):
            opened, ready = map(float, _output_of(sys.executable, "-c", LOAD_SCRIPT, str(path)).split())
            seconds.setdefault(loader, []).append((opened, ready))
        if arguments.peer_python:
            opened = _allennlp_seconds(
                arguments.peer_python, arguments.peer_runner, arguments.options, arguments.weights
            )
            seconds.setdefault("AllenNLP, HDF5", []).append((opened, None))
    print("| loader | seconds, median | seconds, range | seconds until the first sentence is embedded |")
    print("|---|---|---|---|")
    for loader, pairs in seconds.items():
        opened_all = [opened for opened, _ in pairs]
        ready_all = [ready for _, ready in pairs if ready is not None]
        ready_text = f"{statistics.median(ready_all):.2f}" if ready_all else ""
        spread = f"{min(opened_all):.3f} to {max(opened_all):.3f}"
        print(f"| {loader} | {statistics.median(opened_all):.3f} | {spread} | {ready_text} |")


def _allennlp_seconds(python: str, runner: Path, options: Path, weights: Path) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as sentences:
        sentences.write("One sentence .\n")
        sentences.flush()
        printed = _output_of(python, str(runner), "run", str(options), str(weights), sentences.name, "1")
    return float(json.loads(printed)["seconds"]["load"])


def _output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
