"""What the commands share."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

import click

from elmokit.errors import TextError

PROGRAM = "elmokit"

model_option = click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="A model's folder or HDF5 file.  [default: the one inside the package]",
)
options_option = click.option(
    "--options", type=click.Path(path_type=Path), help="The options file of an HDF5 file, if it stands elsewhere."
)
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
