"""The learning rate over a training, and the time that is left."""

from __future__ import annotations

from itertools import pairwise

import pytest

from elmokit.training.loop import ThroughputMeter
from elmokit.training.reports import CountingProgress, TrainingSpeed, format_perplexities
from elmokit.training.training_config import RECIPES, TrainingConfig


def test_the_rate_warms_up_and_falls_as_a_cosine_and_is_constant_as_in_bilm_tf() -> None:
    config = TrainingConfig(learning_rate=0.5)
    found = [config.learning_rate_at(share) for share in (0.0, 0.01, 0.02, 0.51, 1.0, 1.5)]
    assert found == pytest.approx([0.005, 0.25, 0.5, 0.5 * (0.05 + 0.95 / 2), 0.025, 0.025])
    shares = [share / 50 for share in range(1, 51)]
    assert all(config.learning_rate_at(one) >= config.learning_rate_at(other) for one, other in pairwise(shares))
    assert [RECIPES["bilm-tf"].learning_rate_at(share) for share in (0.0, 0.01, 1.0)] == [0.2] * 3


def test_a_first_step_or_an_early_evaluation_does_not_multiply_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    meter = ThroughputMeter(100)
    now[0] = 2.0
    assert meter.step_done(140, 180) == 2.0  # 20 per second
    assert meter.pauses_left("evaluation", 3) == 0.0
    with meter.paused("evaluation"):
        now[0] = 11.0
    assert meter.rate(140) == 20.0
    assert meter.pauses_left("evaluation", 3) == 27.0
    now[0] = 13.0
    assert meter.rate(160) == 10.0
    assert meter.step_done(160, 210) == 5.0  # 20 in 2 seconds
    meter, now[0] = ThroughputMeter(0), 73.0  # the first step compiles
    assert meter.step_done(10, 100) == 9 * 60.0  # nothing better is known
    now[0] = 75.0
    assert meter.step_done(20, 100) == 16.0


def test_reports_are_readable_lines() -> None:
    assert str(CountingProgress(250, 1000)) == "counting: 25%"
    assert str(CountingProgress(0, 0)) == "counting: 0%"  # an empty text
    assert str(TrainingSpeed(1, 320, 180.0)) == "1 step of 320 predictions per direction left; about 3 min"


def test_a_perplexity_of_many_digits_is_printed_short() -> None:
    assert format_perplexities((96.314, 1e9 - 1, 1.026e88, float("inf"))) == "96.31 / 999999999.00 / 1.03e+88 / inf"
