from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit.errors import LockedError, OutputError
from elmokit.storage import resumable
from elmokit.storage.checksums import json_crc32
from elmokit.storage.resumable import ResumableStore
from elmokit.storage.store_journal import JOURNAL, read_store

SETTINGS = {"what": "numbers", "layers": (0, 2)}


def with_checksum(table: dict[str, Any]) -> str:
    return json.dumps(table | {"crc32": json_crc32(table)})


class Interrupted(BaseException):
    """Ends a run in the middle."""


def interrupted_run(folder: Path) -> None:
    with contextlib.suppress(Interrupted), ResumableStore(folder, SETTINGS) as store:
        store.append("rows", np.arange(4, dtype="<i4"))
        store.commit({"n_done": 2}, state=b"after two")
        store.append("rows", np.arange(99, dtype="<i4"))
        store.append("other", b"never committed")
        raise Interrupted


def test_an_interrupted_run_resumes_at_the_last_commit(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    interrupted_run(folder)
    with ResumableStore(folder, SETTINGS) as store:
        assert (store.progress, store.finished, store.committed.read_state()) == ({"n_done": 2}, False, b"after two")
        assert (store.size("rows"), store.size("other")) == (16, 0)
        store.append("rows", np.array([4, 5], dtype="<i4"))
        store.append("words", b"new\n")
        store.commit({"n_done": 3}, finished=True)
    contents = read_store(folder)
    assert (contents.progress, contents.finished, contents.read_state()) == ({"n_done": 3}, True, None)
    assert contents.settings == {"what": "numbers", "layers": [0, 2]}
    np.testing.assert_array_equal(contents.memory_map("rows", "<i4", 2), [[0, 1], [2, 3], [4, 5]])
    assert contents.memory_map("nothing", "<i4", 2).shape == (0, 2)
    assert contents.read_bytes("words") == b"new\n"
    assert not list(folder.glob("state-*"))


def test_data_can_be_written_in_any_order(tmp_path: Path) -> None:
    with ResumableStore(tmp_path / "store", SETTINGS) as store:
        store.write_at("rows", 8, np.array([2, 3], dtype="<i4"))
        store.commit({"n_done": 1})
        store.write_at("rows", 0, np.array([0, 1], dtype="<i4"))
        store.append("rows", np.array([4], dtype="<i4"))
        store.commit({"n_done": 2}, truncate={"rows": 12})
    np.testing.assert_array_equal(read_store(tmp_path / "store").memory_map("rows", "<i4"), [0, 1, 2])


def test_readers_see_what_is_committed_while_a_writer_appends(tmp_path: Path) -> None:
    with ResumableStore(tmp_path / "store", SETTINGS) as store:
        store.append("rows", np.arange(3, dtype="<i4"))
        store.commit({"n_done": 1})
        before = read_store(tmp_path / "store").memory_map("rows", "<i4")
        store.append("rows", np.arange(3, 6, dtype="<i4"))
        assert len(read_store(tmp_path / "store").memory_map("rows", "<i4")) == 3
        store.commit({"n_done": 2})
        assert len(read_store(tmp_path / "store").memory_map("rows", "<i4")) == 6
        assert before.tolist() == [0, 1, 2]


def test_a_run_without_commits_leaves_nothing_behind(tmp_path: Path) -> None:
    with contextlib.suppress(Interrupted), ResumableStore(tmp_path / "store", SETTINGS) as store:
        store.append("rows", b"1234")
        raise Interrupted
    assert not list(tmp_path.iterdir())


def test_commits_are_due_after_some_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ResumableStore(tmp_path / "store", SETTINGS) as store:
        assert not store.commit_is_due()
        monkeypatch.setattr(resumable, "COMMIT_SECONDS", 0.0)
        assert store.commit_is_due()


def test_other_settings_are_refused(tmp_path: Path) -> None:
    interrupted_run(tmp_path / "store")
    others = SETTINGS | {"what": "letters"}
    with (
        pytest.raises(OutputError, match=r"what 'numbers'.*what 'letters'"),
        ResumableStore(tmp_path / "store", others),
    ):
        pass
    with ResumableStore(tmp_path / "store", SETTINGS) as store:
        assert store.progress == {"n_done": 2}


def test_committed_data_is_discarded_on_request(tmp_path: Path) -> None:
    interrupted_run(tmp_path / "store")
    with ResumableStore(tmp_path / "store", {"what": "letters"}, overwrite=True) as store:
        assert (store.progress, store.size("rows")) == ({}, 0)


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    for path in (folder, folder / "thesis.txt"):
        with pytest.raises(OutputError, match="is not an elmokit output"), ResumableStore(path, SETTINGS):
            pass
    assert [file.name for file in folder.iterdir()] == ["thesis.txt"]
    with pytest.raises(OutputError, match="Cannot write to"), ResumableStore(folder / "thesis.txt" / "f", SETTINGS):
        pass


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    with ResumableStore(tmp_path / "store", SETTINGS) as first:
        first.commit({"n_done": 1})
        with pytest.raises(LockedError, match="Another process is writing"), ResumableStore(first.folder, SETTINGS):
            pass
    with ResumableStore(tmp_path / "store", SETTINGS) as store:
        assert store.progress == {"n_done": 1}


def test_a_second_writer_can_wait_for_the_first(tmp_path: Path) -> None:
    code = (
        "import sys, time; from elmokit.storage.resumable import ResumableStore\n"
        "with ResumableStore(sys.argv[1], {}) as store:\n"
        "    store.commit({'n_done': 1}); print('ready', flush=True); time.sleep(0.5); store.commit({'n_done': 2})"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with ResumableStore(tmp_path / "store", {}, wait=True) as store:
            assert store.progress == {"n_done": 2}


def test_a_published_file_leaves_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> dict[str, object]:
        with ResumableStore(tmp_path / "store", SETTINGS) as store:
            before = store.progress
            store.append("rows", b"1234")
            store.commit({"n_done": 1})
            store.publish("rows", tmp_path / "out")
        return before

    with monkeypatch.context() as patch:  # the process dies between the move and the removal
        patch.setattr(ResumableStore, "_remove", lambda self: None)
        run()
    assert (tmp_path / "store" / JOURNAL).exists()
    assert run() == {}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_bytes() == b"1234"


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    interrupted_run(tmp_path / "store")
    rows = tmp_path / "store" / "rows"
    for damage in (partial(os.truncate, rows, 2), rows.unlink):
        damage()
        with pytest.raises(OutputError, match=r"rows is damaged .*cut short"):
            read_store(tmp_path / "store").memory_map("rows", "<i4")
        with pytest.raises(OutputError, match="rows is damaged"), ResumableStore(tmp_path / "store", SETTINGS):
            pass


@pytest.mark.parametrize("name", ["rows", "state-1", "checksums", JOURNAL])
def test_a_changed_byte_is_noticed_on_resume(tmp_path: Path, name: str) -> None:
    path = tmp_path / "store" / name
    interrupted_run(tmp_path / "store")
    whole = path.read_bytes()
    for offset in range(0, len(whole) if name != "rows" else 16, 5):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 4]) + whole[offset + 1 :])
        with (
            pytest.raises(OutputError, match="is damaged"),
            ResumableStore(tmp_path / "store", SETTINGS) as store,
        ):
            store.committed.read_state()
    path.write_bytes(whole)
    with ResumableStore(tmp_path / "store", SETTINGS) as store:
        assert store.committed.read_state() == b"after two"


def test_checksums_follow_data_that_is_written_out_of_order_and_cut(tmp_path: Path) -> None:
    def write(offset: int, data: bytes) -> None:
        store.write_at("rows", offset, data)

    with ResumableStore(tmp_path / "store", {}) as store:
        write(8, b"cccc")
        store.commit({"n": 1})
        write(0, b"aaaa")
        write(4, b"bbbb")
        write(12, b"dddd")
        store.commit({"n": 2})
        store.commit({"n": 3}, truncate={"rows": 6})
        write(6, b"BBCCC")
        store.append("other", b"1")
        store.commit({"n": 4})
        write(20, b"not committed")
    with ResumableStore(tmp_path / "store", {}) as store:
        contents = store.committed
        assert contents.read_bytes("rows") == b"aaaabbBBCCC"
    path = tmp_path / "store" / "rows"
    for offset in (0, 3, 6, 10):  # bytes 4 and 5 belong to an extent that was cut
        path.write_bytes(b"aaaabbBBCCC"[:offset] + b"?" + b"aaaabbBBCCC"[offset + 1 :])
        with pytest.raises(OutputError, match=r"rows is damaged .*bytes \d+ to \d+"):
            contents.verify()
        contents.verify(["other"])
    path.unlink()
    with pytest.raises(OutputError, match="rows is damaged"):
        contents.verify()


def test_a_directory_that_holds_only_a_lock_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "lock").touch()
    with ResumableStore(tmp_path / "store", SETTINGS) as store:
        store.commit({"n_done": 1})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 100_000,
        "[]",
        "\xff",
        '{"\xff": 1}',
        '{"settings": {}, "sizes": {}}',
        with_checksum({"settings": {}, "done": 0, "sizes": "many"}),
        with_checksum({"settings": {}, "sizes": {"../a": 1}}),  # outside of the directory
        with_checksum({"settings": {}, "sizes": {"a": -1}}),
    ],
)
def test_a_damaged_journal_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / JOURNAL).write_text(content, encoding="latin-1")
    with pytest.raises(OutputError, match=r"journal\.json is damaged"):
        read_store(tmp_path)
    with pytest.raises(OutputError, match=r"journal\.json is damaged"), ResumableStore(tmp_path, SETTINGS):
        pass
    with pytest.raises(OutputError, match=r"has no journal\.json"):
        read_store(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("commit", "delete", "kept"),
    [
        (False, False, "Nothing was committed"),
        (True, False, "Completed work is kept"),
        (True, True, "deleted or moved"),
    ],
)
def test_a_disk_error_says_what_is_kept(tmp_path: Path, commit: bool, delete: bool, kept: str) -> None:
    def fail() -> None:
        with ResumableStore(tmp_path / "store", SETTINGS) as store:
            store.append("rows", b"1")
            if commit:
                store.commit({"n_done": 1})
            if delete:
                shutil.rmtree(tmp_path / "store")
            raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match=f"No space left on device.*{kept}"):
        fail()
