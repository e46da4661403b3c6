"""The npm package: the engine as WebAssembly, in Node."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from elmokit.pretrained.pooling_names import WEIGHTINGS
from elmokit.version import __version__

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "packages/js"
EXAMPLE = ROOT / "examples/javascript/compare-senses.mjs"
NODE, NPM = shutil.which("node"), shutil.which("npm")
needs_node = pytest.mark.skipif(NODE is None or NPM is None, reason="Node.js is not installed")
BUILD = runpy.run_path(str(PACKAGE / "build.py"))


def run(command: list[object], folder: Path, **variables: str) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_the_header_in_javascript_and_the_webassembly_file_were_made_from_these_c_files() -> None:
    assert (PACKAGE / "src/header.js").read_text() == BUILD["header_module"](), "run: make wasm"


def test_javascript_has_the_weightings_of_sentence_vectors() -> None:
    source = (PACKAGE / "src/sentence_vectors.js").read_text()
    table = source[source.index("const WEIGHTINGS = {") : source.index("};")]
    assert re.findall(r"^  (\w+):", table, re.MULTILINE) == list(WEIGHTINGS)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
def test_the_webassembly_file_is_current(tmp_path: Path) -> None:
    version = run([sys.executable, "-m", "ziglang", "version"], tmp_path).strip()
    package = BUILD["zig_package"]()
    if not package.endswith(f"=={version}"):
        pytest.skip(f"the file was made with {package}, not {version}")
    BUILD["compile_wasm"](tmp_path / "elmokit.wasm")
    assert (tmp_path / "elmokit.wasm").read_bytes() == (PACKAGE / "src/elmokit.wasm").read_bytes(), "run: make wasm"


@needs_node
@pytest.mark.slow
def test_node_computes_what_the_library_computes(tmp_path: Path) -> None:
    run([sys.executable, PACKAGE / "test/expected.py", tmp_path], ROOT, PYTHONPATH=str(ROOT))
    printed = run([NPM, "test"], PACKAGE, ELMOKIT_EXPECTED=str(tmp_path))
    assert "# fail 0" in printed
    assert "# pass 0" not in printed


@needs_node
@pytest.mark.slow
def test_the_package_is_packed_and_works_where_it_is_installed(tmp_path: Path) -> None:
    (packed,) = json.loads(run([NPM, "pack", "--json", "--pack-destination", tmp_path], PACKAGE))
    names = {file["path"] for file in packed["files"]}
    source = {"src/index.js", "src/index.d.ts", "src/elmokit.wasm"}
    assert {*source, "models/en-mini/model.safetensors", "LICENSE", "README.md"} <= names
    assert not any(name.startswith(("test", "explorer", "build")) for name in names)
    assert packed["version"] == __version__
    (tmp_path / "package.json").write_text('{"private": true}')
    run([NPM, "install", "--offline", "--no-audit", "--no-fund", tmp_path / packed["filename"]], tmp_path)
    shutil.copy(EXAMPLE, tmp_path)
    layer_1, _, layer_2, *_ = run([NODE, EXAMPLE.name], tmp_path).splitlines()
    assert layer_1.startswith("layer 1")
    assert layer_2.startswith("layer 2")
    assert "river" in layer_2
