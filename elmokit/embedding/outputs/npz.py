"""Store vectors in a NumPy archive (``.npz``).

=============  ========================================================================================================
``vectors``    ``(tokens, dim)`` or ``(tokens, layers, dim)``, the tokens of all sentences; or ``(sentences, dim)``
``offsets``    ``(sentences + 1,)`` int64: sentence i has the tokens from ``offsets[i]`` to ``offsets[i + 1]``
``tokens``     the tokens, one per line of UTF-8, as an array of bytes
``ids``        for proteins: the identifiers, also one per line
``elmokit``    what computed the vectors, as bytes
=============  ========================================================================================================

One array per sentence would be slow: NumPy needs about 0.1 ms for each. Texts are bytes, because NumPy's string arrays
give all strings the size of the longest, and arrays of objects are pickles, which are not safe to open.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from elmokit.embedding.outputs.output_format import ABOUT, OutputFormat, RowGroup, VectorFileLayout, read_row_groups
from elmokit.embedding.outputs.writer import ResumableWriter
from elmokit.embedding.reading import SentenceCounts


class NumPyFormat(OutputFormat):
    """NumPy archives."""

    name = "NumPy"
    extensions = (".npz",)

    def file_bytes(self, layout: VectorFileLayout, counts: SentenceCounts) -> int:
        """Estimate the arrays."""
        n_text_bytes = 0
        if layout.with_sentences:
            n_text_bytes = counts.n_text_bytes + counts.n_sentences
        return layout.vector_bytes(counts) + n_text_bytes + 8 * counts.n_sentences + len(layout.about) + 1000

    def write(self, writer: ResumableWriter, layout: VectorFileLayout) -> None:
        """Write the arrays in order."""
        text = writer.progress.text
        n_rows = text.n_sentences if layout.pooled else text.n_tokens
        shape: tuple[int, ...] = (n_rows, layout.dim)
        if layout.layers is not None:
            shape = (n_rows, len(layout.layers), layout.dim)
        # Not compressed, like numpy.savez: see elmokit/embedding/outputs/arrow.py.
        with zipfile.ZipFile(writer.create_output(), "w", zipfile.ZIP_STORED) as archive:
            _add(archive, ABOUT, "uint8", (len(layout.about),), [layout.about.encode("ascii")])
            _add(archive, "vectors", layout.dtype, shape, map(_by_row, read_row_groups(writer, layout)))
            _add(archive, "offsets", "<i8", (text.n_sentences + 1,), _offsets(writer))
            if layout.with_sentences:
                _add_lines(archive, "tokens", writer.read_tokens)
            if layout.fasta:
                _add_lines(archive, "ids", lambda: ([name] for name in writer.read_names()))

    def read_about(self, path: Path) -> bytes:
        """Read the array of bytes."""
        with zipfile.ZipFile(path) as archive, archive.open(f"{ABOUT}.npy") as file:
            content: bytes = npy.read_array(file).tobytes()
        return content


def _add_lines(archive: zipfile.ZipFile, name: str, read: Callable[[], Iterable[list[str]]]) -> None:
    """Add the bytes of lines as an array. The lines are read twice, because the array begins with its size."""
    n_bytes = sum(len(_lines(words)) for words in read())
    _add(archive, name, "uint8", (n_bytes,), map(_lines, read()))


def _add(archive: zipfile.ZipFile, name: str, dtype: str, shape: tuple[int, ...], chunks: Iterable[Any]) -> None:
    """Add an array to an archive, in chunks, because numpy.savez would need the whole array in memory."""
    header = {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        npy.write_array_header_1_0(file, header)
        for chunk in chunks:
            file.write(memoryview(chunk).cast("B"))


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


FORMATS = (NumPyFormat(),)
