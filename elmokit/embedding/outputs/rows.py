"""Read the finished vectors of a corpus group by group, for formats that are written at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.outputs.layout import VectorFileLayout
from elmokit.embedding.outputs.writer import DATA_START, ResumableWriter, read_numbers

GROUP_BYTES = 32 * 2**20
"""The vectors of a group. Parquet recommends row groups of this size and larger; two are in memory at a time."""
GROUP_SENTENCES = 65536
"""The most sentences of a group, whose tokens are Python objects."""


@dataclass(frozen=True)
class RowGroup:
    """Consecutive sentences of a finished corpus."""

    first: int
    """The number of the first sentence."""
    lengths: NDArray[np.int64]
    names: list[str]
    tokens: list[list[str]]
    """Empty if the sentences are not stored."""
    vectors: list[NDArray[Any]]
    """One array ``(rows, dim)`` per layer. The rows are the tokens of all sentences, or the sentences."""


def read_row_groups(writer: ResumableWriter, layout: VectorFileLayout) -> Iterator[RowGroup]:
    """Yield all sentences of an output that has its last pool, in groups of bounded size."""
    names, tokens = writer.read_names(), writer.read_tokens()
    first, offset = 0, DATA_START
    for block in writer.read_lengths(GROUP_SENTENCES):
        n_bytes = layout.n_rows(block) * layout.row_bytes
        # Cut where the sum of bytes reaches the next multiple of the size of a group. Only a sentence that is longer
        # makes a larger one.
        cuts = np.flatnonzero(np.diff((np.cumsum(n_bytes) - 1) // GROUP_BYTES)) + 1
        for lengths, sizes in zip(np.split(block, cuts), np.split(n_bytes, cuts), strict=True):
            yield RowGroup(
                first,
                lengths,
                list(islice(names, len(lengths))),
                list(islice(tokens, len(lengths))),
                _read_layers(writer, layout, offset, layout.n_rows(lengths)),
            )
            first, offset = first + len(lengths), offset + int(sizes.sum())


def _read_layers(
    writer: ResumableWriter, layout: VectorFileLayout, offset: int, n_rows: NDArray[np.int64]
) -> list[NDArray[Any]]:
    n_layers, n_values = layout.n_layers or 1, int(n_rows.sum()) * layout.row_bytes // np.dtype(layout.dtype).itemsize
    with writer.vectors_path.open("rb") as file:
        file.seek(offset)
        values = read_numbers(file, layout.dtype, n_values)
    if n_layers == 1:
        return [values.reshape(-1, layout.dim)]
    # Each sentence is stored layer by layer, so the rows of one layer are in as many pieces as there are sentences.
    joined = np.empty((n_layers, int(n_rows.sum()), layout.dim), layout.dtype)
    row = 0
    for n in n_rows.tolist():
        start, stop = (n_layers * edge * layout.dim for edge in (row, row + n))
        joined[:, row : row + n] = values[start:stop].reshape(n_layers, n, layout.dim)
        row += n
    return list(joined)
