"""A run on disk: what is continued, what is refused, what overwriting deletes; the log and the checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from elmokit.errors import LockedError, OutputError, TrainingError
from elmokit.storage.atomic import file_lock
from elmokit.training.training_run import MetricsLog, Run, changed_settings, check_settings

FILES = ("settings.json", "part-*")


def started(path: Path, *names: str) -> Run:
    """A run with settings, a checkpoint and other files."""
    run = Run(path, FILES)
    run.save_checkpoint(3, {"n": 3}, {"model": {"weight": torch.ones(2)}})
    for name in ("settings.json", "lock", *names):
        (path / name).touch()
    return run


@pytest.mark.parametrize("leftovers", [(), ("lock",), ("lock", ".settings.json.abcdefgh/")])
def test_a_new_run_starts_where_nothing_was_written(leftovers: tuple[str, ...], tmp_path: Path) -> None:
    run = Run(tmp_path / "run", FILES)
    assert not run.check_start(overwrite=False)
    run.path.mkdir()
    for name in leftovers:
        (run.path / name).mkdir() if name.endswith("/") else (run.path / name).touch()
    assert not run.check_start(overwrite=False)


def test_a_started_run_is_continued_or_overwritten(tmp_path: Path) -> None:
    run = started(tmp_path / "run", "part-1")
    assert run.check_start(overwrite=False)
    assert not run.check_start(overwrite=True)
    assert (run.path / "part-1").exists()  # nothing is deleted before the new run is ready
    run.remove()
    assert [path.name for path in run.path.iterdir()] == ["lock"]


def test_the_newest_two_checkpoints_are_kept_and_hold_what_was_saved(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for n_steps in (9, 10, 100):
        run.save_checkpoint(n_steps, {"n": n_steps}, {"state": {"x": torch.tensor([n_steps])}})
    assert [checkpoint.n_steps for checkpoint in run.checkpoints()] == [10, 100]
    newest = run.checkpoints()[-1]
    assert newest.progress() == {"n": 100}
    assert newest.tensors("state")["x"].tolist() == [100]
    assert newest.path == run.checkpoint_at(100).path


def test_copies_of_checkpoints_are_not_taken_for_checkpoints_and_stay(tmp_path: Path) -> None:
    run = Run(tmp_path)
    copies = [run.path / "checkpoints" / f"step-00000009{end}" for end in ("-keep", " (copy)")]
    for n_steps in (9, 10, 100):
        run.save_checkpoint(n_steps, {}, {})
        if n_steps == 9:
            for copy in copies:
                shutil.copytree(run.checkpoint_at(9).path, copy)
    assert [checkpoint.n_steps for checkpoint in run.checkpoints()] == [10, 100]
    assert all(copy.is_dir() for copy in copies)


def test_settings_that_differ_are_listed_with_their_tables(tmp_path: Path) -> None:
    earlier, now = {"a": 1, "inner": {"b": 2, "c": 3}}, {"a": 1, "inner": {"b": 4, "c": 5}, "new": None}
    assert changed_settings(earlier, now, {"inner.c"}) == ["inner.b was 2 and is 4"]
    with pytest.raises(TrainingError, match=r"settings: inner\.b was 2 and is 4, inner\.c was 3 and is 5\. .*anew"):
        check_settings(tmp_path, earlier, now)
    check_settings(tmp_path, earlier, now, {"inner.b", "inner.c"})
    files = [[f"{n}.txt", n] for n in range(1000)]
    digests = {"vocabulary_crc32": 7, "teacher": "0123456789abcdef"}
    assert changed_settings(digests, {"vocabulary_crc32": None, "teacher": "f123456789abcdef"}) == [
        "vocabulary was given and is not now",
        "teacher has changed",
    ]
    (phrase,) = changed_settings({"texts": []}, {"texts": files})
    assert phrase.startswith("texts was [] and is [['0.txt', 0], ['1.txt', 1], ")
    assert len(phrase) < 120, "one line"


def test_lines_of_the_log_that_are_not_records_are_left_out(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append({"n_steps": 1})
    with log.path.open("ab") as file:
        file.write(b'[]\n{}\n1\n\xff\n{"n_steps": "2"}\n' + b"[" * 100_000 + b"\n")
    log.append({"n_steps": 2})
    assert log.records() == [{"n_steps": 1}, {"n_steps": 2}]
    log.truncate(1)
    assert log.records() == [{"n_steps": 1}]


@pytest.mark.parametrize(
    ("left", "overwrite", "name"),
    [
        ("settings.json notes.txt", True, r"notes\.txt"),
        ("settings.json .part-1.20261126/notes.txt", True, r"\.part-1\.20261126"),
        ("part-1", False, "run"),  # as an interrupted removal leaves it
        (None, False, "run"),
        (None, True, "run"),
    ],
)
def test_what_is_not_a_run_is_neither_continued_nor_deleted(
    left: str | None, overwrite: bool, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    if left is None:
        path.touch()
    else:
        for one in left.split():
            (path / one).parent.mkdir(parents=True, exist_ok=True)
            (path / one).touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutputError, match=name):
        Run(path, FILES).check_start(overwrite)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_another_process_trains_is_not_removed(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    run = started(tmp_path / "run")
    with file_lock(run.path / "lock"), pytest.raises(LockedError, match="run"):
        run.remove()
    assert run.check_start(overwrite=False)
