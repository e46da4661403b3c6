"""What several commands have in common: options, the end of an evaluation, and how to resume.

One convention for models holds in all commands: the model is the option ``--model``, and the included one is the
default. Arguments are the texts and outputs of a command. (``convert`` has a source and a destination, as ``cp``;
``distill`` has a teacher, and ``align`` two models.)
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
from click.core import ParameterSource

from elmokit.cli.options import GroupedOption, OutputPath
from elmokit.engine.precision import NAMES
from elmokit.errors import ConfigError

PROGRAM = "elmokit"

# A model is a string here, because a Path would merge the slashes of a URL.
model_option = click.option(
    "--model",
    cls=GroupedOption,
    group="Model",
    help="The model: a path, URL, name (elmokit models) or Hub id.  [default: en-mini, which is included]",
)
options_option = click.option(
    "--options",
    cls=GroupedOption,
    group="Model",
    help="The options file of an HDF5 file, if it is not next to the weights.",
)
device_option = click.option("--device", help="Where to compute: cpu, cuda, cuda:1, ...")
PRECISIONS = click.Choice(NAMES)
PRECISION_HELP = (
    "Lowest precision of the LSTM weights. Lower precision is faster but less accurate.  [default: the model's own, "
    "usually float32]"
)
precision_option = click.option("--precision", type=PRECISIONS, help=PRECISION_HELP)
raw_option = click.option(
    "--raw",
    is_flag=True,
    cls=GroupedOption,
    group="Text",
    help="The text is raw: split each line into sentences and tokens.",
)
language_option = click.option(
    "--language",
    metavar="CODE",
    cls=GroupedOption,
    group="Text",
    help="Language of --raw text, such as de or ja; English needs the extra tokenize, others the extra spacy.  "
    "[default: en]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
figure_option = click.option("--figure", type=OutputPath(), help="Draw a figure (PNG and SVG).")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an existing output.")


def echo_json(facts: Any) -> None:
    """Print facts as JSON."""
    click.echo(json.dumps(facts, indent=2, ensure_ascii=False))


def raw_language(raw: bool, language: str | None) -> str | None:
    """Return the language of raw text, by ``raw_option`` and ``language_option``; None for tokenized text.

    Raises:
        ConfigError: There is a language, but the text is not raw.
    """
    if language is not None and not raw:
        raise ConfigError(f"--language {language} is for raw text. Pass --raw too.")
    return (language or "en") if raw else None


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


def resume_command(*arguments: str) -> str:
    """Return a command that resumes this one, with the options of this one that are not saved with its output."""
    context = click.get_current_context()
    command = [PROGRAM]
    if (limit := context.find_root().params.get("max_line_bytes")) is not None:
        command += ["--max-line-bytes", str(limit)]
    command += arguments
    for name in ("device", "threads"):
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            command += [f"--{name}", str(context.params[name])]
    return shlex.join(command)


def this_command() -> str:
    """Return the command line of this process as one could type it, to resume: without --overwrite, to start anew."""
    return shlex.join([PROGRAM, *(argument for argument in sys.argv[1:] if argument != "--overwrite")])
