"""Results: what their declared fields become."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from elmokit.errors import ConfigError
from elmokit.evaluation.result import Record, ResultGroup, TableResult, computed, tabulate, value


class Score(NamedTuple):
    precision: float
    recall: float


@dataclass(frozen=True)
class Layer(Record):
    name: str = value("layer")
    gain: float = value("gain", ".1f", unit="nats per 1,000 words", scale=1000, error="deviation")

    @property
    @computed("half", ".3f", key="half_of_it")
    def _half(self) -> float:
        return self.gain / 2

    deviation: float = value(format=".1f", scale=1000)
    by_set: dict[str, float] = value("", ".0f")
    bits: dict[str, float] = value("bits", ".1f")
    slopes: list[float] = value(("now", "before"), ".0f", in_json=False)
    score: Score = value()
    control: float | None = value("control", ".1f", default=None)


ROWS = [
    Layer("a|b", 0.0123, 0.0004, {"x": 1.0}, {"x": 0.5}, [1.0, 2.0], Score(0.5, math.nan)),
    Layer("<1>", -0.5, 0.1, {"y": 2.0}, {"x": math.nan}, [3.0, 4.0], Score(1.0, 1.0)),
]


@dataclass(frozen=True)
class Layers(TableResult):
    figure_title = "Gain by layer"

    rows: list[Layer] = value()
    hidden: str = ""

    def notes(self) -> list[str]:
        return ["Two <rows>.", "Second note."]

    def headlines(self) -> list[tuple[str, str]]:
        return [("gain", "12.3")]


def test_json_has_the_declared_values_in_the_order_of_the_class() -> None:
    facts = Layers(ROWS, "not declared").to_dict()
    assert list(facts) == ["rows"]
    assert list(facts["rows"][0]) == ["name", "gain", "half_of_it", "deviation", "by_set", "bits", "score", "control"]
    assert facts["rows"][0]["score"] == {"precision": 0.5, "recall": None}
    json.dumps(facts, allow_nan=False)


def test_a_table_has_a_column_for_each_title_and_each_key() -> None:
    table = tabulate(ROWS)
    assert table.head == ["layer", "gain (nats per 1,000 words)", "half", "x", "y", "bits, x", "now", "before"]
    assert table.rows[0] == ["a|b", "12.3 ± 0.4", "0.006", "1", "", "0.5", "1", "2"]
    assert table.rows[1] == ["<1>", "-500.0 ± 100.0", "-0.250", "", "2", "", "3", "4"]
    controlled = [Layer(*(getattr(row, name) for name in vars(row) if name != "control"), control=1.0) for row in ROWS]
    assert tabulate(controlled).head[-1] == "control"


def test_text_markdown_and_html_show_the_table_and_the_notes() -> None:
    result = Layers(ROWS)
    assert result.to_text().splitlines()[-3:] == ["", "Two <rows>.", "Second note."]
    markdown = result.to_markdown({"": "![Gain](gain.svg)"})
    assert markdown.startswith("![Gain](gain.svg)\n\n| layer | gain")
    assert "\n| &lt;1> |" in markdown
    assert markdown.endswith("\n\nTwo &lt;rows>. Second note.")
    shown = result._repr_html_()
    assert "&lt;1&gt;" in shown
    assert "<p>Two &lt;rows&gt;.</p>" in shown


def test_the_figure_of_a_table_is_bars_of_its_first_numbers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from elmokit.evaluation.figures import styled_figure

    result = Layers(ROWS)
    assert [path.name for path in result.draw(tmp_path / "gain")] == ["gain.png", "gain.svg"]
    with styled_figure() as figure:
        result.plot(figure)
        (axes,) = figure.axes
        assert [bar.get_width() for bar in axes.patches] == pytest.approx([12.3, -500])
        assert axes.get_xlabel() == "gain (nats per 1,000 words)"


def test_a_result_without_numbers_has_no_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    @dataclass(frozen=True)
    class Names(Record):
        name: str = value("name")

    @dataclass(frozen=True)
    class NamesResult(TableResult):
        rows: list[Names] = value()

    for result in (NamesResult([Names("a")]), ResultGroup({"names": NamesResult([Names("a")])})):
        with pytest.raises(ConfigError, match="has no figure"):
            result.draw(tmp_path / "names")
    assert NamesResult([Names("a")]).figures() == {}


def test_a_group_has_everything_of_its_results_by_name() -> None:
    one, two = Layers(ROWS), Layers(ROWS[:1])
    group = ResultGroup({"one": one, "two": two})
    assert group.to_dict() == {"one": one.to_dict(), "two": two.to_dict()}
    assert group.figures() == {"one": one, "two": two}
    assert group.headlines() == [("gain", "12.3")] * 2
    assert group.to_text() == f"{one.to_text()}\n\n{two.to_text()}"
    assert group.to_markdown({"two": "!"}) == f"{one.to_markdown()}\n\n!\n\n{two.to_markdown()}"
    assert group._repr_html_() == one._repr_html_() + two._repr_html_()

    class Headed(ResultGroup[Layers]):
        def heading(self, name: str) -> str:
            return f"Set <{name}>."

    headed = Headed({"one": one})
    assert headed.to_text() == f"Set <one>.\n{one.to_text()}"
    assert headed.to_markdown({"one": "!"}) == f"Set &lt;one>.\n\n!\n\n{one.to_markdown()}"
    assert headed._repr_html_().startswith("<p>Set &lt;one&gt;.</p><table>")
