from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from elmokit.embedding.outputs.writer import DATA_START, ResumableWriter, WriteProgress, open_resumable, partial_folder
from elmokit.engine.state import State
from elmokit.errors import LockedError
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


def test_two_runs_cannot_write_one_output(output: Path) -> None:
    pytest.importorskip("fcntl")
    with open_resumable(output, SETTINGS) as first:
        first.end_batch(7)
        with pytest.raises(LockedError, match="being written by another process"), open_resumable(output, SETTINGS):
            pass
        assert partial_folder(output).is_dir()


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
