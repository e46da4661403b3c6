"""The formats of outputs, as one table: the extension of the output chooses one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from elmokit.corpus.arrow import arrow_bytes, check_pyarrow, write_arrow, write_parquet
from elmokit.corpus.hdf5 import hdf5_bytes, write_index
from elmokit.corpus.layout import VectorFileLayout
from elmokit.corpus.npz import npz_bytes, write_npz
from elmokit.corpus.reading import SentenceCounts
from elmokit.corpus.writer import ResumableWriter
from elmokit.io.atomic import check_extension
from elmokit.io.hdf5 import HDF5_SUFFIXES


class OutputFormat(NamedTuple):
    """How an output is written."""

    name: str
    finish: Callable[[ResumableWriter, VectorFileLayout], None]
    """Makes the output from vectors, lengths, names and tokens, after the last pool."""
    file_bytes: Callable[[VectorFileLayout, SentenceCounts], int]
    """Estimates the size of the output."""
    is_hdf5: bool = False
    """Whether the file of vectors becomes the output, by an index at its end that gives names to datasets. Otherwise
    the output is written next to that file, and both need space until it is complete."""
    check: Callable[[VectorFileLayout], None] = lambda layout: None
    """Raises an error, before any work is done, if the format cannot be written."""


HDF5 = OutputFormat("HDF5", write_index, hdf5_bytes, is_hdf5=True)
FORMATS = {
    **dict.fromkeys(HDF5_SUFFIXES, HDF5),
    ".parquet": OutputFormat("Parquet", write_parquet, arrow_bytes, check=check_pyarrow),
    ".arrow": OutputFormat("Arrow", write_arrow, arrow_bytes, check=check_pyarrow),
    ".npz": OutputFormat("NumPy", write_npz, npz_bytes),
}
"""The formats by extension."""


def output_format(output: str | Path) -> OutputFormat:
    """Return the format of an output; HDF5 if its name has no extension.

    Raises:
        OutputError: It has the extension of another format.
    """
    check_extension(output, list(FORMATS))
    return FORMATS.get(Path(output).suffix, HDF5)
