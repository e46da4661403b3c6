"""What a run's folder says: its results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elmokit.errors import FormatError, TrainingError
from elmokit.formats.folder import DEFAULT_MODEL
from elmokit.tasks.run_folder import check_bilm, finished_seeds, mean_and_deviation, read_facts


def test_seeds_are_summarized_by_the_scores_they_share() -> None:
    first, second = {"f1": 50.0, "f1-PER": 40.0, "f1-MISC": 0.0}, {"f1": 70.0, "f1-PER": 40.0}
    for pair in ((first, second), (second, first)):
        found = mean_and_deviation(pair)
        assert list(found) == ["f1", "f1-PER"]
        assert found["f1"]["mean"] == 60.0
    assert mean_and_deviation([first])["f1-MISC"] == {"mean": 0.0, "deviation": 0.0}


@pytest.mark.parametrize("content", ["{", '{"bilm": []}', '{"directory": 1}'])
def test_damaged_facts_of_a_run_are_one_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(FormatError, match=r"run\.json is"):
        read_facts(tmp_path)
    (tmp_path / "run.json").write_text('{"bilm": null, "directory": "here", "unknown": 1}')
    facts = read_facts(tmp_path)
    assert (facts.fingerprint, facts.directory) == (None, "here")


@pytest.mark.parametrize(
    ("source", "message"),
    [(f"lib/elmokit/models/{DEFAULT_MODEL}", "is a different model. Copy"), ("my/model", "Restore it")],
)
def test_another_bilm_is_refused_with_where_to_find_the_first(tmp_path: Path, source: str, message: str) -> None:
    facts = {"bilm": {"fingerprint": "1", "source": source}, "directory": "here"}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    check_bilm(tmp_path, "1")
    with pytest.raises(TrainingError, match=message):
        check_bilm(tmp_path, "2")


def test_a_directory_whose_name_is_no_seed_is_skipped(tmp_path: Path) -> None:
    for name in ("seed-10", "seed-2", "seed-²", "seed-old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").touch()
    assert finished_seeds(tmp_path) == [2, 10]
