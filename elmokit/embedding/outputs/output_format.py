"""What the rows of a vector file look like, what a format of vector files is, and the table of all formats.

To add a format, write a module with a subclass of ``OutputFormat`` and a tuple ``FORMATS``, and list the module in
``MODULES`` (contributing/add-an-output-format.md).
"""

from __future__ import annotations

import contextlib
import json
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmokit.config import check_choice
from elmokit.embedding.outputs.writer import ResumableWriter, read_numbers
from elmokit.embedding.reading import SentenceCounts
from elmokit.errors import ConfigError, FormatError
from elmokit.storage.atomic import check_extension
from elmokit.storage.progress import StageCounter

ABOUT = "elmokit"
"""The name under which a file says what computed it: one JSON text (:attr:`VectorFileLayout.about`)."""
GROUP_BYTES = 32 * 2**20
"""The vectors of a group of rows. Parquet recommends this size and larger; two are in memory at a time."""
GROUP_SENTENCES = 65536
"""The most sentences of a group, whose tokens are Python objects."""
DatasetNames = Literal["numbers", "sentences"]
"""How HDF5 datasets are named: by line number, or by the text of the sentence."""
StoredDtype = Literal["float32", "float16"]
STORED_DTYPES: tuple[StoredDtype, ...] = get_args(StoredDtype)


def stored_dtype(dtype: Any) -> StoredDtype:
    """Return the type of stored numbers by its name; NumPy's types, such as ``np.float16``, are accepted too."""
    name = dtype
    with contextlib.suppress(TypeError):
        name = np.dtype(dtype).name
    if isinstance(dtype, str) and name not in STORED_DTYPES:
        name = dtype  # for NumPy, "f16" is float128
    check_choice("dtype", name, STORED_DTYPES)
    return name  # type: ignore[no-any-return]


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
        """Return the size of all vectors."""
        return (counts.n_sentences if self.pooled else counts.n_tokens) * self.row_bytes


class OutputFormat(ABC):
    """A format of vector files. A new one is a subclass in a module that ``MODULES`` lists.

    While a text is embedded, vectors, sentences and tokens are stored in the same way for all formats (``writer.py``),
    so all can be resumed. :meth:`write` makes the output from them at the end. A format that needs no other file than
    that of the vectors begins it in :meth:`allocate`.
    """

    name: ClassVar[str]
    """What error messages call the format."""
    extensions: ClassVar[tuple[str, ...]]
    """The extensions of its files, with their dots."""
    stores: ClassVar[Literal["tokens", "keys"]] = "tokens"
    """How it stores sentences: as the tokens of each row, or as keys that name datasets or map to their numbers."""

    def check(self, layout: VectorFileLayout) -> None:
        """Raise a ConfigError or MissingExtraError, before any work is done, if the file cannot be written."""
        for name, is_chosen, is_possible in (
            ("use_sentence_keys", layout.keys == "sentences", self.stores == "keys" and not layout.pooled),
            ("include_sentence_indices", layout.with_old_map, self.stores == "keys"),
        ):
            if is_chosen and not is_possible:
                vectors = "sentence vectors" if layout.pooled else "vectors"
                raise ConfigError(f"{name} cannot be used: {self.name} files store {vectors} in one table.")

    @abstractmethod
    def file_bytes(self, layout: VectorFileLayout, counts: SentenceCounts) -> int:
        """Estimate the size of the output: exact for binary vectors, within a few percent for the rest."""

    def temporary_bytes(self, layout: VectorFileLayout, counts: SentenceCounts) -> int:
        """Return the size of what needs space next to the output until it is complete."""
        return layout.vector_bytes(counts)

    def allocate(self, writer: ResumableWriter, layout: VectorFileLayout, count: StageCounter) -> None:
        """Say where the vectors of each sentence will be in the file of vectors; here, one after the other.

        Args:
            count: Called with a number of sentences once these have their place. It may raise an exception to stop.
        """
        end = 0
        for lengths in writer.read_lengths():
            n_bytes = layout.n_rows(lengths) * layout.row_bytes
            writer.add_offsets(end + np.cumsum(n_bytes) - n_bytes)
            end += int(n_bytes.sum())
            count(len(lengths))

    @abstractmethod
    def write(self, writer: ResumableWriter, layout: VectorFileLayout) -> None:
        """Write the output, once all vectors are there."""

    @abstractmethod
    def read_about(self, path: Path) -> str | bytes:
        """Read what a file says about itself. An error that :func:`read_about` expects means: nothing."""


MODULES = ("hdf5", "arrow", "npz")
"""The modules of the formats. The first format of the first one is also that of names without an extension."""


@cache
def output_formats() -> list[OutputFormat]:
    """Return all formats."""
    modules = (import_module(f"elmokit.embedding.outputs.{name}") for name in MODULES)
    return [format_ for module in modules for format_ in module.FORMATS]


def format_of(path: str | Path) -> OutputFormat:
    """Return the format of a vector file by its extension: the first of the table if no format has it."""
    suffix = Path(path).suffix
    return next((format_ for format_ in output_formats() if suffix in format_.extensions), output_formats()[0])


def output_format(output: str | Path) -> OutputFormat:
    """Return the format to write; an OutputError if the name has the extension of another format."""
    check_extension(output, [extension for format_ in output_formats() for extension in format_.extensions])
    return format_of(output)


def read_about(path: str | Path) -> dict[str, Any]:
    """Return what a vector file says about itself.

    Args:
        path: A file that :func:`~elmokit.embedding.corpus.embed_file` or ``elmokit embed`` wrote.

    Returns:
        The facts by name, as docs/reference/vector-files.md lists them.

    Raises:
        FormatError: The file cannot be read, or elmokit did not write it.
        MissingExtraError: It is a Parquet or Arrow file, and pyarrow is not installed.

    Example:
        >>> read_about("vectors.hdf5")["precision"]
        'int8'
    """
    path = Path(path)
    try:
        return dict(json.loads(format_of(path).read_about(path)))
    except (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise FormatError(f"{path} does not say what computed its vectors: {error}") from None


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
    first, offset = 0, 0
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
