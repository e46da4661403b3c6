"""Reports of a running training, and their default display.

``train``, ``distill`` and ``finetune`` call ``report`` with one of the dataclasses below. ``str(report)`` is a readable
line, so the shortest custom callback is ``report=print``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elmokit.storage.progress import ProgressBar, count_of, format_duration, is_quiet
from elmokit.text.vocabulary import name_words


@dataclass(frozen=True)
class CountingStart:
    """The text is about to be counted."""

    n_files: int

    def __str__(self) -> str:
        return f"Counting {count_of(self.n_files, 'file')}"


@dataclass(frozen=True)
class CountingProgress:
    """Progress of counting the text."""

    n_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        return f"counting: {self.n_bytes / max(1, self.total_bytes):.0%}"


@dataclass(frozen=True)
class TextCounts:
    """The size of the text, counted before the training."""

    files: tuple[str, ...]
    """Names of the files, without directories."""
    n_sentences: int
    n_tokens: int
    n_types: int
    """Distinct words."""
    unknown_ratio: float
    """Fraction of tokens outside the vocabulary."""
    vocabulary_size: int
    unknown_words: tuple[str, ...] = ()
    """The most frequent of them, at most ten."""

    def __str__(self) -> str:
        named = f" ({name_words(self.unknown_words)})" if self.unknown_words else ""
        return (
            f"{count_of(self.n_sentences, 'sentence')}, {count_of(self.n_tokens, 'token')}, "
            f"{count_of(self.n_types, 'type')}; "
            f"{self.unknown_ratio:.1%} of the tokens{named} are outside the vocabulary of {self.vocabulary_size:,}"
        )


@dataclass(frozen=True)
class ModelSizes:
    """The numbers of weights, reported before the first step."""

    n_parameters: int
    """Parameters of the biLM."""
    n_softmax_parameters: int
    """Parameters of the softmax alone. A tied softmax has no weights of its own, only a bias."""

    def __str__(self) -> str:
        return (
            f"{_format_count(self.n_parameters)} parameters in the biLM and "
            f"{_format_count(self.n_softmax_parameters)} in the softmax"
        )


@dataclass(frozen=True)
class TrainingSpeed:
    """The estimated remaining time, reported after the first twenty steps."""

    n_steps: int
    """Remaining steps."""
    predictions_per_step: int
    """Predictions per step and direction, in all processes."""
    seconds: float
    """Estimated duration."""

    def __str__(self) -> str:
        return (
            f"{count_of(self.n_steps, 'step')} of {self.predictions_per_step:,} predictions per direction left; about "
            f"{format_duration(self.seconds)}"
        )


@dataclass(frozen=True)
class TrainingProgress:
    """One line of the training log (``metrics.jsonl``)."""

    n_steps: int
    n_predictions: int
    """Predictions per direction, of all processes, since the start of the run."""
    fraction: float
    """Completed fraction of the training, from 0 to 1."""
    epoch: float
    """Completed epochs."""
    tokens_per_second: float
    """Predictions per direction and second, since the last line."""
    seconds_left: float
    learning_rate: float
    gradient_norm: float
    """Norm of the gradient, before clipping."""
    losses: tuple[float, ...]
    """Mean training loss in nats since the last line (that of the sampled softmax, if one is used): forward,
    backward."""
    held_out: tuple[float, ...] | None = None
    """Held-out perplexity, if it was just evaluated, as by ``elmokit evaluate perplexity``: forward, backward."""
    held_out_unknown_ratio: float | None = None
    """With ``held_out``: fraction of held-out tokens outside the vocabulary."""

    def __str__(self) -> str:
        losses = " / ".join(f"{loss:.3f}" for loss in self.losses)
        line = (
            f"step {self.n_steps:>6}  {self.fraction:6.1%}  epoch {self.epoch:.2f}  "
            f"{self.tokens_per_second:6.0f} tokens/s  {format_duration(self.seconds_left)} left  training loss {losses}"
        )
        if self.held_out:
            line += f"  held-out perplexity {format_perplexities(self.held_out)}"
            if self.held_out_unknown_ratio is not None:
                line += f" ({format_unknown_ratio(self.held_out_unknown_ratio)})"
        return line


@dataclass(frozen=True)
class TrainingNotice:
    """A notice about a setting that may be unintended, or about changes on resuming."""

    message: str

    def __str__(self) -> str:
        return self.message


TrainingReport = (
    CountingStart | CountingProgress | TextCounts | ModelSizes | TrainingSpeed | TrainingProgress | TrainingNotice
)
TrainingCallback = Callable[[TrainingReport], None]


def ignore(report: TrainingReport) -> None:
    """Show nothing. A callback for training without output."""


class TrainingDisplay:
    """The default callback: prints reports on a terminal or in a notebook. Notices go to standard error.

    With ``elmokit --quiet``, it only prints notices.
    """

    def __init__(self) -> None:
        self._bar = ProgressBar("B")

    def __call__(self, report: TrainingReport) -> None:
        """Show one report."""
        if is_quiet() and not isinstance(report, TrainingNotice):
            return
        if isinstance(report, CountingProgress):
            self._bar("counting", report.n_bytes, report.total_bytes)
            return
        self._bar.close()
        is_result = not isinstance(report, TrainingNotice | CountingStart)
        print(report, file=sys.stdout if is_result else sys.stderr, flush=True)


def format_perplexities(perplexities: Sequence[float]) -> str:
    """Return the perplexities of both directions as text, such as ``96.31 / 94.80``."""
    # Diverging perplexities can have hundreds of digits.
    return " / ".join(f"{value:.2f}" if value < 1e9 else f"{value:.2e}" for value in perplexities)


def format_unknown_ratio(unknown_ratio: float, unknown_words: Sequence[str] = ()) -> str:
    """Return the share of unknown words as text, such as ``13.9% unknown words``, and the first of them."""
    named = f": {name_words(unknown_words)}" if unknown_words else ""
    return f"{unknown_ratio:.1%} unknown words{named}"


def _format_count(count: int) -> str:
    return f"{count:,}" if count < 100_000 else f"{count / 1e6:.1f} M"
