"""Options that several commands have."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator

import click

from elmokit.cli.options import OutputPath

PROGRAM = "elmokit"

# A model is a string here, because a Path would merge the slashes of a URL.
model_option = click.option(
    "--model", help="The model: a path, URL, published name or Hub id.  [default: en-mini, which is included]"
)
options_option = click.option("--options", help="The options file of an HDF5 file, if it is not next to the weights.")
device_option = click.option("--device", help="Where to compute: cpu, cuda, cuda:1, ...")
precision_option = click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    help="Lowest precision of the LSTM weights. Lower precision is faster but less accurate.  [default: float32]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
figure_option = click.option("--figure", type=OutputPath(), help="Draw a figure (PNG and SVG).")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an existing output.")


class CommandInterrupted(Exception):
    """A command that the user stopped, with a message that says how to resume it."""


@contextlib.contextmanager
def resumable_command(command: Callable[[], str | None]) -> Iterator[None]:
    """Say how to resume what runs in the block if the user stops it with Ctrl-C or SIGTERM.

    Args:
        command: Returns the command that resumes it, or None if nothing was saved yet.

    Raises:
        CommandInterrupted: The user stopped it.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        resume = command()
        hint = "Nothing was saved yet." if resume is None else f"To resume: {resume}"
        raise CommandInterrupted(f"{str(error) or 'Interrupted.'} {hint}") from None


def this_command(*more: str) -> str:
    """Return the command line of this process, as one could type it, with further arguments that it lacks."""
    return shlex.join([PROGRAM, *sys.argv[1:], *(one for one in more if one not in sys.argv)])
