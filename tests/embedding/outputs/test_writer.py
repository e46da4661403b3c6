from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

from elmokit.embedding.outputs.writer import DATA_START, ResumableWriter, WriteProgress, open_resumable, partial_folder
from elmokit.engine.state import State
from elmokit.errors import LockedError, OutputError
from elmokit.storage import resumable
from elmokit.storage.resumable import ResumableStore
from tests.helpers.killing import Killed

SETTINGS = {"layers": "all", "batch": 2048}
ONE = WriteProgress(1, 2, 0, DATA_START + 8, 123)
STATE = State(np.ones((2, 2, 1, 3), np.float32), np.full((2, 2, 1, 5), 2, np.float32))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.hdf5"


def run_killed_after_one(output: Path, state: State | None = None, commit: bool = True) -> None:
    with contextlib.suppress(Killed), open_resumable(output, SETTINGS) as writer:
        writer.write_vectors(DATA_START, np.ones(2, np.float32))
        writer.end_pool(ONE, np.array([2]), b"a b\n", state)
        if commit:
            writer.commit()
        writer.write_vectors(DATA_START + 8, np.full(2, 9.0, np.float32))
        writer.end_pool(WriteProgress(2, 4, 0, DATA_START + 16, 456), np.array([2]), b"c d\n")
        raise Killed


def content(writer: ResumableWriter) -> tuple[list[int], list[str]]:
    return np.concatenate([*writer.read_lengths(1), []]).tolist(), list(writer.read_names())


def test_a_resumed_run_has_exactly_what_was_committed(output: Path) -> None:
    run_killed_after_one(output)
    with contextlib.suppress(Killed), open_resumable(output, SETTINGS) as writer:
        assert writer.progress == ONE
        assert content(writer) == ([2], ["a b"])
        assert (partial_folder(output) / "lengths").stat().st_size == 8
        raise Killed
    assert partial_folder(output).is_dir()


def test_the_output_appears_when_the_block_ends_without_an_error(output: Path) -> None:
    with open_resumable(output, SETTINGS) as writer:
        writer.write_vectors(DATA_START, np.ones(2, np.float32))
        assert not output.exists()
    assert output.read_bytes()[DATA_START:] == np.ones(2, np.float32).tobytes()
    assert [path.name for path in output.parent.iterdir()] == ["out.hdf5"]


def test_a_run_without_commits_leaves_nothing_behind(output: Path) -> None:
    run_killed_after_one(output, commit=False)
    assert not list(output.parent.iterdir())


def test_a_commit_is_made_after_some_seconds(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable, "COMMIT_SECONDS", 0.0)
    with contextlib.suppress(Killed), open_resumable(output, SETTINGS) as writer:
        writer.end_batch(7)
        writer.end_batch(7)
        raise Killed
    with open_resumable(output, SETTINGS) as writer:
        assert writer.progress == WriteProgress(n_batches=2, pool_checksum=7)


def test_discarding_batches_is_committed_at_once(output: Path) -> None:
    with contextlib.suppress(Killed), open_resumable(output, SETTINGS) as writer:
        writer.end_pool(ONE, np.array([2]), b"a b\n")
        writer.write_vectors(DATA_START, np.ones(4, np.float32))
        writer.end_batch(7)
        writer.commit()
        writer.discard_batches()
        writer.end_batch(8)
        assert writer.progress.n_batches == 1
        raise Killed
    with open_resumable(output, SETTINGS) as writer:
        assert writer.progress == ONE


def test_the_lstm_state_is_stored_with_the_progress_it_belongs_to(output: Path) -> None:
    run_killed_after_one(output, STATE)
    assert [path.name for path in partial_folder(output).glob("state-*")] == ["state-1"]
    with open_resumable(output, SETTINGS) as writer:
        assert writer.state is not None
        np.testing.assert_array_equal(writer.state.cell, STATE.cell)
        np.testing.assert_array_equal(writer.state.hidden, STATE.hidden)


def test_a_partial_output_is_discarded_only_on_request(output: Path) -> None:
    run_killed_after_one(output)
    with contextlib.suppress(Killed), open_resumable(output, SETTINGS) as writer:
        assert writer.progress == ONE
        raise Killed
    with open_resumable(output, SETTINGS, overwrite=True) as writer:
        assert writer.progress == WriteProgress()


def test_resuming_requires_the_same_settings(output: Path) -> None:
    run_killed_after_one(output)
    with (
        pytest.raises(OutputError, match="was created with layers 'all', but this run has layers 'top'"),
        open_resumable(output, SETTINGS | {"layers": "top"}),
    ):
        pass
    with open_resumable(output, SETTINGS) as writer:
        assert writer.progress == ONE


def test_two_runs_cannot_write_one_output(output: Path) -> None:
    pytest.importorskip("fcntl")
    with open_resumable(output, SETTINGS) as first:
        first.end_batch(7)
        with pytest.raises(LockedError, match="being written by another process"), open_resumable(output, SETTINGS):
            pass
        assert partial_folder(output).is_dir()


def test_leftovers_of_a_complete_output_are_not_resumed(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_killed_after_one(output)
    with monkeypatch.context() as killed, open_resumable(output, SETTINGS):
        killed.setattr(ResumableStore, "_remove", lambda self: None)
    assert (partial_folder(output) / "journal.json").exists()
    with pytest.raises(OutputError, match="already exists"), open_resumable(output, SETTINGS):
        pass
    output.unlink()
    with open_resumable(output, SETTINGS) as writer:
        assert writer.progress == WriteProgress()
    assert not partial_folder(output).exists()


def test_a_run_that_overwrites_is_resumed_without_overwrite(output: Path) -> None:
    output.write_text("an earlier output")
    with contextlib.suppress(Killed), open_resumable(output, SETTINGS, overwrite=True) as writer:
        writer.end_pool(ONE, np.array([1]), b"cat\n")
        writer.commit()
        raise Killed
    assert output.read_text() == "an earlier output"
    with open_resumable(output, SETTINGS) as writer:
        assert writer.progress == ONE
    assert output.read_bytes() != b"an earlier output"


@pytest.mark.parametrize("name", ["lengths", "names", "vectors.hdf5"])
def test_a_file_cut_short_is_an_error(output: Path, name: str) -> None:
    run_killed_after_one(output)
    (partial_folder(output) / name).write_bytes(b"")
    with pytest.raises(OutputError, match=f"{name} is damaged"), open_resumable(output, SETTINGS):
        pass
    assert (partial_folder(output) / "journal.json").exists()


def test_a_damaged_journal_is_an_error_and_is_overwritten_on_request(output: Path) -> None:
    run_killed_after_one(output)
    for text in ("{", "[]", json.dumps({"settings": SETTINGS, "progress": {"n_sentences": "many"}})):
        (partial_folder(output) / "journal.json").write_text(text)
        with (
            pytest.raises(OutputError, match=r"journal\.json is damaged"),
            open_resumable(output, SETTINGS),
        ):
            pass
    with open_resumable(output, SETTINGS, overwrite=True) as writer:
        assert writer.progress == WriteProgress()


def test_a_disk_error_says_what_is_kept(output: Path) -> None:
    def fail(commit: bool) -> None:
        with open_resumable(output, SETTINGS) as writer:
            writer.write_vectors(DATA_START, np.ones(2, np.float32))
            writer.end_pool(ONE, np.array([2]), b"a b\n")
            if commit:
                writer.commit()
            raise OSError(28, "No space left on device")

    with pytest.raises(
        OutputError, match=r"failed: No space left on device\. Nothing was committed; existing outputs are unchanged"
    ):
        fail(commit=False)
    with pytest.raises(
        OutputError,
        match=r"out\.hdf5\.partial failed.*Completed work is kept there. Fix the cause, then run the same command",
    ):
        fail(commit=True)


def test_paths_that_cannot_be_written_are_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Cannot write to"), open_resumable(tmp_path / "file" / "out.hdf5", SETTINGS):
        pass
    with pytest.raises(OutputError, match="is a directory"), open_resumable(tmp_path, SETTINGS, overwrite=True):
        pass
    too_long = tmp_path / ("x" * 250)  # a name for most file systems, but not with ``.partial`` at its end
    with pytest.raises(OutputError, match="x: File name too long"), open_resumable(too_long, SETTINGS):
        pass
