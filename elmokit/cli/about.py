"""``elmokit help``, ``version`` and ``completion``: what a person asks the command line about itself."""

from __future__ import annotations

from typing import Literal

import click
from click.shell_completion import get_completion_class

from elmokit.cli.running import PROGRAM, VERSION_MESSAGE
from elmokit.version import __version__


def help_(command: tuple[str, ...] = ()) -> None:
    """Show the help of COMMAND, or of elmokit.

    It is what COMMAND --help shows.

    Examples:
        elmokit help embed
        elmokit help task train
    """
    context = click.get_current_context().find_root()
    for name in command:
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{context.command_path} has no commands.", context)
        _, inner, _ = group.resolve_command(context, [name])
        assert inner is not None  # an unknown name is an error
        context = click.Context(inner, info_name=name, parent=context)
    click.echo(context.get_help())


def version() -> None:
    """Show the version of elmokit.

    Examples:
        elmokit version
        elmokit --version
    """
    click.echo(VERSION_MESSAGE % {"prog": PROGRAM, "version": __version__})


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a script for SHELL, which then completes commands and options when you press the Tab key.

    Add one of the lines below to ~/.bashrc or ~/.zshrc, or run the last one once.

    Examples:
        eval "$(elmokit completion bash)"
        eval "$(elmokit completion zsh)"
        elmokit completion fish > ~/.config/fish/completions/elmokit.fish
    """
    completer = get_completion_class(shell)
    assert completer is not None  # click has all three
    root = click.get_current_context().find_root().command
    # Not `source()`, which starts Bash to ask for its version.
    instance = completer(root, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE")
    click.echo(instance.source_template % instance.source_vars())
