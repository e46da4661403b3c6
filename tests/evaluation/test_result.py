"""Results: their rows become a table and a figure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elmokit.evaluation import result as figures
from elmokit.evaluation.result import Result, Row, tabulate

ROWS: list[Row] = [
    {"pairs": "a|b", "layers": "0", "n": 1234, "mean": 0.5, "weights": "0.1 0.9"},
    {"pairs": "<1>", "layers": "1", "n": 2, "mean": math.nan, "head": 0.25},
]


@dataclass(frozen=True)
class Cosines(Result):
    digits = 2
    measure = "cosine"

    def table_rows(self) -> list[Row]:
        return ROWS

    def notes(self) -> list[str]:
        return ["Two rows."]

    def to_dict(self) -> dict[str, Any]:
        return {}


def test_rows_become_aligned_text_with_notes_and_markdown() -> None:
    assert Cosines().to_text().splitlines() == [
        "pairs  layers      n  mean  weights  head",
        "a|b    0       1,234  0.50  0.1 0.9",
        "<1>    1           2                 0.25",
        "",
        "Two rows.",
    ]
    markdown = tabulate(ROWS, 2).to_markdown().splitlines()
    assert markdown[1:] == [
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| a\\|b | 0 | 1,234 | 0.50 | 0.1 0.9 |  |",
        "| &lt;1> | 1 | 2 |  |  | 0.25 |",
    ]


def test_the_figure_has_a_point_for_each_number_that_is_not_a_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    drawn = []
    save = figures.save_figure
    monkeypatch.setattr(
        figures, "save_figure", lambda figure, *rest: drawn.append(figure.axes[0]) or save(figure, *rest)
    )
    assert [path.name for path in Cosines().draw(tmp_path / "cosines")] == ["cosines.png", "cosines.svg"]
    (axes,) = drawn
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a|b 0", "<1> 1"]
    assert {line.get_label(): list(line.get_xdata()) for line in axes.lines} == {
        "mean": [0.5, pytest.approx(math.nan, nan_ok=True)],
        "head": [pytest.approx(math.nan, nan_ok=True), 0.25],
    }
