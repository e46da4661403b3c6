"""Parse JSON that a user's file contains, with errors that say where it is wrong."""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec

from elmokit.config import decode_json
from elmokit.errors import TextError

Parsed = TypeVar("Parsed")


def parse_json(text: str, where: str, kind: type[Parsed], expected: str) -> Parsed:
    """Parse a line or a whole file of JSON and convert it to a type.

    Args:
        text: The JSON.
        where: The file, and the line if ``text`` is one line of it, for error messages.
        kind: The type of the result, as ``msgspec.convert`` accepts it. Keys that it does not know are ignored.
        expected: What the text should be, for error messages; follows "not" or "expected".
    """
    # json.loads and not msgspec.json.decode, because it reports the line and column of a syntax error.
    try:
        return msgspec.convert(decode_json(text), kind)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise TextError(f"{where}, {place}: invalid JSON ({error.msg}), expected {expected}.") from None
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise TextError(f"{where}: not {expected}: {error}.") from None
