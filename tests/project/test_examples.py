"""The examples run, fit their sentences and stay short."""

from __future__ import annotations

import runpy

import pytest

from tests.helpers.paths import ROOT

EXAMPLES = ROOT / "examples"


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
