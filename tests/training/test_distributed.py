"""Two processes of B rows equal one of 2 B rows; another number of processes can resume a run."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from elmokit.errors import ConfigError, MissingExtraError
from elmokit.formats.folder import load_folder
from elmokit.formats.save import save_model
from elmokit.network.bilm import BiLM
from elmokit.network.softmax_module import build_softmax
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.text import Text
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.bilm_run import VOCABULARY
from elmokit.training.distributed import World, init_distributed, training_device
from elmokit.training.losses import WindowLosses
from elmokit.training.optimizers import set_learning_rate
from elmokit.training.shards import ReadingOrder, SentenceBlocks
from elmokit.training.training_config import TrainingConfig
from elmokit.training.training_state import config_optimizer
from elmokit.training.windows import Window, WindowStream
from tests.conftest import random_model
from tests.helpers.paths import ROOT
from tests.helpers.shell import command_runner
from tests.helpers.tiny_training import config_of, newest_checkpoint

LINES = ["the cat sat on the mat .", "the dog ran .", "a cat and a dog ran on .", "the mat sat .", "a dog ."] * 12
SETTINGS = (
    "--preset tiny --max-words 12 --batch-size 3 --window-length 5 --tokens 240 --dropout 0 --log-every 2 "
    "--passage-length 1 --lower-case 0 --precision float32 --n-samples 0"
)


def torchrun(folder: Path, n_processes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*command, "-m", "elmokit", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )


class SideBySide:
    """The windows of several streams as one with the rows of all."""

    def __init__(self, streams: list[WindowStream]) -> None:
        self.streams = streams

    def __iter__(self) -> Iterator[Window]:
        for windows in zip(*self.streams, strict=True):
            starts = np.cumsum([0, *(len(window.tokens) for window in windows)])
            inputs = [window.inputs + start for window, start in zip(windows, starts, strict=False)]
            yield Window(
                np.concatenate([window.tokens for window in windows]),
                np.concatenate(inputs, axis=1),
                np.concatenate([window.targets for window in windows], axis=1),
                np.concatenate([window.begins for window in windows], axis=1),
            )


def trained_alone(run: Path, shards: list[Path], config: TrainingConfig, n_steps: int) -> WindowLosses:
    """One process with the rows of two, written out without the trainer."""
    torch.manual_seed(config.seed)
    vocabulary = Vocabulary.from_file(run / VOCABULARY)
    bilm = BiLM(config.model)
    bilm.reset_parameters()
    softmax = build_softmax(config.softmax, len(vocabulary), bilm.config.projection_dim, bilm.token_layer)
    softmax.reset_parameters()
    model = PretrainedBiLM.from_modules(bilm, softmax, vocabulary=vocabulary)
    losses = WindowLosses(bilm, softmax, 0).train()
    optimizer = config_optimizer(config, losses, World())
    state = bilm.zero_state(2 * config.batch_size)
    parts = [
        WindowStream(
            [
                SentenceBlocks(Text(shards), ReadingOrder(config.seed, rank=rank, n_ranks=2), reader)
                for reader in range(1 if config.same_order else 2)
            ],
            vocabulary,
            model.encode,
            config.batch_size,
            config.window_length,
        )
        for rank in range(2)
    ]
    n_predictions = 0
    for _, window in zip(range(n_steps), SideBySide(parts), strict=False):
        tensors = [torch.from_numpy(part) for part in (window.tokens, window.inputs, window.targets)]
        if config.resets_state:
            state = state.with_zero_rows(torch.from_numpy(window.begins))
        both, hidden, cell = losses(*tensors, *state)
        state = type(state)(hidden, cell)
        (both.mean() * config.loss_scale).backward()
        torch.nn.utils.clip_grad_norm_(losses.parameters(), config.max_grad_norm)
        set_learning_rate(optimizer, config.learning_rate_at(n_predictions / 240))
        optimizer.step()
        optimizer.zero_grad()
        n_predictions += 2 * config.predictions_per_step
    for part in parts:
        part.close()
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(("n_shards", "recipe"), [(1, "bilm-tf"), (3, "modern")])
def test_two_processes_of_b_rows_equal_one_of_2b(
    n_shards: int, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = [tmp_path / f"shard-{index}.txt" for index in range(n_shards)]
    for index, shard in enumerate(shards):
        shard.write_text("".join(f"{line}\n" for line in LINES[index::n_shards]), encoding="utf-8")
    names = [shard.name for shard in shards]
    settings = [*SETTINGS.split(), "--recipe", recipe]
    command = ("train", *names, "--held-out", names[0], "--out", "run", *settings)
    ran = torchrun(tmp_path, 2, *command)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Held-out perplexity") == 1, "only the leading process reports"
    assert "Grad strides" not in ran.stderr, "gradients lie as their weights, so that none is copied"
    run = tmp_path / "run"
    newest = newest_checkpoint(run).path
    assert newest.name == "step-00000008"  # of 2 x 3 x 5 predictions each
    # Muon enlarges the rounding errors in directions in which a gradient of few positions is zero some 500 times.
    tolerance = 3e-4 if recipe == "modern" else 1e-5
    alone = trained_alone(run, shards, config_of(run), 8)
    together = load_folder(newest / "model")
    assert together.softmax is not None
    for ours, theirs in zip(together.build_modules(), (alone.bilm, alone.softmax), strict=True):
        for name, tensor in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], tensor, atol=tolerance, rtol=1e-4, msg=name)
    assert load_file(newest / "state.safetensors")["hidden"].shape[2] == 6

    if n_shards == 1:
        return
    # One process can resume the run, and says what changes.
    monkeypatch.chdir(tmp_path)
    resumed = command_runner(monkeypatch, capsys)(*command, "--tokens", "360")
    assert resumed.code == 0, resumed.err
    assert "This run used 2 processes and is now resumed with 1, so each step reads 3 rows instead of 6" in resumed.err
    assert load_file(newest_checkpoint(run).path / "state.safetensors")["hidden"].shape[2] == 3


@pytest.mark.slow
def test_processes_distill_one_student_and_keep_the_states_of_their_teachers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    save_model(random_model(), tmp_path / "teacher")
    # Layers alone: the softmax then gets no gradient.
    flags = ("--out", "run", *SETTINGS.split(), "--text-weight", "0")
    command = ("distill", "teacher", "text.txt", "--held-out", "text.txt", *flags)
    monkeypatch.chdir(tmp_path)
    alone = command_runner(monkeypatch, capsys)(*command, "--tokens", "60")
    assert alone.code == 0, alone.err
    assert load_file(newest_checkpoint("run").path / "state.safetensors")["teacher.cell"].shape[2] == 3
    ran = torchrun(tmp_path, 2, *command)
    assert ran.returncode == 0, ran.stderr
    assert "used 1 processes and is now resumed with 2" in ran.stderr
    state = load_file(newest_checkpoint("run").path / "state.safetensors")
    assert state["teacher.hidden"].shape[2] == state["hidden"].shape[2] == 6


def test_an_error_about_a_missing_extra_can_be_sent_to_other_processes() -> None:
    error = pickle.loads(pickle.dumps(MissingExtraError("Reading a.zst", "zstd")))
    assert str(error) == str(MissingExtraError("Reading a.zst", "zstd"))


@pytest.mark.slow
def test_a_user_error_is_reported_and_no_process_hangs(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat\n")
    ran = torchrun(tmp_path, 2, "train", "text.txt", "--held-out", "text.txt", "--out", "run", *SETTINGS.split())
    assert ran.returncode != 0
    assert "The text has 1 sentence" in ran.stderr
    assert not (tmp_path / "run").exists()


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with init_distributed() as world:
        assert world == World()
        assert world.gather(3) == [3]
        assert world.broadcast("all") == "all"
        assert world.on_main_process(lambda: 3) == 3
        with pytest.raises(ConfigError, match="device is 'meta'"):
            world.on_main_process(lambda: training_device("meta"))
        torch.testing.assert_close(world.mean(torch.tensor([2.0])), torch.tensor([2.0]))


@pytest.mark.parametrize("n_rows", [1, 3, 4, 8, 9])
def test_rows_divided_among_processes_get_the_results_of_one(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, n_processes = torch.randn(n_rows, 2), 3
    sent: list[torch.Tensor] = []
    monkeypatch.setattr("torch.distributed.all_gather", lambda _, own: sent.append(own))
    for rank in range(n_processes):
        World(rank, n_processes).divide_rows(torch.square, rows)
    assert all(len(own) == -(-n_rows // n_processes) for own in sent)

    def all_gather(parts: list[torch.Tensor], _: torch.Tensor) -> None:
        for part, own in zip(parts, sent, strict=True):
            part.copy_(own)

    monkeypatch.setattr("torch.distributed.all_gather", all_gather)
    assert torch.equal(World(1, n_processes).divide_rows(torch.square, rows), rows.square())
