"""Compile the engine to WebAssembly for the npm package, and write what its header declares as a JavaScript module.

``make wasm`` runs it. It needs zig, which comes from PyPI as ``ziglang``, and only where the C files change: both files
that it writes are in the repository, so that the package and the documentation site are made without a compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from elmokit.engine.c_sources import FLAGS, source_files
from elmokit.engine.library import parse_header

HERE = Path(__file__).parent
PUBLIC = "elmokit.h"
TARGET = "wasm32-wasi"
# 128-bit vectors: Chrome 91, Firefox 89, Safari 16.4, Node 16. Relaxed SIMD is faster in float32, but not all browsers
# have it.
INSTRUCTIONS = ("-msimd128",)
# A reactor has no `main`, but functions to call: those that the header declares, and memory for their arguments.
LINK = ("-mexec-model=reactor", "-s", "-Wl,--export-dynamic", "-Wl,--export=malloc", "-Wl,--export=free")
_NOT_HERE = {"-fPIC", "-shared", "-pthread"}
_KINDS = {ctypes.c_void_p: "pointer", ctypes.c_int64: "int64", ctypes.c_float: "float"}


def zig_package() -> str:
    """Return the package that wheels are compiled with, and this file too. The same version makes the same bytes."""
    named = re.search(r'^ZIG = "(.+?)"', (HERE.parents[1] / "hatch_build.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert named is not None
    return named[1]


def compile_wasm(output: Path) -> None:
    """Compile the C files of inference; those of training are not needed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in engine_sources().items():
            (folder / file).write_bytes(content)
        flags = [flag for flag in FLAGS if flag not in _NOT_HERE]
        compiler = [sys.executable, "-m", "ziglang", "cc", f"--target={TARGET}"]
        files = sorted(file for file in engine_sources() if file.endswith(".c"))
        # In the directory, so that no path of this machine gets into the file.
        command = [*compiler, *flags, *INSTRUCTIONS, *LINK, "-o", "elmokit.wasm", *files]
        subprocess.run(command, cwd=folder, check=True)
        output.write_bytes((folder / "elmokit.wasm").read_bytes())


def engine_sources() -> dict[str, bytes]:
    """Return the C files and headers of inference, by name."""
    engine = Path(parse_header.__code__.co_filename).parent
    names = {file.name for folder in (engine, engine / "src") for file in folder.iterdir()}
    return {name: content for name, content in source_files().items() if name in names}


def sources_digest() -> str:
    """Compute a digest of the C files without their comments, so that a test without zig knows whether they changed."""
    digest = hashlib.sha256()
    for name, content in sorted(engine_sources().items()):
        code = re.sub(rb"/\*.*?\*/", b"", content, flags=re.DOTALL)
        digest.update(name.encode() + b"\n" + b" ".join(code.split()) + b"\n")
    return digest.hexdigest()[:16]


def header_module() -> str:
    """Return a JavaScript module with the structs, functions and constants of the public header."""
    declared = parse_header(engine_sources()[PUBLIC].decode())
    structs = {
        name: [[field[0], _KINDS[field[1]]] for field in struct._fields_] for name, struct in declared.structs.items()
    }
    functions = {name: [_KINDS[kind] for kind in arguments] for name, (arguments, _) in declared.functions.items()}
    parts = {"CONSTANTS": declared.constants, "STRUCTS": structs, "FUNCTIONS": functions}
    lines = [
        f"// What {PUBLIC} declares. Made by build.py.",
        f"// elmokit.wasm was made from C files with the digest {sources_digest()}.",
    ]
    for name, values in parts.items():
        rows = "".join(f"  {key}: {json.dumps(value)},\n" for key, value in values.items())
        lines.append(f"export const {name} = {{\n{rows}}};")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="Compile the engine to WebAssembly for the npm package.")
    parser.add_argument("--zig-package", action="store_true", help="print the package to install, and do nothing")
    if parser.parse_args().zig_package:
        print(zig_package())
        return
    (HERE / "src/header.js").write_text(header_module(), encoding="utf-8")
    compile_wasm(HERE / "src/elmokit.wasm")


if __name__ == "__main__":
    main()
