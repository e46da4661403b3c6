"""The declarations of ``elmokit.h`` and ``training.h``, as Python reads them."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from elmokit.engine import c_sources
from elmokit.engine.library import address, parse_header

HEADER = """
/* A comment with a struct: typedef struct { float never; } elmokit_never; */
enum { ELMOKIT_FIRST = 0, ELMOKIT_SECOND = 17 };
typedef struct {
    int64_t n_rows;            /* (n_rows) */
    const float *const *rows;
    float bound;
} elmokit_block;
typedef struct elmokit_hidden elmokit_hidden;
ELMOKIT_API int64_t elmokit_open_block(const elmokit_block *block, double factor,
                                       elmokit_hidden **opened);
ELMOKIT_API void elmokit_close_block(elmokit_hidden *opened);
ELMOKIT_API int64_t elmokit_width(void);
"""


def test_structs_constants_and_functions_are_read() -> None:
    found = parse_header(HEADER)
    assert found.constants == {"FIRST": 0, "SECOND": 17}
    assert list(found.structs) == ["block"]
    fields = [("n_rows", ctypes.c_int64), ("rows", ctypes.c_void_p), ("bound", ctypes.c_float)]
    assert found.structs["block"]._fields_ == fields
    assert found.functions == {
        "open_block": ([ctypes.c_void_p, ctypes.c_double, ctypes.c_void_p], ctypes.c_int64),
        "close_block": ([ctypes.c_void_p], None),
        "width": ([], ctypes.c_int64),
    }


def test_the_headers_declare_every_function_that_c_exports() -> None:
    sources = {name: content.decode() for name, content in c_sources.source_files().items()}
    declared = {header: parse_header(sources[header]).functions.keys() for header in c_sources.HEADERS}
    for name in declared["elmokit.h"]:
        assert any(f"elmokit_{name}(" in text for file, text in sources.items() if file not in c_sources.HEADERS)
    files = [file for file in (resources.files("elmokit") / "network" / "src").iterdir() if file.name.endswith(".c")]
    defined = [re.findall(r"^\w+ elmokit_(\w+)\(", file.read_text(), flags=re.MULTILINE) for file in files]
    assert sorted(declared["training.h"]) == sorted(name for names in defined for name in names)
    assert parse_header(c_sources.header_text()).functions.keys() == declared["elmokit.h"] | declared["training.h"]


def test_structs_have_the_layout_that_c_gives_them(tmp_path: Path) -> None:
    command = c_sources.compiler_command()
    if not shutil.which(command[0]):
        pytest.skip("there is no C compiler")
    structs = parse_header(c_sources.header_text()).structs
    assert {"token_weights", "lstm_sizes", "row", "batch", "kernels"} <= structs.keys()
    numbers = []
    for name, struct in structs.items():
        numbers.append((f"sizeof(elmokit_{name})", ctypes.sizeof(struct)))
        for field, kind in struct._fields_:
            numbers.append((f"offsetof(elmokit_{name}, {field})", getattr(struct, field).offset))
            numbers.append((f"sizeof(((elmokit_{name} *)0)->{field})", ctypes.sizeof(kind)))
    lines = [f'_Static_assert({expression} == {number}, "{expression}");' for expression, number in numbers]
    for header in c_sources.HEADERS:
        (tmp_path / header).write_bytes(c_sources.source_files()[header])
    includes = [f'#include "{header}"' for header in ("stddef.h", *c_sources.HEADERS)]
    (tmp_path / "layout.c").write_text("\n".join([*includes, *lines, ""]))
    subprocess.run([*command, "-c", "-o", str(tmp_path / "layout.o"), str(tmp_path / "layout.c")], check=True)


def test_only_arrays_that_c_can_read_have_an_address() -> None:
    array = np.zeros((3, 4), np.float32)
    assert address("it", None, np.float32) is None
    assert address("it", array, np.float32) == array.ctypes.data
    assert address("it", array, np.float32, (-1, 4)) == array.ctypes.data
    for wrong, shape in ((array.astype(np.float64), (3, 4)), (array, (3, 5)), (array, (12,)), (array.T, (4, 3))):
        with pytest.raises(ValueError, match="it must be a contiguous array of float32"):
            address("it", wrong, np.float32, shape)
