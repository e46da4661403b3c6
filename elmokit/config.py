"""Settings as frozen dataclasses: declared once, read from TOML, JSON or flags, checked in one place.

A config is a frozen dataclass whose fields are declared with :func:`setting`. From each field come the TOML key, the
command-line flag with its type, default and help text, and a row of the reference in ``docs/reference/settings/``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from elmokit.errors import ConfigError, SettingError, reading

Config = TypeVar("Config")
Table = dict[str, Any]
"""Named plain values, as a TOML or JSON file holds them. Tables can be nested."""

type_hints = functools.cache(typing.get_type_hints)
"""The types of a dataclass's fields, cached because each call evaluates the annotation strings."""
MAX_COUNT = 10**15  # larger numbers do not fit into the 64 bits of a tensor's size, or will soon exceed them
MAX_DIGITS = 18  # such numbers fit into 64 bits
COUNT_UNITS = {"B": 10**9, "M": 10**6, "K": 10**3}
"""Units of large numbers, largest first."""
ALIKE = 0.6
"""Minimum similarity of two names, from 0 to 1, to suggest one for the other."""
MAX_UNITS, MAX_LAYERS = 1_000_000, 1_000
MAX_SEED = 2**32 - 1  # seeds derived from it must fit into 64 bits


def setting(default: Any, help: str, off_flag: str = "", is_path: bool = False) -> Any:
    """Declare a field of a config.

    Args:
        default: The field's default value; ``dataclasses.MISSING`` if a value is required.
        help: A description of the setting in one sentence, shown by ``--help`` and in the reference of settings.
        off_flag: The flag that sets a bool to false; by default, ``--no-`` and the field's name.
        is_path: Whether the text (or each text of a list) is a file path.
    """
    metadata = {"help": help, "off_flag": off_flag, "is_path": is_path}
    return dataclasses.field(default=default, metadata=metadata)


def from_dict(cls: type[Config], table: Any, where: str, former: Mapping[str, str] | None = None) -> Config:
    """Build a dataclass from a table of plain values.

    Args:
        cls: The dataclass.
        table: The values.
        where: The file and table to name in error messages.
        former: Replacements for keys of earlier versions.
    """
    # TOML has no null value, so `false` means None for fields that can be None but not a bool.
    table = _checked_table(cls, table, where, former=former)
    try:
        return msgspec.convert(table, cls)
    except msgspec.ValidationError as error:
        raise _type_error(str(error), cls, table, where) from None
    except SettingError as error:
        raise SettingError(error.setting, error.problem, where) from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from None


def _type_error(message: str, cls: Any, table: Any, where: str) -> SettingError:
    """Reword an error of msgspec, such as "Expected `int`, got `str` - at `$.train.x`", for a config."""
    path = re.search(r" - at `\$\.([\w.]+)", message)
    names = path[1].split(".") if path else []
    missing = re.search(r"missing required field `(\w+)`", message)
    if missing:
        return SettingError(".".join([*names, missing[1]]), "is missing and has no default.", where)
    hint, value = cls, table
    for name in names:
        hint, value = type_hints(_dataclasses_in(hint)[0])[name], value[name]
    expected = describe_type(hint).removesuffix(" or none")  # TOML has no null value
    return SettingError(".".join(names), f"is {value!r}; expected type: {expected}.", where)


def describe_type(hint: Any, literal: str = "{}") -> str:
    """Describe the type of a setting in words; ``literal`` is the template for each of several possible values."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is types.NoneType:
        return "none"
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return " or ".join(describe_type(argument, literal) for argument in arguments)
    if origin is typing.Literal:
        return ", ".join(literal.format(json.dumps(value)) for value in arguments)
    if origin is tuple:
        inner = [describe_type(argument, literal) for argument in arguments if argument is not ...]
        return f"list of {inner[0]}" if ... in arguments else f"[{', '.join(inner)}]"
    if dataclasses.is_dataclass(hint):
        return "table"
    return {int: "integer", float: "number", str: "text", bool: "true or false"}.get(hint, str(hint))


def _dataclasses_in(hint: Any) -> list[Any]:
    """Return the dataclasses in a type, which are tables in a config file."""
    return [kind for kind in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(kind)]


def _checked_table(cls: Any, table: Any, where: str, path: str = "", former: Mapping[str, str] | None = None) -> Table:
    """Return a table (at ``path``, such as "train.") with ``false`` replaced by None; refuse unknown keys."""
    if not isinstance(table, dict):
        place = f"{path.removesuffix('.')} is" if path else "found"
        raise ConfigError(f"{where}: expected a table of named values, {place} {table!r}.")
    hints = type_hints(cls)
    checked = {}
    for name, value in table.items():
        if name not in hints:
            problem = f"unknown key {path + name!r}.{did_you_mean(path + name, _known_keys(hints, path), former)}"
            raise ConfigError(f"{where}: {problem}" if where else f"There is an {problem}")
        inner = _dataclasses_in(hints[name])
        if value is False and _means_none(hints[name]):
            value = None
        elif inner and value is not None:
            value = _checked_table(inner[0], value, where, f"{path}{name}.", former)
        checked[name] = value
    return checked


def _known_keys(hints: Mapping[str, Any], path: str) -> list[str]:
    """List the keys of a table and of the tables in it, because a correct key may be outside its table."""
    known = [path + name for name in hints]
    for outer, hint in hints.items():
        for kind in _dataclasses_in(hint):
            known += [f"{path}{outer}.{key}" for key in type_hints(kind)]
    return known


def _means_none(hint: Any) -> bool:
    """Check whether ``false`` means None for a field of a type."""
    accepted = typing.get_args(hint)
    return types.NoneType in accepted and bool not in accepted


def did_you_mean(name: object, known: Iterable[str], former: Mapping[str, str] | None = None) -> str:
    """Return the hint that an error adds about an unknown name: its replacement, or " Did you mean ...?".

    Args:
        name: The unknown name. Names in tables have dots.
        known: The known names. The most similar one is suggested if its last part is similar enough.
        former: Replacements for names of earlier versions; see ``former_names.py``.
    """
    import difflib  # imported here because it is rarely needed

    from elmokit.former_names import replacement

    last = str(name).rpartition(".")[2]
    if former is not None and (advice := replacement(former, last)):
        return advice
    for nearest in difflib.get_close_matches(str(name), sorted(known), n=1, cutoff=0.0):
        if difflib.SequenceMatcher(None, nearest.rpartition(".")[2], last).ratio() >= ALIKE:
            return f" Did you mean {nearest!r}?"
    return ""


def to_dict(config: Any) -> Table:
    """Return a config as a table of plain values, which :func:`from_dict` reads back."""
    # msgspec alone would leave out fields that were not set explicitly.
    table: Table = msgspec.to_builtins(dataclasses.asdict(config))
    return table


def deep_merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> Table:
    """Return ``base`` updated with the values of ``override``; nested tables are merged key by key."""
    merged = dict(base)
    for name, value in override.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[name] = deep_merge(old, value)
        else:
            merged[name] = value
    return merged


def read_toml(path: str | Path) -> Table:
    """Read a TOML file, or raise a ConfigError."""
    import tomllib  # imported here because opening a model does not need it

    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a readable TOML file ({error}).") from None


def to_toml(table: Mapping[str, Any]) -> str:
    """Write a table as TOML. None becomes ``false``, which :func:`from_dict` reads back as None."""
    import tomli_w

    return tomli_w.dumps(_without_none(table))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_none(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_none(inner) for inner in value]
    return False if value is None else value


def read_json(path: str | Path, what: str = "JSON file") -> Table:
    """Read a JSON file of a model that holds one object; ``what`` names the file in errors."""
    with reading(path, what, RecursionError):
        content = decode_json(Path(path).read_text(encoding="utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError("expected an object with named values")
    return content


def decode_json(text: str) -> Any:
    """Decode JSON, and refuse values that could not be written back as UTF-8."""
    # Raises ValueError for invalid JSON or an unpaired surrogate in a string, and RecursionError for deep nesting.
    content = json.loads(text)
    if "\\u" in text:  # only an escape can express an unpaired surrogate, which cannot be encoded
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    return content


def encode_json(content: Any, indent: int | None = 2) -> str:
    """Format as readable JSON; bytes of file names that are not UTF-8 become question marks."""
    return json.dumps(content, indent=indent, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8") + "\n"


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file completely or not at all, replacing an existing one."""
    # Imported here because computing vectors does not need it.
    from elmokit.storage.atomic import atomic_write

    with atomic_write(path, overwrite=True) as temporary:
        temporary.write_text(encode_json(content), encoding="utf-8")


def parse_count(text: str) -> int:
    """Parse a whole number such as ``2000``, ``2K`` or ``1M``, or raise a ValueError."""
    unit = COUNT_UNITS.get(text[-1:].upper())
    if unit is None:
        return int(text)
    return int(text[:-1]) * unit


def whole_number(text: str) -> int | None:
    """Parse a text of at most 18 decimal digits; None for any other text."""
    # Python cannot parse or print numbers of more than 4,300 digits. ``isdigit`` accepts "²", which ``int`` does not.
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None


def _check(is_right: bool, name: str, value: object, expected: str) -> None:
    if not is_right:
        raise SettingError(name, f"is {value!r}; it must be {expected}.")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return ``value``, or raise a SettingError unless it is one of the choices."""
    choices = list(choices)  # a list, because a value from a file may not be hashable
    _check(value in choices, name, value, f"one of {', '.join(choices)}")
    return str(value)


def check_at_least(
    name: str, value: int | None, minimum: int, maximum: int = MAX_COUNT, optional: bool = False
) -> None:
    """Raise a SettingError unless ``value`` is a whole number from ``minimum`` to ``maximum``, or None if optional."""
    if value is None and optional:
        return
    number: Any = value  # of any type; NumPy integers are accepted, too
    _check(_is_whole(number) and number >= minimum, name, value, f"a whole number of at least {minimum}")
    check_at_most(name, int(number), maximum)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def token_index(name: str, value: object, n_tokens: int) -> int:
    """Return the index of a token counted from the left, where -1 is the last one; SettingError if out of range."""
    index: Any = value  # of any type
    is_right = _is_whole(index) and -n_tokens <= index < n_tokens
    _check(is_right, name, value, f"the index of one of the sentence's {n_tokens:,} tokens")
    return int(index) % n_tokens


def check_at_most(name: str, value: float, maximum: float) -> None:
    """Raise a SettingError if ``value`` is above ``maximum``."""
    if value > maximum:
        raise SettingError(name, f"is {value:,}; it must be at most {maximum:,}.")


def check_positive(name: str, value: float | None) -> None:
    """Raise a SettingError unless ``value`` is None or a finite number above 0."""
    _check(value is None or 0 < value < float("inf"), name, value, "above 0")


def check_not_negative(name: str, value: float) -> None:
    """Raise a SettingError unless ``value`` is a finite number of 0 or more."""
    _check(0 <= value < float("inf"), name, value, "0 or more")


def check_fraction(name: str, value: float) -> None:
    """Raise a SettingError unless ``value`` is at least 0 and below 1, like a dropout probability."""
    _check(0 <= value < 1, name, value, "at least 0 and below 1")


def check_ratio(name: str, value: float) -> None:
    """Raise a SettingError unless ``value`` is above 0 and at most 1."""
    _check(0 < value <= 1, name, value, "above 0 and at most 1")
