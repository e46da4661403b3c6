"""``recipes/paper_tables.py`` trains every variant of a comparison, and continues where it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elmokit.formats.save import save_model
from elmokit.tasks.task_config import MixConfig
from elmokit.tasks.task_table import TASKS
from recipes import paper_tables
from tests.conftest import random_model
from tests.helpers.task_examples import tiny, write_config


@pytest.mark.slow
def test_the_curve_over_samples_is_printed_and_plotted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    save_model(random_model(), Path("bilm"))
    write_config(elmo={"model": "bilm"}, train={"epochs": 2})
    call = ["paper_tables.py", "config.toml", "out", "--over", "ratios", "--ratios", "0.5,1", "--seeds", "1"]
    monkeypatch.setattr(sys, "argv", [*call, "--figure", "curve.png"])
    paper_tables.main()
    printed = capsys.readouterr().out
    assert [f"| {name} |" in printed for name in ("baseline-0.5", "elmo-0.5", "baseline-1", "elmo-1")] == [True] * 4
    assert "elmo-1, input: layers 0 1 2 have the weights " in printed
    assert printed.count(" steps, with ELMo after ") == 2
    assert Path("curve.png").stat().st_size > 1000
    written = Path("out/elmo-1/results.json").stat().st_mtime_ns
    weights = Path("out/elmo-1/seed-1/best.safetensors").stat().st_mtime_ns
    paper_tables.main()  # nothing is trained again
    assert capsys.readouterr().out == printed
    assert Path("out/elmo-1/results.json").stat().st_mtime_ns >= written
    assert Path("out/elmo-1/seed-1/best.safetensors").stat().st_mtime_ns == weights


def test_tables_2_and_3_vary_the_layers_and_the_positions_of_elmo(tmp_path: Path) -> None:
    _, config = tiny("ner", tmp_path / "data")
    elmo = TASKS["ner"].elmo
    by_layers = paper_tables.variants(config, elmo, "layers", [])
    found = {name: one.elmo and (one.elmo.input.layers, one.elmo.input.penalty) for name, one in by_layers.items()}
    assert found == {"baseline": None, "last": ("top", 0.0), "all-1": ("all", 1.0), "all-0.001": ("all", 0.001)}
    mix = MixConfig(penalty=0.1)
    by_position = paper_tables.variants(config, elmo, "positions", [])
    assert {name: (one.elmo.input, one.elmo.output) for name, one in by_position.items()} == {
        "input": (mix, None),
        "both": (mix, mix),
        "output": (None, mix),
    }
