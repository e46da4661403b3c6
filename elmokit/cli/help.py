"""What ``--help`` shows: options under headings, and examples at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

DEFAULT_HEADING = "Options"


class HeadedOption(click.Option):
    """An option that ``--help`` lists under a heading."""

    def __init__(self, *args: Any, heading: str = DEFAULT_HEADING, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.heading = heading


def _set_quiet(ctx: click.Context, parameter: click.Parameter, quiet: bool) -> None:
    """Hide progress if the flag is given, before or after the name of the command."""
    if quiet or ctx.parent is None:
        from elmokit.storage.progress import set_quiet

        set_quiet(quiet)


QUIET = HeadedOption(
    ["-q", "--quiet"],
    is_flag=True,
    expose_value=False,
    callback=_set_quiet,
    help="Print results, warnings and errors only.",
)
"""An option of every command."""


class DocumentedCommand(click.Command):
    """A command whose ``--help`` lists its options under headings and ends with examples.

    The examples come last because that is what a terminal still shows after a long list of options.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = list(examples)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """List the parameters, with --quiet before --help."""
        *own, help_option = super().get_params(ctx)
        return [*own, QUIET, help_option]

    def options_by_heading(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """List flags and help by heading, in the order in which the headings first appear; those without one last."""
        headings: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                headings.setdefault(getattr(parameter, "heading", DEFAULT_HEADING), []).append(record)
        return headings | {DEFAULT_HEADING: headings.pop(DEFAULT_HEADING, [])}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        for heading, records in self.options_by_heading(ctx).items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        if self.examples:
            with formatter.section("Examples"):
                # Not wrapped: a command line is copied as a whole.
                formatter.write("".join(f"{'':{formatter.current_indent}}{line}\n" for line in self.examples))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. For one too many, say how a model is passed, which is the usual reason."""
        ctx.allow_extra_args = True
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click leaves it out of some errors, and the last line needs it
            raise
        if rest and not ctx.resilient_parsing and not isinstance(self, click.Group):
            has_model = any(parameter.name == "model" for parameter in self.params)
            ctx.fail(f"Unexpected argument {rest[0]!r}.{' Pass a model with --model.' if has_model else ''}")
        return rest
