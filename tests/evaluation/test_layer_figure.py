from __future__ import annotations

from pathlib import Path

import pytest

from elmokit.errors import OutputError
from elmokit.evaluation.layer_figure import Series, draw_layers

NAMES = ["0", "1", "2", "average", "mix"]
PROBE = Series("linear probe", [87.0, 92.6, 92.5, 93.0, 93.1], [0.1] * 5)
CONTROL = Series("control task", [80.0, 60.0, 50.0, 70.0, 75.0])


def test_a_figure_names_layers_series_and_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *given, **how: (drawn.append(self), save(self, *given, **how)))
    files = draw_layers(tmp_path / "pos", NAMES, [PROBE, CONTROL], {"most frequent tag": 85.0}, "accuracy (%)")
    assert [file.name for file in files] == ["pos.png", "pos.svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    figure = drawn[0]
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["layer 0", "layer 1", "layer 2", "average", "mix"]
    shown = {tuple(line.get_xdata()): list(line.get_ydata()) for line in axes.lines if len(line.get_xdata()) > 1}
    assert shown[(3, 4)] in ([93.0, 93.1], [70.0, 75.0])
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"linear probe", "control task", "most frequent tag"}
    with pytest.raises(OutputError, match="already exists"):
        draw_layers(tmp_path / "pos", NAMES, [PROBE], {}, "accuracy (%)")


def test_one_series_alone_needs_no_legend(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert draw_layers(tmp_path / "pos.svg", ["0"], [Series("probe", [1.0])], {}, "F1")[1].is_file()
