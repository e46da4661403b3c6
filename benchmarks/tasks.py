"""Train the six tasks without and with ELMo, and print the table of results/tasks.md.

    python benchmarks/tasks.py DATA OUT [TASK...] [--seeds 1,2,3]

DATA has the directories that COMPARISONS names. Each task is one sweep, without and with ELMo, on the same data, with
the same sizes, epochs and seeds. Results are stored in OUT. If the script is interrupted, run it again to resume;
several processes can share the work. If the included model has changed, delete OUT/TASK/elmo-1 and OUT/TASK/layers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ELMOKIT = [sys.executable, "-m", "elmokit"]


class Comparison(NamedTuple):
    """A task, its data and its config."""

    title: str
    metric: str
    seeds: str
    config: str
    """TOML. Its paths are relative to DATA."""


def _config(task: str, train: str, dev: str, extra: str = "") -> str:
    return f'task = "{task}"\npreset = "small"\n[data]\ntrain = "{train}"\ndev = "{dev}"\n{extra}\n'


COMPARISONS = {
    "ner": Comparison(
        "NER, Wikigold",
        "f1",
        "1,2,3,4,5",
        _config("ner", "ner-wikigold/train.conll", "ner-wikigold/dev.conll", "[train]\nepochs = 40\npatience = 10"),
    ),
    "sst": Comparison("SST-5, whole sentences", "accuracy", "1,2,3", _config("sst", "sst5/train.txt", "sst5/dev.txt")),
    "sst-phrases": Comparison(
        "SST-5, phrases of 4 words and more",
        "accuracy",
        "1,2,3",
        _config(
            "sst",
            "sst5/train.txt",
            "sst5/dev.txt",
            'phrases = "all"\nmin_tokens = 4\n[train]\nepochs = 4\nbatch_size = 100',
        ),
    ),
    "snli": Comparison(
        "NLI, SNLI dev after 8,330 pairs",
        "accuracy",
        "1,2,3",
        _config("nli", "nli-snli/train.jsonl", "nli-snli/dev.jsonl"),
    ),
    "sick": Comparison(
        "NLI, SICK", "accuracy", "1,2,3,4,5", _config("nli", "nli-sick/train.jsonl", "nli-sick/dev.jsonl")
    ),
    "srl": Comparison(
        "SRL, PropBank on EWT",
        "f1",
        "1",
        _config("srl", "srl-propbank-ewt/train.props.xz", "srl-propbank-ewt/dev.props", "[train]\nepochs = 6"),
    ),
    "coref": Comparison(
        "Coreference, LitBank without singletons",
        "average_f1",
        "1",
        _config("coref", "coref-litbank/train.conll.xz", "coref-litbank/dev.conll", "drop_singletons = true"),
    ),
    "qa": Comparison(
        "Question answering, new Wikipedia",
        "f1",
        "1",
        _config("qa", "squad-newwiki/train.json", "squad-newwiki/dev.json", "[train]\nepochs = 8"),
    ),
}


def main() -> None:
    """Train the named tasks that are not finished in OUT, and print a table of the finished ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="directory with the data")
    parser.add_argument("out", type=Path, help="directory for the results")
    parser.add_argument(
        "tasks", nargs="*", metavar="TASK", help=f"tasks to run: {', '.join(COMPARISONS)}  [default: all]"
    )
    parser.add_argument("--seeds", help="seeds, separated by commas  [default: each task's own]")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if unknown := set(arguments.tasks) - set(COMPARISONS):
        parser.error(f"unknown task {unknown.pop()!r}. Use one of {', '.join(COMPARISONS)}.")
    for name in arguments.tasks or COMPARISONS:
        comparison = COMPARISONS[name]
        config = out / f"{name}.toml"
        config.write_text(comparison.config, encoding="utf-8")
        call = [*ELMOKIT, "task", "sweep", str(config), "--over", "ratios", "--ratios", "1", "--no-figure"]
        call += ["--seeds", arguments.seeds or comparison.seeds, "--run", str(out / name)]
        subprocess.run(call, cwd=arguments.data, check=True)
    print("| task | metric | seeds | without | with ELMo | difference |\n|---|---|---|---|---|---|")
    for name, comparison in COMPARISONS.items():
        results = out / name / "results.json"
        if results.exists():
            print_row(comparison, json.loads(results.read_text(encoding="utf-8"))["rows"])


def print_row(comparison: Comparison, rows: list[dict[str, Any]]) -> None:
    """Print a row of the table: means and standard deviations over seeds. Skip an unfinished task."""
    without, with_elmo = sorted(rows, key=lambda row: bool(row["with_elmo"]))
    cells, means = [], []
    for row in (without, with_elmo):
        score = row["scores"].get(comparison.metric)
        if score is None:  # another process is still training it
            return
        means.append(score["mean"])
        spread = f" ± {score['deviation']:.1f}" if len(row["seeds"]) > 1 else ""
        cells.append(f"{score['mean']:.1f}{spread}")
    print(
        f"| {comparison.title} | {comparison.metric} | {len(with_elmo['seeds'])} | {cells[0]} | {cells[1]} "
        f"| {means[1] - means[0]:+.1f} |"
    )


if __name__ == "__main__":
    main()
