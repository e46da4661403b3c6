"""Training processes that are killed, also while they write, end with the numbers of one that ran straight."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from elmokit.training.state import checkpoints

TEXT = "the cat sat on the mat .\nthe dog ran .\na cat and a dog ran on .\nthe mat sat .\n" * 30
TRAIN = "import sys; sys.argv[0] = 'elmokit'; from elmokit.cli.main import main; main()"
SETTINGS = "--preset tiny --max-words 9 --batch-size 4 --window-length 5 --tokens 1200 --n-samples 5 --dropout 0.2"
OFTEN = "--save-every 7 --eval-every 20 --log-every 5"

pytestmark = pytest.mark.slow


def begin(folder: Path, code: str = TRAIN, run: str = "run") -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    arguments = ["train", "text.txt", "--held-out", "text.txt", "--run", run, *SETTINGS.split(), *OFTEN.split()]
    return started(folder, [sys.executable, "-c", code, *arguments])


def started(folder: Path, command: list[str], **settings: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings
    )


def resume(folder: Path, code: str = TRAIN, **settings: object) -> subprocess.Popen[str]:
    return started(folder, [sys.executable, "-c", code, "train", "--resume", "run"], **settings)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight")
    process = begin(folder)
    _, complaint = process.communicate()
    assert process.returncode == 0, complaint
    return folder / "run"


def assert_same_end(run: Path, straight: Path) -> None:
    newest, wanted = checkpoints(run)[-1], checkpoints(straight)[-1]
    assert newest.name == wanted.name == "step-00000060"
    for name in ("model/model.safetensors", "model/softmax.safetensors", "optimizer.safetensors", "state.safetensors"):
        found, expected = load_file(newest / name), load_file(wanted / name)
        assert found.keys() == expected.keys()
        for key in expected:
            assert torch.equal(found[key], expected[key]), f"{name}: {key}"
    assert (newest / "progress.json").read_text() == (wanted / "progress.json").read_text()
    for name in ("model.safetensors", "softmax.safetensors"):
        assert (run / "model" / name).read_bytes() == (straight / "model" / name).read_bytes()
    logs = [
        [json.loads(line) for line in (which / "metrics.jsonl").read_text().splitlines()] for which in (run, straight)
    ]
    for ours, theirs in zip(*logs, strict=True):
        for changing in ("tokens_per_second", "seconds_left"):
            del ours[changing], theirs[changing]
        assert ours == theirs
    leftovers = [path for path in run.rglob(".*") if path.is_dir()]
    assert not leftovers


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_killed_at_random_moments(straight: Path, tmp_path: Path) -> None:
    moments = random.Random(0)
    process = begin(tmp_path)
    while not (tmp_path / "run" / "settings.json").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    for _ in range(3):
        n_before = log_length(tmp_path)
        while process.poll() is None and log_length(tmp_path) == n_before:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        process = resume(tmp_path)
    _, complaint = process.communicate()
    assert process.returncode == 0, complaint
    assert_same_end(tmp_path / "run", straight)


def log_length(folder: Path) -> int:
    log = folder / "run" / "metrics.jsonl"
    return log.stat().st_size if log.exists() else 0


KILL_WITHIN = """
import os, signal
from elmokit.{module} import {owner} as owner
plain, calls = owner.{name}, []
def dying(*arguments, **settings):
    calls.append(1)
    if len(calls) == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(*arguments, **settings)
owner.{name} = dying
"""


@pytest.mark.parametrize(
    ("module", "owner", "name", "call"),
    [
        (
            "training",
            "checkpoint",
            "save_tensors",
            4,
        ),  # in the middle of the second checkpoint
        ("training", "state", "checkpoints", 3),  # between the new checkpoint and the removal of the old one
        ("training.run_folder", "MetricsLog", "append", 3),
        ("weights", "folder", "save_tensors", 9),
    ],
)
def test_killed_while_writing(straight: Path, tmp_path: Path, module: str, owner: str, name: str, call: int) -> None:
    process = begin(tmp_path, KILL_WITHIN.format(module=module, owner=owner, name=name, call=call) + TRAIN)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    process = resume(tmp_path)
    _, complaint = process.communicate()
    assert process.returncode == 0, complaint
    assert_same_end(tmp_path / "run", straight)


BETWEEN_RENAMES = """
import os, signal
from pathlib import Path
plain, seen = Path.replace, []
def dying(self, target):
    if self.name == "model" and Path(target).parent.name == "run" and self.is_dir():
        seen.append(1)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, target)
Path.replace = dying
"""


def test_killed_between_setting_the_old_best_model_aside_and_putting_the_new_one_in_place(
    straight: Path, tmp_path: Path
) -> None:
    process = begin(tmp_path, BETWEEN_RENAMES + TRAIN)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "run" / "model").exists()
    process = resume(tmp_path)
    _, complaint = process.communicate()
    assert process.returncode == 0, complaint
    assert_same_end(tmp_path / "run", straight)


def test_a_full_disk_keeps_the_last_good_checkpoint_and_is_one_line(straight: Path, tmp_path: Path) -> None:
    process = begin(tmp_path)
    while not checkpoints(tmp_path / "run"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    good = checkpoints(tmp_path / "run")[-1]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # a write beyond it fails as on a full disk

    process = resume(tmp_path, preexec_fn=limit)
    _, complaint = process.communicate()
    assert process.returncode == 2, complaint
    assert complaint.count("\n") == 1
    assert "Writing run/" in complaint
    assert checkpoints(tmp_path / "run")[-1] == good
    process = resume(tmp_path)
    process.communicate()
    assert_same_end(tmp_path / "run", straight)
