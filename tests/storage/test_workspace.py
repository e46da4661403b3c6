from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit.errors import LockedError, OutputError, WriteError
from elmokit.storage import workspace
from elmokit.storage.atomic import atomic_write
from elmokit.storage.workspace import (
    JOURNAL,
    Committed,
    OtherVersionError,
    Workspace,
    check_folder,
    read_workspace,
)
from tests.helpers.killing import Killed

SETTINGS = {"what": "numbers", "layers": (0, 2)}


def interrupted_run(folder: Path) -> None:
    with contextlib.suppress(Killed), Workspace(folder, SETTINGS) as run:
        run.append("rows", np.arange(4, dtype="<i4"))
        run.commit({"n_done": 2}, state=b"after two")
        run.append("rows", np.arange(99, dtype="<i4"))
        raise Killed


def committed(folder: Path) -> Committed:
    contents = read_workspace(folder)
    assert contents is not None
    return contents


def test_an_interrupted_run_resumes_at_the_last_commit(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    interrupted_run(folder)
    with Workspace(folder, SETTINGS) as run:
        assert (run.progress, run.committed.read_state()) == ({"n_done": 2}, b"after two")
        run.append("rows", np.array([4, 5], dtype="<i4"))
        run.append("more", b"new\n")
        run.commit({"n_done": 3})
    contents = committed(folder)
    assert (contents.progress, contents.read_state()) == ({"n_done": 3}, None)
    assert contents.settings == {"what": "numbers", "layers": [0, 2]}
    np.testing.assert_array_equal(contents.memory_map("rows", "<i4", 2), [[0, 1], [2, 3], [4, 5]])
    assert contents.memory_map("nothing", "<i4", 2).shape == (0, 2)
    assert contents.read_bytes("more") == b"new\n"


def test_data_can_be_written_in_any_order(tmp_path: Path) -> None:
    with Workspace(tmp_path / "run", SETTINGS) as run:
        run.write_at("rows", 8, np.array([2, 3], dtype="<i4"))
        run.commit({"n_done": 1})
        run.write_at("rows", 0, np.array([0, 1], dtype="<i4"))
        run.append("rows", np.array([4], dtype="<i4"))
        run.commit({"n_done": 2})
    assert committed(tmp_path / "run").memory_map("rows", "<i4").tolist() == [0, 1, 2, 3, 4]


def test_readers_see_what_is_committed_while_a_writer_appends(tmp_path: Path) -> None:
    with Workspace(tmp_path / "run", SETTINGS) as run:
        run.append("rows", np.arange(3, dtype="<i4"))
        run.commit({"n_done": 1})
        before = committed(run.folder).memory_map("rows", "<i4")
        run.append("rows", np.arange(3, 6, dtype="<i4"))
        assert len(committed(run.folder).memory_map("rows", "<i4")) == 3
        run.commit({"n_done": 2})
        assert len(committed(run.folder).memory_map("rows", "<i4")) == 6
        assert before.tolist() == [0, 1, 2]


def test_a_run_without_commits_leaves_nothing_behind(tmp_path: Path) -> None:
    with contextlib.suppress(Killed), Workspace(tmp_path / "run", SETTINGS) as run:
        run.append("rows", b"1234")
        raise Killed
    assert not list(tmp_path.iterdir())


def test_a_run_interrupted_while_it_wrote_its_first_file_leaves_nothing_behind(tmp_path: Path) -> None:
    with contextlib.suppress(KeyboardInterrupt), Workspace(tmp_path / "run", SETTINGS) as run:
        (run.folder / ".config.toml.0a1b2c3d/new").mkdir(parents=True)  # as `atomic_write` does
        raise KeyboardInterrupt
    assert not (tmp_path / "run").exists()


def test_commits_are_due_after_some_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Workspace(tmp_path / "run", SETTINGS) as run:
        assert not run.commit_is_due()
        monkeypatch.setattr(workspace, "COMMIT_SECONDS", 0.0)
        assert run.commit_is_due()


@pytest.mark.parametrize(
    ("settings", "difference"),
    [
        ({"what": "letters", "layers": 1}, "what 'numbers', and now it is 'letters'"),
        ({"what": "numbers"}, "layers [0, 2], and now it is not set"),
        (SETTINGS | {"train": {"epochs": 1}}, "train not set"),
    ],
)
def test_the_first_setting_that_differs_is_named(tmp_path: Path, settings: dict[str, Any], difference: str) -> None:
    interrupted_run(tmp_path / "run")
    with pytest.raises(OutputError) as error, Workspace(tmp_path / "run", settings):
        pass
    assert difference in str(error.value)
    with Workspace(tmp_path / "run", SETTINGS) as run:
        assert run.progress == {"n_done": 2}


def test_settings_in_tables_and_hashes_are_named_too() -> None:
    one, two = {"train": {"n": 1, "model": "0" * 32}}, {"train": {"n": 1, "model": "f" * 32}}
    assert workspace.first_difference(one, one) is None
    assert workspace.first_difference(one, two) == "another train.model"


def test_what_is_committed_is_discarded_on_request(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    interrupted_run(folder)
    (folder / "seed-1").mkdir()
    for name in ("seed-1/log", "thesis.txt"):
        (folder / name).touch()
    with Workspace(folder, {"what": "numbers"}, others=["seed-*"], overwrite=True) as run:
        assert run.progress == {}
        assert {path.name for path in folder.iterdir()} == {JOURNAL, "lock", "thesis.txt"}
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    for path, problem in (
        (folder, "exists"),
        (folder / "thesis.txt", "exists"),
        (folder / "thesis.txt" / "f", "Cannot"),
    ):
        with pytest.raises(OutputError, match=problem), Workspace(path, SETTINGS):
            pass
    assert [file.name for file in folder.iterdir()] == ["thesis.txt"]


def test_a_directory_that_a_killed_process_left_empty_is_started_anew(tmp_path: Path) -> None:
    for name in ("lock", "journal.new"):
        (tmp_path / name).touch()
    with Workspace(tmp_path, SETTINGS) as run:
        run.commit({"n_done": 1})
    assert {path.name for path in tmp_path.iterdir()} == {"lock", JOURNAL}


def test_one_process_writes_at_a_time_and_another_can_wait(tmp_path: Path) -> None:
    code = (
        "import sys, time; from elmokit.storage.workspace import Workspace\n"
        "with Workspace(sys.argv[1], {}) as run:\n"
        "    run.commit({'n_done': 1}); print('ready', flush=True); time.sleep(0.5); run.commit({'n_done': 2})"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(LockedError, match="Another process"), Workspace(tmp_path / "run", {}):
            pass
        with Workspace(tmp_path / "run", {}, wait=True) as run:
            assert run.progress == {"n_done": 2}


def test_a_published_file_leaves_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> dict[str, object]:
        with Workspace(tmp_path / "run", SETTINGS) as run:
            before = run.progress
            run.commit({"n_done": 1})
            run.create("rows").write_bytes(b"1234")
            run.publish("rows", tmp_path / "out")
        return before

    with monkeypatch.context() as patch:  # the process dies between the move and the removal
        patch.setattr(Workspace, "_remove", lambda self: None)
        run()
    assert committed(tmp_path / "run").progress
    assert not committed(tmp_path / "run").can_continue
    assert run() == {}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_bytes() == b"1234"


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    interrupted_run(tmp_path)
    os.truncate(tmp_path / "rows", 2)
    with pytest.raises(OutputError, match="rows is damaged"):
        committed(tmp_path).memory_map("rows", "<i4")
    with pytest.raises(OutputError, match="rows is damaged"), Workspace(tmp_path, SETTINGS):
        pass


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "damaged"),
        ("[]", "damaged"),
        ("[" * 100_000, "damaged"),
        (json.dumps({"workspace": 1, "settings": {}, "progress": {}, "sizes": {"a": -1}, "state": None}), "damaged"),
    ],
)
def test_a_journal_that_cannot_be_used_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / JOURNAL).write_text(content)
    with pytest.raises(OutputError, match=problem):
        read_workspace(tmp_path)
    with pytest.raises(OutputError, match=problem), Workspace(tmp_path, SETTINGS):
        pass


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """A workspace of version 0.2, and a file of its user."""
    folder = tmp_path / "former"
    folder.mkdir()
    journal = {"settings": {"what": "numbers"}, "progress": {"n_done": 2}, "sizes": {"rows": 4, "more": 1}, "crc32": 1}
    (folder / JOURNAL).write_text(json.dumps(journal))
    for name in ("lock", "rows", "more", "checksums", "thesis.txt"):
        (folder / name).write_text(name)
    return folder


def test_what_another_version_started_is_refused_and_stays(former: Path) -> None:
    before = {path: path.read_bytes() for path in former.iterdir()}
    with pytest.raises(OtherVersionError, match="another version of elmokit: to start over, delete"):
        read_workspace(former)
    for start in (
        Workspace(former, SETTINGS, overwrite=False).__enter__,
        Workspace(former, None, overwrite=False).__enter__,
    ):
        with pytest.raises(OtherVersionError, match="another version of elmokit: to start over, pass --overwrite"):
            start()
    with pytest.raises(OutputError, match="another kind"), Workspace(former, {"what": "letters"}, overwrite=True):
        pass
    assert {path: path.read_bytes() for path in former.iterdir()} == before


def test_a_journal_that_the_system_cannot_read_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Workspace(tmp_path / "run", SETTINGS) as run:
        run.append("rows", b"1234")
        run.commit({"n_done": 1})

    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(workspace, "read_workspace", fail)
        with pytest.raises(OutputError, match="Input/output"), Workspace(tmp_path / "run", SETTINGS):
            pass
    assert committed(tmp_path / "run").read_bytes("rows") == b"1234"


def test_settings_may_be_known_later_and_nothing_changes_until_then(former: Path) -> None:
    before = {path: path.read_bytes() for path in former.iterdir() if path.name != "lock"}
    with Workspace(former, None, overwrite=True) as run:
        assert not run.continues({"what": "numbers"})
    assert {path: path.read_bytes() for path in former.iterdir() if path.name != "lock"} == before
    with Workspace(former, None, overwrite=True) as run:
        assert not run.continues({"what": "numbers"})
        run.start()
        run.append("rows", b"1234")
        run.commit({"n_done": 1})
    with Workspace(former, None) as run:
        assert run.continues({"what": "numbers"})
        assert run.progress == {"n_done": 1}


@pytest.mark.parametrize("overwrite", [True, None])  # None: a cache, which is computed again
def test_what_another_version_started_is_started_anew_on_request(former: Path, overwrite: bool | None) -> None:
    with Workspace(former, SETTINGS, overwrite=overwrite) as run:
        assert run.progress == {}
        assert {path.name for path in former.iterdir()} == {JOURNAL, "lock", "thesis.txt"}
        run.append("rows", b"1234")
        run.commit({"n_done": 1})
    assert committed(former).read_bytes("rows") == b"1234"


def test_a_run_without_a_journal_is_known_by_its_files(tmp_path: Path) -> None:
    names = ("settings.json", "card.json")
    for name in (*names, "curves.png", "thesis.txt"):
        (tmp_path / name).touch()
    with pytest.raises(OtherVersionError, match="pass --overwrite"):
        check_folder(tmp_path, names, overwrite=False)
    with pytest.raises(OutputError, match="Choose another directory"):
        check_folder(tmp_path, (*names, "vocab.txt"), overwrite=True)
    with Workspace(tmp_path, SETTINGS, others=["card.json"], former=names, overwrite=True):
        assert {path.name for path in tmp_path.iterdir()} == {JOURNAL, "lock", "thesis.txt"}


def test_errors_reach_other_processes() -> None:
    errors = (OtherVersionError(Path("run"), {"sizes": {}}, "delete it"), WriteError(Path("a"), "full", "Nothing."))
    for error in errors:
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(("commit", "delete"), [(False, False), (True, False), (True, True)])
def test_a_disk_error_says_whether_work_is_kept(tmp_path: Path, commit: bool, delete: bool) -> None:
    def fail() -> None:
        with Workspace(tmp_path / "run", SETTINGS) as run:
            run.append("rows", b"1")
            if commit:
                run.commit({"n_done": 1})
            if delete:
                shutil.rmtree(run.folder)
            raise OSError(28, "No space left on device")

    kept = "Completed work was saved" if commit and not delete else "Nothing was saved"
    with pytest.raises(OutputError, match=f"No space left on device.*{kept}"):
        fail()


def test_a_full_disk_is_told_by_the_name_of_the_directory_and_in_one_sentence(tmp_path: Path) -> None:
    def fill(error: Exception) -> None:
        with Workspace(tmp_path / "run", SETTINGS) as run:
            run.commit({"n_done": 1})
            with atomic_write(run.folder / "step-1", folder=True) as step, atomic_write(step / "model"):
                raise error

    of_h5py = "Unable to extend file properly, errno = 28, error message = 'no space' (time = now, buf = 0x7)"
    for error in (OSError(28, "No space left on device"), OSError(of_h5py), ValueError(of_h5py), RuntimeError(of_h5py)):
        with pytest.raises(OutputError) as told:
            fill(error)
        assert str(told.value) == (
            f"Writing to {tmp_path / 'run'} failed: No space left on device. Completed work was saved: run the same "
            "command again to resume."
        )


def test_output_that_nobody_reads_any_more_is_no_disk_error(tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError), Workspace(tmp_path / "run", SETTINGS):
        raise BrokenPipeError


@pytest.mark.parametrize(("old", "new"), [({"what": "index"}, {"seed": 0}), ({"seed": 0}, {"what": "index"})])
def test_data_of_another_kind_is_not_overwritten(old: dict[str, Any], new: dict[str, Any], tmp_path: Path) -> None:
    with Workspace(tmp_path / "data", old) as workspace:
        workspace.append("vectors", b"1234")
        workspace.commit({"n_done": 1})
    with pytest.raises(OutputError, match="data"), Workspace(tmp_path / "data", new, overwrite=True):
        pass
    assert (tmp_path / "data" / "vectors").read_bytes() == b"1234"
    with Workspace(tmp_path / "data", old | {"more": 1}, overwrite=True) as workspace:
        assert not workspace.progress
