"""What the commands share."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

import click

from elmokit.errors import TextError

PROGRAM = "elmokit"

# A model is a string here: a Path would fold the slashes of an address.
model_option = click.option(
    "--model", help="A model's path, address, published name or Hub id.  [default: the one inside the package]"
)
options_option = click.option("--options", help="The options file of an HDF5 file, if it stands elsewhere.")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace what stands at the output path.")


def expand_paths(patterns: Iterable[Path]) -> list[Path]:
    """Files for paths and glob patterns, in sorted order within each pattern.

    Raises:
        TextError: a pattern matches no file.
    """
    found: list[Path] = []
    for pattern in patterns:
        matches = [pattern] if pattern.is_file() else sorted(Path(name) for name in glob.glob(str(pattern)))
        if not matches:
            raise TextError(f"No file matches {pattern}.")
        found += matches
    return found
