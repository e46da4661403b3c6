"""Measure what a first vector costs: time from an empty process, peak memory, and how much of elmokit runs.

    python benchmarks/first_vector.py [--python PYTHON] [--rounds 7] [--original]

PYTHON is an interpreter with elmokit installed, such as one without PyTorch. Each line runs in a process of its own,
and the lines alternate. Times are ratios to a process that imports NumPy and ends; files are in the page cache, and the
C functions are compiled before. ``--original`` also measures the memory of a model of the original sizes and random
weights. The script prints a Markdown table.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NUMPY = "import numpy"
VECTOR = "from elmokit import Elmo; Elmo.from_pretrained().embed([['Hello', 'world']])"
CORPUS = (
    "import itertools; from elmokit import Elmo; elmo = Elmo.from_pretrained()\n"
    "line = 'the bank raised its rate .'.split()\n"
    "for vectors in elmo.embed(itertools.repeat(line, 20_000)): pass"
)
ORIGINAL = """
import sys
import numpy as np
from elmokit.engine.architecture import PRESETS, tensor_shapes
from elmokit.pretrained.model import PretrainedBiLM, Weights
from elmokit.formats.save import save_model
draw = np.random.default_rng(0)
config = PRESETS["original"]
arrays = {name: draw.normal(0, 0.05, shape).astype(np.float32) for name, shape in tensor_shapes(config).items()}
save_model(PretrainedBiLM(Weights(config, arrays), "elmokit"), sys.argv[1])
"""
OF_FILE = (
    "import sys; from elmokit import Elmo; elmo = Elmo.from_pretrained(sys.argv[1]); elmo.embed([['Hello', 'world']])"
)
PEAK = "\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
LOADED = """
import sys
from pathlib import Path
names = [name for name in sys.modules if name.split(".")[0] == "elmokit"]
sizes = [len(Path(sys.modules[name].__file__).read_text().splitlines()) for name in names]
print(sum(size > 0 for size in sizes), sum(sizes), "torch" in sys.modules)
"""


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter with elmokit")
    parser.add_argument("--rounds", type=int, default=7, help="processes of each kind  [default: 7]")
    parser.add_argument("--original", action="store_true", help="also measure the memory of the original sizes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text, output = Path(folder, "two.txt"), Path(folder, "vectors.npz")
        text.write_text("Hello world\nThe bank raised its rate .\n")
        commands = {
            "`import numpy`": ["-c", NUMPY],
            "a first vector": ["-c", VECTOR],
            "`elmokit embed` of two lines": ["-m", "elmokit", "embed", str(text), str(output), "--overwrite"],
            "`elmokit --help`": ["-m", "elmokit", "--help"],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(arguments.rounds + 1):
            for name, command in commands.items():
                started = time.perf_counter()
                run(arguments.python, *command)
                seconds[name].append(time.perf_counter() - started)
        medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}  # the first warms up
        print("| | seconds, median | times `import numpy` |\n|---|---|---|")
        for name, median in medians.items():
            print(f"| {name} | {median:.3f} | {median / medians['`import numpy`']:.1f} |")
        print(f"\npeak memory, a corpus with the included model: {run(arguments.python, '-c', CORPUS + PEAK)} MiB")
        n_files, n_lines, has_torch = run(arguments.python, "-c", VECTOR + LOADED).split()
        print(f"until a first vector: {n_files} files of elmokit, {int(n_lines):,} lines; PyTorch: {has_torch}")
        if arguments.original:
            saved = str(Path(folder, "original"))
            run(arguments.python, "-c", ORIGINAL, saved)
            for target in (saved, str(Path(folder, "original_weights.hdf5"))):
                if target != saved:
                    run(arguments.python, "-m", "elmokit", "convert", saved, target)
                n_bytes = "\nprint(elmo.computer.network.n_bytes / 2**20)"
                packed, peak = map(float, run(arguments.python, "-c", OF_FILE + n_bytes + PEAK, target).split())
                print(f"{Path(target).name}: packed {packed:.0f} MiB, peak {peak:.0f} MiB, {peak / packed:.2f} times")


def run(*command: str) -> str:
    """Return what a program prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
