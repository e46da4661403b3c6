"""The list of evaluations."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmokit.evaluation.table import EVALUATIONS, load_evaluation
from tests.helpers.shell import Shell


@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_evaluation_finds_nothing_in_an_empty_directory(name: str, tmp_path: Path) -> None:
    evaluation = load_evaluation(name)
    assert evaluation.find(tmp_path) is None
    assert evaluation.title
    assert evaluation.layout


def test_every_evaluation_is_a_command(shell: Shell) -> None:
    listed = shell("evaluate", "--help").out
    for name, (_, line) in EVALUATIONS.items():
        assert f"  {name} " in listed
        assert line.split(".")[0][:40] in listed
