"""The learned weights of runs, printed and plotted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from elmokit.cli.main import elmokit
from elmokit.errors import ConfigError, FormatError, ModelNotFoundError, OutputError
from elmokit.tasks.mix_weights import weights_of_runs
from elmokit.tasks.plots import plot_mixes
from tests.helpers.shell import Shell


def mix(*weights: float, layers: tuple[int, ...] = (0, 1, 2), gamma: float = 1.0) -> dict[str, Any]:
    return {"layers": layers, "weights": weights, "gamma": gamma}


def run(folder: Path, name: str, *seeds: dict[str, Any], task: str = "nli") -> Path:
    path = folder / name
    path.mkdir()
    content = {"task": task, "metric": "accuracy", "seeds": [{"seed": n, "mixes": m} for n, m in enumerate(seeds)]}
    (path / "results.json").write_text(json.dumps(content))
    return path


def test_weights_are_means_over_seeds_input_first(tmp_path: Path) -> None:
    one = {"output": mix(0.2, 0.3, 0.5), "input": mix(0.1, 0.7, 0.2, gamma=2.0)}
    other = {"output": mix(0.4, 0.3, 0.3), "input": mix(0.3, 0.5, 0.2)}
    at_input, at_output = weights_of_runs([run(tmp_path, "a", one, other)])
    assert (at_input.position, at_input.gamma, at_input.n_seeds) == ("input", 1.5, 2)
    assert at_input.weights == pytest.approx((0.2, 0.6, 0.2))
    assert at_output.weights == pytest.approx((0.3, 0.3, 0.4))
    assert at_input.deviations == pytest.approx((0.1414, 0.1414, 0), abs=1e-4)


@pytest.mark.parametrize(
    ("content", "kind", "named"),
    [
        ({"seeds": [{"mixes": {}}]}, ConfigError, "no mix of layers"),
        (None, ModelNotFoundError, "finished run .* is missing"),
        ({"seeds": [{}]}, FormatError, "damaged"),
        ({"seeds": [{"mixes": {"input": mix(0.5, 0.5)}}]}, FormatError, "damaged"),
        ({"seeds": [{"mixes": {"input": mix(1, 1, 1)}}, {"mixes": {"input": mix(1)}}]}, FormatError, "damaged"),
    ],
)
def test_runs_without_mixes_are_refused(content: Any, kind: type[Exception], named: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(json.dumps({"task": "nli", **content}))
    with pytest.raises(kind, match=named):
        weights_of_runs([tmp_path])


def test_cells_below_a_third_are_hatched_and_above_two_dotted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    def patterns(*weights: float) -> int:
        mixes = weights_of_runs([run(tmp_path, f"r{weights[0]}", {"input": mix(*weights)})])
        _, svg = plot_mixes(mixes, tmp_path / f"f{weights[0]}")
        return svg.read_text(encoding="utf-8").count("<pattern ")

    assert patterns(0.4, 0.34, 0.34) == 0
    assert patterns(0.2, 0.4, 0.4) == 1
    assert patterns(0.1, 0.8, 0.11) >= 2  # dots, and hatches on two shades


def test_mixes_of_few_layers_leave_the_others_empty(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    mixes = weights_of_runs([run(tmp_path, "top", {"input": mix(1.0, layers=(2,))})])
    png, _ = plot_mixes(mixes, tmp_path / "figure")
    assert png.read_bytes().startswith(b"\x89PNG")


def test_the_shell_tells_the_weights_and_draws_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = run(tmp_path, "my-run", {"input": mix(0.1, 0.7, 0.2)}, {"input": mix(0.1, 0.7, 0.2)})
    figure = tmp_path / "weights.png"
    arguments = ["task", "weights", str(path), "--figure", str(figure)]
    elmokit.main(arguments, prog_name="elmokit", standalone_mode=False)
    out = capsys.readouterr().out
    assert f"{path}  input   layers  0: 0.100 ± 0.000  1: 0.700" in out
    assert figure.exists()
    with pytest.raises(OutputError, match="already exists"):
        elmokit.main(arguments, prog_name="elmokit", standalone_mode=False)
    capsys.readouterr()
    elmokit.main([*arguments, "--overwrite", "--json"], prog_name="elmokit", standalone_mode=False)
    (printed,) = json.loads(capsys.readouterr().out)
    assert printed["weights"] == pytest.approx([0.1, 0.7, 0.2])


def test_without_matplotlib_the_weights_are_printed_and_one_line_says_why_there_is_no_figure(
    tmp_path: Path, task_shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run(tmp_path, "my-run", {"input": mix(0.1, 0.7, 0.2)})
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = task_shell("weights", str(path), "--figure", str(tmp_path / "weights"))
    assert ran.code == 2
    assert "layers  0: 0.100  1: 0.700  2: 0.200" in ran.out
    assert ran.err.count("\n") == 1
    assert "Drawing a figure needs an optional dependency" in ran.err
    assert task_shell("weights", str(path)).code == 0
