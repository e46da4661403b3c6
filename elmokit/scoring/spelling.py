"""What it costs to spell a word: a small byte model made from a vocabulary alone.

A language model over words predicts ``<UNK>`` for a word that it does not know and says nothing of its letters. To
compare models of different vocabularies those letters must be paid for. This is the price: a proper distribution over
all words, in which the vocabulary's words are the only evidence, so that it comes with the vocabulary and needs no
further text.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache

ORDER = 4  # bytes: three before the one predicted
N_SYMBOLS = 257  # bytes and the end of the word
_END = 256


class Spelling:
    """Byte n-grams of word types, smoothed as by Witten and Bell (1991) down to a uniform start.

    p_k(b | h) = (count(h, b) + types(h) * p_{k-1}(b | h')) / (count(h) + types(h)), with h' the context without its
    first byte, types(h) the number of distinct bytes seen after h, and p_0 = 1 / 257.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._after: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for word in words:
            symbols = (*word.encode("utf-8", "replace"), _END)
            for place, symbol in enumerate(symbols):
                for length in range(min(ORDER - 1, place) + 1):
                    self._after[symbols[place - length : place]][symbol] += 1
        self.bits = lru_cache(maxsize=100_000)(self._bits)
        """Bits to spell a word, its end included."""

    def probability(self, symbol: int, context: tuple[int, ...]) -> float:
        """Of a byte, or of the word's end (256), after the bytes before it."""
        p = 1 / N_SYMBOLS
        for length in range(min(ORDER - 1, len(context)) + 1):
            after = self._after.get(context[len(context) - length :])
            if after is None:
                break
            n_types = len(after)
            p = (after[symbol] + n_types * p) / (after.total() + n_types)
        return p

    def _bits(self, word: str) -> float:
        symbols = (*word.encode("utf-8", "replace"), _END)
        return -sum(
            math.log2(self.probability(symbol, symbols[max(0, place - ORDER + 1) : place]))
            for place, symbol in enumerate(symbols)
        )
