"""The examples run, fit what they are given, and stay short; benchmarks find what they import."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
BENCHMARKS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("name", ["tagger", "classifier", "trained_along", "cached_layers"])
def test_example_fits_its_sentences(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert "fitted: 100%" in printed
    if name == "tagger":
        assert "Jonas/NAME" in printed
        assert "Oslo/PLACE" in printed
    if name == "trained_along":
        assert "moved by up to 0.00" in printed
        assert "moved by up to 0.0000" not in printed


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmark_finds_what_it_imports(path: Path) -> None:
    try:
        runpy.run_path(str(path))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("elmokit"):
            raise
        pytest.skip(f"{error.name} is not installed")
