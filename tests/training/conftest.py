from __future__ import annotations

import pytest


@pytest.fixture
def rare_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate every ``eval_every`` steps in trainings of few steps too, whose evaluations a test counts."""
    monkeypatch.setattr("elmokit.training.loop.MIN_EVALUATIONS", 1)
