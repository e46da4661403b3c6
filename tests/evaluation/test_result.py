"""Results: their rows become a table and a figure, in one look and written whole."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from elmokit.errors import MissingExtraError, OutputError
from elmokit.evaluation import result
from elmokit.evaluation.result import Result, Row, check_figure_path, styled_figure, tabulate

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
    drawn, save = [], result.save_figure
    monkeypatch.setattr(
        result, "save_figure", lambda figure, *rest: drawn.append(figure.axes[0]) or save(figure, *rest)
    )
    png, svg = Cosines().draw(tmp_path / "new" / "v1.2.svg")
    assert (
        sorted((tmp_path / "new").iterdir())
        == [png, svg]
        == [tmp_path / "new" / f"v1.2.{end}" for end in ("png", "svg")]
    )
    assert png.read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert "matplotlib.pyplot" not in sys.modules
    (axes,) = drawn
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a|b 0", "<1> 1"]
    assert {line.get_label(): list(line.get_xdata()) for line in axes.lines} == {
        "mean": [0.5, pytest.approx(math.nan, nan_ok=True)],
        "head": [pytest.approx(math.nan, nan_ok=True), 0.25],
    }


def test_an_existing_figure_is_not_replaced_unless_allowed(tmp_path: Path) -> None:
    (tmp_path / "curve.svg").write_text("mine")
    with pytest.raises(OutputError, match=r"curve\.svg already exists"):
        Cosines().draw(tmp_path / "curve.png")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
    Cosines().draw(tmp_path / "curve.png", overwrite=True)
    assert (tmp_path / "curve.svg").read_text() != "mine"


@pytest.mark.slow
def test_the_same_figure_gives_the_same_bytes_whatever_the_users_settings(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    plain = Cosines().draw(tmp_path / "plain")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "yellow"}):
        other = Cosines().draw(tmp_path / "other")
    assert [path.read_bytes() for path in plain] == [path.read_bytes() for path in other]


def test_missing_matplotlib_is_reported_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"'\.\[plot\]'"), styled_figure():
        pass
    with pytest.raises(MissingExtraError, match=r"'\.\[plot\]'"):
        check_figure_path("curve", overwrite=False)
