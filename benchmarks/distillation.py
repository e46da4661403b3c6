"""Compare a distilled student with the same student trained from text alone, at equal processor time.

    python benchmarks/distillation.py WORK TEXT... --held-out TEXT [--pos TRAIN TEST] [--minutes 15] [--only NAME;...]
        [--preset mini] [--hidden-dim 256] [--projection-dim 64]

The teacher is the model in the package (512/128); the student has the same words, and by default half the width. The
time of a step is measured first, in processor time, which does not depend on how busy the machine is; the length of
each training follows from it. Evaluations and checkpoints do not count. The script prints a Markdown table of held-out
perplexity and the accuracy of the part-of-speech probe. Unfinished trainings are resumed if the script is run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import elmokit
from elmokit.io.tables import Table
from elmokit.probes.pos import probe_pos
from elmokit.probes.tagged import read_tagged
from elmokit.training.reports import TrainingProgress, TrainingReport

TEACHER = "en-mini"
N_SAMPLES = 2048
VARIANTS: dict[str, dict[str, Any]] = {
    "text": {"layer_weight": 0.0, "prediction_weight": 0.0},
    "text, predictions": {"layer_weight": 0.0},
    "text, layers": {"prediction_weight": 0.0},
    "text, predictions, layers": {},
}
TIMED_STEPS = (5, 25)
PREDICTIONS_PER_STEP = 48 * 20
HEAD = ["learned from", "s per step", "predictions", "perplexity, forward", "backward"]


def start(name: str, out: Path, arguments: argparse.Namespace, **settings: Any) -> elmokit.TrainingResult:
    """Train one variant. Text alone needs no teacher."""
    sizes = {name: getattr(arguments, name) for name in ("preset", "hidden_dim", "projection_dim")}
    shared: dict[str, Any] = {
        "held_out": arguments.held_out,
        "out": out,
        "held_out_sentences": 500,
        **sizes,
        **settings,
    }
    shared["n_samples"] = N_SAMPLES
    if name == "text":
        vocabulary = elmokit.open_model(TEACHER).vocabulary
        return elmokit.train(arguments.texts, vocabulary=vocabulary, **shared)
    return elmokit.distill(TEACHER, arguments.texts, **shared, **VARIANTS[name])


def seconds_per_step(name: str, arguments: argparse.Namespace) -> float:
    """Measure the processor time of a step."""
    folder, times = arguments.work / f"timing-{name}", {}

    def report(content: TrainingReport) -> None:
        if isinstance(content, TrainingProgress):
            times[content.n_steps] = time.process_time()

    n_steps = TIMED_STEPS[1]
    start(name, folder, arguments, tokens=n_steps * PREDICTIONS_PER_STEP, log_every=1, report=report)
    shutil.rmtree(folder)
    first, last = TIMED_STEPS[0], n_steps - 1  # the last step includes an evaluation
    return (times[last] - times[first]) / (last - first)


def main() -> None:
    """Train and evaluate the variants, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="directory for the runs")
    parser.add_argument("texts", nargs="+", type=Path, help="training text")
    parser.add_argument("--held-out", type=Path, required=True, help="validation text")
    parser.add_argument("--pos", nargs=2, type=Path, metavar=("TRAIN", "TEST"), help="tagged sentences (CoNLL-U)")
    parser.add_argument("--pos-sentences", type=int, help="read the first N tagged sentences only")
    parser.add_argument("--minutes", type=float, default=15, help="processor time of each training  [default: 15]")
    parser.add_argument("--preset", default="mini", help="char CNN of the student  [default: mini]")
    parser.add_argument("--hidden-dim", type=int, default=256, help="LSTM cells of the student  [default: 256]")
    parser.add_argument("--projection-dim", type=int, default=64, help="outputs of the student  [default: 64]")
    parser.add_argument("--only", help="names of the variants, separated by ;")
    arguments = parser.parse_args()

    arguments.work.mkdir(exist_ok=True)
    rows, head = [], HEAD
    for name in VARIANTS if arguments.only is None else arguments.only.split(";"):
        out = arguments.work / name.replace(", ", "-")
        length = out.with_suffix(".json")
        if not length.exists():
            seconds = seconds_per_step(name, arguments)
            length.write_text(json.dumps({"seconds": seconds, "n_steps": round(60 * arguments.minutes / seconds)}))
        plan = json.loads(length.read_text())
        tokens = plan["n_steps"] * PREDICTIONS_PER_STEP
        result = elmokit.resume(out) if out.exists() else start(name, out, arguments, tokens=tokens)
        forward, backward = result.best_perplexity
        row = [name, f"{plan['seconds']:.3f}", f"{tokens:,}", f"{forward:.1f}", f"{backward:.1f}"]
        if arguments.pos:
            train, test = (list(read_tagged(path))[: arguments.pos_sentences] for path in arguments.pos)
            probed = probe_pos(elmokit.Elmo(result.model), train, test, combined=False).rows
            row += [f"{100 * layer.accuracy:.1f}" for layer in probed]
            head = [*HEAD, *(f"POS, {layer.name}" for layer in probed)]
        rows.append(row)
        print(*row, flush=True)
    print(Table(head, rows).to_markdown())


if __name__ == "__main__":
    main()
