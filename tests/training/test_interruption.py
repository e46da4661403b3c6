"""Ctrl-C and SIGTERM: a training saves a checkpoint first, and every long command says how to resume it."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elmokit.storage.workspace import Workspace
from elmokit.tasks import task_loop
from elmokit.tasks.run import train_task
from elmokit.training.training_run import Run, stop_requests
from tests.helpers.task_examples import changed, tiny
from tests.helpers.tiny_training import newest_checkpoint

TEXT = "the cat sat on the mat .\nthe dog ran .\na cat and a dog ran on .\nthe mat sat .\n" * 30
SETTINGS: dict[str, Any] = {
    "preset": "tiny",
    "max_words": 9,
    "batch_size": 4,
    "window_length": 5,
    "n_samples": 5,
    "dropout": 0.2,
    "log_every": 2,
    "save_every": 100,
    "eval_every": 6,
}


@pytest.fixture(autouse=True)
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Handle signals as in a terminal: a process in the background of a shell ignores SIGINT."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request_and_the_second_acts_as_usual(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []
    before = signal.signal(number, lambda which, _: seen.append(which))
    try:
        with stop_requests() as stop:
            assert not stop.is_made
            os.kill(os.getpid(), number)
            assert stop.is_made
            assert not seen
            assert "Press Ctrl-C again" in capfd.readouterr().err
            os.kill(os.getpid(), number)
            assert seen == [number]
        os.kill(os.getpid(), number)
        assert seen == [number, number]
    finally:
        signal.signal(number, before)


def test_an_ignored_signal_stays_ignored_and_other_threads_change_nothing() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with stop_requests() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert not stop.is_made
    finally:
        signal.signal(signal.SIGTERM, before)
    handlers = []

    def run() -> None:
        with stop_requests():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGINT)]


def signal_after(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Let each call of a method end with a signal."""
    method = getattr(owner, name)

    def interrupt(*arguments: Any, **settings: Any) -> None:
        method(*arguments, **settings)
        os.kill(os.getpid(), signal.SIGTERM)

    patch.setattr(owner, name, interrupt)


@pytest.mark.slow
def test_the_shell_says_how_to_resume_a_training(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("text.txt").write_text(TEXT)
    command = (
        "elmokit --max-line-bytes 9999 train text.txt --held-out text.txt --out 'my run' --preset tiny --tokens 400 "
        "--max-words 9 --batch-size 4 --window-length 5 --log-every 2 --device cpu --threads 1"
    )
    with monkeypatch.context() as patch:
        signal_after(patch, Run, "log")
        patch.setenv("ELMOKIT_MAX_LINE_BYTES", "")  # the option sets it
        ran = shell(*shlex.split(command)[1:])
    assert ran.code == 130
    assert ran.err.splitlines()[-1] == f"elmokit: Stopped after step 2, and saved a checkpoint. To resume: {command}"
    assert shell(*shlex.split(command)[1:]).code == 0


def test_a_training_that_is_stopped_before_its_first_step_says_so(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmokit.training.start.count_corpus", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
    ran = shell("train", "text.txt", "--held-out", "text.txt", "--out", "run", "--preset", "tiny")
    assert ran.code == 130
    assert ran.err.splitlines()[-1] == "elmokit: Interrupted. Nothing was saved yet."


def test_a_stopped_task_has_a_checkpoint_and_resumes(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task, config = tiny("ner", Path("data.conll"))
    train_task(task, changed(config, epochs=3), "straight")
    command = ("task", "train", "straight/config.toml", "--run", "stopped")
    penalty, calls = task_loop.l2_penalty, itertools.count(1)

    def interrupt(model: Any, *arguments: Any) -> Any:
        if next(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return penalty(model, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(task_loop, "l2_penalty", interrupt)
        ran = shell(*command)
    assert ran.code == 130, ran.err
    said = "Stopped after step 3 of seed 0, and saved a checkpoint."
    assert ran.err.splitlines()[-1] == f"elmokit: {said} To resume: elmokit {' '.join(command)}"
    assert newest_checkpoint("stopped/seed-0").n_steps == 3
    assert shell(*command).code == 0
    for name in ("result.json", "best.safetensors"):
        assert Path("straight/seed-0", name).read_bytes() == Path("stopped/seed-0", name).read_bytes()


def test_a_stopped_embed_says_how_to_resume(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("embed", "text.txt", "out.hdf5", "--batch-tokens", "64")
    monkeypatch.setattr(Workspace, "commit_is_due", lambda _: True)
    with monkeypatch.context() as patch:
        signal_after(patch, Workspace, "commit")
        ran = shell(*command, "--overwrite")
    assert ran.code == 130
    assert ran.err.splitlines()[-1] == f"elmokit: Interrupted. To resume: elmokit {' '.join(command)}"
    assert shell(*command).code == 0
