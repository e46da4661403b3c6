"""Write the pages of the command line from the commands themselves: ``python docs/make_cli.py`` prints them.

The documentation site makes the pages each time that it is built (``hooks.py``), so they are not stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

import click

from elmokit.cli.command import DocumentedCommand
from elmokit.cli.main import elmokit

PAGE = re.compile(r"\bdocs/([\w/-]+\.md)")
"""A page of the documentation in a help text."""
KEEP_LINES = "\b\n"
"""click's mark at the start of a paragraph whose lines must not be joined."""

INTRODUCTION = """\
# Command line

Each command has a page with its options, as `elmokit COMMAND --help` prints them. Arguments are texts and
outputs; the model is the option `--model`, and the included one is the default. Two commands take models as
arguments: `convert` (a source) and `distill` (a teacher). An output is written only to a
directory that exists, and only under an extension of its format.

An error that you can fix is printed as one line, and the exit code is 2. If you stop a command with Ctrl-C, the exit
code is 130, and the command prints how to resume it.
"""


def cli_pages() -> dict[str, str]:
    """Return the page of each command as Markdown, by the name of its file, after an index of them."""
    context = click.Context(elmokit, info_name="elmokit")
    index = [INTRODUCTION.rstrip(), "| command | what it does |\n|---|---|"]
    pages = {"index.md": ""}
    for command, inner in _subcommands(elmokit, context):
        summary = _cell(command.get_short_help_str(limit=200))
        index[-1] += f"\n| [`{inner.command_path}`]({command.name}.md) | {summary} |"
        pages[f"{command.name}.md"] = "\n\n".join(_command_parts(command, inner)) + "\n"
    index += [f"## `{context.command_path}`", *_own_parts(elmokit, context)]
    return {**pages, "index.md": "\n\n".join(index) + "\n"}


def _command_parts(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the paragraphs about a command, then those about its subcommands."""
    yield f"{'#' * (len(context.command_path.split()) - 1)} `{context.command_path}`"
    yield from _own_parts(command, context)
    for subcommand, inner in _subcommands(command, context):
        yield from _command_parts(subcommand, inner)


def _subcommands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        subcommand = command.get_command(context, name)
        if subcommand is not None and not subcommand.hidden:
            yield subcommand, click.Context(subcommand, info_name=name, parent=context)


def _own_parts(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the help of a command, its usage, examples and options."""
    yield from _paragraphs(command.help or "")
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```"
    assert isinstance(command, DocumentedCommand)
    yield "\n".join(["```text", *command.examples, "```"])
    for heading, records in command.options_by_heading(context).items():
        rows = [f"| {_flags(flags)} | {_cell(help)} |" for flags, help in records]
        yield "\n".join([f"| {heading} | |", "|---|---|", *rows])


def _paragraphs(text: str) -> list[str]:
    return [_paragraph(part) for part in re.split(r"\n\s*\n", text) if part.strip()]


def _paragraph(text: str) -> str:
    if text.startswith(KEEP_LINES):
        return f"```text\n{text.removeprefix(KEEP_LINES).rstrip()}\n```"
    return PAGE.sub(r"[\1](../../\1)", " ".join(_escape(text).split()))


def _flags(flags: str) -> str:
    # As HTML, because a table shows the backslash of an escaped bar that is in a code span.
    return f"<code>{escape(flags).replace('|', '&#124;')}</code>"


def _cell(text: str) -> str:
    return " ".join(_escape(text).replace("|", "\\|").split())


def _escape(text: str) -> str:
    """Keep angle brackets, asterisks, underscores and square brackets as they are in a help text, outside code."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*_\[\]])", r"\\\1", escape(part, quote=False)) for part in parts[::2]]
    return "".join(parts)


if __name__ == "__main__":
    print("\n".join(cli_pages().values()), end="")
