"""Files without an end are refused wherever a file is read as a whole, and numbers of many digits."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from elmokit.errors import ElmoError
from elmokit.formats.tf_bundle import TensorBundle, is_index
from elmokit.storage.bounded import read_bounded, whole_number
from elmokit.storage.part_results import PartResults
from elmokit.storage.store_journal import read_journal
from elmokit.tasks.run_folder import read_vocabulary
from elmokit.training.run import MetricsLog
from tests.helpers.memory import less_memory_than

pytestmark = pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero")


def open_parts(folder: Path) -> None:
    with PartResults(folder, {}):
        pass


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("journal.json", read_journal),
        ("metrics.jsonl", lambda folder: MetricsLog(folder / "metrics.jsonl").records()),
        ("journal.json", open_parts),
        ("vocabulary.json", read_vocabulary),
        ("model.index", lambda folder: TensorBundle(folder / "model")),
    ],
)
def test_a_link_to_endless_zeros_is_refused(name: str, read: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(ElmoError, match="it is larger than"):
        read(tmp_path)


def test_endless_zeros_are_no_index_of_tensorflow() -> None:
    assert not is_index(Path("/dev/zero"))


def test_refusing_endless_zeros_takes_no_more_memory_than_the_limit() -> None:
    limit = 1 << 24
    with less_memory_than(1.2 * limit), pytest.raises(ValueError, match="it is larger than"):
        read_bounded("/dev/zero", limit)


def test_a_short_file_takes_no_more_memory_than_its_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    with less_memory_than(1 << 16):  # the file's buffer, and little else
        read_bounded(tmp_path / "file")


def test_a_pipe_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"abc" * 1000)  # less than a pipe holds
    os.close(writing)
    assert read_bounded(f"/dev/fd/{reading}", 3000) == b"abc" * 1000
    os.close(reading)


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert read_bounded(tmp_path / "file", 3) == b"abc"
    with pytest.raises(ValueError, match="larger than 2 bytes"):
        read_bounded(tmp_path / "file", 2)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), ("9" * 18, 10**18 - 1), ("1" * 19, None), ("1" * 5000, None), ("²", None), ("-1", None)],
    ids=range(7),
)
def test_a_whole_number_has_at_most_18_digits(text: str, number: int | None) -> None:
    assert whole_number(text) == number
