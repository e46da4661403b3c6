"""The cost of spelling a word: a small byte model made from a vocabulary alone.

A word language model predicts ``<UNK>`` for a word that it does not know, and gives its letters for free. To compare
models with different vocabularies, those letters must be paid for. This module sets the price: a proper probability
distribution over all words, estimated from the vocabulary's words alone, so that it needs no further text.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

ORDER = 4  # bytes: the predicted one and three before it
N_SYMBOLS = 257  # bytes and the end of the word
_END = 256


class Spelling:
    """A byte n-gram model of word types with Witten-Bell smoothing (1991) down to the uniform distribution.

    p_k(b | h) = (count(h, b) + types(h) * p_{k-1}(b | h')) / (count(h) + types(h)), with h' the context without its
    first byte, types(h) the number of distinct bytes seen after h, and p_0 = 1 / 257.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._after: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        # First each distinct stretch of ORDER symbols, then its ends: most stretches occur often. As strings, which are
        # cut and counted in a fraction of the time of tuples.
        stretches: Counter[str] = Counter()
        for word in words:
            symbols = word.encode("utf-8", "replace").decode("latin-1") + chr(_END)
            stretches.update([symbols[max(0, end - ORDER) : end] for end in range(1, len(symbols) + 1)])
        for stretch, n in stretches.items():
            *context, symbol = map(ord, stretch)
            for first in range(len(stretch)):
                self._after[tuple(context[first:])][symbol] += n
        self.bits = lru_cache(maxsize=100_000)(self._bits)
        """Bits to spell a word, including its end."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "bits"}  # a cache cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, bits=lru_cache(maxsize=100_000)(self._bits))

    def nats(self, word: str) -> float:
        """Compute the nats to spell a word, including its end."""
        return self.bits(word) * math.log(2)

    def probability(self, symbol: int, context: tuple[int, ...]) -> float:
        """Compute the probability of a byte, or of the end of the word (256), after the bytes before it."""
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
            math.log2(self.probability(symbol, symbols[max(0, position - ORDER + 1) : position]))
            for position, symbol in enumerate(symbols)
        )
