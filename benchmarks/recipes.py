"""Compare training recipes at equal numbers of tokens, by held-out perplexity with the full softmax.

    python benchmarks/recipes.py RUNS TEXT... --held-out TEXT... [--vocab VOCAB] [--words 10000] [--steps 300]
        [--only NAME;...]

All recipes train the same network (mini) on the same text with the same seed, for the same number of predictions. Every
run has its own directory in RUNS. If the script is interrupted, run it again: unfinished runs are resumed and finished
ones are not repeated. The script prints a Markdown table.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import elmokit
from elmokit.bilm import PRESETS
from elmokit.nn.softmax_config import SoftmaxConfig
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.config import RECIPES, TrainingConfig
from elmokit.training.corpus import count_corpus, read_held_out
from elmokit.training.loop import run_training
from elmokit.training.reports import TrainingReport
from elmokit.weights.folder import load_folder

N_SAMPLES = 1024
N_WORDS = 10_000
N_HELD_OUT = 1000
INCLUDED_VOCABULARY = Path(elmokit.__file__).parent / "models" / "en-mini" / "vocab.txt"

MODERN, ORIGINAL = RECIPES["modern"], RECIPES["bilm-tf"]
CHANGES: dict[str, tuple[TrainingConfig, dict[str, Any]]] = {
    "modern, full softmax": (MODERN, {}),
    "modern, sampled": (MODERN, {"n_samples": N_SAMPLES}),
    "modern, adaptive": (MODERN, {"softmax": SoftmaxConfig("adaptive", (1000, 4000))}),
    "bilm-tf": (ORIGINAL, {"n_samples": N_SAMPLES}),
    "bilm-tf, full softmax": (ORIGINAL, {"n_samples": 0}),
}


def recipes(n_steps: int) -> dict[str, TrainingConfig]:
    """Return each recipe with equal sizes, windows and tokens, without dropout (training is shorter than an epoch)."""
    shared = {
        "model": dataclasses.replace(PRESETS["mini"], dropout=0.0),
        "epochs": None,
        "batch_size": MODERN.batch_size,
        "tokens": n_steps * MODERN.batch_size * MODERN.window_length,
        "eval_every": n_steps,
        "save_every": max(25, n_steps // 40),
        "log_every": max(25, n_steps // 100),
    }
    return {name: dataclasses.replace(base, **{**shared, **changes}) for name, (base, changes) in CHANGES.items()}


def main() -> None:
    """Train the recipes that are not finished, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="directory for the runs")
    parser.add_argument("texts", metavar="text", nargs="+", type=Path, help="training text")
    parser.add_argument("--held-out", nargs="+", type=Path, required=True, help="validation text")
    parser.add_argument("--vocab", type=Path, default=INCLUDED_VOCABULARY, help="vocabulary file  [default: en-mini's]")
    parser.add_argument(
        "--words", type=int, default=N_WORDS, help="use the first N words of the vocabulary  [default: 10000]"
    )
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps of 48 x 20 positions  [default: 300]")
    parser.add_argument("--only", help="names of the recipes to train, separated by ;")
    arguments = parser.parse_args()

    configs = recipes(arguments.steps)
    names = list(configs) if arguments.only is None else arguments.only.split(";")
    vocabulary = Vocabulary(Vocabulary.from_file(arguments.vocab).words[: arguments.words])
    held_out = read_held_out(arguments.held_out, N_HELD_OUT)
    corpus, _, _ = count_corpus(arguments.texts, held_out, vocabulary, None)
    rows = []
    for name in names:
        run = arguments.runs / name.replace(", ", "-").replace(" ", "-")

        def report(content: TrainingReport, name: str = name) -> None:
            print(f"{name}: {content}", flush=True)

        run_training(configs[name], corpus, run, {"recipe": name}, report)
        results = load_folder(run / "model").card
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        values = " | ".join(f"{value:.1f}" for value in (*results["held_out_perplexity"], _mean(results)))
        loss = sum(last["losses"]) / len(last["losses"])
        rows.append(f"| {name} | {loss:.3f} | {values} |")
        print(rows[-1], flush=True)
    print("\n| recipe | final training loss | held-out perplexity, forward | backward | mean |")
    print("|---" * 5 + "|", *rows, sep="\n")


def _mean(card: dict[str, Any]) -> float:
    forward, backward = card["held_out_perplexity"]
    return float((forward * backward) ** 0.5)


if __name__ == "__main__":
    main()
