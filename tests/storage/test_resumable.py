from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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
    with (
        pytest.raises(OutputError, match="was created with what 'numbers', but this run has what 'letters'"),
        ResumableStore(tmp_path / "store", SETTINGS | {"what": "letters"}),
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


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grant every lock, as some network file systems do."""

    @contextlib.contextmanager
    def granted(path: Path, message: str | None = None, wait: bool = False) -> Iterator[None]:
        path.parent.mkdir(exist_ok=True)
        yield

    monkeypatch.setattr(resumable, "file_lock", granted)


@pytest.mark.usefixtures("without_locks")
@pytest.mark.parametrize("finish", [True, False])
def test_a_writer_stops_when_another_has_opened_its_store_without_a_lock(tmp_path: Path, finish: bool) -> None:
    rows = np.arange(4, dtype="<i4")

    def end(store: ResumableStore) -> None:
        if finish:
            store.publish("rows", tmp_path / "rows")
        else:
            store.append("rows", np.arange(9, dtype="<i4"))
            store.commit({"n_done": 9})

    with ResumableStore(tmp_path / "store", SETTINGS) as first:
        first.append("rows", rows)
        first.commit({"n_done": 1})
        with ResumableStore(tmp_path / "store", SETTINGS) as second:
            second.append("rows", rows)
            second.commit({"n_done": 2})
            with pytest.raises(LockedError, match="Another process is writing"):
                end(first)
    assert not (tmp_path / "rows").exists()
    with ResumableStore(tmp_path / "store", SETTINGS) as third:
        assert third.progress == {"n_done": 2}
        third.publish("rows", tmp_path / "rows")
    assert (tmp_path / "rows").read_bytes() == rows.tobytes() * 2


@pytest.mark.usefixtures("without_locks")
@pytest.mark.parametrize("finish", [True, False])
def test_what_another_writer_damaged_without_a_lock_is_not_published(tmp_path: Path, finish: bool) -> None:
    interrupted_run(tmp_path / "store")
    (tmp_path / "store" / resumable.OWNER).write_bytes(b"other")  # of a process that is killed, or still runs

    def end(store: ResumableStore) -> None:
        if finish:
            store.commit({"n_done": 4}, finished=True)
        else:
            store.publish("rows", tmp_path / "rows")

    with ResumableStore(tmp_path / "store", SETTINGS) as store:
        store.append("rows", np.arange(4, dtype="<i4"))
        store.commit({"n_done": 3})
        (tmp_path / "store" / "rows").write_bytes(bytes(32))  # what a writer does that has not yet noticed
        with pytest.raises(OutputError, match=r"is damaged: bytes 0 to 16 .* Another process may have written to it"):
            end(store)
    assert not (tmp_path / "rows").exists()
    with pytest.raises(OutputError, match="is damaged"), ResumableStore(tmp_path / "store", SETTINGS):
        pass


@pytest.mark.usefixtures("without_locks")
@pytest.mark.parametrize("is_first", [True, False])
def test_a_writer_that_fails_does_not_remove_what_another_needs(tmp_path: Path, is_first: bool) -> None:
    first, second = (ResumableStore(tmp_path / "store", SETTINGS).__enter__() for _ in range(2))
    for store in (first, second):
        store.append("rows" if store is first else "words", b"of one of them")
    error = FileNotFoundError(2, "the other one has renamed it")
    with pytest.raises(OutputError):
        (first if is_first else second).__exit__(FileNotFoundError, error, None)
    with contextlib.nullcontext() if is_first else pytest.raises(LockedError):
        (second if is_first else first).commit({"n_done": 1})
    (second if is_first else first).__exit__(None, None, None)
    with ResumableStore(tmp_path / "store", SETTINGS) as store:
        assert store.progress == ({"n_done": 1} if is_first else {})
        store.append("rows", np.arange(4, dtype="<i4"))
        store.publish("rows", tmp_path / "rows")


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
    for content in (b"12", None):
        if content is None:
            (tmp_path / "store" / "rows").unlink()
        else:
            (tmp_path / "store" / "rows").write_bytes(content)
        with pytest.raises(OutputError, match="missing or cut short"):
            read_store(tmp_path / "store").memory_map("rows", "<i4")
        with pytest.raises(OutputError, match="rows is cut short"), ResumableStore(tmp_path / "store", SETTINGS):
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
        with pytest.raises(OutputError, match=r"rows is damaged: bytes \d+ to \d+ are not those that were written"):
            contents.verify()
        contents.verify(["other"])
    path.unlink()
    with pytest.raises(OutputError, match="cannot be read"):
        contents.verify()


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_that_is_killed_at_any_write_can_be_resumed(tmp_path: Path, overwrite: bool) -> None:
    def run(overwrite: bool = False) -> None:
        with ResumableStore(tmp_path / "store", SETTINGS, overwrite=overwrite) as store:
            for n in range(store.progress.get("n_done", 0), 3):
                store.write_at("rows", 4 * n, np.array([n], "<i4"))
                store.append("other", b"x")
                store.commit({"n_done": n + 1}, state=b"%d" % n)

    n_survived, call = 0, 0
    while not n_survived:  # until a process runs to its end
        call += 1
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        if overwrite:
            run()
        if killed_at(call, lambda: run(overwrite)):
            run()
        else:
            n_survived += 1
        contents = read_store(tmp_path / "store")
        contents.verify()
        assert contents.memory_map("rows", "<i4").tolist() == [0, 1, 2]
        assert (contents.read_bytes("other"), contents.read_state()) == (b"xxx", b"2")
    assert call > 20


def killed_at(call: int, run: Callable[[], None]) -> bool:
    """Run in another process that is killed before its Nth change of the disk; return whether it came to that."""
    child = os.fork()
    if not child:
        calls = itertools.count(1)

        def dying(function: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **settings: Any) -> Any:
                if next(calls) == call:
                    os._exit(9)
                return function(*arguments, **settings)

            return wrapped

        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "touch"), (Path, "open")):
            setattr(owner, name, dying(getattr(owner, name)))
        try:
            run()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_directory_that_holds_only_a_lock_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "lock").touch()
    with ResumableStore(tmp_path / "store", SETTINGS) as store:
        store.commit({"n_done": 1})


def test_a_directory_that_is_deleted_during_writing_is_not_reported_as_kept(tmp_path: Path) -> None:
    def run() -> None:
        with ResumableStore(tmp_path / "store", SETTINGS) as store:
            store.append("rows", b"1234")
            store.commit({"n_done": 1})
            shutil.rmtree(tmp_path / "store")
            store.append("rows", b"1234")
            store.commit({"n_done": 2})

    with pytest.raises(OutputError, match="was deleted or moved while it was written to, so its contents are lost"):
        run()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 100_000,
        "[]",
        '{"\xff": 1}',
        with_checksum({"settings": {}, "done": 0, "sizes": "many"}),
        "\xff",
        '{"settings": {}, "sizes": {}}',
    ],
)
def test_a_damaged_journal_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / JOURNAL).write_text(content, encoding="latin-1")
    with pytest.raises(OutputError, match="is damaged"):
        read_store(tmp_path)
    with pytest.raises(OutputError, match="is damaged"), ResumableStore(tmp_path, SETTINGS):
        pass
    with pytest.raises(OutputError, match=r"has no journal\.json"):
        read_store(tmp_path / "nowhere")


def test_a_journal_cannot_name_a_file_outside_of_its_directory(tmp_path: Path) -> None:
    journal = with_checksum({"settings": {}, "sizes": {"../a": 1}})
    (tmp_path / JOURNAL).write_text(journal, encoding="utf-8")
    with pytest.raises(OutputError, match=r"'\.\./a' has size 1"):
        read_store(tmp_path)


def test_a_disk_error_says_what_is_kept(tmp_path: Path) -> None:
    def fail(commit: bool) -> None:
        with ResumableStore(tmp_path / "store", SETTINGS) as store:
            store.append("rows", b"1")
            if commit:
                store.commit({"n_done": 1})
            raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match=r"failed: No space left on device\. Nothing was committed"):
        fail(commit=False)
    with pytest.raises(OutputError, match=r"Completed work is kept there\. Fix the cause, then run the same command"):
        fail(commit=True)


@pytest.mark.slow
def test_a_process_killed_at_any_moment_leaves_a_valid_prefix(tmp_path: Path) -> None:
    # The journal is replaced while it is read here, which a reader must survive.
    code = (
        "import sys; from elmokit.storage import resumable; resumable.COMMIT_SECONDS = 0.0\n"
        "with resumable.ResumableStore(sys.argv[1], {}) as store:\n"
        "    for n in range(store.progress.get('n_done', 0), 10**9):\n"
        "        store.append('rows', n.to_bytes(4, 'little')); store.commit({'n_done': n + 1}, state=b'%d' % n)"
    )
    n_done = 0
    for seconds in (0.05, 0.1, 0.15, 0.2):
        run = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "store")])
        while not (tmp_path / "store" / JOURNAL).exists() or read_store(tmp_path / "store").progress == {
            "n_done": n_done
        }:
            assert run.poll() is None
            time.sleep(0.01)
        time.sleep(seconds)
        run.kill()
        run.wait()
        contents = read_store(tmp_path / "store")
        rows = contents.memory_map("rows", "<i4")
        assert rows.tolist() == list(range(contents.progress.get("n_done", 0)))
        assert len(rows) >= n_done
        n_done = len(rows)
    assert n_done
