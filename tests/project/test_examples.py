"""The examples run, fit their sentences and stay short; benchmarks can import what they need."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

EXAMPLES = ROOT / "examples"
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tagger", "classifier", "finetune_jointly", "cached_layers"])
def test_example_fits_its_sentences(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert "fitted: 100%" in printed
    if name == "tagger":
        assert "Jonas/NAME" in printed
        assert "Oslo/PLACE" in printed
    if name == "finetune_jointly":
        assert "moved by up to 0.00" in printed
        assert "moved by up to 0.0000" not in printed


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmark_can_be_imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(path.parent)  # as Python does when it runs the file
    try:
        runpy.run_path(str(path))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("elmokit"):
            raise
        pytest.skip(f"{error.name} is not installed")
