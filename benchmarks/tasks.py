"""Train the six tasks without and with ELMo, and print the table of results/tasks.md.

    python benchmarks/tasks.py DATA OUT [TASK...] [--seeds 1,2,3]

DATA has the directories that COMPARISONS names. Each task is trained without and with ELMo on the same data, with the
same sizes, epochs and seeds. Results are stored in OUT. If the script is interrupted, run it again to resume. If the
included model has changed, delete OUT/TASK/elmo.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from elmokit.tasks.config_file import load_config
from elmokit.tasks.run import train_task


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
    """Train the named tasks that are not finished in OUT, and print their table."""
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
    os.chdir(arguments.data)
    print("| task | metric | seeds | without | with ELMo | difference |\n|---|---|---|---|---|---|")
    for name in arguments.tasks or COMPARISONS:
        comparison = COMPARISONS[name]
        path = out / f"{name}.toml"
        path.write_text(comparison.config, encoding="utf-8")
        task, config = load_config(path, [f"train.seeds=[{arguments.seeds or comparison.seeds}]"])
        variants = {"baseline": config, "elmo": replace(config, elmo=task.elmo)}
        print_row(comparison, *(train_task(task, one, out / name / kind) for kind, one in variants.items()))


def print_row(comparison: Comparison, without: dict[str, Any], with_elmo: dict[str, Any]) -> None:
    """Print a row of the table: means and standard deviations over seeds."""
    n_seeds = len(with_elmo["seeds"])
    scores = [results["dev"][comparison.metric] for results in (without, with_elmo)]
    cells = [f"{score['mean']:.1f}" + (f" ± {score['deviation']:.1f}" if n_seeds > 1 else "") for score in scores]
    difference = scores[1]["mean"] - scores[0]["mean"]
    print(f"| {comparison.title} | {comparison.metric} | {n_seeds} | {' | '.join(cells)} | {difference:+.1f} |")


if __name__ == "__main__":
    main()
