"""Helpers for running commands: print JSON, check combinations of flags, and print how to resume."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import click

from elmokit.errors import ConfigError, SettingError

PROGRAM = "elmokit"
VERSION_MESSAGE = "%(prog)s %(version)s"


def echo_json(facts: Any) -> None:
    """Print facts as JSON."""
    from elmokit.config import encode_json

    click.echo(encode_json(facts), nl=False)


def print_note(message: str) -> None:
    """Print a note on standard error, unless --quiet was passed."""
    from elmokit.storage.progress import is_quiet

    if not is_quiet():
        click.echo(message, err=True)


def check_apart(flag: str, is_given: object, others: Mapping[str, object]) -> None:
    """Refuse a flag in combination with others, which count as given if their values are true."""
    for other, is_other in others.items():
        if is_given and is_other:
            raise ConfigError(f"{flag} cannot be combined with {other}.")


def check_needed(flag: str, is_given: object, needed: str, is_needed_given: object) -> None:
    """Refuse a flag without another that it needs."""
    if is_given and not is_needed_given:
        raise ConfigError(f"{flag} needs {needed}.")


def given_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given on the command line."""
    return {name: value for name, value in settings.items() if value not in (None, ())}


@contextlib.contextmanager
def name_flags(given: Collection[str]) -> Iterator[None]:
    """In errors about a setting in ``given``, name its flag."""
    try:
        yield
    except SettingError as error:
        if error.setting not in given:
            raise
        raise ConfigError(f"--{error.setting.replace('_', '-')} {error.problem}") from None


class CommandInterrupted(Exception):
    """The user stopped a command. The message says how to resume it."""


@contextlib.contextmanager
def resumable_command(is_saved: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Print how to resume if the user stops the block with Ctrl-C or SIGTERM.

    Args:
        is_saved: Returns whether there is saved work to resume.

    Raises:
        CommandInterrupted: The user stopped it.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        hint = f"To resume: {this_command()}" if is_saved() else "Nothing was saved yet."
        raise CommandInterrupted(f"{str(error) or 'Interrupted.'} {hint}") from None


def this_command() -> str:
    """Return the command line that resumes this process: its own, without --overwrite, which would start over."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--overwrite"]
    return shlex.join([PROGRAM, *arguments])
