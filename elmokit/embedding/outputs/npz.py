"""Store vectors in a NumPy archive (``.npz``).

=============  ========================================================================================================
``vectors``    ``(tokens, dim)`` or ``(tokens, layers, dim)``, the tokens of all sentences; or ``(sentences, dim)``
``offsets``    ``(sentences + 1,)`` int64: sentence i has the tokens from ``offsets[i]`` to ``offsets[i + 1]``
``tokens``     the tokens, one per line of UTF-8, as an array of bytes
``ids``        of proteins: the identifiers, likewise
``elmokit``    what computed the vectors (``about.py``), as bytes
=============  ========================================================================================================

One array per sentence would be slow: NumPy needs about 0.1 ms for each. Texts are bytes, because NumPy's arrays of
strings give every string the size of the longest, and arrays of objects are pickles, which are not safe to open.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.lib import format as npy

from elmokit.embedding.outputs.about import NAME
from elmokit.embedding.outputs.layout import VectorFileLayout
from elmokit.embedding.outputs.rows import RowGroup, read_row_groups
from elmokit.embedding.outputs.writer import ResumableWriter
from elmokit.embedding.reading import SentenceCounts


def npz_bytes(layout: VectorFileLayout, counts: SentenceCounts) -> int:
    """Return the size of the output: exact for the vectors, within some percent for the rest."""
    n_text_bytes = layout.with_tokens * (counts.n_text_bytes + counts.n_sentences)
    return layout.vector_bytes(counts) + n_text_bytes + 8 * counts.n_sentences + len(layout.about) + 1000


def write_npz(writer: ResumableWriter, layout: VectorFileLayout) -> None:
    """Write the output as a NumPy archive. Arguments as in :func:`~elmokit.embedding.outputs.hdf5.write_index`."""
    writer.end_data()
    done = writer.progress
    n_rows = done.n_sentences if layout.pooled else done.n_tokens
    shape = (n_rows, layout.dim) if layout.layers is None else (n_rows, len(layout.layers), layout.dim)
    # Not compressed, like numpy.savez: see elmokit/embedding/outputs/arrow.py.
    with zipfile.ZipFile(writer.create_output(), "w", zipfile.ZIP_STORED) as archive:

        def add(name: str, dtype: str, shape: tuple[int, ...], chunks: Iterable[Any]) -> None:
            # In chunks, because numpy.savez would need the whole array in memory.
            header = {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                npy.write_array_header_1_0(file, header)
                for chunk in chunks:
                    file.write(memoryview(chunk).cast("B"))

        def groups() -> Iterator[RowGroup]:
            return read_row_groups(writer, layout)

        def add_text(name: str, read: Callable[[], Iterable[bytes]]) -> None:
            add(name, "uint8", (sum(map(len, read())),), read())

        add(NAME, "uint8", (len(layout.about),), [layout.about.encode("ascii")])
        add("vectors", layout.dtype, shape, (_by_row(group) for group in groups()))
        add("offsets", "<i8", (done.n_sentences + 1,), _offsets(writer))
        if layout.with_tokens:
            add_text("tokens", lambda: (_lines(tokens) for tokens in writer.read_tokens()))
        if layout.keys == "sentences":
            add_text("ids", lambda: (_lines([name]) for name in writer.read_names()))


def _by_row(group: RowGroup) -> Any:
    return np.ascontiguousarray(np.stack(group.vectors, axis=1)).reshape(-1)


def _offsets(writer: ResumableWriter) -> Iterator[Any]:
    last = np.zeros(1, "<i8")
    yield last
    for lengths in writer.read_lengths():
        ends = (last[-1] + np.cumsum(lengths)).astype("<i8")
        yield ends
        last = ends


def _lines(texts: list[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode("utf-8")
