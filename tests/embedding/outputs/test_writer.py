from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from elmokit.embedding.outputs.writer import ResumableWriter, format_bytes, open_resumable, partial_folder
from elmokit.embedding.reading import CorpusSentence
from elmokit.engine.state import State
from elmokit.errors import OutputError, TextError
from tests.helpers.killing import Killed

SETTINGS = {"layers": "all", "batch": 2048}
STATE = State(np.ones((2, 2, 1, 3), np.float32), np.full((2, 2, 1, 5), 2, np.float32))
TEXT = [CorpusSentence("a b", ["a", "b"], "a b"), CorpusSentence("", [], ""), CorpusSentence("c\r", ["c\r"], "c\r")]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.npz"


def run_killed_after_one(output: Path, state: State | None = None, overwrite: bool = False) -> None:
    with contextlib.suppress(Killed), open_resumable(output, SETTINGS, overwrite) as writer:
        writer.read_text(TEXT)
        writer.write_vectors(0, np.ones(2, np.float32))
        writer.end_pool(1, 2, state)
        writer.end_batch()
        writer.commit()
        writer.write_vectors(8, np.full(2, 9.0, np.float32))
        writer.end_pool(1, 0)
        raise Killed


def done(writer: ResumableWriter) -> tuple[int, int, int]:
    return writer.progress.n_sentences, writer.progress.n_tokens, writer.progress.n_batches


@pytest.mark.parametrize("text", [TEXT[:2], [*TEXT, TEXT[0]], [TEXT[1], TEXT[0], TEXT[2]], []])
def test_another_text_is_not_resumed(output: Path, text: list[CorpusSentence]) -> None:
    run_killed_after_one(output)
    with pytest.raises(TextError, match="differs from that"), open_resumable(output, SETTINGS) as writer:
        writer.read_text(text)
    assert partial_folder(output).is_dir()


def test_a_long_text_is_read_with_and_without_a_report_of_it(output: Path) -> None:
    corpus, seen = TEXT * 700, []
    for report in (None, lambda stage, done, total: seen.append(done)):
        with open_resumable(output, SETTINGS, overwrite=True) as writer:
            assert writer.read_text(corpus, report).n_sentences == 2100
    assert seen == [1000, 2000]


def test_the_lstm_state_is_stored_with_the_progress_it_belongs_to(output: Path) -> None:
    run_killed_after_one(output, STATE)
    with open_resumable(output, SETTINGS) as writer:
        np.testing.assert_array_equal(writer.state.cell, STATE.cell)
        np.testing.assert_array_equal(writer.state.hidden, STATE.hidden)


def test_a_run_that_overwrites_is_resumed_without_overwrite(output: Path) -> None:
    output.write_text("an earlier output")
    run_killed_after_one(output, overwrite=True)
    assert output.read_text() == "an earlier output"
    with open_resumable(output, SETTINGS) as writer:
        assert done(writer) == (1, 2, 1)
    assert output.read_bytes() != b"an earlier output"


def test_an_output_that_appeared_beside_a_partial_one_is_kept(output: Path) -> None:
    run_killed_after_one(output)
    output.write_text("of another program")
    with pytest.raises(OutputError, match="already exists"), open_resumable(output, SETTINGS):
        pytest.fail("the block must not run")
    assert output.read_text() == "of another program"


def test_sizes_are_short() -> None:
    assert [format_bytes(n) for n in (0, 999, 1600, 242_000_000, 2.5e15)] == [
        *("0 bytes", "999 bytes", "1.6 kB", "242 MB", "2,500.0 TB")
    ]
