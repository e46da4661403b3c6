"""Plain data (JSON, TOML) to frozen dataclasses, checked."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from typing import Any, TypeVar

import msgspec

from elmokit.errors import ConfigError

Config = TypeVar("Config")


def described(default: Any, what: str) -> Any:
    """A dataclass field with a default and a line of help, which the shell shows for the flag of that name."""
    return dataclasses.field(default=default, metadata={"help": what})


def config_from(kind: type[Config], content: Any, where: str) -> Config:
    """Build a config from a table of plain values.

    Args:
        where: what the user calls the table: a file, and the place in it.

    Raises:
        ConfigError: an unknown key (the nearest valid one is named), a missing one, or a wrong value.
    """
    _refuse_unknown(kind, content, where)
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}.") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def config_to(config: Any) -> dict[str, Any]:
    """The table of plain values that ``config_from`` reads."""
    # msgspec alone leaves out the fields that ``config_from`` was not given.
    content: dict[str, Any] = msgspec.to_builtins(dataclasses.asdict(config))
    return content


def _refuse_unknown(kind: Any, content: Any, where: str) -> None:
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: expected a table of named values, found {content!r}.")
    types = typing.get_type_hints(kind)
    for name, value in content.items():
        if name not in types:
            nearest = difflib.get_close_matches(str(name), sorted(types), n=1, cutoff=0.0)
            raise ConfigError(f"{where}: unknown key {name!r}. Did you mean {nearest[0]!r}?")
        inner = [part for part in (types[name], *typing.get_args(types[name])) if dataclasses.is_dataclass(part)]
        if inner and value is not None:
            _refuse_unknown(inner[0], value, f"{where}.{name}")
