"""What the commands share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

PROGRAM = "elmokit"

# A model is a string here: a Path would fold the slashes of an address.
model_option = click.option(
    "--model", help="A model's path, address, published name or Hub id.  [default: the one inside the package]"
)
options_option = click.option("--options", help="The options file of an HDF5 file, if it stands elsewhere.")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace what stands at the output path.")


def n_bytes(paths: Iterable[Path]) -> int | None:
    """The size of all files as they stand on disk; None where one is a pipe, whose size no one knows."""
    paths = list(paths)
    return sum(path.stat().st_size for path in paths) if all(path.is_file() for path in paths) else None
