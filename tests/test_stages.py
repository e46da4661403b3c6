from __future__ import annotations

import pytest

from elmokit.cli import common
from elmokit.cli.stages import StageProgress


def test_each_stage_counts_from_what_was_done_before_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "SECONDS_BETWEEN_LINES", 0.0)
    with StageProgress() as progress:
        progress("words", 600, 1000)
        progress("words", 800, 1000)
        progress("words", 800, 1000)
        progress("words", 1000, 1000)
        progress("steps", 0, 10)
        progress("steps", 5, 10)
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(",")[0] for line in lines] == [" 50% of 400 words", "100% of 400 words", " 50% of 10 steps"]
