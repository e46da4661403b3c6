"""Results of parts, kept across runs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from elmokit.errors import OutputError
from elmokit.storage.part_results import PartResults


def test_a_part_is_computed_once_and_its_floats_are_kept_exactly(tmp_path: Path) -> None:
    value = {"x": 0.1 + 0.2, "nan": float("nan"), "words": ["\u00f6"], "pair": (2, 3)}

    def interrupt() -> None:
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt), PartResults(tmp_path / "kept", {"model": "a"}) as parts:
        assert not parts.can_resume
        first = parts.compute("one", lambda: value)
        parts.compute("two", interrupt)
    with PartResults(tmp_path / "kept", {"model": "a"}) as parts:
        assert ("one" in parts, "two" in parts, parts.can_resume) == (True, False, True)
        again = parts.compute("one", lambda: pytest.fail("computed twice"))
    with PartResults(None, {}) as parts:
        in_memory = parts.compute("one", lambda: value)
    assert repr(again) == repr(first) == repr(in_memory) == repr(value | {"pair": [2, 3]})


def test_results_of_another_model_are_refused(tmp_path: Path) -> None:
    with PartResults(tmp_path / "kept", {"model": "a"}) as parts:
        parts.compute("one", lambda: 1)
    other = {"model": "b"}
    with pytest.raises(OutputError, match=r"model 'a', and now it is 'b'"), PartResults(tmp_path / "kept", other):
        pass
    with PartResults(tmp_path / "kept", other, overwrite=True) as parts:
        assert "one" not in parts
