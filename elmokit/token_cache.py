"""Context-free vectors kept across batches: frequent words and a protein's residues are encoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

import torch
from torch import Tensor

from elmokit.nn.kernels.packed import PackedWeights

MIB = 2**20
FIRST_ROWS = 1024


class TokenCache:
    """Vectors of the tokens seen last, up to a bound; emptied when the token layer changes.

    A token's vector is a function of its characters alone, so that keeping it changes nothing but the time.

    Args:
        max_bytes: bound on the vectors (2 KiB each in the original sizes); names come on top, some 150 bytes each.
    """

    def __init__(self, max_bytes: int = 64 * MIB) -> None:
        self.max_bytes = max_bytes
        self._lock = Lock()
        self._kept: PackedWeights[_Table] = PackedWeights()

    def __len__(self) -> int:
        """Tokens kept."""
        table = self._kept.value
        return 0 if table is None else len(table.rows)

    @torch.inference_mode(False)  # what is kept in inference mode could not be written to outside it
    @torch.no_grad()
    def vectors(
        self, words: Sequence[str], compute: Callable[[Sequence[str]], Tensor], parameters: Sequence[Tensor]
    ) -> Tensor:
        """Vectors of the tokens, without gradient.

        Args:
            words: distinct tokens.
            compute: called with the tokens that are not kept; ``(tokens, dim)``.
            parameters: what the vectors depend on; when one changes, all are forgotten.

        Returns:
            ``(words, dim)``
        """
        with self._lock:
            return self._kept.get("", parameters, _Table).vectors(words, compute, self.max_bytes)

    def __reduce__(self) -> tuple[type[TokenCache], tuple[int]]:
        return TokenCache, (self.max_bytes,)


class _Table:
    def __init__(self) -> None:
        self.rows: dict[str, int] = {}  # the token used last stands last
        self.table: Tensor | None = None

    def vectors(self, words: Sequence[str], compute: Callable[[Sequence[str]], Tensor], max_bytes: int) -> Tensor:
        missing = [word for word in words if word not in self.rows]
        if len(missing) == len(words):
            found = compute(words)
        else:
            assert self.table is not None
            found = self.table[torch.tensor([self.rows.get(word, 0) for word in words], device=self.table.device)]
            if missing:
                places = [place for place, word in enumerate(words) if word not in self.rows]
                found[torch.tensor(places, device=found.device)] = compute(missing)
        self._keep(words, found, max_bytes)
        return found

    def _keep(self, words: Sequence[str], vectors: Tensor, max_bytes: int) -> None:
        capacity = max_bytes // (vectors.shape[1] * vectors.element_size())
        words, vectors = words[:capacity], vectors[:capacity]
        fresh = [place for place, word in enumerate(words) if word not in self.rows]
        for word in words:
            if word in self.rows:
                self.rows[word] = self.rows.pop(word)
        if not fresh:
            return
        free = list(range(len(self.rows), min(capacity, len(self.rows) + len(fresh))))
        while len(free) < len(fresh):
            free.append(self.rows.pop(next(iter(self.rows))))
        self._grow(max(free) + 1, capacity, vectors)
        assert self.table is not None
        self.table[torch.tensor(free, device=vectors.device)] = vectors[torch.tensor(fresh, device=vectors.device)]
        for row, place in zip(free, fresh, strict=True):
            self.rows[words[place]] = row

    def _grow(self, n_rows: int, capacity: int, like: Tensor) -> None:
        old = self.table
        if old is not None and len(old) >= n_rows:
            return
        size = min(capacity, max(n_rows, FIRST_ROWS, 0 if old is None else 2 * len(old)))
        self.table = like.new_empty(size, like.shape[1])
        if old is not None:
            self.table[: len(old)] = old
