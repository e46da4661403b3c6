"""The result of a training: its best model, its perplexities and its curves."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from elmokit.errors import FormatError, LockedError, TrainingError
from elmokit.initial_state import calibrate_initial_state
from elmokit.io.figures import can_draw
from elmokit.io.text_files import read_sentences
from elmokit.scoring.perplexity import Perplexity, perplexity
from elmokit.training.config import TrainingConfig
from elmokit.training.corpus import TrainingCorpus
from elmokit.training.curves import draw_curves
from elmokit.training.reports import format_perplexities
from elmokit.training.run import INITIAL, OLD_TEXT
from elmokit.training.run_folder import run_lock
from elmokit.weights.folder import is_folder, load_folder, save_folder
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.open import RUN_MODEL

OLD_TEXT_NAME = "old text"
CALIBRATION_SENTENCES = 1000
CALIBRATION_TOKENS = 200  # of each sentence at most: some texts have a document per line
CALIBRATION_SHARDS = 16


@dataclass(frozen=True)
class BestModelFacts:
    """What the model card of a run's best model says about the training."""

    held_out_perplexity: tuple[float, ...]
    """Forward, backward."""
    n_steps: int
    held_out_perplexity_before: tuple[float, ...] | None = None
    """After fine-tuning: that of the model that it started from."""
    perplexity: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """After fine-tuning: for each text, the perplexities before and after."""


def best_model_facts(card: Mapping[str, Any], run: Path) -> BestModelFacts:
    """Read the model card of a run's best model.

    Raises:
        FormatError: It is damaged.
    """
    try:
        return msgspec.convert(card, BestModelFacts)
    except msgspec.ValidationError as error:
        raise FormatError(f"The model card in {run / RUN_MODEL} is damaged ({error}). Copy the run again.") from None


@dataclass(frozen=True)
class TrainingResult:
    """What ``train``, ``distill``, ``finetune`` and ``resume`` return."""

    run: Path
    """The run directory. ``Elmo.from_pretrained(run)`` opens its best model."""
    perplexity: Perplexity
    """Perplexity on the held-out text at the end of the training (full softmax, stateful)."""
    best_model: PretrainedBiLM | None = field(repr=False)
    curves: tuple[Path, ...] = ()
    """The figures of loss and perplexity, if matplotlib is installed."""
    is_main_process: bool = True
    """False in the other processes of a training under ``torchrun``, which return no model."""

    @property
    def model(self) -> PretrainedBiLM:
        """The model with the lowest held-out perplexity.

        Raises:
            TrainingError: There is none, because the perplexity was never a finite number; or this is not the main
                process of a training in several processes.
        """
        if self.best_model is None:
            raise TrainingError(
                f"{self.run} has no best model in this process: either the held-out perplexity was never finite (lower "
                "the learning rate), or another process is the main one."
            )
        return self.best_model

    @property
    def best_perplexity(self) -> tuple[float, ...]:
        """The held-out perplexity of ``model``: forward, backward."""
        return self._facts.held_out_perplexity

    @property
    def perplexity_before(self) -> tuple[float, ...] | None:
        """After fine-tuning: the held-out perplexity of the model that it started from; else None."""
        return self._facts.held_out_perplexity_before

    @property
    def best_step(self) -> int:
        """The step after which ``model`` was saved; 0 if fine-tuning improved nothing."""
        return self._facts.n_steps

    @property
    def before_and_after(self) -> Mapping[str, Mapping[str, Sequence[float]]]:
        """After fine-tuning: perplexities ``before`` and ``after`` on ``held-out`` and ``old text``, else empty.

        These are computed sentence by sentence from a zero state, so they differ from ``perplexity_before`` and
        ``best_perplexity``, which read the text as training does, each sentence after the one before.
        """
        return self._facts.perplexity

    @property
    def _facts(self) -> BestModelFacts:
        return best_model_facts(self.model.card, self.run)

    def __str__(self) -> str:
        end = format_perplexities(self.perplexity.per_direction)
        if self.best_model is None:
            return f"Held-out perplexity {end} at the end."
        best, step = format_perplexities(self.best_perplexity), f"step {self.best_step:,}"
        if (before := self.perplexity_before) is not None:
            # One pair for one model. That of the last step is in the log.
            directions = " / ".join(self.model.bilm.config.direction_names)
            lines = [f"Held-out perplexity ({directions}): {format_perplexities(before)} before, {best} after."]
            if (old := self.before_and_after.get(OLD_TEXT_NAME)) is not None:
                values = " before, ".join(format_perplexities(old[when]) for when in ("before", "after"))
                lines.append(f"Old text, sentence by sentence: {values} after.")
            if self.best_step:
                lines.append(f"The model, the best one (of {step}), is in {self.run / RUN_MODEL}.")
            else:
                lines.append(
                    "Training did not improve the model; the original weights were kept. Lower the learning rate, or "
                    "add text."
                )
        else:
            lines = [
                f"Held-out perplexity {end} at the end.",
                f"The best model, {best} at {step}, is in {self.run / RUN_MODEL}.",
            ]
        if self.curves:
            lines.append(f"The curves are in {self.curves[0]}.")
        elif not can_draw():
            lines.append("No curves were drawn; pip install 'elmokit[plot]' to get them.")
        return "\n".join(lines)


def finish_run(run: Path, config: TrainingConfig, corpus: TrainingCorpus, end: Perplexity) -> TrainingResult:
    """Draw the curves of a finished run, complete its best model, and return the result.

    The best model gets a fixed initial state, calibrated on the training text, and after fine-tuning the perplexities
    before and after. If another process has resumed the run in the meantime, nothing is written.
    """
    curves: tuple[Path, ...] = ()
    best: PretrainedBiLM | None = None
    with contextlib.suppress(LockedError), run_lock(run):
        if can_draw():  # if not, the printed result says so
            names = config.model.direction_names
            loss = "training loss" if config.distillation is None else "distillation loss"
            curves = draw_curves(run, "sampled loss" if config.n_samples else loss, names)
        if is_folder(run / RUN_MODEL):
            best = load_folder(run / RUN_MODEL)
            calibrate_initial_state(best, _calibration_sentences(corpus.shards), "the training text")
            if (run / INITIAL).exists():
                best.card["perplexity"] = _before_and_after(run, best, corpus.held_out)
            save_folder(best, run / RUN_MODEL, overwrite=True)
    if best is None and is_folder(run / RUN_MODEL):
        best = load_folder(run / RUN_MODEL)
    return TrainingResult(run, end, best, curves)


def compare_models(
    before: PretrainedBiLM, after: PretrainedBiLM, texts: Mapping[str, Sequence[Sequence[str]]]
) -> dict[str, dict[str, list[float]]]:
    """Compute the perplexity of each text by both models (full softmax, every sentence alone, from a zero state).

    Sentences start from zeros and not from the models' initial states, because only the trained model may have a
    calibrated one, and the comparison should show what the training changed.

    Returns:
        By the name of the text, then ``before`` and ``after``: forward, backward.
    """
    models = {"before": before, "after": after}
    return {
        name: {when: list(perplexity(model, sentences, "zero").per_direction) for when, model in models.items()}
        for name, sentences in texts.items()
    }


def _before_and_after(run: Path, best: PretrainedBiLM, held_out: Sequence[Sequence[str]]) -> dict[str, object]:
    texts = {"held-out": held_out}
    if (run / OLD_TEXT).exists():
        texts[OLD_TEXT_NAME] = list(read_sentences(run / OLD_TEXT))
    return dict(compare_models(load_folder(run / INITIAL), best, texts))


def _calibration_sentences(shards: Sequence[Path]) -> list[list[str]]:
    """Read the first sentences of some files of the training text."""
    chosen = shards[:: -(-len(shards) // CALIBRATION_SHARDS)]
    n_each = -(-CALIBRATION_SENTENCES // len(chosen))
    return [tokens[:CALIBRATION_TOKENS] for shard in chosen for tokens in islice(read_sentences(shard), n_each)]
