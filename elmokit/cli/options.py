"""Commands and options: derived from the fields of a config, listed under headings in ``--help``, with examples."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from elmokit.errors import ConfigError, OutputError, SettingError
from elmokit.storage.atomic import check_parent
from elmokit.storage.text_files import STDIN, expand_user

DEFAULT_GROUP = "Options"
MAX_THREADS = 256
"""The largest number of threads on a machine with fewer cores."""
EXAMPLES = "\b\nExamples:\n"
"""What comes before the examples in the docstring of a command. The escape keeps click from joining their lines."""


class GroupedOption(click.Option):
    """A click option that ``--help`` lists under a heading. Use it with :class:`GroupedCommand`.

    Example:
        >>> @click.option("--out", cls=GroupedOption, group="Output", help="The output directory.")
    """

    def __init__(self, *args: Any, group: str = DEFAULT_GROUP, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.group = group


class _WithExamples(click.Command):
    """A command whose ``--help`` ends with the examples of its docstring.

    They come last because that is what a terminal still shows after a long list of options.
    """

    def examples(self) -> list[str]:
        """Return the command lines in the docstring."""
        return [line.strip() for line in inspect.cleandoc(self.help or "").partition(EXAMPLES)[2].splitlines()]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the docstring without its examples."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(inspect.cleandoc(self.help or "").partition(EXAMPLES)[0].rstrip())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        if examples := self.examples():
            with formatter.section("Examples"):
                # Not wrapped: a command line is copied as a whole.
                formatter.write("".join(f"{'':{formatter.current_indent}}{line}\n" for line in examples))


class GroupedCommand(_WithExamples):
    """A command whose ``--help`` lists options under headings, in the order in which the headings first appear."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options. Those without a heading come last."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                groups.setdefault(getattr(parameter, "group", DEFAULT_GROUP), []).append(record)
        ungrouped = groups.pop(DEFAULT_GROUP, [])
        for heading, records in (*groups.items(), (DEFAULT_GROUP, ungrouped)):
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. For one too many, say how a model is passed, which is the usual reason."""
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            has_model = any(parameter.name == "model" for parameter in self.params)
            ctx.fail(f"Unexpected argument {rest[0]!r}.{' Pass a model with --model.' if has_model else ''}")
        return rest


class CommandGroup(_WithExamples, click.Group):
    """A group of commands of :class:`GroupedCommand`. Its ``--help`` lists the commands before the options."""

    command_class = GroupedCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Without any, show the help: as an error it would be printed in one line."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)


class SettingsCommand(GroupedCommand):
    """A command that has, besides its own parameters, an option for each setting of a config.

    The options are looked up when the command is used, and not when its module is imported, because the module of the
    config can be slow to import.
    """

    setting_options: Callable[[], list[click.Option]]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own parameters, then one option per setting."""
        if not any(isinstance(parameter, _SettingOption) for parameter in self.params):
            self.params += type(self).setting_options()
        return super().get_params(ctx)


class _SettingOption(GroupedOption):
    pass


def setting_options(
    cls: type,
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
    names: Iterable[str] | Mapping[str, str] | None = None,
    group: str = DEFAULT_GROUP,
) -> list[click.Option]:
    """Make an option for each field of a config that was declared with :func:`elmokit.config.setting`.

    An option that is not given on the command line has the value None (or ``()`` if it can be repeated), so that a
    config file or a preset can decide.

    Args:
        cls: The config's dataclass.
        defaults: Defaults to show in ``--help`` instead of the fields' own; a text such as "the preset's" explains the
            default. None shows no default.
        names: The fields to make options for, in this order; a mapping gives the name of each option and its field.
            None makes an option for every field.
        group: The heading of the fields that were declared without one.
    """
    fields = {field.name: field for field in dataclasses.fields(cls) if "help" in field.metadata}
    hints = typing.get_type_hints(cls)
    field_of = names if isinstance(names, Mapping) else {name: name for name in (fields if names is None else names)}
    options: list[click.Option] = []
    for name, field_name in field_of.items():
        metadata, default = fields[field_name].metadata, defaults.get(field_name, fields[field_name].default)
        is_repeated = hints[field_name] == tuple[str, ...]
        value_type = click.Path(path_type=Path) if metadata["is_path"] else _click_type(hints[field_name])
        flag, shown = f"--{name.replace('_', '-')}", "" if default in (None, ()) else str(default)
        if value_type is click.BOOL:
            flag = f"{flag}/{metadata['off_flag'] or f'--no-{flag[2:]}'}"
            shown = "" if default is None else "yes" if default else "no"
        text = metadata["help"] + (f"  [default: {shown}]" if shown else "")
        options.append(
            _SettingOption(
                [flag, name],
                type=value_type,
                default=None,
                multiple=is_repeated,
                help=text,
                group=metadata["group"] or group,
            )
        )
    return options


class OutputPath(click.Path):
    """The path of an output.

    Args:
        allow_dash: Accept ``-`` for standard output. Otherwise it is refused: it is not meant as the name of a file.
        parent_must_exist: Whether its directory must exist. One that does not exist is more often a typing error, or a
            disk that is not mounted, than one to be created.
    """

    def __init__(self, allow_dash: bool = False, parent_must_exist: bool = True) -> None:
        super().__init__(path_type=Path, allow_dash=allow_dash)
        self.parent_must_exist = parent_must_exist

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Check the path before any work is done."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if str(path) == STDIN:
            if not self.allow_dash:
                self.fail("standard output (-) is not supported. Give the name of a file or directory.", param, ctx)
        elif self.parent_must_exist:
            check_parent(expand_user(path, OutputError))
        return path


@contextlib.contextmanager
def name_flags(given: Collection[str]) -> Iterator[None]:
    """Name a setting by its flag in an error about it, if it was given as a flag.

    Args:
        given: The names of the settings that were given on the command line.
    """
    try:
        yield
    except SettingError as error:
        if error.setting not in given:
            raise
        raise ConfigError(f"--{error.setting.replace('_', '-')} {error.problem}") from None


def layer_numbers(text: str | None) -> list[int] | None:
    """Parse the value of --layers.

    Raises:
        ConfigError: It is not a list of numbers separated by commas.
    """
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f"--layers is {text!r}; give layer numbers separated by commas, such as 0,2.") from None


class ThreadCount(click.ParamType[int]):
    """A number of CPU threads. OpenMP ends the process without a message if it cannot start as many as requested."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the number and check it."""
        number: int = click.INT.convert(value, param, ctx)
        n_cores = os.cpu_count() or 1
        largest = max(MAX_THREADS, n_cores)
        if not 1 <= number <= largest:
            self.fail(f"{number} is not between 1 and {largest}. This machine has {n_cores} cores.", param, ctx)
        return number


class CommaSeparated(click.ParamType[list[int]]):
    """Whole numbers separated by commas, such as ``0,1``."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """Parse the text of an option."""
        try:
            return [int(part) for part in value.split(",") if part]
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 0,1.", param, ctx)


def _click_type(hint: Any) -> click.ParamType[Any]:
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if typing.get_origin(hint) is typing.Literal:
        return click.Choice(typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return click.STRING if typing.get_args(hint)[0] is str else CommaSeparated()
    param_type: click.ParamType[Any] = click.types.convert_type(hint)
    return param_type
