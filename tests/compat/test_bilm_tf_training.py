"""bilm-tf's training functions and scripts, on a directory that bilm-tf wrote and on new ones."""

from __future__ import annotations

import itertools
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from elmokit.compat import bilm_tf_training
from elmokit.compat.bilm import (
    BidirectionalLMDataset,
    InvalidNumberOfCharacters,
    LMDataset,
    UnicodeCharsVocabulary,
    dump_weights,
    load_options_latest_checkpoint,
    load_vocab,
    test,
    train,
)
from elmokit.errors import ConfigError
from elmokit.formats.folder import load_folder
from elmokit.formats.open import open_model
from elmokit.training import loop
from elmokit.training.bilm_run import TrainingSetup
from elmokit.training.distributed import World
from elmokit.training.reports import TextCounts
from elmokit.training.training_run import Run
from elmokit.training.training_state import window_stream
from tests.helpers.shell import Shell
from tests.helpers.tiny_training import config_of, newest_checkpoint

test.__test__ = False  # type: ignore[attr-defined]  # bilm-tf's name, and not a test


@pytest.fixture(autouse=True)
def _short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CALIBRATION_SENTENCES", 2)


@pytest.fixture
def folder(bilm_tf_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a copy of bilm-tf's run, and the first lines of its text."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bilm_tf_run, "old")
    for name in ("vocab.txt", "train.txt"):
        (tmp_path / "old" / name).rename(name)  # bilm-tf keeps both elsewhere
    lines = Path("train.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("short.txt").write_text("".join(lines[:20]), encoding="utf-8")
    return tmp_path


def small_options() -> dict[str, Any]:
    return {**load_options_latest_checkpoint("old")[0], "n_epochs": 1, "n_train_tokens": 330, "batch_size": 4}


def test_the_newest_checkpoint_and_its_options_are_found(folder: Path) -> None:
    options, checkpoint = load_options_latest_checkpoint("old")
    assert options == json.loads(Path("old/options.json").read_text())
    assert checkpoint == str(Path("old/model.ckpt-207"))


@pytest.mark.slow
def test_a_test_prints_what_bilm_tf_prints(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, checkpoint = load_options_latest_checkpoint("old")
    vocab = load_vocab("vocab.txt", 20)
    found = test(options, checkpoint, BidirectionalLMDataset("train.txt", vocab, test=True), batch_size=7)
    assert found == pytest.approx(100.67164, abs=2e-5)
    assert capsys.readouterr().out == f"FINSIHED!  AVERAGE PERPLEXITY = {np.float32(found)}\n"


@pytest.mark.parametrize("script", ["run_test", "restart"])
def test_a_vocabulary_in_another_order_than_the_stored_one_is_reported(script: str, folder: Path) -> None:
    words = Path("vocab.txt").read_text(encoding="utf-8").split("\n")
    shutil.copy("vocab.txt", "old/vocab.txt")
    words[3], words[9] = words[9], words[3]
    Path("other.txt").write_text("\n".join(words), encoding="utf-8")
    options, checkpoint = load_options_latest_checkpoint("old")
    data = BidirectionalLMDataset("short.txt", load_vocab("other.txt", 20), test=script == "run_test")
    call = partial(test, options, batch_size=4) if script == "run_test" else bilm_tf_training._open
    expected = r"other.txt differs from .*old/vocab.txt, which is .*: line 4 is 'and' but should be 'the'"
    with pytest.warns(UserWarning, match=expected):
        call(checkpoint, data)
    same = BidirectionalLMDataset("short.txt", load_vocab("vocab.txt", 20))
    bilm_tf_training._open(checkpoint, same)  # a warning is an error here


@pytest.mark.slow
def test_blank_lines_and_no_break_spaces_are_trained_on_as_in_bilm_tf(folder: Path) -> None:
    lines = ["the\u00a0the ,", "", "of\u3000and\rthe", " ", *["the , of and the"] * 8]
    Path("odd.txt").write_bytes("\n".join(lines).encode())
    with Path("odd.txt").open(encoding="utf-8") as file:
        expected = [line.split() for line in file.readlines()]
    reports: list[object] = []
    options = {**small_options(), "n_train_tokens": 40}
    data = BidirectionalLMDataset("odd.txt", load_vocab("vocab.txt", 20))
    train(options, data, 1, "new", report=reports.append)
    (counts,) = [one for one in reports if isinstance(one, TextCounts)]
    assert (counts.n_sentences, counts.n_tokens) == (len(expected), sum(map(len, expected)))
    setup = TrainingSetup.open(Path("new"))
    window = next(window_stream(setup, load_folder("new/model"), World()))
    batch = next(BidirectionalLMDataset("odd.txt", load_vocab("vocab.txt", 20), test=True).iter_batches(4, 10))
    assert batch["next_token_id"] is not None
    assert window.targets[0].tolist() == batch["next_token_id"].tolist()
    assert load_folder("new/model").read("don\u2019t") == "don\u2019t"


@pytest.mark.slow
def test_a_script_of_bilm_tf_trains_and_restarts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # As in bin/train_elmo.py and bin/restart.py, after a change of the imports.
    vocab = load_vocab("vocab.txt", 20)
    data = BidirectionalLMDataset("short.txt", vocab, test=False, shuffle_on_load=True)
    Path("new").mkdir()
    train(small_options(), data, 2, "new", "new")
    config = config_of("new")
    assert (config.batch_size, config.window_length, config.tokens) == (8, 10, 320)  # 2 GPUs; 4 whole batches
    assert (config.recipe, config.n_samples) == ("bilm-tf", 128)
    assert "perplexities are computed on up to 200 sentences of the training text" in capsys.readouterr().err
    options, checkpoint = load_options_latest_checkpoint("new")
    assert Path(checkpoint) == Path("new/checkpoints/step-00000004")
    before = sorted(str(path) for path in Path("new").rglob("*"))
    train(options, data, 1, "new", "new", restart_ckpt_file=checkpoint)
    assert "The optimizer continues with the state of" in capsys.readouterr().err
    assert set(before) < {str(path) for path in Path("new").rglob("*")}
    _, checkpoint = load_options_latest_checkpoint("new")
    assert Path(checkpoint) == Path("new/restart-1/checkpoints/step-00000004")
    dump_weights("new", "w.hdf5")
    expected = load_folder(f"{checkpoint}/model").build_bilm().state_dict()
    dumped = open_model("w.hdf5").build_bilm().state_dict()
    assert all(torch.equal(dumped[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_the_same_command_continues_an_interrupted_restart_bit_for_bit(
    shell: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restart(save_dir: str, *arguments: str) -> int:
        common = ("--vocab_file", "vocab.txt", "--train_prefix", "short.txt", "--heldout_prefix", "short.txt")
        numbers = ("--n_epochs", "1", "--n_train_tokens", "240", "--batch_size", "4", "--n_gpus", "2")
        code: int = shell("bilm-tf", "restart", "--save_dir", save_dir, *common, *numbers, *arguments).code
        return code

    shutil.copytree("old", "straight")
    assert restart("straight") == 0
    with monkeypatch.context() as patch:
        patch.setitem(bilm_tf_training.INTERVALS, "save_every", 1)
        patch.setattr(Run, "save_checkpoint", interrupted_after(Run.save_checkpoint, 2))
        assert restart("old") == 130
    assert restart("old") == 0
    assert [path.name for path in Path("old").glob("restart-*")] == ["restart-1"]
    for name in ("model/model.safetensors", "optimizer.safetensors", "state.safetensors"):
        files = [newest_checkpoint(f"{run}/restart-1").path / name for run in ("straight", "old")]
        assert files[0].read_bytes() == files[1].read_bytes()
    # A finished restart is not continued, and neither is an interrupted one by another call.
    with monkeypatch.context() as patch:
        patch.setattr(Run, "save_checkpoint", interrupted_after(Run.save_checkpoint, 0))
        assert restart("old") == 130
    assert restart("old", "--train_prefix", "train.txt") == 0
    assert sorted(path.name for path in Path("old").glob("restart-*")) == ["restart-1", "restart-2", "restart-3"]


def interrupted_after(method: Any, n_calls: int) -> Any:
    """Return a method that a Ctrl-C ends, once it was called some times."""
    calls = itertools.count(1)

    def wrapped(*arguments: Any) -> None:
        if next(calls) > n_calls:
            raise KeyboardInterrupt
        method(*arguments)

    return wrapped


def test_dumped_weights_are_those_of_bilm_tf(folder: Path) -> None:
    dump_weights("old", "new_weights.hdf5")
    with h5py.File("new_weights.hdf5") as ours, h5py.File("old/weights.hdf5") as theirs:
        names: list[str] = []
        theirs.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        for name in names:
            regular = name.replace("/RNN/LSTMCell/", "/RNN/MultiRNNCell/Cell0/LSTMCell/")
            np.testing.assert_array_equal(ours[regular], theirs[name])
    assert json.loads(Path("new_options.json").read_text())["char_cnn"]["n_characters"] == 262


def test_options_and_data_that_do_not_fit_are_errors(folder: Path) -> None:
    vocab = load_vocab("vocab.txt", 20)
    both = BidirectionalLMDataset("short.txt", vocab)
    for options, data, message in (
        (small_options(), LMDataset("short.txt", vocab), "two directions"),
        (small_options(), BidirectionalLMDataset("short.txt", load_vocab("vocab.txt", 50)), "20 characters per word"),
        ({**small_options(), "unrol_steps": 1}, both, "no option 'unrol_steps'"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(options, data, 1, "new", "new")
    assert not Path("new").exists()


def test_data_of_the_backward_direction_alone_yield_batches_and_train_nothing(folder: Path) -> None:
    data = LMDataset("short.txt", load_vocab("vocab.txt", 20), reverse=True)
    assert next(data.iter_batches(4, 10))["next_token_id"] is not None
    with pytest.raises(ConfigError, match="reverse=True"):
        train({**small_options(), "bidirectional": False}, data, 1, "back", "back")


@pytest.mark.slow
def test_the_four_scripts_run_in_the_shell(shell: Shell, folder: Path) -> None:
    common = ("--vocab_file", "vocab.txt", "--train_prefix", "short.t?t")
    Path("options.json").write_text(json.dumps(small_options()))
    ran = shell(
        "bilm-tf", "train_elmo", "--save_dir", "new", *common, "--options_file", "options.json", "--n_gpus", "2"
    )
    assert ran.code == 0, ran.err
    assert "The best model" in ran.out
    ran = shell("bilm-tf", "train_elmo", "--save_dir", "new", *common, "--options_file", "options.json")
    assert (ran.code, "new was started with batch size 8, and now it is 4" in ran.err) == (2, True)
    ran = shell(
        *("bilm-tf", "restart", "--save_dir", "old", *common, "--n_epochs", "1", "--n_train_tokens", "80"),
        *("--batch_size", "4", "--heldout_prefix", "short.txt"),
    )
    assert ran.code == 0, ran.err
    assert "The optimizer continues with the state of" in ran.err
    assert config_of("old/restart-1").tokens == 80
    test_of = ("bilm-tf", "run_test", "--vocab_file", "vocab.txt", "--test_prefix", "short.txt")
    for save_dir in ("old", "new"):
        ran = shell(*test_of, "--save_dir", save_dir, "--batch_size", "4")
        assert ran.code == 0, ran.err
        assert ran.out.startswith("FINSIHED!  AVERAGE PERPLEXITY = ")
    ran = shell(*test_of, "--save_dir", "new")
    assert (ran.code, "batch size of at most 20" in ran.err) == (2, True)
    ran = shell("bilm-tf", "dump_weights", "--save_dir", "new", "--outfile", "w.hdf5")
    assert ran.code == 0, ran.err
    assert open_model("w.hdf5").config.hidden_dim == 40
    ran = shell("bilm-tf", "dump_weights", "--save_dir", "nowhere", "--outfile", "x.hdf5")
    assert (ran.code, "There is no checkpoint in nowhere" in ran.err) == (2, True)


def test_a_wrong_number_of_characters_can_be_caught_by_its_old_name(folder: Path) -> None:
    options = small_options()
    options["char_cnn"]["n_characters"] = 300
    data = BidirectionalLMDataset("short.txt", UnicodeCharsVocabulary("vocab.txt", 20))
    with pytest.raises(InvalidNumberOfCharacters, match="n_characters is 300"):
        train(options, data, 1, "new")
