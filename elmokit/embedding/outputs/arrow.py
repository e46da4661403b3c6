"""Store vectors in Parquet and Arrow files, one row per sentence.

====================  ==================================================================================================
``id``                the line number from 0, int64; of a protein, its identifier
``tokens``            the tokens, list<string>
``vectors``           ``(tokens, dim)`` as a list of fixed-size lists; with several layers one such column per layer,
                      named ``layer_0``, ``layer_1``, ..., so that a reader can load one layer without the others
``vector``            instead of these with one vector per sentence: ``(dim,)`` as a fixed-size list
====================  ==================================================================================================

The metadata of the schema says what computed the vectors (``about.py``).

Vectors are not compressed: general compressors save a few percent and cost more time than computing the vectors does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.outputs.about import NAME
from elmokit.embedding.outputs.layout import VectorFileLayout
from elmokit.embedding.outputs.rows import GROUP_BYTES, RowGroup, read_row_groups
from elmokit.embedding.outputs.writer import ResumableWriter
from elmokit.embedding.reading import SentenceCounts
from elmokit.errors import ConfigError, MissingExtraError


def check_pyarrow(layout: VectorFileLayout) -> None:
    """Check that pyarrow is installed and that the columns have different names.

    Raises:
        MissingExtraError: It is not installed.
        ConfigError: A layer occurs twice.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise MissingExtraError("Writing Parquet or Arrow files", "arrow") from None
    if layout.layers is not None and len(set(layout.layers)) < len(layout.layers):
        raise ConfigError(f"layers is {list(layout.layers)}, which would give two columns the same name.")


def arrow_bytes(layout: VectorFileLayout, counts: SentenceCounts) -> int:
    """Return the size of the output: exact for the vectors, within some percent for the rest."""
    n_text_bytes = layout.with_tokens * (counts.n_text_bytes + 4 * counts.n_tokens)
    n_groups = 1 + layout.vector_bytes(counts) // GROUP_BYTES
    return layout.vector_bytes(counts) + n_text_bytes + 16 * counts.n_sentences + 2000 * n_groups


def write_parquet(writer: ResumableWriter, layout: VectorFileLayout) -> None:
    """Write the output as a Parquet file. Arguments as in :func:`~elmokit.embedding.outputs.hdf5.write_index`."""
    import pyarrow.parquet as pq

    @contextlib.contextmanager
    def create(path: Path, schema: Any) -> Iterator[Any]:
        # Few vectors are equal, so dictionaries and statistics only cost time. Text is better with a dictionary.
        with pq.ParquetWriter(
            path,
            schema,
            compression="none",
            use_dictionary=["tokens.list.element"],
            write_statistics=["id"],
        ) as file:
            # One row group per batch, which would otherwise be divided into groups by rows.
            yield lambda batch: file.write_batch(batch, row_group_size=max(1, batch.num_rows))

    _write(writer, layout, create)


def write_arrow(writer: ResumableWriter, layout: VectorFileLayout) -> None:
    """Write the output as an Arrow IPC file (Feather version 2), which can be memory-mapped."""
    import pyarrow as pa

    @contextlib.contextmanager
    def create(path: Path, schema: Any) -> Iterator[Any]:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
            yield file.write_batch

    _write(writer, layout, create)


def _write(writer: ResumableWriter, layout: VectorFileLayout, create: Any) -> None:
    import pyarrow as pa

    writer.end_data()
    schema = _schema(layout)
    with create(writer.create_output(), schema) as write_batch:
        for group in read_row_groups(writer, layout):
            write_batch(pa.record_batch(_columns(group, layout), schema=schema))


def _schema(layout: VectorFileLayout) -> Any:
    import pyarrow as pa

    vector = pa.list_(pa.from_numpy_dtype(np.dtype(layout.dtype)), layout.dim)
    names = ["vectors"] if layout.layers is None else [f"layer_{number}" for number in layout.layers]
    return pa.schema(
        [
            ("id", pa.int64() if layout.keys == "numbers" else pa.string()),
            *[("tokens", pa.list_(pa.string()))] * layout.with_tokens,
            *([("vector", vector)] if layout.pooled else [(name, pa.list_(vector)) for name in names]),
        ],
        metadata={NAME: layout.about},
    )


def _columns(group: RowGroup, layout: VectorFileLayout) -> list[Any]:
    import pyarrow as pa

    n = len(group.lengths)
    columns = [pa.array(range(group.first, group.first + n) if layout.keys == "numbers" else group.names)]
    if layout.with_tokens:
        columns.append(pa.array(group.tokens, pa.list_(pa.string())))
    lengths = None if layout.pooled else group.lengths
    return columns + [vector_array(rows, lengths) for rows in group.vectors]


def vector_array(rows: NDArray[Any], lengths: NDArray[np.int64] | None) -> Any:
    """Return a column of vectors as an Arrow array, without copying them.

    Args:
        rows: ``(rows, dim)``: the vectors of all sentences.
        lengths: How many of them each sentence has; None if it has one.
    """
    import pyarrow as pa

    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    if lengths is None:
        return vectors
    # int32 offsets are enough: no group has two billion tokens.
    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32)), vectors)
