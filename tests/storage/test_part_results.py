"""Results of parts, kept across runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmokit.errors import OutputError
from elmokit.storage.part_results import PartResults


def test_a_part_is_computed_once_and_its_floats_are_kept_exactly(tmp_path: Path) -> None:
    value = {"x": 0.1 + 0.2, "nan": float("nan"), "words": ["ö"]}
    with PartResults(tmp_path / "kept", {"model": "a"}) as parts:
        assert not parts.can_resume
        first = parts.compute("one", lambda: value)
    with PartResults(tmp_path / "kept", {"model": "a"}) as parts:
        assert "one" in parts
        assert parts.can_resume
        again = parts.compute("one", lambda: pytest.fail("computed twice"))
        assert parts.compute("two", lambda: [1, 2]) == [1, 2]
    assert repr(again) == repr(first) == repr(value)


def test_parts_that_were_finished_before_an_interruption_are_kept(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    def run() -> None:
        with PartResults(tmp_path / "kept", {}) as parts:
            parts.compute("one", lambda: 1)
            parts.compute("two", interrupt)

    with pytest.raises(KeyboardInterrupt):
        run()
    with PartResults(tmp_path / "kept", {}) as parts:
        assert "one" in parts
        assert "two" not in parts


def test_results_of_another_model_are_refused(tmp_path: Path) -> None:
    with PartResults(tmp_path / "kept", {"model": "a"}) as parts:
        parts.compute("one", lambda: 1)
    other = {"model": "b"}
    with pytest.raises(OutputError, match=r"model 'a', and now it is 'b'"), PartResults(tmp_path / "kept", other):
        pass
    with PartResults(tmp_path / "kept", other, overwrite=True) as parts:
        assert "one" not in parts
        parts.compute("one", lambda: 2)
    with PartResults(tmp_path / "kept", other) as parts:
        assert parts.compute("one", lambda: 3) == 2


def test_without_a_directory_results_go_through_json_too() -> None:
    with PartResults(None, {}) as parts:
        assert parts.compute("one", lambda: {1: (2, 3)}) == {"1": [2, 3]}  # type: ignore[comparison-overlap]
        assert parts.compute("one", lambda: 5) == {"1": [2, 3]}  # type: ignore[comparison-overlap]


def test_nothing_is_left_if_no_part_was_finished(tmp_path: Path) -> None:
    with PartResults(tmp_path / "kept", {}):
        pass
    assert not (tmp_path / "kept").exists()
