"""Store vectors in Parquet and Arrow files, one row per sentence.

====================  ==================================================================================================
``id``                the line number from 0, int64; for a protein, its identifier
``tokens``            the tokens, list<string>
``vectors``           ``(tokens, dim)`` as a list of fixed-size lists; with several layers one such column per layer,
                      named ``layer_0``, ``layer_1``, ..., so that a reader can load one layer without the others
``vector``            instead of these with one vector per sentence: ``(dim,)`` as a fixed-size list
====================  ==================================================================================================

The schema's metadata says what computed the vectors.

Vectors are not compressed: general compressors save a few percent, but take more time than computing the vectors.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.outputs.output_format import (
    ABOUT,
    GROUP_BYTES,
    OutputFormat,
    RowGroup,
    VectorFileLayout,
    read_row_groups,
)
from elmokit.embedding.outputs.writer import ResumableWriter
from elmokit.embedding.reading import SentenceCounts
from elmokit.errors import ConfigError, needs_extra


class _TableFormat(OutputFormat):
    """Base class for Parquet and Arrow files."""

    def check(self, layout: VectorFileLayout) -> None:
        """Also check that pyarrow is installed and that column names are distinct."""
        super().check(layout)
        with needs_extra("Writing Parquet or Arrow files", "arrow"):
            import pyarrow.parquet  # noqa: F401
        if layout.layers is not None and len(set(layout.layers)) < len(layout.layers):
            raise ConfigError(f"layers is {list(layout.layers)}: two columns would have the same name.")

    def file_bytes(self, layout: VectorFileLayout, counts: SentenceCounts) -> int:
        """Estimate the columns and the metadata of each row group."""
        n_text_bytes = layout.with_sentences * (counts.n_text_bytes + 4 * counts.n_tokens)
        n_groups = 1 + layout.vector_bytes(counts) // GROUP_BYTES
        return layout.vector_bytes(counts) + n_text_bytes + 16 * counts.n_sentences + 2000 * n_groups

    def write(self, writer: ResumableWriter, layout: VectorFileLayout) -> None:
        """Write one record batch per group of sentences."""
        import pyarrow as pa

        schema = _schema(layout)
        with self.create(writer.create_output(), schema) as write_batch:
            for group in read_row_groups(writer, layout):
                write_batch(pa.record_batch(_columns(group, layout), schema=schema))

    @abstractmethod
    def create(self, path: Path, schema: Any) -> AbstractContextManager[Callable[[Any], None]]:
        """Open a file for writing; yield a function that writes a record batch."""

    def read_about(self, path: Path) -> bytes:
        """Read the metadata of the schema."""
        with needs_extra("Reading Parquet or Arrow files", "arrow"):
            metadata = self.read_schema(path).metadata
        content: bytes = (metadata or {})[ABOUT.encode("ascii")]
        return content

    @abstractmethod
    def read_schema(self, path: Path) -> Any:
        """Read the schema of a file."""


class ParquetFormat(_TableFormat):
    """Parquet files."""

    name = "Parquet"
    extensions = (".parquet",)

    @contextlib.contextmanager
    def create(self, path: Path, schema: Any) -> Iterator[Callable[[Any], None]]:
        """Open a file in which each record batch is a row group."""
        import pyarrow.parquet as pq

        # Few vectors are equal, so dictionaries and statistics only take time. Text is smaller with a dictionary.
        with pq.ParquetWriter(
            path,
            schema,
            compression="none",
            use_dictionary=["tokens.list.element"],
            write_statistics=["id"],
        ) as file:
            # One row group per batch; otherwise, batches would be split by rows.
            yield lambda batch: file.write_batch(batch, row_group_size=max(1, batch.num_rows))

    def read_schema(self, path: Path) -> Any:
        """Read the schema from the end of the file."""
        import pyarrow.parquet as pq

        return pq.read_schema(path)


class ArrowFormat(_TableFormat):
    """Arrow IPC files (Feather version 2), which can be memory-mapped."""

    name = "Arrow"
    extensions = (".arrow",)

    @contextlib.contextmanager
    def create(self, path: Path, schema: Any) -> Iterator[Callable[[Any], None]]:
        """Open a file with consecutive record batches."""
        import pyarrow as pa

        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
            yield file.write_batch

    def read_schema(self, path: Path) -> Any:
        """Read the schema through an Arrow reader."""
        import pyarrow as pa

        with pa.OSFile(str(path)) as file:
            return pa.ipc.open_file(file).schema


def _schema(layout: VectorFileLayout) -> Any:
    import pyarrow as pa

    vector = pa.list_(pa.from_numpy_dtype(np.dtype(layout.dtype)), layout.dim)
    columns = [("id", pa.string() if layout.fasta else pa.int64())]
    if layout.with_sentences:
        columns.append(("tokens", pa.list_(pa.string())))
    if layout.pooled:
        columns.append(("vector", vector))
    elif layout.layers is None:
        columns.append(("vectors", pa.list_(vector)))
    else:
        columns += [(f"layer_{number}", pa.list_(vector)) for number in layout.layers]
    return pa.schema(columns, metadata={ABOUT: layout.about})


def _columns(group: RowGroup, layout: VectorFileLayout) -> list[Any]:
    import pyarrow as pa

    n = len(group.lengths)
    columns = [pa.array(group.names if layout.fasta else range(group.first, group.first + n))]
    if layout.with_sentences:
        columns.append(pa.array(group.tokens, pa.list_(pa.string())))
    lengths = None if layout.pooled else group.lengths
    return columns + [vector_array(rows, lengths) for rows in group.vectors]


def vector_array(rows: NDArray[Any], lengths: NDArray[np.int64] | None) -> Any:
    """Return vectors ``(rows, dim)`` as an Arrow array of sentences with ``lengths`` vectors each, or one if None."""
    import pyarrow as pa

    # Without a copy.
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    if lengths is None:
        return vectors
    # int32 offsets are enough: no group has two billion tokens.
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), vectors)


FORMATS = (ParquetFormat(), ArrowFormat())
