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
        expected: What the text should be, for error messages; follows "Expected".
    """
    # json.loads and not msgspec.json.decode, because it reports the line and column of a syntax error.
    try:
        content = decode_json(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        raise TextError(
            f"{where}, {line}column {error.colno}: invalid JSON ({error.msg}). Expected {expected}."
        ) from None
    except UnicodeEncodeError:
        raise TextError(
            f"{where}: a string contains half of a surrogate pair (\\ud800 to \\udfff), which is not a character. "
            f"Expected {expected}."
        ) from None
    except ValueError:
        raise TextError(f"{where}: a number in the JSON has too many digits. Expected {expected}.") from None
    except RecursionError:
        raise TextError(f"{where}: the JSON is nested too deeply. Expected {expected}.") from None
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise TextError(f"{where}: not {expected}: {error}.") from None
