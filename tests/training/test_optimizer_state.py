"""A training that is continued keeps the optimizer's state: bilm-tf's own restart, to the digits."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from elmokit.errors import TrainingError
from elmokit.formats.bilm_tf import bilm_tf_rows
from elmokit.formats.folder import load_folder
from elmokit.formats.open import open_model
from elmokit.formats.tensor_rows import TensorRow
from elmokit.text.vocabulary import Vocabulary
from elmokit.training import api, loop
from elmokit.training.training_run import checkpoints
from elmokit.training.transfer import read_optimizer_state, transfer_optimizer_state, with_softmax_over
from tests.helpers.killing import Killed
from tests.helpers.tiny_training import Reports, kill_after, newest_checkpoint

SMALL: dict[str, Any] = {
    "batch_size": 4,
    "window_length": 10,
    "log_every": 1,
    "eval_every": 100,
    "held_out_sentences": 5,
}
RESTART = SMALL | {"n_samples": 0, "dropout": 0.0, "shuffle": False, "tokens": 10 * 4 * 10}

SOFTMAX = (("weight", "W"), ("bias", "b"))
CELL = re.compile("RNN/MultiRNNCell/Cell0/LSTMCell/(.+)")
CELL_PARTS = {"W_0": "rnn/lstm_cell/kernel", "B": "rnn/lstm_cell/bias", "W_P_0": "rnn/lstm_cell/projection/kernel"}


@pytest.fixture(autouse=True)
def _short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CALIBRATION_SENTENCES", 2)


@pytest.fixture
def text(bilm_tf_run: Path, tmp_path: Path) -> Path:
    """The first lines of the text."""
    path = tmp_path / "text.txt"
    lines = (bilm_tf_run / "train.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:20]), encoding="utf-8")
    return path


def finetune(model: Path, text: Path, out: Path, **settings: Any) -> Reports:
    reports = Reports()
    api.finetune(model, text, held_out=text, out=out, **{"report": reports, **settings})
    return reports


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.usefixtures("rare_evaluations")
def test_ten_steps_of_bilm_tf_restart(bilm_tf_run: Path, tmp_path: Path, kept: bool) -> None:
    # With the Adagrad sums of the checkpoint, as restart.py does, and for comparison with sums that start at 1.
    trace = json.loads((bilm_tf_run / "restart_trace.json").read_text())["restart" if kept else "fresh_adagrad"]
    text = bilm_tf_run / "train.txt"
    settings = RESTART if kept else RESTART | {"keep_optimizer": False}
    reports = finetune(bilm_tf_run, text, tmp_path / "run", recipe="bilm-tf", **settings)
    lines = reports.lines
    assert len(lines) == 10
    for line, (losses, norm) in zip(lines, trace["losses_forward_backward_and_norm_before_clipping"], strict=True):
        assert line.losses == pytest.approx(losses, abs=1e-5)
        assert line.gradient_norm == pytest.approx(norm, rel=1e-5)
    assert lines[1].losses[0] == pytest.approx(4.28132 if kept else 4.33676, abs=1e-5)
    assert ("The optimizer continues with the state of" in "\n".join(reports.notices)) == kept
    newest = newest_checkpoint(tmp_path / "run").path
    trained, sums = load_folder(newest / "model"), load_file(newest / "optimizer.safetensors")
    arrays = {**trained.arrays, **{f"softmax.{name}": array for name, array in trained.softmax.arrays.items()}}
    weights = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    rows = [*bilm_tf_rows(trained.config), *(TensorRow(f"softmax.{k}", f"softmax/{v}") for k, v in SOFTMAX)]
    for row in rows:
        theirs = f"lm/{CELL.sub(lambda found: CELL_PARTS[found[1]], row.theirs)}"
        total, squares = trace["weights_sum_and_sum_of_squares"][theirs]
        weight = weights[row.ours].double()
        assert float(weight.sum()) == pytest.approx(total, abs=1e-4), theirs
        assert float(weight.square().sum()) == pytest.approx(squares, rel=1e-5), theirs
        n_zeros = weight.shape[1] if theirs == "lm/char_embed" else 0  # the row of "no token", which bilm-tf lacks
        (total,) = trace["adagrad_sums"][f"{theirs}/Adagrad"]
        ours = row.ours if row.ours.startswith("softmax.") else f"bilm.{row.ours}"
        assert float(sums[f"sum/{ours}"].double().sum()) - n_zeros == pytest.approx(total, rel=1e-5), theirs


@pytest.mark.slow
def test_the_weights_next_to_a_checkpoint_keep_its_optimizer_too(bilm_tf_run: Path, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("model.ckpt-207.index", "model.ckpt-207.data-00000-of-00001", "options.json", "vocab.txt"):
        shutil.copy(bilm_tf_run / name, folder)
    settings = RESTART | {"tokens": 40, "recipe": "bilm-tf", "keep_optimizer": True}
    runs = [finetune(source, text, tmp_path / name, **settings) for source, name in ((folder, "a"), (bilm_tf_run, "b"))]
    losses = [[line.losses for line in run.lines] for run in runs]
    assert losses[0] == losses[1]
    sums = [load_file(tmp_path / name / "initial-optimizer.safetensors") for name in ("a", "b")]
    assert all(torch.equal(sums[0][key], sums[1][key]) for key in sums[0] | sums[1])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["modern", "bilm-tf"])
def test_an_own_checkpoint_keeps_its_optimizer(bilm_tf_run: Path, text: Path, tmp_path: Path, recipe: str) -> None:
    settings: dict[str, Any] = {**SMALL, "save_every": 1, "eval_every": 1, "recipe": recipe}
    settings |= {"ema_decay": 0.0, "keep_optimizer": False}
    finetune(bilm_tf_run, text, tmp_path / "run", tokens=120, **settings)
    first, last = (checkpoint.path for checkpoint in checkpoints(tmp_path / "run"))
    # From a checkpoint, from its model, and from a run whose best model is that of its last checkpoint.
    for index, source in enumerate((first, last / "model", tmp_path / "run")):
        out = tmp_path / f"again-{index}"
        reports = finetune(source, text, out, tokens=40, **{**settings, "keep_optimizer": True})
        assert any("continues with the state of" in notice for notice in reports.notices)
        kept = load_file(out / "initial-optimizer.safetensors")
        expected = load_file((first if index == 0 else last) / "optimizer.safetensors")
        assert kept.keys() == expected.keys()
        assert all(torch.equal(kept[key], expected[key]) for key in kept)
        after = load_file(newest_checkpoint(out).path / "optimizer.safetensors")
        assert float(after["step/softmax.bias"]) == float(expected["step/softmax.bias"]) + 1


def test_rows_of_words_are_kept_and_new_words_start_anew(bilm_tf_run: Path) -> None:
    model = open_model(bilm_tf_run)
    words = model.vocabulary.words
    other = Vocabulary([*words[:3], "zebra", *words[10:2:-1]])
    changed = with_softmax_over(model, other, {"zebra": 1}, 1)
    state = read_optimizer_state(model, "adagrad")
    kept, line = transfer_optimizer_state(state, "adagrad", model, changed)
    assert "for 11 of 12 words; for the others, it is reset" in line
    old, new = [*range(3), *range(10, 2, -1)], [*range(3), *range(4, 12)]
    for name in ("sum/softmax.weight", "sum/softmax.bias"):
        assert torch.equal(kept[name][new], state.tensors[name][old])
        assert torch.equal(kept[name][3], torch.ones_like(kept[name][3]))
    name = "sum/bilm.token_layer.projection.weight"
    assert torch.equal(kept[name], state.tensors[name])


def test_a_checkpoint_in_an_archive_keeps_its_optimizer(bilm_tf_run: Path, tmp_path: Path) -> None:
    packed = Path(shutil.make_archive(str(tmp_path / "run"), "gztar", bilm_tf_run))
    expected, found = (read_optimizer_state(open_model(path), "adagrad") for path in (bilm_tf_run, packed))
    assert found.source == str(packed)
    assert found.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(value, expected.tensors[key]) for key, value in found.tensors.items())


@pytest.mark.slow
def test_an_interrupted_run_resumes_from_the_kept_state(bilm_tf_run: Path, text: Path, tmp_path: Path) -> None:
    settings = RESTART | {"recipe": "bilm-tf", "tokens": 80}
    straight = finetune(bilm_tf_run, text, tmp_path / "run", **settings)
    with pytest.raises(Killed):
        finetune(bilm_tf_run, text, tmp_path / "killed", **settings, report=kill_after(1))
    assert not checkpoints(tmp_path / "killed")
    reports = finetune(bilm_tf_run, text, tmp_path / "killed", **settings)
    losses = [[line.losses for line in run.lines] for run in (straight, reports)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2


@pytest.mark.slow
def test_a_state_that_cannot_be_kept_is_an_error_if_it_was_requested(
    bilm_tf_run: Path, text: Path, tmp_path: Path
) -> None:
    def check(model: Path | None, name: str, **settings: Any) -> None:
        given = {**SMALL, "tokens": 40, "keep_optimizer": True, **settings}
        with pytest.raises(TrainingError, match=name):
            api.finetune(model, text, held_out=text, out=tmp_path / "no", report=lambda _: None, **given)
        assert not (tmp_path / "no").exists()

    check(None, "training checkpoint")
    check(bilm_tf_run, "adagrad, not of muon")
    exported = tmp_path / "exported"
    exported.mkdir()
    for name in ("weights.hdf5", "options.json"):
        shutil.copy(bilm_tf_run / name, exported)
    check(exported, "training checkpoint", recipe="bilm-tf")
    # By default the recipe only reports it.
    reports = finetune(exported, text, tmp_path / "run", recipe="bilm-tf", max_words=50, **SMALL, tokens=40)
    assert "Training starts with a new optimizer." in "\n".join(reports.notices)
    # The best model of a run can be from a step whose checkpoint is gone.
    shutil.rmtree(newest_checkpoint(tmp_path / "run").path)
    check(tmp_path / "run", "step 1", recipe="bilm-tf")
