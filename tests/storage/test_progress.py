from __future__ import annotations

import io
import sys

import pytest

from elmokit.storage.progress import ProgressBar, Stage, format_duration

Report = tuple[float, str, int, int | None]
"""When a stage reports, in seconds, its name, what is done, and of how much."""
SENTENCES = Stage("reading", "sentences")
LINES: dict[str, tuple[list[Report], list[str]]] = {
    "a line every half minute": (
        [(0, "", 0, 1000), (10, "", 100, 1000), (31, "", 200, 1000), (40, "", 300, 1000), (62, "", 400, 1000)],
        [" 20% of 1,000 words, 3 min left", " 40% of 1,000 words, 2 min left"],
    ),
    "no total": ([(0, "count", 0, None), (99, "count", 5000, None)], ["count: 5,000 words"]),
    "what an earlier run has done and the first step do not count": (
        [(0, "index", 500, 1000), (25, "index", 600, 1000), (40, "index", 800, 1000), (41, "index", 1000, 1000)],
        ["index:  80% of 1,000 words, 15 s left"],
    ),
    "a slow first step": (
        [(0, "embed", 0, 1000), (29, "embed", 10, 1000), (31, "embed", 20, 1000), (69, "embed", 400, 1000)],
        ["embed:   2% of 1,000 words, 3 min left", "embed:  40% of 1,000 words, 62 s left"],
    ),
    "a count that falls starts anew": (
        [(0, "answer", 900, 1000), (3, "answer", 0, 1000), (4, "answer", 10, 1000), (40, "answer", 20, 1000)],
        ["answer:   2% of 1,000 words, 59 min left"],
    ),
    "a stage with a unit of its own": (
        [(0, SENTENCES, 2000, None), (40, SENTENCES, 4000, None), (80, "embed", 0, 90), (120, "embed", 9, 90)],
        ["reading: 4,000 sentences", "embed:  10% of 90 words"],
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_without_a_terminal_a_stage_has_lines_with_the_time_left(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    reports, expected = LINES[name]
    now = [0.0]
    with ProgressBar("words", clock=lambda: now[0]) as progress:
        for second, stage, done, total in reports:
            now[0] = second
            progress(stage, done, total)
    assert capsys.readouterr().err.splitlines() == expected


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
