"""Cache context-free vectors across batches, so frequent words and the residues of proteins are encoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from elmokit.engine.state import Floats
from elmokit.engine.threads import ForkSafeLock

MIB = 1 << 20
FIRST_ROWS = 1024


class TokenCache:
    """A least-recently-used cache of layer-0 vectors. It is emptied when the token layer changes.

    A token's vector only depends on its characters, so caching only changes the time. Threads can share a cache.

    Args:
        max_bytes: Maximum size of the vectors (2 KiB each in the original model). In addition, each token takes about
            150 bytes.
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
        compute: Callable[[Sequence[str]], Floats],  # computes the vectors of tokens that are not in the cache
        version: object,  # of the token layer; a change empties the cache
    ) -> Floats:
        """Look up or compute the vectors ``(words, dim)`` of distinct tokens."""
        with self._lock:
            if self._version != version:
                self._rows, self._table = {}, None
            # An interruption (Ctrl-C, a fork in another thread) may leave two tokens with the same row. The next call
            # then finds no version and empties the cache.
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
            # Row 0 is a placeholder for missing tokens, whose vectors are replaced below.
            vectors = self._table[[self._rows.get(word, 0) for word in words]]
            if missing:
                vectors[missing] = compute([words[position] for position in missing])
        self._keep(words, vectors)
        return vectors

    def _keep(self, words: Sequence[str], vectors: Floats) -> None:
        # The table grows by doubling. The dict maps tokens to rows, in order of use.
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
