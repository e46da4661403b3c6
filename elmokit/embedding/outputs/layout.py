"""What the rows of an output look like: one row per sentence, in any format."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmokit.config import check_choice
from elmokit.embedding.outputs.writer import DATA_START
from elmokit.embedding.reading import SentenceCounts
from elmokit.errors import ConfigError

DatasetNames = Literal["numbers", "sentences"]
"""How HDF5 datasets are named: by line number, or by the text of the sentence."""
StoredDtype = Literal["float32", "float16"]
STORED_DTYPES: tuple[StoredDtype, ...] = get_args(StoredDtype)


def stored_dtype(dtype: Any) -> StoredDtype:
    """Return the type of stored numbers by its name; NumPy's types, such as ``np.float16``, are accepted too."""
    with contextlib.suppress(TypeError):
        dtype = np.dtype(dtype).name
    check_choice("dtype", dtype, STORED_DTYPES)
    return dtype  # type: ignore[no-any-return]


def as_stored(
    vectors: NDArray[Any],
    dtype: StoredDtype | np.dtype[Any],
    advice: str = 'Choose float32 (--dtype float32, dtype="float32").',
) -> NDArray[Any]:
    """Round vectors to the type of stored numbers; what is beyond its range is an error, with advice, not infinity."""
    try:
        with np.errstate(over="raise"):
            return vectors.astype(dtype, copy=False)
    except FloatingPointError:
        raise ConfigError(f"A vector has a number beyond 65,504, the largest of float16. {advice}") from None


@dataclass(frozen=True)
class VectorFileLayout:
    """What is stored for each sentence.

    While the output grows, the vectors of a sentence are consecutive: ``(layers, tokens, dim)``, ``(tokens, dim)``, or
    ``(dim,)`` if there is one vector per sentence.
    """

    layers: tuple[int, ...] | None
    """The numbers of the layers; None if a token has one vector ``(dim,)``."""
    dim: int
    dtype: StoredDtype = "float32"
    pooled: bool = False
    """Whether there is one vector per sentence instead of one per token."""
    keys: DatasetNames = "numbers"
    fasta: bool = False
    """Whether sentences are proteins, which are named by their identifiers instead of by line number."""
    with_sentences: bool = True
    """Whether the sentences are stored: their tokens, or in HDF5 a map from sentences to numbers."""
    with_old_map: bool = False
    """Whether HDF5 stores that map under its old name, too."""
    about: str = "{}"
    """What the file says about itself, as docs/reference/vector-files.md lists it: JSON in ASCII."""

    @property
    def n_layers(self) -> int | None:
        """The number of layers; None if a token has one vector ``(dim,)``."""
        return None if self.layers is None else len(self.layers)

    @property
    def row_bytes(self) -> int:
        """The size of the vectors of one token; with ``pooled``, of one sentence."""
        return (self.n_layers or 1) * self.dim * np.dtype(self.dtype).itemsize

    def n_rows(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many times ``row_bytes`` each sentence takes, given its number of tokens."""
        return np.ones_like(lengths) if self.pooled else lengths

    def vector_bytes(self, counts: SentenceCounts) -> int:
        """Return the size of the file of vectors before it is put into its final format."""
        return DATA_START + (counts.n_sentences if self.pooled else counts.n_tokens) * self.row_bytes
