"""Damage to files: what disks, copies and editors do to them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

_NUMBER = re.compile(rb"-?\d+(\.\d+)?(e[+-]?\d+)?")
_VALUES = (
    *(b"0", b"-1", b"1", b"2147483648", b"18446744073709551616", b"1" + b"0" * 400, b"1e999", b"NaN", b"-Infinity"),
    *(b"null", b"true", b'""', b"[]", b"{}", b'"\\ud800"', b'"../../x"', b"0.5"),
)
"""What takes the place of a number in a text."""
_HEADER = 4096
"""Formats keep their structure in the first bytes, so half of the damage is done there."""


def flip_bit(data: bytearray, random: Random) -> None:
    data[_position(data, random)] ^= 1 << random.randrange(8)


def overwrite_bytes(data: bytearray, random: Random) -> None:
    start = _position(data, random)
    length = random.choice((1, 2, 4, 8, 64))
    filler = random.choice((b"\0", b"\xff", None))
    new = random.randbytes(length) if filler is None else filler * length
    data[start : start + length] = new[: len(data) - start]


def truncate(data: bytearray, random: Random) -> None:
    del data[_position(data, random) :]


def delete_block(data: bytearray, random: Random) -> None:
    start = _position(data, random)
    del data[start : start + random.choice((1, 7, 512, 4096))]


def repeat_block(data: bytearray, random: Random) -> None:
    start = _position(data, random)
    block = data[start : start + random.choice((1, 16, 512, 4096))]
    data[start:start] = block * random.choice((1, 2, 100))


def insert_bytes(data: bytearray, random: Random) -> None:
    start = _position(data, random)
    data[start:start] = random.choice(
        (b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r\n", b"\n\n", b"\xc3(", b"[", b'"')
    )


def replace_number(data: bytearray, random: Random) -> None:
    numbers = list(_NUMBER.finditer(bytes(data[:1_000_000])))
    if numbers:
        found = random.choice(numbers)
        data[found.start() : found.end()] = random.choice(_VALUES)


def delete_line(data: bytearray, random: Random) -> None:
    lines = bytes(data).split(b"\n")
    del lines[random.randrange(len(lines))]
    data[:] = b"\n".join(lines)


def repeat_line(data: bytearray, random: Random) -> None:
    lines = bytes(data).split(b"\n")
    number = random.randrange(len(lines))
    lines[number:number] = [lines[number]] * random.choice((1, 1000))
    data[:] = b"\n".join(lines)


def change_json(data: bytearray, random: Random) -> None:
    """Change a value or a key somewhere in a JSON file, which stays one; other files get another number."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        replace_number(data, random)
        return
    places: list[tuple[dict[str, object] | list[object], str | int]] = []

    def walk(value: object) -> None:
        if isinstance(value, dict):
            places.extend((value, key) for key in value)
            for inside in value.values():
                walk(inside)
        elif isinstance(value, list):
            places.extend((value, index) for index in range(min(len(value), 20)))
            for inside in value[:20]:
                walk(inside)

    walk(content)
    values = [None, True, -1, 0, 10**30, 1.5, float("nan"), "", "x", "\ud800", [], {}, [[[]]], {"a": None}]
    if places:
        container, key = random.choice(places)
        if random.random() < 0.3:
            del container[key]  # type: ignore[arg-type]
        else:
            container[key] = random.choice(values)  # type: ignore[index]
    else:
        content = random.choice(values)
    data[:] = json.dumps(content).encode()


def empty(data: bytearray, random: Random) -> None:
    data.clear()


def fill_with_noise(data: bytearray, random: Random) -> None:
    data[:] = random.randbytes(random.choice((1, 100, 10_000)))


ANY_FILE: tuple[Callable[[bytearray, Random], None], ...] = (
    *(flip_bit, flip_bit, flip_bit, overwrite_bytes, overwrite_bytes, truncate, delete_block),
    *(repeat_block, insert_bytes, empty, fill_with_noise),
)
TEXT_FILE = (replace_number, replace_number, delete_line, repeat_line, change_json, change_json)


def _position(data: bytearray, random: Random) -> int:
    return random.randrange(random.choice((min(_HEADER, len(data)), len(data))) or 1) if data else 0


def _remove(path: Path) -> None:
    path.unlink()


def _make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _forbid(path: Path) -> None:
    path.chmod(0)  # root reads it all the same


WHOLE_FILE = (_remove, _make_directory, _link_to_itself, _forbid)


def damage(path: Path, random: Random) -> str:
    """Damage a file and return how, for the name of a failure."""
    if random.random() < 0.05:
        whole = random.choice(WHOLE_FILE)
        whole(path)
        return whole.__name__.strip("_")
    data = bytearray(path.read_bytes())
    is_text = b"\0" not in data[:_HEADER]
    how = random.choice((*ANY_FILE, *TEXT_FILE) if is_text else ANY_FILE)
    if data:
        how(data, random)
    else:
        insert_bytes(data, random)
    path.write_bytes(data)
    return how.__name__
