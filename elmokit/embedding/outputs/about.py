"""What a vector file says about itself: the model, the layers and what computed them.

It is one JSON text under the name ``elmokit``: an attribute of an HDF5 file, metadata in the schema of a Parquet or
Arrow file, an array of bytes in a NumPy archive.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.errors import FormatError, MissingExtraError

NAME = "elmokit"


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
    read = {".npz": _read_npz, ".parquet": _read_parquet, ".arrow": _read_arrow}.get(path.suffix, _read_hdf5)
    try:
        return dict(json.loads(read(path)))
    except ImportError:
        raise MissingExtraError("Reading Parquet or Arrow files", "arrow") from None
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise FormatError(
            f"{path} does not say what computed its vectors ({error}). Give a file that elmokit embed wrote."
        ) from None


def _read_hdf5(path: Path) -> str:
    import h5py

    with h5py.File(path) as file:
        text: str = file.attrs[NAME]
        return text


def _read_npz(path: Path) -> bytes:
    with np.load(path) as archive:
        content: bytes = archive[NAME].tobytes()
        return content


def _read_parquet(path: Path) -> bytes:
    import pyarrow.parquet as pq

    return _of_schema(pq.read_schema(path))


def _read_arrow(path: Path) -> bytes:
    import pyarrow as pa

    with pa.OSFile(str(path)) as file:
        return _of_schema(pa.ipc.open_file(file).schema)


def _of_schema(schema: Any) -> bytes:
    content: bytes = (schema.metadata or {})[NAME.encode("ascii")]
    return content
