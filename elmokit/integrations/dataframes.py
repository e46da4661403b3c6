"""ELMo sentence vectors as a column of a pandas or polars data frame: :func:`add_vectors` and :func:`to_matrix`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.outputs.arrow import vector_array
from elmokit.embedding.sentence_vectors import SentenceEmbedder
from elmokit.errors import ConfigError, TextError, needs_extra
from elmokit.text.batching import sentences_of_all

Frame = TypeVar("Frame")
"""``pandas.DataFrame`` or ``polars.DataFrame``."""


def add_vectors(
    frame: Frame,
    column: str = "text",
    embedder: SentenceEmbedder | None = None,
    *,
    name: str = "vector",
    tokenize: Callable[[str], list[str]] | None = None,
) -> Frame:
    """Add a column with one vector per row to a data frame.

    In polars the column is an ``Array(Float32, dim)``, so ``frame[name].to_numpy()`` is a matrix ``(rows, dim)``. In
    pandas it is a fixed-size list of Arrow, which NumPy sees as an array of arrays; :func:`to_matrix` reads the matrix.

    Args:
        frame: A data frame of pandas or polars. It is not changed.
        column: The column of texts or of lists of tokens.
        embedder: What computes the vectors. None: ``SentenceEmbedder.from_pretrained()``.
        name: The name of the new column. A column with this name is replaced.
        tokenize: Splits a text into the tokens of one sentence. None: split into sentences and tokens, as by
            :func:`elmokit.tokenize`. Lists of tokens are left as they are.

    Returns:
        A data frame of the same library with the new column; in pandas, with the same index.

    Raises:
        ConfigError: ``frame`` is not a data frame.
        TextError: A row has no text, or something that is neither a string nor a list of strings.
        MissingExtraError: pandas needs pyarrow, which is not installed.

    Example:
        >>> import polars
        >>> frame = polars.DataFrame({"text": ["The bank raised its rate.", "She sat on the bank."]})
        >>> frame = add_vectors(frame)
        >>> frame["vector"].to_numpy().shape
        (2, 192)
    """
    library = _library_of(frame, "DataFrame")
    table: Any = frame
    with needs_extra("A column of vectors in pandas", "dataframes"):
        if library == "pandas":
            import pyarrow
    texts = table[column]
    sentences = sentences_of_all(texts.to_list(), tokenize)
    embedder = SentenceEmbedder.from_pretrained() if embedder is None else embedder
    vectors = embedder.embed_texts(sentences)
    if library == "pandas":
        pandas = sys.modules["pandas"]
        stored = pandas.arrays.ArrowExtensionArray(pyarrow.chunked_array([vector_array(vectors, None)]))
        return table.assign(**{name: pandas.Series(stored, index=table.index)})  # type: ignore[no-any-return]
    polars = sys.modules["polars"]
    dtype = polars.Array(polars.Float32, embedder.dim)
    return table.with_columns(polars.Series(name, vectors, dtype=dtype))  # type: ignore[no-any-return]


def to_matrix(column: Any) -> NDArray[np.float32]:
    """Read a column of vectors as a matrix, without a copy where the vectors are stored as one.

    Args:
        column: A ``Series`` of pandas or polars, as :func:`add_vectors` makes it, or as it comes back from a file.

    Returns:
        ``(rows, dim)``.

    Raises:
        ConfigError: It is not a column of vectors of one length.
        TextError: A row has no vector.

    Example:
        >>> to_matrix(frame["vector"]).mean(axis=0).shape
        (192,)
    """
    library = _library_of(column, "Series")
    is_null = np.asarray(column.isna() if hasattr(column, "isna") else column.is_null())
    if is_null.any():
        raise TextError(f"Row {int(is_null.argmax())} of the column has no vector (null). Drop such rows first.")
    matrix: NDArray[np.float32]
    try:
        if library == "pandas" and "fixed_size_list" in str(column.dtype):
            chunks = column.array.__arrow_array__()
            stored = chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()  # which copies
            # Only a column in which a number is missing is copied. The number is NaN then, as in polars.
            matrix = stored.flatten().to_numpy(zero_copy_only=False).reshape(-1, stored.type.list_size)
        elif "Array" in str(column.dtype):
            matrix = column.to_numpy()
        else:  # a pandas column read from a file, or a polars column of lists, has an array or list for each row
            matrix = np.stack([np.asarray(row) for row in column])
    except (TypeError, ValueError):
        matrix = np.empty(0, np.float32)
    if matrix.ndim != 2 or matrix.dtype.kind != "f":
        raise ConfigError(f"Expected a column of vectors of one length, but its type is {column.dtype}.")
    return matrix


def _library_of(value: Any, kind: str) -> str:
    """Return which library a data frame or a column is from. Neither is imported for this: its owner has done that."""
    for library in ("pandas", "polars"):
        if library in sys.modules and isinstance(value, getattr(sys.modules[library], kind, ())):
            return library
    given = f"{type(value).__module__.split('.')[0]}.{type(value).__name__}"
    collect = " Call collect() first." if type(value).__name__ == "LazyFrame" else ""
    raise ConfigError(f"Expected a {kind} of pandas or polars, but got {given}.{collect}")
