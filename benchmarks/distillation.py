"""Compare a distilled student with the same student trained from text alone.

    python benchmarks/distillation.py WORK TEXT... --held-out TEXT [--pos TRAIN TEST] [--minutes 15] [--only NAME;...]
        [--preset mini] [--hidden-dim 256] [--projection-dim 64] [--precision float32]

The teacher is the model in the package (768/192); the student has the same words, and by default a third of the width.
The time of a step is measured first, in processor time, which does not depend on how busy the machine is; the length of
each training follows from it. Evaluations and checkpoints do not count. One more training from text alone is as long as
the complete distillation, in predictions instead of time. The script prints a Markdown table of held-out perplexity and
the accuracy of the part-of-speech probe. Unfinished trainings are resumed if the script is run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import elmokit
from elmokit.evaluation.pos import probe_pos
from elmokit.evaluation.result import Table
from elmokit.evaluation.tagged import read_tagged
from elmokit.training.reports import TrainingProgress, TrainingReport

TEACHER = "en-mini"
VARIANTS: dict[str, dict[str, Any]] = {
    "text": {"layer_weight": 0.0, "prediction_weight": 0.0},
    "text, predictions": {"layer_weight": 0.0},
    "text, layers": {"prediction_weight": 0.0},
    "text, predictions, layers": {},
}
COMPLETE, AS_LONG = "text, predictions, layers", "text, as many predictions"
TRAINING: dict[str, Any] = {
    "matrix_learning_rate": 0.03,
    "learning_rate": 1e-2,
    "passage_length": 1,
    "lower_case": 0.0,
    "ema_decay": 0.0,
    "dropout": 0.0,
}
"""The recipe of the teacher, with smaller batches and without averaging, because these trainings are short."""
TIMED_STEPS = (5, 25)
WINDOW_LENGTH = 20
HEAD = ["learned from", "s per step", "processor minutes", "predictions", "perplexity, forward", "backward"]


def start(name: str, out: Path, arguments: argparse.Namespace, **settings: Any) -> elmokit.TrainingResult:
    """Train one variant. Text alone needs no teacher."""
    sizes = {name: getattr(arguments, name) for name in ("preset", "hidden_dim", "projection_dim")}
    shared: dict[str, Any] = {
        "held_out": arguments.held_out,
        "out": out,
        "held_out_sentences": 1000,
        "precision": arguments.precision,
        "batch_size": arguments.batch_size,
        **TRAINING,
        **sizes,
        **settings,
    }
    if name in ("text", AS_LONG):
        vocabulary = elmokit.open_model(TEACHER).vocabulary
        return elmokit.train(arguments.texts, vocabulary=vocabulary, **shared)
    return elmokit.distill(TEACHER, arguments.texts, **shared, **VARIANTS[name])


def length_of(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the length of a training, which is measured in the first run of this script and kept beside the run."""
    if name == AS_LONG:
        return {**length_of("text", arguments), "n_steps": length_of(COMPLETE, arguments)["n_steps"]}
    path = run_folder(name, arguments).with_suffix(".json")
    if not path.exists():
        seconds = seconds_per_step(name, arguments)
        path.write_text(json.dumps({"seconds": seconds, "n_steps": round(60 * arguments.minutes / seconds)}))
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def run_folder(name: str, arguments: argparse.Namespace) -> Path:
    """Return the run directory of a variant."""
    return arguments.work / name.replace(", ", "-").replace(" ", "-")  # type: ignore[no-any-return]


def seconds_per_step(name: str, arguments: argparse.Namespace) -> float:
    """Measure the processor time of a step."""
    folder, times = arguments.work / f"timing-{name}", {}

    def report(content: TrainingReport) -> None:
        if isinstance(content, TrainingProgress):
            times[content.n_steps] = time.process_time()

    n_steps = TIMED_STEPS[1]
    start(name, folder, arguments, tokens=n_steps * arguments.batch_size * WINDOW_LENGTH, log_every=1, report=report)
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
    parser.add_argument("--batch-size", type=int, default=128, help="rows of a window  [default: 128]")
    parser.add_argument("--precision", default="float32", help="precision of the training  [default: float32]")
    parser.add_argument("--only", help="names of the variants, separated by ;")
    arguments = parser.parse_args()

    arguments.work.mkdir(exist_ok=True)
    rows, head = [], HEAD
    for name in [*VARIANTS, AS_LONG] if arguments.only is None else arguments.only.split(";"):
        out, plan = run_folder(name, arguments), length_of(name, arguments)
        tokens = plan["n_steps"] * arguments.batch_size * WINDOW_LENGTH
        result = start(name, out, arguments, tokens=tokens)
        forward, backward = result.best_perplexity
        minutes = plan["n_steps"] * plan["seconds"] / 60
        row = [name, f"{plan['seconds']:.3f}", f"{minutes:.1f}", f"{tokens:,}", f"{forward:.1f}", f"{backward:.1f}"]
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
