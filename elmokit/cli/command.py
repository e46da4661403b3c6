'''Turn functions into commands: a function's signature and docstring become its flags and help.

This function is the command ``elmokit convert [OPTIONS] SOURCE TARGET``::

    def convert(
        source: str,
        target: Output,
        *,
        start: Literal["warm", "zero"] | None = None,
        overwrite: Overwrite = False,
        opening: Opening,
    ) -> None:
        """Convert the model SOURCE to TARGET.

        Args:
            start: The state that sentences start from.

        Examples:
            elmokit convert elmo_weights.hdf5 my-elmo
        """
        model = open_model(source, **vars(opening))
        save_model(model, target, overwrite=overwrite)

- Parameters before the ``*`` are arguments. Those after it are options, and the flag has the parameter's name, without
  the trailing underscore of names that Python reserves.
- The type hint determines the value's type. A bool is a flag without a value, a ``Literal`` a choice, a tuple of
  integers a comma-separated list; other tuples are repeatable options, or arguments that take the rest of the line.
- ``Args:`` lists the options that most people need. Those under ``More options:``, or any heading after it, are only
  shown by ``--help-all``. An entry may name its value, as in ``columns (A,B,SCORE): The columns``. An entry without
  text only sets the heading.
- ``Annotated`` adds what several commands share: a ``click`` type, or a :class:`Flag` (``parameters.py``).
- A parameter whose type is a dataclass stands for its fields: a group of options, declared next to the function that
  takes them (:func:`elmokit.config.setting`), in a module that imports neither NumPy nor PyTorch. A test compares them
  with that function. A field named like an earlier parameter gets that parameter's value and is not an option.
- For ``**settings``, :func:`with_settings` lists the fields of configs; only those given on the command line are
  passed.
'''

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from elmokit.cli.running import name_flags

Extra = TypeVar("Extra")
Function = TypeVar("Function", bound=Callable[..., Any])
CommandTable = Mapping[str, tuple[str, str]]
"""Commands by name: the location (``module:function``, or the module of a group), and the line in the list."""
COMMON, MORE = "Options", "More options"
"""Help headings: the options that most people need, and the rest, which ``--help-all`` shows."""
SECTION = re.compile(r"([A-Z][\w ]+):")
ENTRY = re.compile(r"    (\w+(?:, \w+)*)(?: \((\S+)\))?:(?: (.*))?")


class Flag(NamedTuple):
    """Properties of an option that the parameter's type hint adds."""

    help: str = ""
    """The help text, used if the command's docstring has none."""
    heading: str = COMMON
    metavar: str | None = None
    names: tuple[str, ...] = ()
    """Additional names of the flag, such as ``-n``."""
    off: str = ""
    """The flag that turns it off if it is on by default; empty for ``--no-`` and its name."""


def with_settings(options: Callable[[], list[HeadedOption]], /) -> Callable[[Function], Function]:
    """Give a function with ``**settings`` the options returned by ``options``, which is called on first use."""

    def add(function: Function) -> Function:
        function.setting_options = options  # type: ignore[attr-defined]
        return function

    return add


def with_underscores(function: Function) -> Function:
    """Also accept flags spelled with underscores, as in the program that the command replaces."""
    function.has_underscores = True  # type: ignore[attr-defined]
    return function


class HeadedOption(click.Option):
    """An option that the help lists under a heading."""

    def __init__(self, *args: Any, heading: str = COMMON, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.heading = heading


def _set_quiet(ctx: click.Context, parameter: click.Parameter, quiet: bool) -> None:
    """Hide progress if the flag is given, before or after the command's name."""
    if quiet or ctx.parent is None:
        from elmokit.storage.progress import set_quiet

        set_quiet(quiet)


QUIET = click.Option(
    ["-q", "--quiet"],
    is_flag=True,
    expose_value=False,
    callback=_set_quiet,
    help="Print results, warnings and errors only.",
)
"""An option of every command."""
SHOWS_ALL = "elmokit.shows_all_options"
"""The key of a context whose help shows all options."""


def _show_all(ctx: click.Context, parameter: click.Parameter, given: bool) -> None:
    """Show the help with all options."""
    if given and not ctx.resilient_parsing:
        ctx.meta[SHOWS_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


class DocumentedCommand(click.Command):
    """A command whose ``--help`` lists the usual options, ``--help-all`` all of them, both followed by examples.

    The examples come last, so they are still on the screen after a long list of options.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = list(examples)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """List the parameters, ending with --quiet, --help and --help-all."""
        *own, help_option = super().get_params(ctx)
        options = [parameter for parameter in own if isinstance(parameter, HeadedOption)]
        help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help=f"Show all {len(options)} options.",
            hidden=all(option.heading == COMMON for option in options),  # --help shows all of them
        )
        return [*own, QUIET, help_option, help_all]

    def options_by_heading(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """List flags and help texts by heading."""
        headings: dict[str, list[tuple[str, str]]] = {COMMON: [], MORE: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                headings.setdefault(getattr(parameter, "heading", COMMON), []).append(record)
        return {heading: records for heading, records in headings.items() if records}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        for heading, records in self.options_by_heading(ctx).items():
            if heading == COMMON or ctx.meta.get(SHOWS_ALL):
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        if self.examples:
            with formatter.section("Examples"):
                # Not wrapped, so a command line can be copied as a whole.
                formatter.write("".join(f"{'':{formatter.current_indent}}{line}\n" for line in self.examples))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. The error for an extra argument mentions --model, because that is often the reason."""
        ctx.allow_extra_args = True
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click omits it from some errors, and the hint about --help needs it
            raise
        if rest and not ctx.resilient_parsing and not isinstance(self, click.Group):
            message = f"Unexpected argument {rest[0]!r}."
            if any(parameter.name == "model" for parameter in self.params):
                message += " Pass a model with --model."
            ctx.fail(message)
        return rest


class CommandGroup(DocumentedCommand, click.Group):
    """A group that imports commands only when they are used, so ``elmokit --help`` is instant."""

    def __init__(self, *args: Any, tables: Mapping[str, CommandTable], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.tables = tables
        """The commands by help heading."""
        self.entries = {name: entry for table in tables.values() for name, entry in table.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of the commands."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and make a command."""
        if cmd_name not in self.entries:
            return None
        location, _ = self.entries[cmd_name]
        return load_command(cmd_name, location)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called."""
        name = args[0]
        if name not in self.entries and not name.startswith("-"):
            from elmokit.config import did_you_mean
            from elmokit.former_names import COMMANDS, replacement

            path = " ".join((*ctx.command_path.split()[1:], name))
            advice = replacement(COMMANDS, path) or did_you_mean(name, self.entries)
            raise click.UsageError(f"No such command {name!r}.{advice}", ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Without any, show the help; as an error, it would be printed on one line."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options."""
        width = max(map(len, self.entries))
        for heading, table in self.tables.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{width}}", line) for name, (_, line) in table.items()])
        super().format_options(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """Complete the name of a command without importing any."""
        items = []
        for name, (_, line) in self.entries.items():
            if name.startswith(incomplete):
                items.append(click.shell_completion.CompletionItem(name, help=line))
        return items + click.Command.shell_complete(self, ctx, incomplete)


def load_command(name: str, location: str) -> click.Command:
    """Import and make a command.

    Args:
        name: Its name.
        location: ``module:function``; or the module of a group, whose docstring is the help and whose ``COMMANDS``
            names the functions in the group.
    """
    module_name, _, function_name = location.partition(":")
    module = importlib.import_module(module_name)
    if function_name:
        return command_of(getattr(module, function_name), name)
    commands: dict[str, tuple[str, str]] = {}
    for function_name in module.COMMANDS:
        function = getattr(module, function_name)
        summary = parse_docstring(function.__doc__)[0].partition("\n\n")[0]
        commands[_name_of(function)] = (f"{module_name}:{function_name}", " ".join(summary.split()))
    text, sections = parse_docstring(module.__doc__ or "")
    return CommandGroup(name, help=text, examples=sections["Examples"], tables={"Commands": commands})


def _name_of(function: Callable[..., Any]) -> str:
    name = function.__name__.removesuffix("_")
    return name if hasattr(function, "has_underscores") else name.replace("_", "-")


def command_of(function: Callable[..., Any], name: str) -> DocumentedCommand:
    """Make a command from a function."""
    return DocumentedCommand(name, **_described(function))


def group_of(function: Callable[..., Any], name: str, **settings: Any) -> CommandGroup:
    """Make a group of the commands in ``tables``; the function has the group's options and is called first."""
    return CommandGroup(name, **_described(function), **settings)


def _described(function: Callable[..., Any]) -> dict[str, Any]:
    """Derive the arguments of a click command from a function."""
    text, sections = parse_docstring(function.__doc__ or "")
    examples = sections.pop("Examples", [])
    sections[COMMON] = sections.pop("Args", [])
    entries: dict[str, DocumentedParameter] = {}
    for heading, lines in sections.items():
        entries |= parse_entries(heading, lines)
    has_underscores = getattr(function, "has_underscores", False)
    hints = typing.get_type_hints(function, include_extras=True)
    params: list[click.Parameter] = []
    groups: dict[str, OptionGroup] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if parameter.kind is parameter.VAR_KEYWORD:
            params += _settings_of(function, entries)
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            params.append(_argument(parameter.name, hint, parameter.default is parameter.empty))
        elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
            fields = _fields_of(hint, entries, {param.name for param in params}, has_underscores)
            groups[parameter.name] = OptionGroup(hint, [str(option.name) for option in fields])
            params += fields
        else:
            documented = entries.get(parameter.name)
            params.append(_option(parameter.name, parameter.default, hint, documented, has_underscores))
    unknown = entries.keys() - {param.name for param in params}
    if unknown:
        raise ValueError(f"{function.__qualname__} has no parameter {min(unknown)}, which its docstring describes.")
    return {"params": params, "callback": _Call(function, groups, params), "help": text, "examples": examples}


class OptionGroup(NamedTuple):
    """A dataclass that stands for several options of a command."""

    cls: type
    options: list[str]
    """The fields that are options."""


class _Call:
    """Calls the function of a command with the values of its parameters."""

    def __init__(
        self, function: Callable[..., Any], groups: Mapping[str, OptionGroup], params: list[click.Parameter]
    ) -> None:
        self.function = function
        self.groups = groups
        """Groups by parameter name."""
        self.options: list[str] = []
        """Options whose flags are named in errors; none if the flags are those of another program."""
        if not hasattr(function, "has_underscores"):
            self.options = [str(param.name) for param in params if isinstance(param, click.Option)]

    def __call__(self, **values: Any) -> Any:
        for name, group in self.groups.items():
            fields = {option: values.pop(option) for option in group.options}
            values[name] = group.cls(**fields)
        source_of = click.get_current_context().get_parameter_source
        given = [name for name in self.options if source_of(name) is ParameterSource.COMMANDLINE]
        with name_flags(given):
            return self.function(**values)


def _settings_of(function: Callable[..., Any], entries: Mapping[str, DocumentedParameter]) -> list[HeadedOption]:
    """Make the options of a function's ``**settings``."""
    options: list[HeadedOption] = getattr(function, "setting_options", list)()
    for option in options:
        entry = entries.get(str(option.name))
        option.heading = MORE if entry is None else entry.heading
    return options


def _fields_of(
    cls: type, entries: Mapping[str, DocumentedParameter], taken: Collection[str | None], has_underscores: bool
) -> list[HeadedOption]:
    """Make an option for each field of a dataclass, whose help is its :class:`Flag` or that of its ``setting()``.

    A field whose name is ``taken`` by an earlier parameter gets its value from the command.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    options = []
    for field in dataclasses.fields(cls):
        if field.name in taken:
            continue
        hint = hints[field.name]
        if field.metadata:
            hint = Annotated[hint, Flag(field.metadata["help"], MORE)]
        options.append(_option(field.name, field.default, hint, entries.get(field.name), has_underscores))
    return options


class DocumentedParameter(NamedTuple):
    """A parameter's entry in a docstring."""

    heading: str
    metavar: str | None
    help: str


def parse_docstring(docstring: str) -> tuple[str, dict[str, list[str]]]:
    """Split a docstring into the text before the first section, and the lines of each section."""
    text: list[str] = []
    sections: dict[str, list[str]] = {}
    lines = text
    for line in inspect.cleandoc(docstring).splitlines():
        if match := SECTION.fullmatch(line):
            lines = sections.setdefault(match[1], [])
        elif lines is text or line:
            lines.append(line)
    sections |= {"Examples": [line.strip() for line in sections.get("Examples", [])]}
    return "\n".join(text).strip("\n"), sections


def parse_entries(heading: str, lines: Iterable[str]) -> dict[str, DocumentedParameter]:
    """Parse the parameters in a section of a docstring, by name."""
    texts: list[list[str]] = []
    for line in lines:
        if match := ENTRY.fullmatch(line):
            texts.append([*match.groups(default="")])
        else:
            texts[-1][2] += f" {line.strip()}"
    entries = {}
    for names, metavar, text in texts:
        shown = re.sub(r" +\[default:", "  [default:", text)
        for name in names.split(", "):
            entries[name] = DocumentedParameter(heading, metavar or None, shown)
    return entries


def _extra(hint: Any, kind: type[Extra]) -> Extra | None:
    """Return the annotation of the given kind in ``Annotated``, if any."""
    for extra in getattr(hint, "__metadata__", ()):
        if isinstance(extra, kind):
            return extra
    return None


def setting_options(
    cls: type,
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
    names: Collection[str] | Mapping[str, str] | None = None,
) -> list[HeadedOption]:
    """Make an option for each field of a config that was declared with :func:`elmokit.config.setting`.

    An option that is not given on the command line is None (or ``()`` if repeatable), so a config file or preset can
    set it.

    Args:
        cls: The config's dataclass.
        defaults: Defaults to show in ``--help`` instead of the fields' own; text such as "the preset's" is allowed.
            None shows no default.
        names: The fields to make options for, in this order, or a mapping from option names to fields. None makes an
            option for every field.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    if names is None:
        names = [name for name, field in fields.items() if field.metadata]
    field_of = names if isinstance(names, Mapping) else dict(zip(names, names, strict=True))
    options = []
    for name, field_name in field_of.items():
        default = defaults.get(field_name, fields[field_name].default)
        hint = _setting_hint(fields[field_name].metadata, hints[field_name], default)
        options.append(_option(name, None, hint))
    return options


def _setting_hint(metadata: Mapping[str, Any], hint: Any, default: Any) -> Any:
    """Return the type hint of the option for a field declared with ``setting()``, whose help shows a default."""
    if metadata["is_path"]:
        hint = tuple[Path, ...] if typing.get_origin(hint) is tuple else Path
    text = metadata["help"]
    if isinstance(default, bool):
        default = "yes" if default else "no"
    if default not in (None, ()):
        text += f"  [default: {default}]"
    return Annotated[hint, Flag(text, MORE, off=metadata["off_flag"])]


def _argument(name: str, hint: Any, required: bool) -> click.Argument:
    kind, takes_rest = _click_type(hint)
    return click.Argument([name], type=kind, nargs=-1 if takes_rest else 1, required=required)


def _option(
    name: str,
    default: Any,
    hint: Any,
    entry: DocumentedParameter | None = None,
    has_underscores: bool = False,
) -> HeadedOption:
    """Make an option. The command's docstring (``entry``) takes precedence over the type hint."""
    flag = _extra(hint, Flag) or Flag()
    if entry is not None:
        flag = flag._replace(help=entry.help or flag.help, heading=entry.heading, metavar=entry.metavar or flag.metavar)
    kind, is_repeated = _click_type(hint)
    is_flag = kind is click.BOOL and click.BOOL not in typing.get_args(hint)
    flags = [f"--{name.removesuffix('_').replace('_', '-')}", *flag.names]
    if has_underscores:
        flags = list(dict.fromkeys([f"--{name}", *flags]))
    if is_flag and default is not False:
        flags[0] += f"/{flag.off or f'--no-{flags[0][2:]}'}"
    option: dict[str, Any] = {
        "type": kind,
        "is_flag": is_flag or None,  # with False, the option would need no value
        "multiple": is_repeated,
        "metavar": flag.metavar,
        "help": flag.help,
        "heading": flag.heading,
    }
    if default is inspect.Parameter.empty:
        # No default, not even None: click 8.3 and newer would accept that as the value.
        option["required"] = True
    else:
        option["default"] = default
        option["show_default"] = default is not False and default not in (None, ())
    return HeadedOption([*flags, name], **option)


def _click_type(hint: Any) -> tuple[click.ParamType[Any], bool]:
    """Return the click type for a type hint, and whether there can be several values."""
    own_type = _extra(hint, click.ParamType)
    if own_type is not None:
        return own_type, False
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
    if typing.get_origin(hint) is typing.Literal:
        return Choice(typing.get_args(hint)), False
    if hint == tuple[int, ...]:
        return CommaSeparated(), False
    if typing.get_origin(hint) is tuple:
        kind, _ = _click_type(typing.get_args(hint)[0])
        return kind, True
    if hint is Path:
        return click.Path(path_type=Path), False
    return click.types.convert_type(hint), False


_VALUES_OF_OTHER_FLAGS = {"text_kind raw": " Raw text is read with --raw."}
"""Advice for values that are flags of their own, by flag and value."""


class Choice(click.Choice[str]):
    """One of several values. The error for a value of an earlier version names its replacement."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check a value."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            from elmokit.former_names import VALUES, replacement

            name = f"{param.name if param else ''} {value}"
            advice = _VALUES_OF_OTHER_FLAGS.get(name) or replacement(VALUES, name)
            self.fail(f"{error.message}{advice}", param, ctx)


class CommaSeparated(click.ParamType[tuple[int, ...]]):
    """Whole numbers separated by commas, such as ``0,1``."""

    name = "numbers"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show that several numbers are allowed."""
        return "N[,N...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse the text of an option."""
        if not isinstance(value, str):
            return tuple(value)
        try:
            from elmokit.config import parse_count

            numbers = tuple(parse_count(number) for number in value.split(",") if number)
        except ValueError:
            numbers = ()
        if not numbers:
            self.fail(f"{value!r} is not a list of whole numbers such as 0,1.", param, ctx)
        return numbers
