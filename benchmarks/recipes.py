"""Compare settings of a training at equal processor time, by held-out perplexity with the full softmax.

    python benchmarks/recipes.py RUNS TEXT... --held-out TEXT... [--cpu-minutes 8 | --steps 200] [--words 30000]
        [--size 512/128] [--batch-size 48] [--only NAME;...]

Each setting trains with the same seed on the same text. The length of a training is computed from the processor time of
its first steps, so that all take about equally long; the time that they really took is in the table. With ``--steps``,
all make the same number of predictions instead: that many steps of 48 x 20. Processor time is that of the process,
which depends less on other programs than the time on the clock.

Every run has its own directory in RUNS. If the script is interrupted, run it again: unfinished runs are resumed and
finished ones are not repeated. The script prints a Markdown table.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import elmokit
from elmokit.engine.config import PRESETS
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.formats.folder import load_folder
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.config import RECIPES, TrainingConfig
from elmokit.training.corpus import TrainingCorpus, count_corpus, read_held_out
from elmokit.training.loop import run_training
from elmokit.training.reports import TrainingProgress, TrainingReport
from elmokit.training.run import Run
from elmokit.training.setup import TrainingSetup

N_SAMPLES = 1024
N_HELD_OUT = 1000
N_WARMUP, N_TIMED = 2, 4  # steps before the clock starts, and steps that it measures
STEP = 48 * 20  # predictions of what --steps counts
INCLUDED_VOCABULARY = Path(elmokit.__file__).parent / "models" / "en-mini" / "vocab.txt"

MODERN, ORIGINAL = RECIPES["modern"], RECIPES["bilm-tf"]
SAMPLED = {"n_samples": N_SAMPLES}


def muon(matrix_learning_rate: float, learning_rate: float, **changes: Any) -> tuple[TrainingConfig, dict[str, Any]]:
    """Return a recipe with Muon for matrices and Adam for the rest."""
    rates = {"matrix_learning_rate": matrix_learning_rate, "learning_rate": learning_rate}
    return MODERN, {**SAMPLED, "optimizer": "muon", **rates, **changes}


CHANGES: dict[str, tuple[TrainingConfig, dict[str, Any]]] = {
    "bilm-tf, full softmax": (ORIGINAL, {}),
    "bilm-tf": (ORIGINAL, SAMPLED),
    "full softmax": (MODERN, {}),
    "adaptive softmax": (MODERN, {"softmax": SoftmaxConfig("adaptive", (1000, 4000))}),
    "Adam 5e-3": (MODERN, SAMPLED),
    "Adam 1e-2": (MODERN, {**SAMPLED, "learning_rate": 1e-2}),
    "Muon 0.02, Adam 5e-3": muon(0.02, 5e-3),
    "Muon 0.02, Adam 1e-2": muon(0.02, 1e-2),
    "Muon 0.02, Adam 2e-2": muon(0.02, 2e-2),
    "Muon 0.04, Adam 5e-3": muon(0.04, 5e-3),
    "Muon 0.02, Adam 5e-3, 4,096 samples": muon(0.02, 5e-3, n_samples=4096),
    "Muon 0.02, Adam 5e-3, averaged": muon(0.02, 5e-3, ema_decay=0.98),
}
"""What each run changes in a recipe."""


@dataclasses.dataclass(frozen=True)
class Common:
    """What all runs have in common where their row does not say otherwise."""

    hidden_dim: int
    projection_dim: int
    batch_size: int


def recipe(name: str, n_predictions: int, common: Common) -> TrainingConfig:
    """Return the settings of a run, without dropout (training is shorter than an epoch) and without evaluations."""
    base, changes = CHANGES[name]
    sizes = {"hidden_dim": common.hidden_dim, "projection_dim": common.projection_dim}
    shared = {
        "model": dataclasses.replace(PRESETS["mini"], dropout=0.0, **sizes),
        "batch_size": common.batch_size,
        "epochs": None,
        "tokens": n_predictions,
        "log_every": 25,
        "save_every": 100,
        "eval_every": 10**9,
    }
    return dataclasses.replace(base, **{**shared, **changes})


def seconds_per_prediction(name: str, corpus: TrainingCorpus, common: Common) -> float:
    """Measure the processor time of a run's first steps, in a run of their own."""
    config = recipe(name, 1, common)
    # One step more: the last line of the log comes after an evaluation, which is not counted.
    n_steps = N_WARMUP + N_TIMED + 1
    config = dataclasses.replace(config, tokens=n_steps * config.predictions_per_step, log_every=1)
    times: list[float] = []

    def report(content: TrainingReport) -> None:
        if isinstance(content, TrainingProgress):
            times.append(time.process_time())

    few = dataclasses.replace(corpus, held_out=corpus.held_out[:20])
    with tempfile.TemporaryDirectory() as folder:
        run_training(TrainingSetup(config, few), Run(Path(folder) / "run"), report)
    started, ended = times[N_WARMUP - 1], times[N_WARMUP + N_TIMED - 1]
    return (ended - started) / (N_TIMED * config.predictions_per_step)


def main() -> None:
    """Train the runs that are not finished, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="directory for the runs")
    parser.add_argument("texts", metavar="text", nargs="+", type=Path, help="training text")
    parser.add_argument("--held-out", nargs="+", type=Path, required=True, help="validation text")
    parser.add_argument("--vocab", type=Path, default=INCLUDED_VOCABULARY, help="vocabulary file  [default: en-mini's]")
    parser.add_argument(
        "--words", type=int, default=30_000, help="use the first N words of the vocabulary  [default: 30000]"
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--cpu-minutes", type=float, default=8, help="processor time of each run  [default: 8]")
    length.add_argument("--steps", type=int, help="equal numbers of predictions instead: steps of 48 x 20 positions")
    parser.add_argument("--size", default="512/128", help="LSTM cell and projection  [default: 512/128]")
    parser.add_argument("--batch-size", type=int, default=MODERN.batch_size, help="rows of a window  [default: 48]")
    parser.add_argument("--only", help="names of the settings to train, separated by ;")
    arguments = parser.parse_args()

    names = list(CHANGES) if arguments.only is None else arguments.only.split(";")
    vocabulary = Vocabulary(Vocabulary.from_file(arguments.vocab).words[: arguments.words])
    held_out = read_held_out(arguments.held_out, N_HELD_OUT)
    corpus, _, _ = count_corpus(arguments.texts, held_out, vocabulary, None)
    hidden_dim, projection_dim = (int(part) for part in arguments.size.split("/"))
    common, rows = Common(hidden_dim, projection_dim, arguments.batch_size), []
    for name in names:
        run = arguments.runs / name.replace(",", "").replace(" ", "-").replace("/", "-")
        result = run.with_name(f"{run.name}.json")  # with_suffix would cut "Muon-0.02"
        if not result.exists():
            result.write_text(json.dumps(train(name, run, corpus, arguments.cpu_minutes, arguments.steps, common)))
        found = json.loads(result.read_text())
        values = " | ".join(f"{value:.1f}" for value in found["perplexity"])
        rows.append(f"| {name} | {found['n_predictions'] / 1e6:.2f} | {found['cpu_seconds'] / 60:.1f} | {values} |")
        print(rows[-1], flush=True)
    print("\n| setting | million predictions | processor minutes | perplexity, forward | backward | mean |")
    print("|---" * 6 + "|", *rows, sep="\n")


def train(
    name: str, run: Path, corpus: TrainingCorpus, cpu_minutes: float, n_steps: int | None, common: Common
) -> dict[str, Any]:
    """Train with one setting, or resume that run, and return its length, processor time and perplexities."""
    clock = run.with_name(f"{run.name}.clock.json")  # what earlier calls of this script have spent, and the length
    if not clock.exists():
        n_predictions = STEP * (n_steps or 0) or int(60 * cpu_minutes / seconds_per_prediction(name, corpus, common))
        clock.parent.mkdir(parents=True, exist_ok=True)
        clock.write_text(json.dumps({"n_predictions": n_predictions, "cpu_seconds": 0.0}))
    spent = json.loads(clock.read_text())
    config, started = recipe(name, spent["n_predictions"], common), time.process_time()

    def report(content: TrainingReport) -> None:
        print(f"{name}: {content}", flush=True)
        spent_now = spent["cpu_seconds"] + time.process_time() - started
        clock.write_text(json.dumps({**spent, "cpu_seconds": spent_now}))

    run_training(TrainingSetup(config, corpus, {"recipe": name}), Run(run), report)
    forward, backward = load_folder(run / "model").card["held_out_perplexity"]
    return {
        **json.loads(clock.read_text()),
        "perplexity": [forward, backward, (forward * backward) ** 0.5],
    }


if __name__ == "__main__":
    main()
