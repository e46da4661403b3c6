"""Keep context-free vectors across batches, so that frequent words and the residues of proteins are encoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

import torch
from torch import Tensor

from elmokit.nn.kernels.backends import BackendRequest
from elmokit.nn.kernels.packed_weights import PackedWeights

MIB = 2**20
FIRST_ROWS = 1024


class TokenCache:
    """A least-recently-used cache of layer-0 vectors. It is emptied when the token layer or its precision changes.

    The vector of a token is a function of its characters alone, so caching changes only the time. It can be shared by
    threads.

    Args:
        max_bytes: Limit for the vectors (2 KiB each in the original sizes). The tokens themselves take about 150 bytes
            each in addition.
    """

    def __init__(self, max_bytes: int = 64 * MIB) -> None:
        self.max_bytes = max_bytes
        self._lock = Lock()
        self._kept: PackedWeights[_Table] = PackedWeights()

    def __len__(self) -> int:
        """Return the number of tokens in the cache."""
        table = self._kept.value
        return 0 if table is None else len(table.rows)

    @torch.inference_mode(False)  # a table created in inference mode could not be updated outside it
    @torch.no_grad()
    def vectors(
        self,
        words: Sequence[str],
        compute: Callable[[Sequence[str]], Tensor],
        parameters: Sequence[Tensor],
        backend: BackendRequest,
    ) -> Tensor:
        """Return the vectors of tokens, without gradient.

        Args:
            words: Distinct tokens.
            compute: Returns the vectors ``(tokens, dim)`` of tokens that are not in the cache.
            parameters: The tensors that the vectors depend on. If one has changed, the cache is emptied first.
            backend: What computes them. If it has changed, the cache is emptied first.

        Returns:
            ``(words, dim)``.
        """
        with self._lock:
            return self._kept.get(backend, parameters, _Table).vectors(words, compute, self.max_bytes)

    def __reduce__(self) -> tuple[type[TokenCache], tuple[int]]:
        return TokenCache, (self.max_bytes,)


class _Table:
    """The cached vectors: rows of a tensor that grows by doubling, and a dict of row numbers in order of use."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}  # least recently used first
        self.table: Tensor | None = None

    def vectors(self, words: Sequence[str], compute: Callable[[Sequence[str]], Tensor], max_bytes: int) -> Tensor:
        missing = [word for word in words if word not in self.rows]
        if len(missing) == len(words):
            found = compute(words)
        else:
            assert self.table is not None
            # Row 0 fills in for missing tokens; their vectors are replaced below.
            found = self.table[torch.tensor([self.rows.get(word, 0) for word in words], device=self.table.device)]
            if missing:
                positions = [position for position, word in enumerate(words) if word not in self.rows]
                found[torch.tensor(positions, device=found.device)] = compute(missing)
        self._keep(words, found, max_bytes)
        return found

    def _keep(self, words: Sequence[str], vectors: Tensor, max_bytes: int) -> None:
        capacity = max_bytes // (vectors.shape[1] * vectors.element_size())
        words, vectors = words[:capacity], vectors[:capacity]
        new = [position for position, word in enumerate(words) if word not in self.rows]
        for word in words:
            if word in self.rows:
                self.rows[word] = self.rows.pop(word)  # to the end: most recently used
        if not new:
            return
        free = list(range(len(self.rows), min(capacity, len(self.rows) + len(new))))
        while len(free) < len(new):  # the cache is full: evict the least recently used tokens
            free.append(self.rows.pop(next(iter(self.rows))))
        self._grow(max(free) + 1, capacity, vectors)
        assert self.table is not None
        self.table[torch.tensor(free, device=vectors.device)] = vectors[torch.tensor(new, device=vectors.device)]
        for row, position in zip(free, new, strict=True):
            self.rows[words[position]] = row

    def _grow(self, n_rows: int, capacity: int, like: Tensor) -> None:
        old = self.table
        if old is not None and len(old) >= n_rows:
            return
        size = min(capacity, max(n_rows, FIRST_ROWS, 0 if old is None else 2 * len(old)))
        self.table = like.new_empty(size, like.shape[1])
        if old is not None:
            self.table[: len(old)] = old
