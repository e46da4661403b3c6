"""Training recipes at equal tokens: the original's beside the newer ones, by held-out perplexity with the full softmax.

    python benchmarks/recipes.py RUNS TEXT... --held-out TEXT... [--vocab VOCAB] [--words 10000] [--steps 300]
        [--only NAME;...]

One network (mini), one text, one seed; each recipe trains for the same number of predictions. Every run is a folder in
RUNS: after a kill the same command goes on, and what has ended is not done again. Prints a Markdown table.
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
SHIPPED_VOCABULARY = Path(elmokit.__file__).parent / "models" / "en-mini" / "vocab.txt"

MODERN, ORIGINAL = RECIPES["modern"], RECIPES["bilm-tf"]
CHANGES: dict[str, tuple[TrainingConfig, dict[str, Any]]] = {
    "modern, full softmax": (MODERN, {}),
    "modern, sampled": (MODERN, {"n_samples": N_SAMPLES}),
    "modern, adaptive": (MODERN, {"softmax": SoftmaxConfig("adaptive", (1000, 4000))}),
    "bilm-tf": (ORIGINAL, {"n_samples": N_SAMPLES}),
    "bilm-tf, full softmax": (ORIGINAL, {"n_samples": 0}),
}


def recipes(n_steps: int) -> dict[str, TrainingConfig]:
    """Each recipe at the same sizes, windows and tokens; without dropout, which a fraction of a pass does not need."""
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
    """Train what is not trained yet, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--held-out", nargs="+", type=Path, required=True)
    parser.add_argument("--vocab", type=Path, default=SHIPPED_VOCABULARY)
    parser.add_argument("--words", type=int, default=N_WORDS, help="The first so many of the vocabulary.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", help="Some of the recipes, by their names with ; between them.")
    arguments = parser.parse_args()

    wanted = recipes(arguments.steps)
    names = list(wanted) if arguments.only is None else arguments.only.split(";")
    vocabulary = Vocabulary(Vocabulary.from_file(arguments.vocab).words[: arguments.words])
    held_out = read_held_out(arguments.held_out, N_HELD_OUT)
    corpus, _, _ = count_corpus(arguments.texts, held_out, vocabulary, None)
    rows = []
    for name in names:
        run = arguments.runs / name.replace(", ", "-").replace(" ", "-")

        def report(content: TrainingReport, name: str = name) -> None:
            print(f"{name}: {content}", flush=True)

        run_training(wanted[name], corpus, run, {"recipe": name}, report)
        results = load_folder(run / "model").card
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        values = " | ".join(f"{value:.1f}" for value in (*results["held_out_perplexity"], _mean(results)))
        loss = sum(last["losses"]) / len(last["losses"])
        rows.append(f"| {name} | {loss:.3f} | {values} |")
        print(rows[-1], flush=True)
    print("\n| recipe | training loss at the end | held-out perplexity forward | backward | mean |")
    print("|---" * 5 + "|", *rows, sep="\n")


def _mean(card: dict[str, Any]) -> float:
    forward, backward = card["held_out_perplexity"]
    return float((forward * backward) ** 0.5)


if __name__ == "__main__":
    main()
