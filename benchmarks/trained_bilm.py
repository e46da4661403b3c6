"""Compare a frozen biLM with one that is trained with the task's model, and print the table of results/trained-bilm.md.

    python benchmarks/trained_bilm.py DATA OUT [--seeds 1,2]

DATA has the directory ner-wikigold. The variants have the same data, epochs and seeds, and the model in the package.
Each is one run, which is stored in OUT. If the script is interrupted, run it again to resume.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ELMOKIT = [sys.executable, "-m", "elmokit"]
CONFIG = """
task = "ner"
preset = "small"
[data]
train = "ner-wikigold/train.conll"
dev = "ner-wikigold/dev.conll"
train_ratio = 0.3
[elmo]
[train]
epochs = 12
patience = false
"""
GRADUAL = ["elmo.learning_rate=3e-4", "elmo.freeze_epochs=1", "elmo.unfreeze_every=1", "elmo.layer_decay=0.38"]
VARIANTS: dict[str, list[str]] = {
    "frozen": [],
    "trained, 3e-5 (default: a hundredth of the task's)": ["elmo.trainable=true"],
    "trained, 3e-4": ["elmo.trainable=true", "elmo.learning_rate=3e-4"],
    "trained, 3e-4, gradual unfreezing, decay 0.38": ["elmo.trainable=true", *GRADUAL],
    "trained, 3e-3 (AllenNLP's default: the task's)": ["elmo.trainable=true", "elmo.learning_rate=3e-3"],
}


def main() -> None:
    """Train what is not trained yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="1,2")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    config = out / "ner.toml"
    config.write_text(CONFIG, encoding="utf-8")
    print("| biLM | dev F1 | best epoch | peak memory |\n|---|---|---|---|", flush=True)
    for number, (title, overrides) in enumerate(VARIANTS.items()):
        run = out / f"ner-{number}"
        call = [*ELMOKIT, "task", "train", str(config), "--run", str(run), "--seeds", arguments.seeds]
        call += [part for value in overrides for part in ("--set", value)]
        subprocess.run(call, cwd=arguments.data, check=True, stdout=subprocess.DEVNULL)
        print_row(title, run)


def print_row(title: str, run: Path) -> None:
    """Print means over the seeds, and the peak memory of the process."""
    results: dict[str, Any] = json.loads((run / "results.json").read_text(encoding="utf-8"))
    score, memory = results["dev"]["f1"], "-"
    epoch = statistics.fmean(one["best_epoch"] for one in results["seeds"])
    lines = (run / f"seed-{results['seeds'][-1]['seed']}" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    if (cost := json.loads(lines[-1]).get("bilm")) is not None:
        memory = f"{cost['peak_memory_mib']:,} MiB"
    print(f"| {title} | {score['mean']:.1f} ± {score['deviation']:.1f} | {epoch:.1f} | {memory} |", flush=True)


if __name__ == "__main__":
    main()
