"""Recipes that train look at the name of their result first."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from recipes import align, sentence_head


@pytest.mark.parametrize("out", ["model.hdf5", "existing"])
@pytest.mark.parametrize(
    ("recipe", "arguments"),
    [(align, ["a", "b", "a.txt", "b.txt", "words.txt"]), (sentence_head, ["pairs.csv", "--out"])],
)
def test_a_name_that_cannot_take_the_result_is_refused_before_the_training(
    recipe: ModuleType,
    arguments: list[str],
    out: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("existing").mkdir()
    monkeypatch.setattr(sys, "argv", ["recipe", *arguments, out])
    with pytest.raises(SystemExit, match=r"^2$"):
        recipe.main()
    assert f"{out} is not a new directory" in capsys.readouterr().err
