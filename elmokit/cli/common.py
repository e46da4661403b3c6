"""Options that several commands have."""

from __future__ import annotations

import click

PROGRAM = "elmokit"

# A model is a string here, because a Path would merge the slashes of a URL.
model_option = click.option(
    "--model", help="The model: a path, URL, published name or Hub id.  [default: en-mini, which is included]"
)
options_option = click.option("--options", help="The options file of an HDF5 file, if it is not next to the weights.")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an existing output.")
