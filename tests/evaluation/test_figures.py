"""Figures in one look, written whole."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from elmokit.errors import MissingExtraError, OutputError
from elmokit.evaluation.figures import (
    COLUMN,
    LINES,
    Series,
    check_figure_path,
    plot_layers,
    save_figure,
    styled_figure,
)

matplotlib = pytest.importorskip("matplotlib")


def drawn(path: Path, overwrite: bool = False) -> tuple[Path, Path]:
    with styled_figure() as figure:
        axes = figure.subplots()
        for index, style in enumerate(LINES):
            axes.plot([1, 2, 3], [index, index + 1, index], label=f"line {index}", **style)
        axes.legend()
        return save_figure(figure, path, overwrite)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v1.2", "v1.2.png", "v1.2.svg"])
def test_a_figure_is_saved_as_png_and_as_svg(name: str, tmp_path: Path) -> None:
    png, svg = drawn(tmp_path / "new" / name)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["v1.2.png", "v1.2.svg"]
    assert "matplotlib.pyplot" not in sys.modules
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == round(COLUMN * 300)
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


@pytest.mark.slow
def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = drawn(tmp_path / "a"), drawn(tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_an_existing_figure_is_not_replaced_unless_allowed(tmp_path: Path) -> None:
    (tmp_path / "curve.svg").write_text("mine")
    with pytest.raises(OutputError, match=r"curve\.svg already exists"):
        drawn(tmp_path / "curve.png")
    assert [path.name for path in tmp_path.iterdir()] == ["curve.svg"]
    assert (tmp_path / "curve.svg").read_text() == "mine"
    drawn(tmp_path / "curve.png", overwrite=True)
    assert (tmp_path / "curve.svg").read_text() != "mine"


@pytest.mark.slow
def test_the_users_own_settings_do_not_change_a_figure(tmp_path: Path) -> None:
    plain = drawn(tmp_path / "plain")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "yellow"}):
        other = drawn(tmp_path / "other")
    assert [path.read_bytes() for path in plain] == [path.read_bytes() for path in other]


def test_missing_matplotlib_is_reported_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"'\.\[plot\]'"), styled_figure():
        pass
    with pytest.raises(MissingExtraError, match=r"'\.\[plot\]'"):
        check_figure_path("curve", overwrite=False)


def test_a_figure_of_layers_names_layers_series_and_levels() -> None:
    names = ["0", "1", "2", "average", "mix"]
    probe = Series("linear probe", [87.0, 92.6, 92.5, 93.0, 93.1], [0.1] * 5)
    control = Series("control task", [80.0, 60.0, 50.0, 70.0, 75.0])
    with styled_figure() as figure:
        plot_layers(figure, names, [probe, control], {"most frequent tag": 85.0}, "accuracy (%)")
        (axes,) = figure.axes
        labels = [label.get_text() for label in axes.get_xticklabels()]
        assert labels == ["layer 0", "layer 1", "layer 2", "average", "mix"]
        shown = {tuple(line.get_xdata()): list(line.get_ydata()) for line in axes.lines if len(line.get_xdata()) > 1}
        assert shown[(3, 4)] in ([93.0, 93.1], [70.0, 75.0])
        (legend,) = figure.legends
        texts = {text.get_text() for text in legend.get_texts()}
        assert texts == {"linear probe", "control task", "most frequent tag"}
    many = [Series(f"set {number}", [float(number)]) for number in range(len(LINES) + 1)]
    for series, n_named in ((many, len(many)), (many[:1], 0)):
        with styled_figure() as figure:
            plot_layers(figure, ["0"], series, {}, "F1")
            assert sum(len(legend.get_texts()) for legend in figure.legends) == n_named
