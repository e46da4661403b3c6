"""A run on disk: what overwriting deletes, the log and the checkpoints."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import torch

from elmokit.training.training_run import Run, checkpoints, last_checkpoint
from tests.helpers.killing import Killed
from tests.helpers.tiny_training import log_lines


def save(run: Run, *steps: int) -> None:
    for n_steps in steps:
        run.log({"n_steps": n_steps})
        run.save_checkpoint(n_steps, {"counters": [n_steps]}, {"state": {"x": torch.tensor([n_steps])}})


def test_a_commit_names_its_checkpoint_and_the_log_ends_there(tmp_path: Path) -> None:
    with contextlib.suppress(Killed), Run(tmp_path, {}) as run:
        run.commit({"n_words": 7})
        assert last_checkpoint(run.committed) is None
        save(run, 9, 10, 100)
        run.log({"n_steps": 101})
        raise Killed
    assert [checkpoint.n_steps for checkpoint in checkpoints(tmp_path)] == [10, 100]  # the newest two
    assert len(log_lines(tmp_path)) == 4
    with Run(tmp_path, {}) as run:
        newest = last_checkpoint(run.committed)
        assert run.progress == {"n_words": 7, "n_steps": 100, "counters": [100]}
    assert newest.tensors("state")["x"].tolist() == [100]
    assert log_lines(tmp_path) == [{"n_steps": 9}, {"n_steps": 10}, {"n_steps": 100}]


def test_copies_of_checkpoints_are_not_taken_for_checkpoints_and_stay(tmp_path: Path) -> None:
    with Run(tmp_path, {}) as run:
        save(run, 9)
        copies = [tmp_path / "checkpoints" / f"step-00000009{end}" for end in ("-keep", " (copy)")]
        for copy in copies:
            shutil.copytree(checkpoints(tmp_path)[0].path, copy)
        save(run, 10, 100)
    assert [checkpoint.n_steps for checkpoint in checkpoints(tmp_path)] == [10, 100]
    assert all(copy.is_dir() for copy in copies)


def test_overwriting_deletes_what_the_run_wrote_and_nothing_else(tmp_path: Path) -> None:
    with Run(tmp_path, {}, ["part-*"]) as run:
        save(run, 1)
    for name in ("part-1", "notes.txt"):
        (tmp_path / name).touch()
    with Run(tmp_path, {"new": True}, ["part-*"], overwrite=True) as run:
        run.commit({"n_words": 7})
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "journal.json", "notes.txt"}
