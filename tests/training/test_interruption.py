"""Ctrl-C and SIGTERM: a training saves a checkpoint first, and every long command says how to resume it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import elmokit
from elmokit.cli.running import CommandInterrupted, resumable_command
from elmokit.storage.resumable import ResumableStore
from elmokit.tasks import loop
from elmokit.tasks.run import train_task
from elmokit.tasks.state import TaskTrainingState
from elmokit.training.interruption import TrainingInterrupted, stop_requests
from elmokit.training.reports import TrainingProgress, TrainingReport
from elmokit.training.run import MetricsLog, Run
from tests.helpers.task_examples import changed, tiny

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


def stop_at(step: int) -> Any:
    def report(message: TrainingReport) -> None:
        if isinstance(message, TrainingProgress) and message.n_steps == step:
            os.kill(os.getpid(), signal.SIGINT)

    return report


@pytest.mark.slow
def test_a_stopped_training_saves_a_checkpoint_and_resumes_with_the_same_result() -> None:
    def train(out: str, report: Any) -> Any:
        return elmokit.train("text.txt", held_out="text.txt", out=out, tokens=400, report=report, **SETTINGS)

    train("straight", lambda _: None)
    with pytest.raises(TrainingInterrupted, match="Stopped after step 4, and saved a checkpoint"):
        train("stopped", stop_at(4))
    assert [checkpoint.path.name for checkpoint in Run(Path("stopped")).checkpoints()] == ["step-00000004"]
    elmokit.resume("stopped", report=lambda _: None)
    straight, stopped = (Run(Path(run)).checkpoints()[-1].path for run in ("straight", "stopped"))
    for name in ("model/model.safetensors", "optimizer.safetensors", "state.safetensors", "progress.json"):
        assert (straight / name).read_bytes() == (stopped / name).read_bytes()
    logs = [MetricsLog(Path(run) / "metrics.jsonl").records() for run in ("straight", "stopped")]
    assert [line["losses"] for line in logs[0]] == [line["losses"] for line in logs[1]]


@pytest.mark.parametrize("hours", [("--hours", "2"), ("--hours=2",)])
def test_hours_that_count_from_now_are_not_given_again_to_resume(
    hours: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["elmokit", "train", "--resume", "run", *hours, "--threads", "1"])
    with (
        pytest.raises(CommandInterrupted, match=r"To resume: elmokit train --resume run --threads 1$"),
        resumable_command(only_once="--hours"),
    ):
        raise TrainingInterrupted("Stopped after step 9, and saved a checkpoint.")
    with (
        pytest.raises(CommandInterrupted, match=rf"To resume: elmokit train --resume run {' '.join(hours)} --threads"),
        resumable_command(only_once="--hours"),
    ):
        raise KeyboardInterrupt  # before the run has taken over its new length


@pytest.mark.slow
def test_the_shell_says_how_to_resume_a_training(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("text.txt").write_text(TEXT)
    append = MetricsLog.append

    def interrupt(log: MetricsLog, record: Any) -> None:
        append(log, record)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "append", interrupt)
        patch.setenv("ELMOKIT_MAX_LINE_BYTES", "")  # the option sets it
        command = (
            *("--max-line-bytes", "9999", "train", "text.txt", "--held-out", "text.txt", "--out", "my run"),
            *("--preset", "tiny", "--tokens", "400", "--max-words", "9", "--batch-size", "4", "--window-length", "5"),
            *("--log-every", "2", "--device", "cpu", "--threads", "1"),
        )
        ran = shell(*command)
    assert ran.code == 130
    assert ran.err.splitlines()[-1] == (
        "elmokit: Stopped after step 2, and saved a checkpoint. To resume: "
        "elmokit --max-line-bytes 9999 train text.txt --held-out text.txt --out 'my run' --preset tiny --tokens 400 "
        "--max-words 9 --batch-size 4 --window-length 5 --log-every 2 --device cpu --threads 1"
    )
    assert shell(*command).code == 0


def test_a_training_that_is_stopped_before_its_first_step_says_so(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("elmokit.training.creation.count_corpus", interrupt)
    ran = shell("train", "text.txt", "--held-out", "text.txt", "--out", "run", "--preset", "tiny")
    assert ran.code == 130
    assert ran.err.splitlines()[-1] == "elmokit: Interrupted. Nothing was saved yet."


def test_a_stopped_task_has_a_checkpoint_and_resumes(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task, config = tiny("ner", Path("data.conll"))
    train_task(task, changed(config, epochs=3), "straight")
    config_file = Path("straight/config.toml")
    saved: list[int] = []
    save, calls = TaskTrainingState.save, []

    def note(state: TaskTrainingState, run: Run) -> None:
        saved.append(state.counters.n_steps)
        save(state, run)

    def interrupt(model: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return penalty(model, *arguments)

    penalty = loop.l2_penalty
    with monkeypatch.context() as patch:
        patch.setattr(TaskTrainingState, "save", note)
        patch.setattr(loop, "l2_penalty", interrupt)
        ran = shell("task", "train", str(config_file), "--run", "stopped")
    assert ran.code == 130, ran.err
    assert ran.err.splitlines()[-1] == (
        "elmokit: Stopped after step 3 of seed 0, and saved a checkpoint. To resume: "
        f"elmokit task train {config_file} --run stopped"
    )
    assert saved[-1] == 3
    assert shell("task", "train", str(config_file), "--run", "stopped").code == 0
    for name in ("result.json", "best.safetensors"):
        assert Path("straight/seed-0", name).read_bytes() == Path("stopped/seed-0", name).read_bytes()


def test_a_stopped_embed_says_how_to_resume(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = ResumableStore.commit

    def interrupt(store: ResumableStore, *arguments: Any, **settings: Any) -> None:
        commit(store, *arguments, **settings)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(ResumableStore, "commit_is_due", lambda _: True)
    with monkeypatch.context() as patch:
        patch.setattr(ResumableStore, "commit", interrupt)
        ran = shell("embed", "text.txt", "out.hdf5", "--batch-tokens", "64", "--overwrite")
    assert ran.code == 130
    expected = "elmokit embed text.txt out.hdf5 --batch-tokens 64"
    assert ran.err.splitlines()[-1] == f"elmokit: Interrupted. To resume: {expected}"
    assert shell("embed", "text.txt", "out.hdf5", "--batch-tokens", "64").code == 0
