"""The header of the C functions of training."""

from __future__ import annotations

import ctypes
import re
from importlib import resources

from elmokit.engine import c_sources
from elmokit.engine.library import parse_header


def header(name: str) -> str:
    return c_sources.source_files()[name].decode()


def test_the_header_declares_every_c_function_of_training_and_no_other() -> None:
    directory = resources.files("elmokit") / "network" / "src"
    sources = [file.read_text() for file in directory.iterdir() if file.name.endswith(".c")]
    defined = [name for text in sources for name in re.findall(r"^\w+ elmokit_(\w+)\(", text, flags=re.MULTILINE)]
    assert sorted(parse_header(header("training.h")).functions) == sorted(defined)


def test_several_headers_are_read_as_one() -> None:
    both = parse_header(c_sources.header_text())
    parts = [parse_header(header(name)) for name in c_sources.HEADERS]
    assert not parts[0].functions.keys() & parts[1].functions.keys()
    assert both.functions.keys() == parts[0].functions.keys() | parts[1].functions.keys()
    assert both.functions["dropout"] == (
        [ctypes.c_int64] * 3 + [ctypes.c_float] + [ctypes.c_void_p] * 2,
        None,
    )
