"""What a run's folder says: its results."""

from __future__ import annotations

from elmokit.tasks.run_folder import mean_and_deviation


def test_seeds_are_summed_up_by_the_scores_that_all_of_them_have() -> None:
    first, second = {"f1": 50.0, "f1-PER": 40.0, "f1-MISC": 0.0}, {"f1": 70.0, "f1-PER": 40.0}
    for pair in ((first, second), (second, first)):
        found = mean_and_deviation(pair)
        assert list(found) == ["f1", "f1-PER"]
        assert found["f1"]["mean"] == 60.0
    assert mean_and_deviation([first])["f1-MISC"] == {"mean": 0.0, "deviation": 0.0}
