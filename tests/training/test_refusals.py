"""What train, distill and finetune refuse: the class, and the name that the error mentions."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elmokit import distill, finetune, train
from elmokit.engine.architecture import PRESETS
from elmokit.errors import ConfigError, ElmoError, LockedError, OutputError, TextError, TrainingError
from elmokit.storage.atomic import file_lock
from elmokit.training.reports import TextCounts, TrainingReport
from elmokit.training.training_run import checkpoints
from tests.conftest import random_model
from tests.helpers.tiny_training import SETTINGS, TEXT

NOT_UTF8 = os.fsdecode(b"caf\xe9.txt")
IS_LINUX = sys.platform.startswith("linux")  # elsewhere, no file has such a name
CALLS: dict[str, Callable[..., object]] = {"train": train, "distill": distill, "finetune": finetune}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with text and a finished run."""
    folder = tmp_path_factory.mktemp("trained")
    for name in ("texts/a.txt", "dev.txt", "long.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(TEXT * (1 + (name == "long.txt")))
    (folder / "empty.txt").write_text("\n")
    (folder / "changed").mkdir()
    (folder / "changed/a.txt").write_text(TEXT.swapcase())
    if IS_LINUX:
        (folder / "odd").mkdir()
        (folder / "odd" / NOT_UTF8).write_text(TEXT)
    train(folder / "texts", held_out=folder / "dev.txt", out=folder / "run", report=quiet, **SETTINGS)
    return folder


@pytest.fixture
def work(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory that is a copy of the one above."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def quiet(_: object) -> None:
    pass


def call(kind: str, **settings: Any) -> object:
    """Train, distill or fine-tune, from settings that fit all of them."""
    given = {"texts": "texts", "held_out": "dev.txt", "report": quiet, **SETTINGS, **settings}
    if kind != "train":
        given["max_words"] = settings.get("max_words")
        given["teacher" if kind == "distill" else "model"] = settings.get("model", random_model())
    if kind == "finetune":
        del given["preset"]
    return CALLS[kind](**{name: value for name, value in given.items() if kind != "distill" or name != "model"})


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


NEWEST = "run/checkpoints/step-00000006"
WITHOUT_SOFTMAX = random_model().replace(softmax=None)
FORWARD = random_model(dataclasses.replace(PRESETS["tiny"], bidirectional=False))


@pytest.mark.parametrize(
    ("kind", "settings", "error", "name"),
    [
        ("train", {"learning_rat": 0.1}, ConfigError, "'learning_rate'"),
        ("train", {"batch_size": 0}, ConfigError, "batch_size"),
        ("train", {"batch_size": "many"}, ConfigError, "batch_size"),
        ("train", {"learning_rate": 0.0}, ConfigError, "learning_rate"),
        ("train", {"ema_decay": 1.0}, ConfigError, "ema_decay"),
        ("train", {"preset": "huge"}, ConfigError, "preset"),
        ("train", {"recipe": "old"}, ConfigError, "recipe"),
        ("train", {"hours": 2}, ConfigError, "'hours'"),
        ("train", {"epochs": 1.0}, ConfigError, "epochs"),
        ("train", {"softmax": "adaptive"}, ConfigError, "'adaptive'"),
        ("train", {"frozen_layers": (3,)}, ConfigError, "frozen_layers"),
        ("train", {"frozen_layers": "top"}, ConfigError, "expected type: list of integer"),
        ("train", {"frozen_layers": (0, 1, 2), "freeze_softmax": True}, ConfigError, "nothing to train"),
        ("train", {"input": "words", "softmax": "tied", "freeze_softmax": True}, ConfigError, "frozen_layers"),
        ("train", {"input": "bytes"}, ConfigError, "input"),
        ("train", {"input": "both", "softmax": "full"}, ConfigError, "'full'"),
        ("train", {"config": {"inputs": "words"}}, ConfigError, "'inputs'"),
        ("train", {"input": "both", "config": {"softmax": {"kind": "full"}}}, ConfigError, "'full'"),
        ("train", {"softmax": "tied"}, ConfigError, "tied"),
        ("train", {"device": "abacus"}, ConfigError, "abacus"),
        ("train", {"device": "meta"}, ConfigError, "meta"),
        ("train", {"vocabulary": "dev.txt"}, ConfigError, "vocabulary"),
        ("train", {"temperature": 2.0}, ConfigError, "teacher"),
        ("train", {"texts": ()}, ConfigError, "text to train on"),
        ("train", {"held_out": ()}, ConfigError, "held-out"),
        ("train", {"held_out": "empty.txt"}, TextError, "empty"),
        ("train", {"texts": "empty.txt"}, TextError, "empty"),
        ("train", {"batch_size": 41, "window_length": 1}, TextError, "batch_size .* at most 40"),
        ("train", {"batch_size": 8, "window_length": 40}, TextError, "batch_size .* at most 6"),
        ("train", {"window_length": 300}, TextError, "batch_size .* at most 1 and window_length .* at most 260,"),
        ("train", {"texts": NOT_UTF8}, TextError, "caf"),
        ("train", {"held_out": NOT_UTF8}, TextError, "caf"),
        ("train", {"texts": "odd" if IS_LINUX else NOT_UTF8}, TextError, "caf"),
        ("train", {"out": "texts/new"}, OutputError, "texts"),
        ("train", {"texts": "text*", "out": "./texts/../texts/new"}, OutputError, "texts"),
        ("train", {"out": "texts", "texts": "dev.txt"}, OutputError, "texts"),
        ("train", {"out": "texts", "texts": "dev.txt", "overwrite": True}, OutputError, "texts"),
        ("finetune", {"input": "words"}, ConfigError, "'input'"),
        ("finetune", {"hidden_dim": 48}, ConfigError, "sizes"),
        ("finetune", {"text_weight": 2.0}, ConfigError, "teacher"),
        ("finetune", {"model": WITHOUT_SOFTMAX, "freeze_softmax": True}, ConfigError, "freeze_softmax"),
        ("finetune", {"softmax_inner_dim": 8, "freeze_softmax": True}, ConfigError, "freeze_softmax"),
        ("finetune", {"keep_optimizer": True}, TrainingError, "training checkpoint"),
        ("finetune", {"model": NEWEST, "keep_optimizer": True, "recipe": "bilm-tf"}, TrainingError, "of adagrad"),
        ("distill", {"layer_weight": -1.0}, ConfigError, "layer_weight"),
        ("distill", {"temperature": 0.0}, ConfigError, "temperature"),
        ("distill", {"layer_weight": 0.0, "text_weight": 0.0, "prediction_weight": 0.0}, ConfigError, "layer_weight"),
        ("distill", {"max_words": 6, "prediction_weight": 2.0}, ConfigError, "prediction_weight"),
        ("distill", {"model": FORWARD}, ConfigError, "only reads forward, but the student reads forward and backward"),
    ],
)
def test_a_call_is_refused_before_anything_is_written(
    kind: str, settings: dict[str, Any], error: type[ElmoError], name: str, work: None
) -> None:
    before = sorted(Path().rglob("*"))
    with pytest.raises(error, match=name):
        call(kind, **{"out": "new", **settings})
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("kind", "settings", "name"),
    [
        ("train", {"batch_size": 3}, "batch size 2, and now it is 3"),
        ("train", {"hidden_dim": 48}, r"model\.hidden_dim 64,"),
        ("train", {"max_words": 8}, "max words 9,"),
        ("train", {"texts": "long.txt"}, r"texts \['a\.txt'\],"),
        ("train", {"texts": "changed"}, r"another text file a\.txt"),
        ("train", {"held_out": "long.txt"}, "another held-out text"),
        ("distill", {}, "teacher not set, and now it is set"),
        ("finetune", {}, "initial model not set, and now it is set"),
    ],
)
def test_a_call_with_other_settings_is_refused_and_says_what_differs(
    kind: str, settings: dict[str, Any], name: str, work: None
) -> None:
    with pytest.raises(OutputError, match=name):
        call(kind, out="run", **settings)


def flip_bit(path: Path) -> None:
    """Flip the lowest bit of the last number in a file."""
    data = bytearray(path.read_bytes())
    data[-4] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[], object], type[ElmoError], str]] = {
    "no journal": (lambda: Path("run/journal.json").unlink(), OutputError, "version of elmokit"),
    "another version": (
        lambda: change_json(Path("run/journal.json"), lambda table: table["settings"].update({"run version": 1})),
        OutputError,
        "run version 1,",
    ),
    "a short log": (lambda: os.truncate("run/metrics.jsonl", 9), OutputError, "metrics.jsonl"),
    "no log": (lambda: Path("run/metrics.jsonl").unlink(), OutputError, "metrics.jsonl"),
    "no text": (lambda: Path("texts/a.txt").unlink(), TextError, "texts"),
    "another text": (lambda: Path("texts/a.txt").write_text(TEXT.swapcase()), OutputError, r"a\.txt"),
    "no checkpoints": (lambda: shutil.rmtree("run/checkpoints"), TrainingError, "checkpoints"),
    "a short file": (lambda: Path(NEWEST, "optimizer.safetensors").write_bytes(b"short"), TrainingError, NEWEST),
    "a flipped bit": (lambda: flip_bit(Path(NEWEST, "optimizer.safetensors")), TrainingError, "checksum differs"),
    "a flipped bit of the model": (
        lambda: flip_bit(Path(NEWEST, "model/model.safetensors")),
        TrainingError,
        r"model/model\.safetensors has changed since it was written",
    ),
    "another model": (lambda: shutil.rmtree(Path(NEWEST, "model")), TrainingError, NEWEST),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_not_resumed_and_keeps_its_model(damage: str, work: None) -> None:
    change, error, name = DAMAGES[damage]
    change()
    before = {path: path.read_bytes() for path in Path("run/model").glob("*")}
    with pytest.raises(error, match=name):
        call("train", out="run", tokens=120)
    assert {path: path.read_bytes() for path in Path("run/model").glob("*")} == before


def test_a_run_belongs_to_the_first_process_while_that_counts_the_text(work: None) -> None:
    pytest.importorskip("fcntl")

    def start_elsewhere(report: TrainingReport) -> None:
        if isinstance(report, TextCounts):
            with pytest.raises(LockedError, match="new"):
                call("train", out="new", seed=1)

    call("train", out="new", report=start_elsewhere)
    assert checkpoints(Path("new"))


def test_a_run_that_is_to_be_replaced_stays_until_the_new_text_is_accepted(work: None) -> None:
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    with pytest.raises(TextError, match="too few"):
        call("train", out="run", batch_size=10_000, overwrite=True)
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_a_run_is_trained_by_one_process_at_a_time(work: None) -> None:
    pytest.importorskip("fcntl")
    with file_lock(Path("run/lock")), pytest.raises(LockedError, match="run"):
        call("train", out="run", tokens=120)
