"""Files and flags from the fields of a config: one set of names for both."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import click

Table = dict[str, Any]


class SettingsCommand(click.Command):
    """A command with a flag for each described field of a config, looked up when the command is used.

    Not before: a config's module may be slow to import, and ``elmokit --help`` is not.
    """

    flags: Callable[[], list[click.Option]]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own parameters, then the flags."""
        if not any(getattr(parameter, "is_setting", False) for parameter in self.params):
            self.params += type(self).flags()
        return super().get_params(ctx)


def flags_of(kind: type, defaults: Mapping[str, Any] = types.MappingProxyType({})) -> list[click.Option]:
    """An option for each field of a config that says what it is; not given, it is None.

    Args:
        defaults: what the help says of fields whose default is another here.
    """
    types_of = typing.get_type_hints(kind)
    options = []
    for field in dataclasses.fields(kind):
        if "help" not in field.metadata:
            continue
        name = field.name.replace("_", "-")
        what, default = field.metadata["help"], defaults.get(field.name, field.default)
        if default not in (None, ()) and not isinstance(default, bool):
            what += f"  [default: {default}]"
        value_type = _value_type(types_of[field.name])
        if value_type is bool:
            what += f"  [default: {'yes' if default else 'no'}]"
            option = click.Option([f"--{name}/--no-{name}", field.name], default=None, help=what)
        else:
            option = click.Option([f"--{name}", field.name], type=value_type, default=None, help=what)
        option.is_setting = True  # type: ignore[attr-defined]
        options.append(option)
    return options


def given_flags(kind: type, settings: Mapping[str, Any]) -> Table:
    """What was given of the options that ``flags_of`` made."""
    names = [field.name for field in dataclasses.fields(kind) if "help" in field.metadata]
    return {name: settings[name] for name in names if settings[name] is not None}


class _Numbers(click.ParamType[list[int]]):
    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return [int(part) for part in value.split(",") if part]
        except ValueError:
            self.fail(f"{value!r} is no list of whole numbers such as 0,1.", param, ctx)


def _value_type(kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    if typing.get_origin(kind) is typing.Literal:
        return click.Choice(typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return _Numbers()
    return kind
