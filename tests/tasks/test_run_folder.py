"""What a run's folder says: its results."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmokit.errors import FormatError
from elmokit.tasks.run_folder import mean_and_deviation, read_facts, read_result
from elmokit.training.run_folder import MetricsLog


def test_seeds_are_summed_up_by_the_scores_that_all_of_them_have() -> None:
    first, second = {"f1": 50.0, "f1-PER": 40.0, "f1-MISC": 0.0}, {"f1": 70.0, "f1-PER": 40.0}
    for pair in ((first, second), (second, first)):
        found = mean_and_deviation(pair)
        assert list(found) == ["f1", "f1-PER"]
        assert found["f1"]["mean"] == 60.0
    assert mean_and_deviation([first])["f1-MISC"] == {"mean": 0.0, "deviation": 0.0}


def test_lines_that_are_no_records_are_left_out_of_the_metrics(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append({"n_steps": 1})
    with log.path.open("ab") as file:
        file.write(b'[]\n{}\n1\n\xff\n{"n_steps": "2"}\n' + b"[" * 100_000 + b"\n")
    log.append({"n_steps": 2})
    assert log.records() == [{"n_steps": 1}, {"n_steps": 2}]
    log.truncate(1)
    assert log.records() == [{"n_steps": 1}]


@pytest.mark.parametrize("content", ["{", "[" * 100_000, '{"bilm": []}', '{"data": {"train": 1}}', '{"directory": 1}'])
def test_damaged_facts_of_a_run_are_one_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(FormatError, match=r"run\.json is"):
        read_facts(tmp_path)
    (tmp_path / "run.json").write_text('{"bilm": null, "data": {"train": {"a.txt": [3, 4]}}, "unknown": 1}')
    facts = read_facts(tmp_path)
    assert (facts.fingerprint, facts.data) == (None, {"train": {"a.txt": [3, 4]}})


@pytest.mark.parametrize("content", ["{}", '{"dev": [[1]]}', '{"dev": {"f1": "high"}}'])
def test_a_damaged_result_is_one_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(FormatError, match=r"result\.json is damaged"):
        read_result(tmp_path)
