from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.embedder import Elmo
from elmokit.errors import ConfigError, OutputError
from elmokit.probes import growing
from elmokit.probes.growing import GrowingFolder, chunks, mapped, model_digest, read_record, text_digest
from tests.conftest import random_model

SIZES = '{"about": {}, "done": 0, "finished": true, "sizes": {"a": "b"}}'
ABOUT = {"what": "numbers", "n": 3}


def test_half_a_chunk_never_stays(tmp_path: Path) -> None:
    with GrowingFolder(tmp_path / "f", ABOUT) as folder:
        folder.append("rows", np.arange(4, dtype="<i4"))
        folder.commit(2)
        folder.append("rows", np.arange(99, dtype="<i4"))  # killed before the commit
    with GrowingFolder(tmp_path / "f", ABOUT) as folder:
        assert (folder.done, folder.finished) == (2, False)
        folder.append("rows", np.array([4, 5], dtype="<i4"))
        folder.append("words", b"new\n")
        folder.commit(3, finished=True)
    record = read_record(tmp_path / "f")
    assert (record["done"], record["finished"]) == (3, True)
    rows = mapped(tmp_path / "f", "rows", "<i4", record["sizes"], 2)
    np.testing.assert_array_equal(rows, [[0, 1], [2, 3], [4, 5]])
    assert mapped(tmp_path / "f", "nothing", "<i4", record["sizes"], 2).shape == (0, 2)


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match="holds something else"):
        GrowingFolder(tmp_path / "f", ABOUT)
    with pytest.raises(OutputError, match="holds something else"):
        GrowingFolder(tmp_path / "f" / "thesis.txt", ABOUT)
    assert [file.name for file in (tmp_path / "f").iterdir()] == ["thesis.txt"]
    GrowingFolder(tmp_path / "g", ABOUT).__exit__()
    with pytest.raises(OutputError, match=r"it differs in: extra, n\)"):
        GrowingFolder(tmp_path / "g", {"what": "numbers", "n": 4, "extra": 1})
    GrowingFolder(tmp_path / "g", ABOUT).__exit__()


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with (
        GrowingFolder(tmp_path / "f", ABOUT),
        pytest.raises(OutputError, match="Another process is writing"),
    ):
        GrowingFolder(tmp_path / "f", ABOUT)
    GrowingFolder(tmp_path / "f", ABOUT).__exit__()


@pytest.mark.parametrize(
    "content", ["", "[]", '{"about": {}}', "\xff", '{"about": {}, "done": 0, "finished": true, "sizes": {"a": "b"}}']
)
def test_a_damaged_record_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "record.json").write_text(content, encoding="latin-1")
    with pytest.raises(OutputError, match="Delete the folder"):
        read_record(tmp_path)
    with pytest.raises(OutputError, match="no folder that elmokit made"):
        read_record(tmp_path / "nowhere")


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b"12")
    with pytest.raises(OutputError, match="missing or cut short"):
        mapped(tmp_path, "rows", "<i4", {"rows": 8})
    with pytest.raises(OutputError, match="missing or cut short"):
        mapped(tmp_path, "gone", "<i4", {"gone": 8})


@given(st.lists(st.integers(0, 20)), st.integers(1, 30), st.integers(0, 10))
def test_chunks_hold_everything_in_order_and_are_the_same_after_a_kill(
    lengths: list[int], limit: int, n_done: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "CHUNK_TOKENS", limit)
        whole = list(chunks(lengths, int))
        assert [length for chunk in whole for length in chunk] == lengths
        assert all(sum(chunk) <= limit or len(chunk) == 1 for chunk in whole)
        n_kept = sum(map(len, whole[:n_done]))
        assert list(chunks(lengths[n_kept:], int)) == whole[n_done:]


def test_digests_are_equal_for_equals_only() -> None:
    elmo = Elmo(random_model())
    assert model_digest(elmo) == model_digest(Elmo(random_model()))
    assert model_digest(elmo) != model_digest(Elmo(random_model(seed=1)))
    assert model_digest(elmo) != model_digest(Elmo(random_model(), start="zero"))
    assert text_digest([["a", "b"], ["c"]]) == text_digest([["a", "b"], ["c"]])
    assert text_digest([["a", "b"], ["c"]]) != text_digest([["a"], ["b", "c"]])
    assert text_digest([["ab"]]) != text_digest([["a", "b"]])
    with pytest.raises(ConfigError, match="depend on the sentences before"):
        model_digest(Elmo(random_model(), start="stateful"))


def test_the_record_is_plain_json(tmp_path: Path) -> None:
    GrowingFolder(tmp_path / "f", ABOUT).__exit__()
    content = json.loads((tmp_path / "f" / "record.json").read_text())
    assert content == {"about": ABOUT, "done": 0, "finished": False, "sizes": {}}
