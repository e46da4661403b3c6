"""A run's log as pictures: a figure of its curves, and TensorBoard."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from elmokit.errors import MissingExtraError
from elmokit.io.figures import COLORS, PAGE, save_figure, styled_figure
from elmokit.training.run import LOG

if TYPE_CHECKING:
    from elmokit.training.loop import Progress

DIRECTIONS = ("forward", "backward")


def draw_curves(run: Path, loss_name: str = "training loss") -> tuple[Path, Path]:
    """Draw a run's training loss and held-out perplexity as ``curves.png`` and ``curves.svg`` in its folder.

    Args:
        loss_name: what the loss is called: that of a sampled softmax compares with no other.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: the figure cannot be written.
    """
    lines = [json.loads(line) for line in (run / LOG).read_text(encoding="utf-8").splitlines()]
    looks = [line for line in lines if line["held_out"]]
    with styled_figure(PAGE, 2.6) as figure:
        left, right = figure.subplots(1, 2)
        for index, direction in enumerate(DIRECTIONS[: len(lines[0]["losses"]) if lines else 0]):
            style = {"color": COLORS[index], "linestyle": ("-", "--")[index], "label": direction}
            left.plot([_millions(line) for line in lines], [line["losses"][index] for line in lines], **style)
            right.plot(
                [_millions(line) for line in looks],
                [line["held_out"][index] for line in looks],
                marker="o^"[index],
                markevery=max(1, len(looks) // 12),
                **style,
            )
        left.set_ylabel(f"{loss_name} (nats)")
        right.set_ylabel("held-out perplexity")
        right.set_yscale("log")
        right.yaxis.set_major_formatter("{x:.4g}")
        right.yaxis.set_minor_formatter("{x:.3g}")
        for axes in (left, right):
            axes.set_xlabel("predictions per direction (millions)")
            axes.legend()
        return save_figure(figure, run / "curves", overwrite=True)


def _millions(line: dict[str, float]) -> float:
    return line["n_predictions"] / 1e6


class Board:
    """Lines of the log for TensorBoard, in the run's folder ``tensorboard``.

    Args:
        n_steps: of the run so far; what an interrupted run wrote after that is struck out.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """

    def __init__(self, run: Path, n_steps: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("--tensorboard", "tensorboard") from None
        # Nothing is written before the first line: only then is the folder surely this process's own.
        self._make = partial(SummaryWriter, str(run / "tensorboard"), purge_step=n_steps + 1)
        self._writer: SummaryWriter | None = None

    def add(self, progress: Progress) -> None:
        """Write one line of the log."""
        self._writer = self._writer or self._make()
        values = {
            "learning rate": progress.learning_rate,
            "gradient norm": progress.gradient_norm,
            "tokens per second": progress.tokens_per_second,
        }
        for direction, loss in zip(DIRECTIONS, progress.losses, strict=False):
            values[f"training loss/{direction}"] = loss
        for direction, perplexity in zip(DIRECTIONS, progress.held_out or (), strict=False):
            values[f"held-out perplexity/{direction}"] = perplexity
        for name, value in values.items():
            self._writer.add_scalar(name, value, progress.n_steps)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
