"""A run's log as pictures: a figure of its curves, and TensorBoard."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from elmokit.engine.config import DIRECTIONS
from elmokit.errors import needs_extra
from elmokit.evaluation.result import COLORS, PAGE, save_figure, styled_figure
from elmokit.training.reports import TrainingProgress
from elmokit.training.run import Run


def draw_curves(
    run: Path, loss_name: str = "training loss", directions: Sequence[str] = DIRECTIONS
) -> tuple[Path, Path]:
    """Draw a run's training loss and held-out perplexity as ``curves.png`` and ``curves.svg`` in its directory."""
    records = read_log(run)
    evaluations = [record for record in records if record.held_out]

    def millions(of: list[TrainingProgress]) -> list[float]:
        return [record.n_predictions / 1e6 for record in of]

    with styled_figure(PAGE, 2.6) as figure:
        left, right = figure.subplots(1, 2)
        for index, direction in enumerate(directions[: len(records[0].losses) if records else 0]):
            style = {"color": COLORS[index], "linestyle": ("-", "--")[index], "label": direction}
            left.plot(millions(records), [record.losses[index] for record in records], **style)
            right.plot(
                millions(evaluations),
                [record.held_out[index] for record in evaluations if record.held_out],
                marker="o^"[index],
                markevery=max(1, len(evaluations) // 12),
                **style,
            )
        left.set_ylabel(f"{loss_name} (nats)")
        right.set_ylabel("held-out perplexity")
        right.set_yscale("log")
        right.yaxis.set_major_formatter("{x:.4g}")
        right.yaxis.set_minor_formatter("{x:.3g}")
        for axes in (left, right):
            axes.set_xlabel("predictions per direction (millions)")
            if records:  # matplotlib warns of a legend without lines
                axes.legend()
        return save_figure(figure, run / "curves", overwrite=True)


def read_log(run: Path) -> list[TrainingProgress]:
    """Read the lines of a log, without damaged ones."""
    records = []
    for line in Run(run).log.records():
        # A damaged line may also have half of a surrogate pair, which msgspec cannot encode.
        with contextlib.suppress(msgspec.ValidationError, UnicodeEncodeError):
            record = msgspec.convert(line, TrainingProgress)
            if not record.held_out or len(record.held_out) == len(record.losses):
                records.append(record)
    n_directions = max((len(record.losses) for record in records), default=0)
    return [record for record in records if len(record.losses) == n_directions]


class TensorBoardLog:
    """Writes the lines of the log for TensorBoard. What an interrupted run wrote after ``n_steps`` is hidden."""

    def __init__(self, run: Path, n_steps: int, directions: Sequence[str] = DIRECTIONS) -> None:
        self._directions = directions
        with needs_extra("--tensorboard", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        # Nothing is written before the first line: only then does this process surely hold the lock of the run.
        self._open = partial(SummaryWriter, str(run / "tensorboard"), purge_step=n_steps + 1)
        self._writer: SummaryWriter | None = None

    def add(self, progress: TrainingProgress) -> None:
        """Write one line of the log."""
        self._writer = self._writer or self._open()
        values = {
            "learning rate": progress.learning_rate,
            "gradient norm": progress.gradient_norm,
            "tokens per second": progress.tokens_per_second,
        }
        for direction, loss in zip(self._directions, progress.losses, strict=False):
            values[f"training loss/{direction}"] = loss
        for direction, perplexity in zip(self._directions, progress.held_out or (), strict=False):
            values[f"held-out perplexity/{direction}"] = perplexity
        for name, value in values.items():
            self._writer.add_scalar(name, value, progress.n_steps)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
