"""Sweeps: the variants, resuming, and sharing the work between processes."""

from __future__ import annotations

import dataclasses
import fcntl
import json
from pathlib import Path
from typing import Any

import pytest

from elmokit.cli.main import elmokit
from elmokit.cli.task_sweep import format_steps_saved
from elmokit.errors import (
    ConfigError,
    FormatError,
    OutputError,
    TrainingError,
)
from elmokit.formats.save import save_model
from elmokit.tasks.sweep import (
    StepsSaved,
    SweepRow,
    TrainingStart,
    layer_variants,
    n_unfinished,
    position_variants,
    ratio_variants,
    run_sweep,
    steps_to_baseline,
)
from elmokit.tasks.table import TASKS, load_config
from tests.conftest import random_model
from tests.helpers.killing import Killed, kill_at

CONFIG = """
task = "sst"
preset = "small"
[data]
train = "trees.txt"
dev = "trees.txt"
[words]
dim = 4
min_count = 1
[elmo]
model = "bilm"
[model]
projection_dim = 4
hidden = 4
output_hidden = [8]
output_dropout = [0.0]
pool = 2
[train]
batch_size = 4
epochs = 2
seeds = [1, 2]
"""
TREES = ["(3 (2 the) (4 cat))", "(1 (2 a) (0 dog))", "(2 (2 it) (2 sat))", "(4 (2 so) (4 good))", "(0 (2 so) (0 bad))"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config, its data and a biLM; the working folder of the test."""
    monkeypatch.chdir(tmp_path)
    Path("sst.toml").write_text(CONFIG)
    Path("trees.txt").write_text("\n".join(TREES) + "\n")
    save_model(random_model(), Path("bilm"))
    return tmp_path


def replace_learning_rate(config: Any, rate: float) -> Any:
    optimizer = dataclasses.replace(config.train.optimizer, learning_rate=rate)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, optimizer=optimizer))


def published(name: str) -> tuple[Any, Any]:
    return TASKS[name], TASKS[name].presets["published"]


def test_ratios_come_without_and_with_elmo_from_the_smallest() -> None:
    variants = ratio_variants(*published("ner"), [1.0, 0.01])
    assert [variant.name for variant in variants] == ["baseline-0.01", "elmo-0.01", "baseline-1", "elmo-1"]
    assert [variant.config.data.train_ratio for variant in variants] == [0.01, 0.01, 1.0, 1.0]
    assert [variant.config.elmo is None for variant in variants] == [True, False, True, False]
    assert variants[1].config.elmo == TASKS["ner"].elmo
    for ratios in ([0.0], [1.5], [float("nan")]):
        with pytest.raises(ConfigError, match="ratio"):
            ratio_variants(*published("ner"), ratios)


def test_layers_are_those_of_table_2() -> None:
    baseline, *rest = layer_variants(*published("qa"))
    assert baseline.config.elmo is None
    mixes = [(variant.config.elmo.input, variant.config.elmo.output) for variant in rest]
    assert [(mix.layers, mix.penalty) for mix, _ in mixes] == [("top", 0.0), ("all", 1.0), ("all", 0.001)]
    assert all(at_input == at_output for at_input, at_output in mixes)
    assert mixes[0][0].dropout == TASKS["qa"].elmo.input.dropout  # the rest stays


def test_positions_are_those_of_table_3() -> None:
    variants = position_variants(*published("ner"))
    positions = [(v.config.elmo.input is not None, v.config.elmo.output is not None) for v in variants]
    assert positions == [(True, False), (True, True), (False, True)]
    assert variants[2].config.elmo.output == TASKS["ner"].elmo.input  # which has no output of its own


def test_a_sweep_trains_each_variant_once_and_then_only_collects(folder: Path) -> None:
    task, config = load_config("sst.toml")
    variants = position_variants(task, config)
    started: list[TrainingStart] = []
    rows = run_sweep(task, variants, [1, 2], "sweep", on_start=started.append)
    assert [start.number for start in started] == [1, 2, 3, 4, 5, 6]
    assert started[0].seconds_left is None
    assert started[-1].seconds_left is not None
    assert [row.seeds for row in rows] == [(1, 2)] * 3
    assert all(0 <= row.scores["accuracy"]["mean"] <= 100 for row in rows)
    assert len(list(Path("sweep/layers").iterdir())) == 1  # one cache for all
    stored = json.loads(Path("sweep/results.json").read_text())
    assert [row["scores"] for row in stored["rows"]] == [row.scores for row in rows]
    again = run_sweep(task, variants, [1, 2], "sweep", on_start=lambda start: pytest.fail("trained again"))
    assert again == rows
    more = run_sweep(task, variants[:1], [1, 2, 3], "sweep")
    assert more[0].seeds == (1, 2, 3)


def test_a_resumed_sweep_has_the_same_rows(folder: Path) -> None:
    task, config = load_config("sst.toml")
    variants = position_variants(task, config)[:1]
    straight = run_sweep(task, variants, [1, 2], "straight")

    with pytest.raises(Killed):
        run_sweep(task, variants, [1, 2], "killed", progress=kill_at("seed 2", 3))
    assert run_sweep(task, variants, [1, 2], "killed") == straight


def test_results_keep_the_rows_and_seeds_of_earlier_calls(folder: Path) -> None:
    task, config = load_config("sst.toml", ["train.epochs=1"])
    variants = position_variants(task, config)
    run_sweep(task, variants[:1], [1], "sweep")
    run_sweep(task, variants[1:], [1], "sweep")
    run_sweep(task, variants[:1], [2], "sweep")
    rows = json.loads(Path("sweep/results.json").read_text())["rows"]
    assert sorted((row["name"], row["seeds"]) for row in rows) == [("both", [1]), ("input", [1, 2]), ("output", [1])]


def test_the_trainings_after_one_that_fails_are_done(folder: Path) -> None:
    task, config = load_config("sst.toml", ["train.epochs=1"])
    wrong, right = position_variants(task, config)[:2]
    wrong = dataclasses.replace(wrong, config=replace_learning_rate(wrong.config, 1e30))
    first, second = run_sweep(task, [wrong, right], [1, 2], "sweep")
    assert (first.seeds, first.scores) == ((), {})
    assert first.failures.keys() == {1, 2}
    assert "The loss is nan" in first.failures[1]
    assert (second.seeds, second.failures) == ((1, 2), {})
    assert n_unfinished([first, second], [1, 2]) == 0


def test_a_finished_sweep_is_collected_without_its_data_and_bilm(folder: Path) -> None:
    task, config = load_config("sst.toml", ["train.epochs=1"])
    variants = position_variants(task, config)[:1]
    rows = run_sweep(task, variants, [1], "sweep")
    Path("trees.txt").rename("moved.txt")
    Path("bilm").rename("moved")
    assert run_sweep(task, variants, [1], "sweep") == rows
    Path("trees.txt").write_text(Path("moved.txt").read_text() + "\n")
    with pytest.raises(TrainingError, match="sweep/input/run-1 was started with other data"):
        run_sweep(task, variants, [1], "sweep")


def test_a_training_that_another_process_runs_is_skipped(folder: Path) -> None:
    task, config = load_config("sst.toml")
    variants = ratio_variants(task, config, [1.0])[:1]
    lock = Path("sweep/baseline-1/run-2.lock")
    lock.parent.mkdir(parents=True)
    Path("sweep/sweep.json").write_text('{"task": "sst"}')
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (row,) = run_sweep(task, variants, [1, 2], "sweep")
    assert row.seeds == (1,)
    assert n_unfinished([row], [1, 2]) == 1
    (row,) = run_sweep(task, variants, [1, 2], "sweep")
    assert row.seeds == (1, 2)


def test_a_sweep_with_other_settings_is_refused(folder: Path) -> None:
    """So are other data, another biLM, another task, and a directory of something else."""
    task, config = load_config("sst.toml", ["train.epochs=1"])
    variants = position_variants(task, config)[:1]
    run_sweep(task, variants, [1], "sweep")
    longer = position_variants(*load_config("sst.toml"))[:1]
    for seed in (1, 2):
        with pytest.raises(TrainingError, match=r"input/run-1 .*train\.epochs was 1 and is 2"):
            run_sweep(task, longer, [seed], "sweep")
    with pytest.raises(TrainingError, match="task was 'sst' and is 'ner'"):
        run_sweep(TASKS["ner"], [], [1], "sweep")
    for taken in (".", "sst.toml"):
        with pytest.raises(OutputError, match="is not a sweep to continue"):
            run_sweep(task, [], [1], taken)
    save_model(random_model(seed=1), Path("bilm"), overwrite=True)
    with pytest.raises(TrainingError, match="another biLM"):
        run_sweep(task, variants, [1, 2], "sweep")
    Path("trees.txt").write_text("\n".join(reversed(TREES)) + "\n")
    with pytest.raises(TrainingError, match="other data"):
        run_sweep(task, variants, [1, 2], "sweep")
    assert not Path("sweep/input/run-2").exists()


def metrics(folder: Path, name: str, seed: int, scores: list[float]) -> None:
    log = folder / name / f"run-{seed}" / f"seed-{seed}" / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    lines = [{"n_steps": 10 * n, "dev": {"f1": score}} for n, score in enumerate(scores, start=1)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_steps_to_the_baseline_count_to_the_first_score_as_good(tmp_path: Path) -> None:
    metrics(tmp_path, "baseline-1", 1, [40, 70, 60])
    metrics(tmp_path, "elmo-1", 1, [70, 80, 90])
    metrics(tmp_path, "baseline-1", 2, [10, 20, 30])
    metrics(tmp_path, "elmo-1", 2, [10, 31, 20])
    metrics(tmp_path, "baseline-0.1", 1, [50])
    metrics(tmp_path, "elmo-0.1", 1, [40])
    row = SweepRow("baseline-1", "", 1.0, False, (1, 2), {})
    rows = [
        row,
        dataclasses.replace(row, name="elmo-1", with_elmo=True),
        dataclasses.replace(row, name="baseline-0.1", train_ratio=0.1, seeds=(1,)),
        dataclasses.replace(row, name="elmo-0.1", train_ratio=0.1, seeds=(1,), with_elmo=True),
    ]
    found = steps_to_baseline(rows, tmp_path, "f1")
    assert found[1.0] == StepsSaved(2, 2, (20 + 30) / 2, (10 + 20) / 2)
    assert (found[0.1].n_seeds, found[0.1].n_reached) == (1, 0)
    assert format_steps_saved(found[1.0]) == (
        "the baseline reaches its best score after 25 steps, ELMo the same score after 15 (40% fewer), in 2 of 2 seeds"
    )
    assert format_steps_saved(StepsSaved(3, 1, 10, 14)).endswith("after 14 (40% more), in 1 of 3 seeds")
    assert format_steps_saved(found[0.1]) == "ELMo reaches the baseline's best score in 0 of 1 seeds"
    (tmp_path / "elmo-1/run-1/seed-1/metrics.jsonl").unlink()
    with pytest.raises(FormatError, match=r"metrics\.jsonl is damaged"):
        steps_to_baseline(rows, tmp_path, "f1")


def test_a_variant_without_input_is_refused_before_any_training(folder: Path) -> None:
    task, config = load_config("sst.toml")
    config = dataclasses.replace(config, words=None)
    assert config.elmo.input is not None
    assert config.chars is None
    for variants in (ratio_variants(task, config, [1.0]), layer_variants(task, config)):
        with pytest.raises(ConfigError, match=r"^baseline.*: The model of sst has nothing to read"):
            run_sweep(task, variants, [1], "sweep")
    with pytest.raises(ConfigError, match="output only: The model of sst has nothing to read"):
        run_sweep(task, position_variants(task, config), [1], "sweep")
    assert not Path("sweep").exists()


def test_the_shell_prints_a_row_for_each_and_draws_the_curve(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["task", "sweep", "sst.toml", "--over", "ratios", "--ratios", "0.5,1", "--run", "sweep", "--seeds", "3"]
    elmokit.main(arguments, prog_name="elmokit", standalone_mode=False)
    out, err = capsys.readouterr()
    for label in ("baseline, 50 %", "ELMo, 50 %", "baseline, 100 %", "ELMo, 100 %"):
        assert f"{label:<15}  dev accuracy " in out
    assert "training 4 of 4: ELMo, 100 %, seed 3" in err
    assert Path("sweep/curve.png").read_bytes().startswith(b"\x89PNG")
    assert Path("sweep/curve.svg").exists()
