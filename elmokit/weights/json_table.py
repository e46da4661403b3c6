"""Tables of named values in JSON files: options, configurations, model cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elmokit.errors import FormatError, ModelNotFoundError

MAX_BYTES = 1 << 24  # published options, configurations and meta.json are a few KB each


def read_table(path: str | Path, missing: str | None = None, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The content of a JSON file that holds one table.

    Args:
        missing: what to say where there is no such file.
        max_bytes: a longer file is refused, before it is parsed.

    Raises:
        ModelNotFoundError: there is no such file.
        FormatError: it cannot be read, is no JSON, or holds something else.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise FormatError(f"{path} holds more than {max_bytes:,} bytes; it is no file of a model.")
        content = json.loads(data.decode("utf-8"))
        if b"\\u" in data:  # half of a pair of such escapes is no character, and could not be written
            json.dumps(content, ensure_ascii=False).encode("utf-8")
    except FileNotFoundError:
        raise ModelNotFoundError(missing or f"{path} is missing.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{path} is no readable JSON file: {error}.") from None
    if not isinstance(content, dict):
        raise FormatError(f"{path} is JSON, but no table of named values.")
    return content
