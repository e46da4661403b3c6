"""Figures in one look, written whole."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from elmokit.errors import MissingExtraError, OutputError
from elmokit.evaluation.result import COLUMN, LINES, check_figure_path, figure_paths, save_figure, styled_figure

matplotlib = pytest.importorskip("matplotlib")


def drawn(path: Path, overwrite: bool = False) -> tuple[Path, Path]:
    with styled_figure() as figure:
        axes = figure.subplots()
        for index, style in enumerate(LINES):
            axes.plot([1, 2, 3], [index, index + 1, index], label=f"line {index}", **style)
        axes.legend()
        return save_figure(figure, path, overwrite)


def test_a_figure_is_saved_as_png_and_as_svg(tmp_path: Path) -> None:
    assert {figure_paths(tmp_path / f"v1.2{end}")[0].name for end in ("", ".png", ".svg")} == {"v1.2.png"}
    png, svg = drawn(tmp_path / "new" / "v1.2")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["v1.2.png", "v1.2.svg"]
    assert "matplotlib.pyplot" not in sys.modules
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == round(COLUMN * 300)
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_an_existing_figure_is_not_replaced_unless_allowed(tmp_path: Path) -> None:
    (tmp_path / "curve.svg").write_text("mine")
    with pytest.raises(OutputError, match=r"curve\.svg already exists"):
        drawn(tmp_path / "curve.png")
    assert [path.name for path in tmp_path.iterdir()] == ["curve.svg"]
    assert (tmp_path / "curve.svg").read_text() == "mine"
    drawn(tmp_path / "curve.png", overwrite=True)
    assert (tmp_path / "curve.svg").read_text() != "mine"


@pytest.mark.slow
def test_the_same_figure_gives_the_same_bytes_whatever_the_users_settings(tmp_path: Path) -> None:
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
