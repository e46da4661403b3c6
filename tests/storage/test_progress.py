from __future__ import annotations

import io
import sys

import pytest

from elmokit.storage.progress import ProgressBar, Stage, format_duration


def test_without_a_terminal_a_line_with_the_time_left_appears_every_half_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    with ProgressBar("B", clock=lambda: now[0]) as progress:
        for done, second in ((0, 0), (100, 10), (200, 31), (300, 40), (400, 62)):
            now[0] = second
            progress("", done, 1000)
        progress("count", 0, None)
        now[0] += 100
        progress("count", 5000, None)
    assert capsys.readouterr().err.splitlines() == [
        " 20% of 1,000 B, 3 min left",
        " 40% of 1,000 B, 2 min left",
        "count: 5,000 B",
    ]


def test_each_stage_estimates_its_time_without_what_an_earlier_run_has_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    with ProgressBar("words", clock=lambda: now[0]) as progress:
        progress("index", 500, 1000)
        now[0] = 25
        progress("index", 600, 1000)  # the first step, which is not counted
        now[0] = 40
        progress("index", 800, 1000)
        progress("index", 1000, 1000)  # within the half minute
        progress("sort", 0, None)
        now[0] = 80
        progress("sort", 5, None)
    assert capsys.readouterr().err.splitlines() == ["index:  80% of 1,000 words, 15 s left", "sort: 5 words"]


def test_a_stage_can_name_what_it_counts(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with ProgressBar("tokens", clock=lambda: now[0]) as progress:
        for stage, done, total in (
            (Stage("reading", "sentences"), 2000, None),
            (Stage("reading", "sentences"), 4000, None),
            ("embedding", 0, 90_000),
            ("embedding", 9000, 90_000),
        ):
            progress(stage, done, total)
            now[0] += 40
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["reading: 4,000 sentences", "embedding:  10% of 90,000 tokens"]
    assert Stage("reading", "sentences") == "reading"


def test_a_count_that_falls_begins_a_new_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with ProgressBar("words", clock=lambda: now[0]) as progress:
        for done, second in ((0, 0), (10, 1), (900, 2), (0, 3), (10, 4), (20, 40)):
            now[0] = second
            progress("answer", done, 1000)
    assert capsys.readouterr().err.splitlines() == ["answer:   2% of 1,000 words, 59 min left"]


def test_a_slow_first_step_does_not_spoil_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with ProgressBar("words", clock=lambda: now[0]) as progress:
        progress("embed", 0, 1000)
        for done, second in ((10, 29), (20, 31), (110, 40), (400, 69)):
            now[0] = second
            progress("embed", done, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["embed:   2% of 1,000 words, 3 min left", "embed:  40% of 1,000 words, 62 s left"]


def test_on_a_terminal_there_is_a_bar_per_stage_and_lines_go_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with ProgressBar("tokens") as progress:
        progress("embed", 10, 100)
        progress.write("a line")
        progress("score", 1, 2)
    shown = screen.getvalue()
    assert "embed:  10%" in shown
    assert "a line\n" in shown
    assert "score:" in shown


def test_durations_are_short() -> None:
    seconds = (0, 0.1, 45, 89.5, 93, 720, 3580, 4800, 12_600, 86_399, 2 * 86_400, 183_600)
    assert [format_duration(one) for one in seconds] == [
        *("0 s", "1 s", "45 s", "90 s", "2 min", "12 min", "1 h", "1 h 20 min", "3 h 30 min", "1 day", "2 days"),
        "2 days 3 h",
    ]
