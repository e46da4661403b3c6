"""The result of training: the best model, its perplexities, and the log for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from elmokit.engine.architecture import DIRECTIONS
from elmokit.errors import TrainingError, needs_extra
from elmokit.formats.folder import RUN_MODEL, is_model_folder, load_folder, save_folder
from elmokit.lm.perplexity import Perplexity, perplexity, unknown_words_warning
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.training.bilm_run import INITIAL, OLD_TEXT, read_written_sentences
from elmokit.training.reports import (
    TrainingCallback,
    TrainingNotice,
    TrainingProgress,
    TrainingReport,
    format_perplexities,
    format_unknown_ratio,
    ignore,
)
from elmokit.training.training_config import TrainingConfig


class TensorBoardLog:
    """A callback that writes log lines for TensorBoard, and passes all reports on.

    Lines of an interrupted run after ``n_steps`` are hidden.
    """

    def __init__(
        self, run: Path, n_steps: int, directions: Sequence[str] = DIRECTIONS, report: TrainingCallback = ignore
    ) -> None:
        self._directions, self._report = directions, report
        with needs_extra("--tensorboard", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        # Nothing is written before the first line, when this process is certain to hold the run's lock.
        self._open = partial(SummaryWriter, str(run / "tensorboard"), purge_step=n_steps + 1)
        self._writer: SummaryWriter | None = None

    def __call__(self, report: TrainingReport) -> None:
        """Take one report."""
        self._report(report)
        if isinstance(report, TrainingProgress):
            self._write(report)

    def _write(self, progress: TrainingProgress) -> None:
        if self._writer is None:
            self._writer = self._open()
        values = {
            "learning rate": progress.learning_rate,
            "gradient norm": progress.gradient_norm,
            "tokens per second": progress.tokens_per_second,
        }
        for direction, loss in zip(self._directions, progress.losses, strict=False):
            values[f"training loss/{direction}"] = loss
        for direction, value in zip(self._directions, progress.held_out or (), strict=False):
            values[f"held-out perplexity/{direction}"] = value
        for name, value in values.items():
            self._writer.add_scalar(name, value, progress.n_steps)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


LOWER_RATE = "Use a lower learning_rate or max_grad_norm."
"""The remedy for diverging training."""
HELD_OUT_NAME, OLD_TEXT_NAME = "held-out", "old text"


@dataclass(frozen=True)
class TrainingResult:
    """The result of ``train``, ``distill`` and ``finetune``."""

    run: Path
    """The run directory. ``Elmo.from_pretrained(run)`` opens its best model."""
    perplexity: Perplexity
    """Perplexity on the held-out text at the end of the training, from the model's start state."""
    best_model: PretrainedBiLM | None = field(repr=False)
    is_main_process: bool = True
    """False in the other processes under ``torchrun``, which return no model."""

    @property
    def model(self) -> PretrainedBiLM:
        """The model with the lowest held-out perplexity.

        Raises:
            TrainingError: This is not the main process.
        """
        if self.best_model is None:
            raise TrainingError(f"{self.run} has no best model in this process, which is not the main process.")
        return self.best_model

    @property
    def best_perplexity(self) -> tuple[float, ...]:
        """The held-out perplexity of ``model``: forward, backward."""
        return tuple(self.model.card["held_out_perplexity"])

    @property
    def perplexity_before(self) -> tuple[float, ...] | None:
        """After fine-tuning: the held-out perplexity of the initial model; else None."""
        before = self.model.card.get("held_out_perplexity_before")
        return None if before is None else tuple(before)

    @property
    def best_step(self) -> int:
        """The step after which ``model`` was saved; 0 if fine-tuning improved nothing."""
        n_steps: int = self.model.card["n_steps"]
        return n_steps

    @property
    def before_and_after(self) -> Mapping[str, Mapping[str, Sequence[float]]]:
        """After fine-tuning: perplexities ``before`` and ``after`` on ``held-out`` and ``old text``, else empty.

        All are computed as by ``elmokit evaluate perplexity``, in float32. Those on ``held-out`` are
        ``perplexity_before`` and ``best_perplexity``.
        """
        perplexities: Mapping[str, Mapping[str, Sequence[float]]] = self.model.card.get("perplexity", {})
        return perplexities

    def __str__(self) -> str:
        end = format_perplexities(self.perplexity.per_direction)
        unknown = format_unknown_ratio(self.perplexity.unknown_ratio, self.perplexity.unknown_words)
        if self.best_model is None:
            return f"Held-out perplexity {end} at the end ({unknown})."
        best = format_perplexities(self.best_perplexity)
        before = self.perplexity_before
        if before is None:
            return (
                f"Held-out perplexity {end} at the end ({unknown}).\n"
                f"The best model, {best} at step {self.best_step:,}, is in {self.run / RUN_MODEL}."
            )
        # The perplexity of the best model; that of the last step is in the log.
        directions = " / ".join(self.model.config.direction_names)
        lines = [f"Held-out perplexity ({directions}): {format_perplexities(before)} before, {best} after ({unknown})."]
        old = self.before_and_after.get(OLD_TEXT_NAME)
        if old is not None:
            old_before, old_after = format_perplexities(old["before"]), format_perplexities(old["after"])
            old_unknown = format_unknown_ratio(self.model.card["old_text_unknown_ratio"])
            lines.append(f"Old text: {old_before} before, {old_after} after ({old_unknown}).")
        if self.best_step:
            lines.append(f"The best model, from step {self.best_step:,}, is in {self.run / RUN_MODEL}.")
        else:
            lines.append(
                "Training did not improve the model, so the original weights were kept. Lower the learning rate, or "
                "add text."
            )
        return "\n".join(lines)


def finish_run(run: Path, config: TrainingConfig, end: Perplexity, report: TrainingCallback) -> TrainingResult:
    """Return the result of a complete run; after fine-tuning, add perplexities before and after to its model card.

    Raises:
        TrainingError: There is no best model.
    """
    if not is_model_folder(run / RUN_MODEL):
        raise TrainingError(f"{run} has no model: the held-out perplexity was never finite. {LOWER_RATE}")
    best = load_folder(run / RUN_MODEL)
    if (run / INITIAL).exists():
        best = best.replace(card={**best.card, **_before_and_after(run, best, report)})
        save_folder(best, run / RUN_MODEL, overwrite=True)
    return TrainingResult(run, end, best)


def compare_models(
    before: PretrainedBiLM, after: PretrainedBiLM, sentences: Sequence[Sequence[str]]
) -> tuple[dict[str, list[float]], Perplexity]:
    """Compute a text's perplexities ``before`` and ``after``, each from its own start state; also return the latter."""
    first, second = perplexity(before, sentences), perplexity(after, sentences)
    return {"before": list(first.per_direction), "after": list(second.per_direction)}, second


def _before_and_after(run: Path, best: PretrainedBiLM, report: TrainingCallback) -> dict[str, object]:
    """Compare the models before and after fine-tuning, for the model card."""
    held_out = {"before": best.card["held_out_perplexity_before"], "after": best.card["held_out_perplexity"]}
    if not (run / OLD_TEXT).exists():
        return {"perplexity": {HELD_OUT_NAME: held_out}}
    sentences = read_written_sentences(run / OLD_TEXT)
    old, after = compare_models(load_folder(run / INITIAL), best, sentences)
    warning = unknown_words_warning(after.unknown_ratio, after.unknown_words)
    if warning:
        report(TrainingNotice(f"Old text: {warning}"))
    perplexities = {HELD_OUT_NAME: held_out, OLD_TEXT_NAME: old}
    return {"perplexity": perplexities, "old_text_unknown_ratio": after.unknown_ratio}
