"""The surprisal of the letters of unknown words, which makes bits per character comparable between vocabularies."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, get_args

from elmokit.config import check_choice
from elmokit.errors import FormatError
from elmokit.lm.surprisal import softmax_vocabulary
from elmokit.pretrained.letter_model import EDGE, N_SYMBOLS, LetterModel
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.characters import UNKNOWN
from elmokit.text.foreign import UNKNOWN_MARKS

SpellingName = Literal["model", "vocabulary"]
"""How the letters of unknown words are scored: by the model's letter model, if any, or by its vocabulary's words."""
ORDER = 4  # bytes: the predicted one and three before it


class Spelling(ABC):
    """Scores the letters of unknown words. The probabilities of all byte strings sum to one."""

    def __init__(self) -> None:
        self.bits = lru_cache(maxsize=100_000)(self._bits)
        """Bits for spelling a word, including its end."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "bits"}  # a cache cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, bits=lru_cache(maxsize=100_000)(self._bits))

    def nats(self, word: str) -> float:
        """Compute the nats for spelling a word, including its end."""
        return self.bits(word) * math.log(2)

    def _bits(self, word: str) -> float:
        if word in UNKNOWN_MARKS:  # its letters do not spell a word
            return 0.0
        return self.symbol_bits((*word.encode("utf-8", "replace"), EDGE))

    @property
    @abstractmethod
    def source(self) -> str:
        """What it was learned from."""

    @abstractmethod
    def symbol_bits(self, symbols: Sequence[int]) -> float:
        """Compute the bits of a word's bytes and its end."""


class LetterSpelling(Spelling):
    """Spelling by a model's letter model, trained on unknown words."""

    source = "the model's letter model"

    def __init__(self, letters: LetterModel) -> None:
        super().__init__()
        self.letters = letters

    def symbol_bits(self, symbols: Sequence[int]) -> float:
        bits = self.letters.nats(symbols) / math.log(2)
        if not math.isfinite(bits):
            raise FormatError("The letter model computes NaN or infinity: its weights are too large.")
        return bits


class NgramSpelling(Spelling):
    """A byte n-gram model of word types with Witten-Bell smoothing (1991) down to the uniform distribution.

    p_k(b | h) = (count(h, b) + types(h) * p_{k-1}(b | h')) / (count(h) + types(h)), with h' the context without its
    first byte, types(h) the number of distinct bytes seen after h, and p_0 = 1 / 257.
    """

    source = "the words of the vocabulary"

    def __init__(self, words: Iterable[str]) -> None:
        super().__init__()
        self._after: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        # First count each distinct sequence of ORDER symbols, then its suffixes, because most sequences occur often.
        # Strings are sliced and counted in a fraction of the time of tuples.
        stretches: Counter[str] = Counter()
        for word in words:
            symbols = word.encode("utf-8", "replace").decode("latin-1") + chr(EDGE)
            stretches.update([symbols[max(0, end - ORDER) : end] for end in range(1, len(symbols) + 1)])
        for stretch, n in stretches.items():
            *context, symbol = map(ord, stretch)
            for first in range(len(stretch)):
                self._after[tuple(context[first:])][symbol] += n

    def probability(self, symbol: int, context: tuple[int, ...]) -> float:
        """Compute the probability of a byte, or of the end of the word (256), after the preceding bytes."""
        p = 1 / N_SYMBOLS
        for length in range(min(ORDER - 1, len(context)) + 1):
            after = self._after.get(context[len(context) - length :])
            if after is None:
                break
            n_types = len(after)
            p = (after[symbol] + n_types * p) / (after.total() + n_types)
        return p

    def symbol_bits(self, symbols: Sequence[int]) -> float:
        return -sum(
            math.log2(self.probability(symbol, tuple(symbols[max(0, position - ORDER + 1) : position])))
            for position, symbol in enumerate(symbols)
        )


def spelling_of(model: PretrainedBiLM, name: SpellingName = "model") -> Spelling:
    """Return the scorer for the letters of a model's unknown words: its letter model, or else its vocabulary's words.

    Args:
        name: "vocabulary" always uses the words of the vocabulary, as before there were letter models.

    Raises:
        ConfigError: The name is unknown.
    """
    check_choice("spelling", name, get_args(SpellingName))
    if name == "model" and model.letters is not None:
        return LetterSpelling(model.letters)
    vocabulary = softmax_vocabulary(model)
    specials = {vocabulary.begin_id, vocabulary.end_id, vocabulary.ids.get(UNKNOWN)}
    return NgramSpelling(word for word_id, word in enumerate(vocabulary.words) if word_id not in specials)
