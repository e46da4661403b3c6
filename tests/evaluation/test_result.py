"""Results: their rows become a table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from elmokit.evaluation.result import Result, Row, name_columns

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


def test_rows_become_aligned_text_with_notes() -> None:
    assert Cosines().to_text().splitlines() == [
        "pairs  layers      n  mean  weights  head",
        "a|b    0       1,234  0.50  0.1 0.9",
        "<1>    1           2                 0.25",
        "",
        "Two rows.",
    ]


def test_the_text_columns_before_the_first_number_name_the_rows() -> None:
    assert name_columns(ROWS[:1]) == name_columns(ROWS) == ["pairs", "layers"]
