"""What a vector file says about itself: the model, the layers and what computed them."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

from elmokit.embedding.outputs.table import format_of
from elmokit.errors import FormatError


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
