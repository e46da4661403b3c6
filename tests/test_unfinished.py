from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.bilm import BiLMState
from elmokit.corpus import unfinished as module
from elmokit.corpus.hdf5_format import DATA_START
from elmokit.corpus.unfinished import Done, ResumableWriter, begun, partial_folder
from elmokit.errors import OutputError

SETTINGS = {"layers": "all", "batch": 2048}
ONE = Done(1, 2, 0, DATA_START + 8, 4, 123)
STATE = BiLMState(torch.ones(2, 2, 1, 3), torch.full((2, 2, 1, 5), 2.0))


class Killed(BaseException):
    """What ends a run in the middle here."""


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.hdf5"


def run_killed_after_one(output: Path, state: BiLMState | None = None, commit: bool = True) -> None:
    with contextlib.suppress(Killed), begun(output, SETTINGS) as unfinished:
        unfinished.write(DATA_START, np.ones(2, np.float32))
        unfinished.end_pool(ONE, np.array([2]), b"a b\n", state)
        if commit:
            unfinished.commit()
        unfinished.write(DATA_START + 8, np.full(2, 9.0, np.float32))
        unfinished.end_pool(Done(2, 4, 0, DATA_START + 16, 8, 456), np.array([2]), b"c d\n")
        raise Killed


def content(unfinished: ResumableWriter) -> tuple[list[int], list[str]]:
    return np.concatenate([*unfinished.read_lengths(1), []]).tolist(), list(unfinished.read_names())


def test_what_was_committed_is_there_again_and_nothing_more(output: Path) -> None:
    run_killed_after_one(output)
    with contextlib.suppress(Killed), begun(output, SETTINGS, resume=True) as unfinished:
        assert unfinished.done == ONE
        assert content(unfinished) == ([2], ["a b"])
        assert (partial_folder(output) / "lengths").stat().st_size == 8
        raise Killed
    assert partial_folder(output).is_dir()


def test_an_output_appears_when_the_block_ends_well(output: Path) -> None:
    with begun(output, SETTINGS) as unfinished:
        unfinished.write(DATA_START, np.ones(2, np.float32))
        assert not output.exists()
    assert output.read_bytes()[DATA_START:] == np.ones(2, np.float32).tobytes()
    assert [path.name for path in output.parent.iterdir()] == ["out.hdf5"]


def test_nothing_committed_leaves_nothing_behind(output: Path) -> None:
    run_killed_after_one(output, commit=False)
    assert not list(output.parent.iterdir())


def test_a_commit_comes_by_itself_after_some_seconds(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_SECONDS", 0.0)
    with contextlib.suppress(Killed), begun(output, SETTINGS) as unfinished:
        unfinished.end_batch(7)
        unfinished.end_batch(7)
        assert unfinished.committed.n_batches == 2
        raise Killed
    with begun(output, SETTINGS, resume=True) as unfinished:
        assert unfinished.done == Done(n_batches=2, pool_checksum=7)


def test_batches_that_are_forgotten_are_forgotten_at_once(output: Path) -> None:
    with contextlib.suppress(Killed), begun(output, SETTINGS) as unfinished:
        unfinished.end_pool(ONE, np.array([2]), b"a b\n")
        unfinished.write(DATA_START, np.ones(4, np.float32))
        unfinished.end_batch(7)
        unfinished.commit()
        unfinished.forget_batches()
        unfinished.end_batch(8)
        assert unfinished.done.n_batches == 1
        raise Killed
    with begun(output, SETTINGS, resume=True) as unfinished:
        assert unfinished.done == ONE


def test_the_state_is_kept_with_what_it_belongs_to(output: Path) -> None:
    run_killed_after_one(output, STATE)
    assert [path.name for path in partial_folder(output).glob("state-*")] == ["state-1"]
    with begun(output, SETTINGS, resume=True) as unfinished:
        assert unfinished.state is not None
        assert torch.equal(unfinished.state.cell, STATE.cell)
        assert torch.equal(unfinished.state.hidden, STATE.hidden)


def test_an_unfinished_run_is_not_lost_unasked(output: Path) -> None:
    run_killed_after_one(output)
    with pytest.raises(OutputError, match="holds an unfinished run, 1 sentences"), begun(output, SETTINGS):
        pass
    with begun(output, SETTINGS, overwrite=True) as unfinished:
        assert unfinished.done == Done()


def test_resuming_wants_the_same_settings(output: Path) -> None:
    run_killed_after_one(output)
    with (
        pytest.raises(OutputError, match="was begun with layers 'all', and now it is 'top'"),
        begun(output, SETTINGS | {"layers": "top"}, resume=True),
    ):
        pass
    with begun(output, SETTINGS, resume=True) as unfinished:
        assert unfinished.done == ONE


def test_two_cannot_write_one_output(output: Path) -> None:
    pytest.importorskip("fcntl")
    with begun(output, SETTINGS) as first:
        first.end_batch(7)
        with pytest.raises(OutputError, match="being written by another process"), begun(output, SETTINGS):
            pass
        assert first.folder.is_dir()


def test_what_a_kill_left_behind_a_complete_output_is_nothing_to_go_on_from(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_killed_after_one(output)
    with monkeypatch.context() as killed, begun(output, SETTINGS, resume=True):
        killed.setattr(module, "_remove", lambda folder: None)
    assert (partial_folder(output) / "journal.json").exists()
    with begun(output, SETTINGS, resume=True, overwrite=True) as unfinished:
        assert unfinished.done == Done()
    assert not partial_folder(output).exists()


@pytest.mark.parametrize("name", ["lengths", "names", "vectors.hdf5"])
def test_a_file_cut_short_is_said(output: Path, name: str) -> None:
    run_killed_after_one(output)
    (partial_folder(output) / name).write_bytes(b"")
    with pytest.raises(OutputError, match=f"{name} is cut short"), begun(output, SETTINGS, resume=True):
        pass
    assert (partial_folder(output) / "journal.json").exists()


def test_a_damaged_journal_is_said_and_overwritten_on_request(output: Path) -> None:
    run_killed_after_one(output)
    for text in ("{", "[]", json.dumps({"settings": SETTINGS, "done": {"n_sentences": "many"}})):
        (partial_folder(output) / "journal.json").write_text(text)
        with pytest.raises(OutputError, match=r"journal\.json is damaged"), begun(output, SETTINGS, resume=True):
            pass
    with begun(output, SETTINGS, overwrite=True) as unfinished:
        assert unfinished.done == Done()


def test_an_error_of_the_disk_says_what_is_kept(output: Path) -> None:
    def fail(commit: bool) -> None:
        with begun(output, SETTINGS) as unfinished:
            unfinished.write(DATA_START, np.ones(2, np.float32))
            unfinished.end_pool(ONE, np.array([2]), b"a b\n")
            if commit:
                unfinished.commit()
            raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match=r"failed: No space left on device\. What stood there before is untouched"):
        fail(commit=False)
    with pytest.raises(OutputError, match=r"What was done is kept in .*out\.hdf5\.partial: mend it and go on with"):
        fail(commit=True)


def test_places_that_cannot_be_written_are_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Cannot write to"), begun(tmp_path / "file" / "out.hdf5", SETTINGS):
        pass
    with pytest.raises(OutputError, match="is a folder"), begun(tmp_path, SETTINGS, overwrite=True):
        pass
