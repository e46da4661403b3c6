"""The layout of vector files, the base class of their formats, and the table of all formats.

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
"""The name of the JSON text that says what computed a file (:attr:`VectorFileLayout.about`)."""
GROUP_BYTES = 32 * 2**20
"""Size of the vectors in a row group. Parquet recommends at least this; two groups are in memory at once."""
GROUP_SENTENCES = 65536
"""Maximum number of sentences in a group, because their tokens are Python objects."""
DatasetNames = Literal["numbers", "sentences"]
"""How HDF5 datasets are named: by line number or by sentence."""
StoredDtype = Literal["float32", "float16"]
STORED_DTYPES: tuple[StoredDtype, ...] = get_args(StoredDtype)


def stored_dtype(dtype: Any) -> StoredDtype:
    """Return the name of a stored data type; NumPy types such as ``np.float16`` are also accepted."""
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
    """Round vectors to a stored data type; numbers beyond its range raise an error, with ``advice``."""
    try:
        with np.errstate(over="raise"):
            return vectors.astype(dtype, copy=False)
    except FloatingPointError:
        raise ConfigError(f"A vector has a number beyond 65,504, the largest of float16. {advice}") from None


@dataclass(frozen=True)
class VectorFileLayout:
    """The layout of a vector file: what is stored for each sentence.

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
    """Whether sentences are proteins, which are named by identifier instead of line number."""
    with_sentences: bool = True
    """Whether the sentences are stored: their tokens or, in HDF5, a map from sentences to numbers."""
    with_old_map: bool = False
    """Whether HDF5 also stores that map under its old name."""
    about: str = "{}"
    """The file's metadata as ASCII JSON, as listed in docs/reference/vector-files.md."""

    @property
    def n_layers(self) -> int | None:
        """The number of layers; None if a token has one vector ``(dim,)``."""
        return None if self.layers is None else len(self.layers)

    @property
    def row_bytes(self) -> int:
        """The size in bytes of one token's vectors or, with ``pooled``, one sentence's."""
        return (self.n_layers or 1) * self.dim * np.dtype(self.dtype).itemsize

    def n_rows(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of rows, of ``row_bytes`` each, for each sentence, given its number of tokens."""
        return np.ones_like(lengths) if self.pooled else lengths

    def vector_bytes(self, counts: SentenceCounts) -> int:
        """Return the size of all vectors."""
        return (counts.n_sentences if self.pooled else counts.n_tokens) * self.row_bytes


class OutputFormat(ABC):
    """A vector file format. A new one is a subclass in a module listed in ``MODULES``.

    While a text is embedded, vectors, sentences and tokens are stored in the same way for all formats (``writer.py``),
    so all can be resumed. At the end, :meth:`write` converts them to the output. A format whose output is the file of
    vectors itself sets it up in :meth:`allocate`.
    """

    name: ClassVar[str]
    """The name of the format in error messages."""
    extensions: ClassVar[tuple[str, ...]]
    """The extensions of its files, with dots."""
    stores: ClassVar[Literal["tokens", "keys"]] = "tokens"
    """How it stores sentences: as the tokens of each row, or as keys of datasets or of a map."""

    def check(self, layout: VectorFileLayout) -> None:
        """Check, before any work is done, that the file can be written; raise a ConfigError or MissingExtraError."""
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
        """Return the size of temporary files next to the output until it is complete."""
        return layout.vector_bytes(counts)

    def allocate(self, writer: ResumableWriter, layout: VectorFileLayout, count: StageCounter) -> None:
        """Assign the position of each sentence in the file of vectors; here, in order.

        Args:
            count: Called with the number of sentences assigned since the last call. It may raise an exception to stop.
        """
        end = 0
        for lengths in writer.read_lengths():
            n_bytes = layout.n_rows(lengths) * layout.row_bytes
            writer.add_offsets(end + np.cumsum(n_bytes) - n_bytes)
            end += int(n_bytes.sum())
            count(len(lengths))

    @abstractmethod
    def write(self, writer: ResumableWriter, layout: VectorFileLayout) -> None:
        """Write the output once all vectors are computed."""

    @abstractmethod
    def read_about(self, path: Path) -> str | bytes:
        """Read a file's metadata, or raise an error that :func:`read_about` expects if there is none."""


MODULES = ("hdf5", "arrow", "npz")
"""The modules of the formats. The first format of the first module is also used for names without an extension."""


@cache
def output_formats() -> list[OutputFormat]:
    """Return all formats."""
    modules = (import_module(f"elmokit.embedding.outputs.{name}") for name in MODULES)
    return [format_ for module in modules for format_ in module.FORMATS]


def format_of(path: str | Path) -> OutputFormat:
    """Return the format of a vector file by its extension, or the first format if none has it."""
    suffix = Path(path).suffix
    for format_ in output_formats():
        if suffix in format_.extensions:
            return format_
    return output_formats()[0]


def output_format(output: str | Path) -> OutputFormat:
    """Return the format to write, or raise an OutputError for the extension of an unsupported format."""
    check_extension(output, [extension for format_ in output_formats() for extension in format_.extensions])
    return format_of(output)


def read_about(path: str | Path) -> dict[str, Any]:
    """Return a vector file's metadata.

    Args:
        path: A file written by :func:`~elmokit.embedding.corpus.embed_file` or ``elmokit embed``.

    Returns:
        The facts by name, as listed in docs/reference/vector-files.md.

    Raises:
        FormatError: The file cannot be read, or was not written by elmokit.
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
    """Consecutive sentences of a complete corpus."""

    first: int
    """The number of the first sentence."""
    lengths: NDArray[np.int64]
    names: list[str]
    tokens: list[list[str]]
    """Empty if the sentences are not stored."""
    vectors: list[NDArray[Any]]
    """One array ``(rows, dim)`` per layer. The rows are the tokens of all sentences, or the sentences."""


def read_row_groups(writer: ResumableWriter, layout: VectorFileLayout) -> Iterator[RowGroup]:
    """Yield all sentences of a complete output, in groups of bounded size."""
    names, tokens = writer.read_names(), writer.read_tokens()
    first, offset = 0, 0
    for block in writer.read_lengths(GROUP_SENTENCES):
        n_bytes = layout.n_rows(block) * layout.row_bytes
        # Cut where the total size reaches the next multiple of the group size. Only a longer sentence makes a group
        # larger.
        cuts = np.flatnonzero(np.diff((np.cumsum(n_bytes) - 1) // GROUP_BYTES)) + 1
        for lengths, sizes in zip(np.split(block, cuts), np.split(n_bytes, cuts), strict=True):
            yield RowGroup(
                first,
                lengths,
                list(islice(names, len(lengths))),
                list(islice(tokens, len(lengths))),
                _read_layers(writer, layout, offset, layout.n_rows(lengths)),
            )
            first += len(lengths)
            offset += int(sizes.sum())


def _read_layers(
    writer: ResumableWriter, layout: VectorFileLayout, offset: int, n_rows: NDArray[np.int64]
) -> list[NDArray[Any]]:
    n_layers = layout.n_layers or 1
    n_values = int(n_rows.sum()) * n_layers * layout.dim
    with writer.vectors_path.open("rb") as file:
        file.seek(offset)
        values = read_numbers(file, layout.dtype, n_values)
    if n_layers == 1:
        return [values.reshape(-1, layout.dim)]
    # Sentences are stored layer by layer, so the rows of one layer are in one piece per sentence.
    joined = np.empty((n_layers, int(n_rows.sum()), layout.dim), layout.dtype)
    row = 0
    for n in n_rows.tolist():
        numbers = values[n_layers * row * layout.dim : n_layers * (row + n) * layout.dim]
        joined[:, row : row + n] = numbers.reshape(n_layers, n, layout.dim)
        row += n
    return list(joined)
