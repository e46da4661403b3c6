"""The formats of outputs, as one table: the extension of the output chooses one."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

from elmokit.embedding.outputs.arrow import ArrowFormat, ParquetFormat
from elmokit.embedding.outputs.hdf5 import HDF5Format
from elmokit.embedding.outputs.npz import NumPyFormat
from elmokit.embedding.outputs.output_format import OutputFormat
from elmokit.errors import FormatError
from elmokit.storage.atomic import check_extension

FORMATS: tuple[OutputFormat, ...] = (
    HDF5Format(),  # also of names without an extension
    ParquetFormat(),
    ArrowFormat(),
    NumPyFormat(),
)


def format_of(path: str | Path) -> OutputFormat:
    """Return the format of a vector file by its extension: the first of the table if no format has it."""
    suffix = Path(path).suffix
    return next((format_ for format_ in FORMATS if suffix in format_.extensions), FORMATS[0])


def output_format(output: str | Path) -> OutputFormat:
    """Return the format to write; an OutputError if the name has the extension of another format."""
    check_extension(output, [extension for format_ in FORMATS for extension in format_.extensions])
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
