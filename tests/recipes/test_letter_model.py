"""The recipe that trains letters, on unknown words that end alike."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elmokit import open_model, save_model
from elmokit.pretrained.model import PretrainedBiLM
from recipes import letter_model


@pytest.mark.slow
def test_letters_of_unknown_words_are_learned_and_stored(
    model: PretrainedBiLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(model, "model")
    Path("text.txt").write_text("the cat Novák and Horák saw\nŠimák , Dvořák and Novák .\n" * 3, encoding="utf-8")
    Path("dev.txt").write_text("the cat saw Horák , and Dvořák\n", encoding="utf-8")
    sizes = ["--units", "8", "--dim", "4", "--n-context", "3", "--steps", "300", "--batch", "16"]
    given = ["text.txt", "--model", "model", "--out", "new", "--held-out", "dev.txt", *sizes]
    monkeypatch.setattr(sys, "argv", ["letter_model.py", *given])
    letter_model.main()
    before, _, after = capsys.readouterr().out.splitlines()
    assert float(after.split()[-3]) < 0.5 * float(before.split()[-3])
    stored = open_model("new")
    assert stored.letters.n_context == 3
