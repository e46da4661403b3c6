"""Perplexity with the full softmax: each token counts once, and directions are reported separately."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from elmokit.embedding.computer import Computer, computer_of
from elmokit.embedding.start_state import StartName
from elmokit.engine.architecture import DIRECTIONS
from elmokit.engine.state import State
from elmokit.errors import TextError
from elmokit.lm.spelling import Spelling
from elmokit.lm.surprisal import (
    BATCH_TOKENS,
    Surprisal,
    surprisals,
    words_as_read,
)
from elmokit.lm.word_cache import DocumentCache, cached_surprisals
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.vocabulary import UnknownWords, name_words

MANY_UNKNOWN = 0.2
"""Fraction of unknown words above which a perplexity is questionable."""


@dataclass(frozen=True)
class DirectionPerplexities:
    """The mean surprisal per prediction of each direction, and the resulting perplexities."""

    mean_nats: tuple[float, ...]
    """Mean surprisal per prediction: forward, then backward if there is one."""

    @property
    def per_direction(self) -> tuple[float, ...]:
        """The perplexity of each direction, exp of its mean nats: forward, then backward."""
        return tuple(exp_or_inf(nats) for nats in self.mean_nats)

    @property
    def mean(self) -> float:
        """The geometric mean over directions, as printed by bilm-tf."""
        return exp_or_inf(sum(self.mean_nats) / len(self.mean_nats))

    def by_direction(self, numbers: tuple[float, ...]) -> dict[str, float]:
        """Name the numbers of one or two directions."""
        return dict(zip(DIRECTIONS, numbers, strict=False))


@dataclass(frozen=True)
class Perplexity(DirectionPerplexities):
    """How well a model predicts a text, for each direction.

    A sentence of n tokens counts n + 1 predictions per direction: the forward LSTM predicts its tokens and ``</S>``,
    the backward LSTM its tokens and ``<S>``.
    """

    n_predictions: int
    """Predictions per direction."""
    unknown_ratio: float
    """Fraction of tokens (without boundaries) that are outside the vocabulary and count as ``<UNK>``."""
    n_sentences: int
    n_characters: int
    """Unicode code points of the text, with one space or line end after each token."""
    spelling_bits: float | None = None
    """Bits for the letters of unknown words, by ``Spelling``; None without a spelling model."""
    spelled_by: str | None = None
    """The source of the spelling model."""
    unknown_words: tuple[str, ...] = ()
    """The first ten unknown words, each once."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens, without boundaries."""
        return self.n_predictions - self.n_sentences

    @property
    def n_unknown(self) -> int:
        """Number of tokens outside the vocabulary."""
        return round(self.unknown_ratio * self.n_tokens)

    @property
    def arithmetic_mean(self) -> float:
        """The arithmetic mean over directions, which many papers quote."""
        return sum(self.per_direction) / len(self.mean_nats)

    @property
    def bits_per_character_unspelled(self) -> tuple[float, ...]:
        """Bits per character of each direction without the letters of unknown words: a lower bound."""
        return tuple(nats * self.n_predictions / math.log(2) / self.n_characters for nats in self.mean_nats)

    @property
    def bits_per_character(self) -> tuple[float, ...]:
        """Bits per character of each direction, with unknown words spelled out. Comparable between vocabularies."""
        # The code length of the whole text: each word coded by the model, unknown words as <UNK> and then letter by
        # letter, and line ends as </S> (<S> for the backward direction).
        if self.spelling_bits is None:
            raise ValueError("To get bits per character, pass a spelling model to perplexity().")
        spelled = self.spelling_bits / self.n_characters
        return tuple(bits + spelled for bits in self.bits_per_character_unspelled)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers by name, as printed by ``elmokit evaluate perplexity --json``: None for infinity."""
        return {
            "n_sentences": self.n_sentences,
            "n_tokens": self.n_tokens,
            "n_predictions": self.n_predictions,
            "n_characters": self.n_characters,
            "unknown_ratio": self.unknown_ratio,
            "unknown_words": list(self.unknown_words),
            "mean_nats": self.by_direction(self.mean_nats),
            "perplexity": finite_or_none(
                {
                    **self.by_direction(self.per_direction),
                    "geometric_mean": self.mean,
                    "arithmetic_mean": self.arithmetic_mean,
                }
            ),
            "bits_per_character": self.by_direction(self.bits_per_character),
            "spelled_by": self.spelled_by,
            "bits_per_character_unspelled": self.by_direction(self.bits_per_character_unspelled),
        }

    def to_text(self) -> str:
        """Return the numbers as readable lines, as printed by ``elmokit evaluate perplexity``."""
        named = self.by_direction(self.per_direction)
        unknown = f" ({name_words(self.unknown_words)})" if self.unknown_words else ""
        lines = [
            f"sentences           {self.n_sentences:,}",
            f"tokens              {self.n_tokens:,}, {self.unknown_ratio:.2%} unknown{unknown}",
            f"predictions         {self.n_predictions:,} per direction: one per token, plus one per sentence end",
            *(f"{name:<19} {value:.4f}" for name, value in named.items()),
        ]
        if len(self.mean_nats) > 1:
            lines.append(f"geometric mean      {self.mean:.4f}")
            lines.append(f"arithmetic mean     {self.arithmetic_mean:.4f}")
        bits, bound = (
            " / ".join(f"{value:.4f}" for value in values)
            for values in (self.bits_per_character, self.bits_per_character_unspelled)
        )
        note = f", unknown words spelled by {self.spelled_by}; at least {bound}" if self.unknown_ratio else ""
        return "\n".join([*lines, f"bits per character  {bits}{note}"])


def perplexity(
    model: PretrainedBiLM | Computer,
    texts: Iterable[Any],
    start: StartName | State = "warm",
    *,
    documents: bool = False,
    batch_tokens: int = BATCH_TOKENS,
    spelling: Spelling | None = None,
    on_sentence: Callable[[Surprisal], object] | None = None,
    cache: DocumentCache | None = None,
) -> Perplexity:
    """Compute the perplexity of a text, without dropout.

    Args:
        texts, start, documents, batch_tokens: As in ``surprisals``.
        spelling: The spelling model for unknown words (``spelling_of``), for bits per character.
        on_sentence: Called with the surprisal of each sentence, in order.
        cache: Use a cache of each document's words (``cached_surprisals``), if ``texts`` are documents.
    """
    computer = computer_of(model)
    total = np.zeros(computer.model.config.n_directions)
    n_sentences = n_characters = 0
    unknown = UnknownWords()
    spelling_bits = 0.0
    compose = computer.model.read.compose
    if cache is None:
        scored = surprisals(computer, texts, start, batch_tokens, documents=documents)
    else:
        scored = cached_surprisals(computer, texts, cache, start, batch_tokens)
    for sentence in scored:
        total += np.nansum(sentence.nats, axis=1, dtype=np.float64)
        if spelling is not None and sentence.spelling_nats is None:
            sentence = add_spelling(computer.model, spelling, sentence)
        words = sentence.tokens[1:-1]
        n_sentences += 1
        n_characters += sum(len(compose(word)) for word in words) + max(1, len(words))
        unknown.add(words, sentence.is_unknown[1:-1])
        if sentence.spelling_nats is not None:
            spelling_bits += float(sentence.spelling_nats.sum()) / math.log(2)
        if on_sentence is not None:
            on_sentence(sentence)
    if not n_sentences:
        raise TextError("No sentence to score.")
    n_predictions = unknown.n_words + n_sentences
    return Perplexity(
        mean_nats=tuple((total / n_predictions).tolist()),
        n_predictions=n_predictions,
        unknown_ratio=unknown.ratio,
        n_sentences=n_sentences,
        n_characters=n_characters,
        spelling_bits=None if spelling is None and cache is None else spelling_bits,
        spelled_by=None if spelling is None else spelling.source,
        unknown_words=tuple(unknown.first),
    )


def add_spelling(model: PretrainedBiLM, spelling: Spelling, sentence: Surprisal) -> Surprisal:
    """Add the nats of the letters of a sentence's unknown words."""
    words = words_as_read(model, sentence.tokens, sentence.is_unknown)
    nats = np.zeros(len(words))
    for position in sentence.is_unknown.nonzero()[0].tolist():
        nats[position] = spelling.nats(words[position])
    return replace(sentence, spelling_nats=nats)


def unknown_words_warning(unknown_ratio: float, unknown_words: Sequence[str] = ()) -> str | None:
    """Return a warning if more than a fifth of the words in a text are unknown, naming the first of them.

    Predicting ``<UNK>`` repeatedly is easy, so such a perplexity can be low although the model knows nothing about the
    text.
    """
    if unknown_ratio <= MANY_UNKNOWN:
        return None
    named = f" ({name_words(unknown_words)})" if unknown_words else ""
    return (
        f"{unknown_ratio:.1%} of the words{named} are not in the model's vocabulary and count "
        "as <UNK>, which is easy to predict: the perplexity says little about how well the model knows this text."
    )


def exp_or_inf(nats: float) -> float:
    """Compute exp, or infinity on overflow."""
    return math.exp(nats) if nats < 709 else math.inf


def finite_or_none(numbers: dict[str, float]) -> dict[str, float | None]:
    """Replace infinity, which JSON does not have, with None."""
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}
