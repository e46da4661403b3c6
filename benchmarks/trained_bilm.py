"""Compare a frozen biLM with one that is trained with the task's model, and print the table of results/trained-bilm.md.

    python benchmarks/trained_bilm.py DATA OUT [TASK...] [--seeds 1,2,3]

DATA has the directories that TASKS names. The variants have the same data, epochs and seeds, and the model in the
package. Each is one run, which is stored in OUT. If the script is interrupted, run it again to resume.
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
TASKS = {
    "ner": (
        "f1",
        'task = "ner"\npreset = "small"\n[data]\ntrain = "ner-wikigold/train.conll"\ndev = "ner-wikigold/dev.conll"\n'
        "train_ratio = 0.3\n[elmo]\n[train]\nepochs = 12\npatience = false\n",
    ),
    "sst": (
        "accuracy",
        'task = "sst"\npreset = "small"\n[data]\ntrain = "sst5/train.txt"\ndev = "sst5/dev.txt"\n'
        'phrases = "roots"\ntrain_ratio = 0.1\n[elmo]\n[train]\nepochs = 8\npatience = false\n',
    ),
}
VARIANTS: dict[str, list[str]] = {
    "frozen": [],
    "trained, a tenth of the learning rate (default)": ["elmo.trainable=true"],
    "trained, gradual unfreezing": [
        "elmo.trainable=true",
        "elmo.freeze_epochs=1",
        "elmo.unfreeze_every=1",
        "elmo.layer_decay=0.38",
    ],
    "trained, the same learning rate (AllenNLP's default)": ["elmo.trainable=true", "elmo.learning_rate=0.001"],
}


def main() -> None:
    """Train what is not trained yet, and print a table for each task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--seeds", default="1,2,3")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for name in arguments.tasks:
        metric, config = TASKS[name]
        (out / f"{name}.toml").write_text(config, encoding="utf-8")
        print(f"\n{name}\n\n| biLM | dev {metric} | best epoch | training tokens/s | peak memory | seconds per seed |")
        print("|---|---|---|---|---|---|", flush=True)
        for number, (title, overrides) in enumerate(VARIANTS.items()):
            run = out / f"{name}-{number}"
            call = [*ELMOKIT, "task", "train", str(out / f"{name}.toml"), "--run", str(run), "--resume"]
            call += ["--seeds", arguments.seeds, *(part for value in overrides for part in ("--set", value))]
            subprocess.run(call, cwd=arguments.data, check=True, stdout=subprocess.DEVNULL)
            print_row(title, metric, run)


def print_row(title: str, metric: str, run: Path) -> None:
    """Print means over the seeds; the cost is that of the last epochs, when all layers are trained."""
    results: dict[str, Any] = json.loads((run / "results.json").read_text(encoding="utf-8"))
    logs = [
        [json.loads(line) for line in (run / f"seed-{one['seed']}" / "metrics.jsonl").read_text("utf-8").splitlines()]
        for one in results["seeds"]
    ]
    score = results["dev"][metric]
    epoch = statistics.fmean(one["best_epoch"] for one in results["seeds"])
    seconds = statistics.fmean(lines[-1]["seconds"] for lines in logs)
    speed = memory = "-"
    if "bilm" in logs[0][-1]:
        speed = f"{statistics.fmean(lines[-1]['bilm']['tokens_per_second'] for lines in logs):,.0f}"
        memory = f"{max(lines[-1]['bilm']['peak_memory_mib'] for lines in logs):,} MiB"
    scores = f"{score['mean']:.1f} ± {score['deviation']:.1f}"
    print(f"| {title} | {scores} | {epoch:.1f} | {speed} | {memory} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
