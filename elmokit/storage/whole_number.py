"""Whole numbers in files, addresses and settings."""

from __future__ import annotations

_MAX_DIGITS = 18  # such numbers fit into 64 bits


def whole_number(text: str) -> int | None:
    """Return the number that a text of decimal digits is; None for any other text, or more than 18 digits."""
    # Python refuses to read or print numbers of more than 4,300 digits. ``isdigit`` accepts "²", which is no number.
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None
