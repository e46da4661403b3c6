"""Keep context-free vectors across batches, so that frequent words and the residues of proteins are encoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from elmokit.engine.state import Floats
from elmokit.engine.threads import ForkSafeLock

MIB = 1 << 20
FIRST_ROWS = 1024


class TokenCache:
    """A least-recently-used cache of layer-0 vectors. It is emptied when what computes them changes.

    The vector of a token is a function of its characters alone, so caching changes only the time. It can be shared by
    threads.

    Args:
        max_bytes: Limit for the vectors (2 KiB each in the original sizes). The tokens themselves take about 150 bytes
            each in addition.
    """

    def __init__(self, max_bytes: int = 64 * MIB) -> None:
        self.max_bytes = max_bytes
        self._lock = ForkSafeLock()
        self._version: object = None
        self._rows: dict[str, int] = {}  # least recently used first
        self._table: Floats | None = None

    def __len__(self) -> int:
        """Return the number of tokens in the cache."""
        return len(self._rows)

    def vectors(
        self,
        words: Sequence[str],
        compute: Callable[[Sequence[str]], Floats],  # the vectors of tokens that are not in the cache
        version: object,  # what computes them; one that does not equal the last one empties the cache
    ) -> Floats:
        """Return the vectors ``(words, dim)`` of distinct tokens."""
        with self._lock:
            if self._version != version:
                self._rows, self._table = {}, None
            # What interrupts a change (Ctrl-C, a fork in another thread) may leave two tokens with one row. The next
            # call then finds no version, and empties the cache.
            self._version = None
            vectors = self._vectors(words, compute)
            self._version = version
            return vectors

    def __reduce__(self) -> tuple[type[TokenCache], tuple[int]]:
        return TokenCache, (self.max_bytes,)

    def _vectors(self, words: Sequence[str], compute: Callable[[Sequence[str]], Floats]) -> Floats:
        missing = [position for position, word in enumerate(words) if word not in self._rows]
        if len(missing) == len(words):
            vectors = compute(words)
        else:
            assert self._table is not None
            # Row 0 fills in for missing tokens; their vectors are replaced below.
            vectors = self._table[[self._rows.get(word, 0) for word in words]]
            if missing:
                vectors[missing] = compute([words[position] for position in missing])
        self._keep(words, vectors)
        return vectors

    def _keep(self, words: Sequence[str], vectors: Floats) -> None:
        # The table grows by doubling; the dict has the row of each token, in order of use.
        capacity = self.max_bytes // (vectors.shape[1] * vectors.itemsize)
        words, vectors = words[:capacity], vectors[:capacity]
        new = [position for position, word in enumerate(words) if word not in self._rows]
        for word in words:
            if word in self._rows:
                self._rows[word] = self._rows.pop(word)  # to the end: most recently used
        if not new:
            return
        free = list(range(len(self._rows), min(capacity, len(self._rows) + len(new))))
        while len(free) < len(new):  # the cache is full: evict the least recently used tokens
            free.append(self._rows.pop(next(iter(self._rows))))
        table = self._grown(max(free) + 1, capacity, vectors)
        table[free] = vectors[new]
        for row, position in zip(free, new, strict=True):
            self._rows[words[position]] = row

    def _grown(self, n_rows: int, capacity: int, like: Floats) -> Floats:
        old = self._table
        if old is not None and len(old) >= n_rows:
            return old
        size = min(capacity, max(n_rows, FIRST_ROWS, 0 if old is None else 2 * len(old)))
        self._table = np.empty((size, like.shape[1]), np.float32)
        if old is not None:
            self._table[: len(old)] = old
        return self._table
