"""The shell's fine-tuning: from every format, frozen or not, guarded, resumed; bad input is one line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from elmokit.engine.architecture import PRESETS, BiLMConfig
from elmokit.engine.state import State
from elmokit.formats.folder import load_folder, save_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.training.reports import TrainingDisplay
from tests.conftest import random_model
from tests.helpers import trace_b
from tests.helpers.many_langs_files import toy_model
from tests.helpers.shell import Shell
from tests.helpers.tiny_training import config_of

NEW_TEXT = "a zebra ran .\nthe yak sat on a zebra .\nthe zebra and the yak ran on .\n" * 8
OLD_TEXT = "the cat sat on the mat .\nthe dog ran .\n"
SMALL = ("--batch-size", "4", "--window-length", "5", "--eval-every", "10", "--save-every", "10", "--threads", "1")
QUICK = (*SMALL, "--tokens", "400", "--learning-rate", "0.02")  # 20 steps
LONGER = (*SMALL, "--tokens", "2000", "--learning-rate", "0.02")
FINETUNE = ("finetune", "new.txt", "--held-out", "held.txt", *QUICK)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two texts."""
    monkeypatch.chdir(tmp_path)
    Path("new.txt").write_text(NEW_TEXT, encoding="utf-8")
    Path("held.txt").write_text(NEW_TEXT[: len(NEW_TEXT) // 8], encoding="utf-8")
    Path("old.txt").write_text(OLD_TEXT, encoding="utf-8")
    return tmp_path


def perplexities(run: str) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = open_model(run).card["perplexity"]
    return found


def fell(run: str, times: float = 0.8) -> bool:
    values = perplexities(run)["held-out"]
    return all(after < before * times for before, after in zip(values["before"], values["after"], strict=True))


def weights(model: PretrainedBiLM) -> dict[str, torch.Tensor]:
    assert model.softmax_module is not None
    own = {f"softmax.{name}": tensor for name, tensor in model.softmax_module.state_dict().items()}
    return {**model.bilm.state_dict(), **own}


def changed(run: str) -> set[str]:
    """The tensors that training changed."""
    before, after = weights(load_folder(Path(run) / "initial")), weights(open_model(run))
    return {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}


@pytest.mark.slow
def test_from_a_folder_of_ours_with_the_old_domain_beside(shell: Shell) -> None:
    model = random_model()
    model.start_state = State.zero(model.config, 1)
    save_model(model, Path("model"))
    texts = ("new.txt", "--held-out", "held.txt", "--old-text", "old.txt")
    ran = shell("finetune", *texts, "--model", "model", "--run", "run", *QUICK)
    assert ran.code == 0, ran.err
    assert fell("run")
    tuned = open_model("run")
    assert tuned.vocabulary is not None
    assert tuned.vocabulary.words == open_model("model").vocabulary.words  # type: ignore[union-attr]
    assert tuned.start_state is not None
    assert np.abs(tuned.start_state.cell).sum() > 0  # not the old weights' own
    found = perplexities("run")
    assert set(found) == {"held-out", "old text"}
    before, after, old_before, old_after = (
        " / ".join(f"{value:.2f}" for value in values)
        for values in (
            tuned.card["held_out_perplexity_before"],
            tuned.card["held_out_perplexity"],
            found["old text"]["before"],
            found["old text"]["after"],
        )
    )
    last = ran.out.splitlines()[-3:]
    # The words a, zebra and yak of the new text are unknown to the model.
    assert last[0] == f"Held-out perplexity (forward / backward): {before} before, {after} after (42.1% unknown words)."
    assert last[1] == f"Old text: {old_before} before, {old_after} after (0.0% unknown words)."
    assert last[2] == f"The model, the best one (of step {tuned.card['n_steps']}), is in run/model."
    # One measure: the evaluation in the log is the one that is shown as the result.
    assert f"held-out perplexity {after} (42.1% unknown words)\n" in ran.out
    assert ran.out.count("Held-out perplexity") == 1
    for model, when in (("model", "before"), ("run", "after")):
        for text, name in (("held.txt", "held-out"), ("old.txt", "old text")):
            facts = json.loads(shell("evaluate", "perplexity", text, "--model", model, "--json").out)
            assert list(facts["perplexity"].values())[:2] == pytest.approx(found[name][when], rel=1e-4)
    card = tuned.card
    assert card["initial"] == {"source": "model", "card": {"note": "random"}}
    assert card["train"]["learning_rate"] == 0.02
    assert card["corpus"]["n_tokens"] == len(NEW_TEXT.split())
    assert card["command"].startswith("elmokit finetune new.txt")


@pytest.mark.slow
def test_a_runs_model_over_the_words_of_the_new_text(shell: Shell) -> None:
    save_model(random_model(), Path("earlier/model"))
    ran = shell(*FINETUNE, "--model", "earlier", "--run", "run", "--max-words", "9")
    assert ran.code == 0, ran.err
    assert fell("run")
    vocabulary = open_model("run").vocabulary
    assert vocabulary is not None
    assert vocabulary.words == ["<S>", "</S>", "<UNK>", ".", "the", "zebra", "a", "on", "ran"]
    Path("again.txt").write_text("\n".join(vocabulary.words) + "\n")
    ran = shell(*FINETUNE, "--model", "run", "--run", "b", "--vocabulary", "again.txt")
    assert ran.code == 0, ran.err
    np.testing.assert_allclose(perplexities("b")["held-out"]["before"], perplexities("run")["held-out"]["after"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [trace_b.CHARS, trace_b.TIED_WORDS, trace_b.FORWARD_WORDS],
    ids=["characters", "words, tied", "words, forward"],
)
def test_from_a_checkpoint_of_bilm_tf(shell: Shell, config: BiLMConfig) -> None:
    tied = config is trace_b.TIED_WORDS
    trace_b.write_checkpoint(Path("ckpt"), config, tied)
    ran = shell(*FINETUNE, "--model", "ckpt", "--run", "run", "--max-words", "12")
    assert ran.code == 0, ran.err
    assert fell("run")
    tuned = open_model("run")
    assert tuned.bilm.config == dataclasses.replace(config, n_words=config.n_words and 12)
    assert config_of("run").softmax.kind == ("tied" if tied else "full")


@pytest.mark.slow
def test_beside_its_own_dump_the_checkpoint_with_its_softmax_is_taken(shell: Shell) -> None:
    trace_b.write_checkpoint(Path("ckpt"), trace_b.CHARS)
    checkpoint = open_model("ckpt")
    save_model(checkpoint, Path("ckpt/dump_weights.hdf5"))
    ran = shell(*FINETUNE, "--model", "ckpt", "--run", "run")
    assert ran.code == 0, ran.err
    assert "The softmax over 11 words is the model's own" in ran.err
    assert shell("convert", "ckpt", "ours").code == 0
    assert shell("convert", "ckpt", "again.hdf5").code == 0  # has no place for a softmax
    assert checkpoint.softmax_module is not None
    for softmax in (open_model("run/initial").softmax_module, open_model("ours").softmax_module):
        assert softmax is not None
        torch.testing.assert_close(softmax.state_dict(), checkpoint.softmax_module.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("n_layers", [1, 2])
def test_from_a_published_file_that_has_no_softmax(shell: Shell, n_layers: int) -> None:
    config = dataclasses.replace(PRESETS["tiny"], n_layers=n_layers, bidirectional=n_layers == 2)
    save_model(random_model(config), Path("their_weights.hdf5"))
    Path("vocab.txt").write_text("<S>\n</S>\n<UNK>\nunseen\n")  # for another purpose: its words need not be predicted
    ran = shell(*FINETUNE, "--model", "their_weights.hdf5", "--run", "run")
    assert ran.code == 0, ran.err
    assert fell("run", times=0.9)
    tuned = open_model("run")
    assert tuned.bilm.config == config
    assert tuned.vocabulary is not None
    assert set(tuned.vocabulary.words) == {"<S>", "</S>", "<UNK>", *NEW_TEXT.split()}


@pytest.mark.slow
def test_from_the_published_files_of_bilm_tfs_own_tests(shell: Shell, bilm_tf_fixture: Path, bilm_tf_run: Path) -> None:
    golden = bilm_tf_fixture
    arguments = ("new.txt", "--model", str(golden / "lm_weights.hdf5"), "--held-out", "held.txt")
    ran = shell("finetune", *arguments, "--run", "run", *QUICK)
    assert ran.code == 0, ran.err
    assert fell("run", times=0.9)
    run = bilm_tf_run
    ran = shell("finetune", "new.txt", "--model", str(run), "--held-out", "held.txt", "--run", "run2", *LONGER)
    assert ran.code == 0, ran.err
    assert "is the model's own" in ran.err  # the checkpoint's: the HDF5 file beside it has none
    assert fell("run2", times=0.9)


@pytest.mark.slow
def test_from_elmo_for_many_langs(shell: Shell) -> None:
    toy_model().write(Path("zh"))
    ran = shell(*FINETUNE, "--model", "zh", "--run", "run")
    assert ran.code == 0, ran.err
    assert fell("run", times=0.99), perplexities("run")  # 4 numbers a word, clipped at 0.5
    assert open_model("run").lexicon == open_model("zh").lexicon


@pytest.mark.slow
def test_frozen_layers_and_a_frozen_softmax_keep_their_weights_and_a_new_inner_layer_is_trained(shell: Shell) -> None:
    save_folder(random_model(), Path("model"))
    ran = shell(*FINETUNE, "--model", "model", "--run", "first", "--softmax-inner-dim", "6", "--frozen-layers", "0,1")
    assert ran.code == 0, ran.err
    assert "; its inner layer of 6 units is new" in ran.err
    top = {f"directions.{d}.layers.1.{name}" for d in range(2) for name in ("weight", "bias", "projection")}
    assert {name for name in changed("first") if not name.startswith("softmax")} == top
    first = weights(open_model("first"))
    assert first["softmax.inner.reduce.weight"].abs().min() > 0
    # Long enough to improve on the model that is given.
    ran = shell(*FINETUNE, "--model", "first", "--run", "second", "--freeze-softmax", "--tokens", "800")
    assert ran.code == 0, ran.err
    assert changed("second") == {name for name in first if not name.startswith("softmax")}
    ran = shell(*FINETUNE, "--model", "model", "--run", "third", "--softmax-inner-dim", "6", "--freeze-softmax")
    assert (ran.code, "would freeze random weights" in ran.err) == (2, True)


@pytest.mark.slow
def test_training_that_only_harms_stops_early_and_leaves_the_model_as_it_was(shell: Shell) -> None:
    save_model(random_model(), Path("model"))
    texts = ("new.txt", "--held-out", "old.txt", "--recipe", "bilm-tf", "--learning-rate", "9")
    settings = (*SMALL, "--epochs", "100", "--eval-every", "2", "--patience", "3")
    ran = shell("finetune", *texts, "--model", "model", "--run", "run", *settings)
    assert ran.code == 0, ran.err
    assert "Training did not improve the model; the original weights were kept." in ran.out
    assert changed("run") == set()
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["n_steps"] == 6  # three looks at the held-out text
    values = perplexities("run")["held-out"]
    assert values["before"] == values["after"]


class Killed(Exception):
    """Stands for SIGKILL: nothing is saved."""


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_first_checkpoint_ends_like_a_straight_one(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_folder(random_model(), "model")
    texts = ("new.txt", "--held-out", "held.txt", "--old-text", "old.txt")
    arguments = ("finetune", *texts, "--model", "model", *QUICK, "--save-every", "1000", "--log-every", "1")
    assert shell(*arguments, "--run", "straight").code == 0

    def kill(display: TrainingDisplay, report: object) -> None:
        if Path("killed/metrics.jsonl").exists():
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(TrainingDisplay, "__call__", kill)
        with pytest.raises(Killed):
            shell(*arguments, "--run", "killed")
    assert not list(Path("killed").glob("checkpoints/step-*"))
    ran = shell(*arguments, "--run", "killed")
    assert ran.code == 0, ran.err
    for name, tensor in weights(open_model("straight")).items():
        assert torch.equal(weights(open_model("killed"))[name], tensor), name
    assert perplexities("killed") == perplexities("straight")
    cards = [open_model(run).card for run in ("killed", "straight")]
    assert cards[0]["held_out_perplexity_before"] == cards[1]["held_out_perplexity_before"]
    assert "Old text: " in ran.out


@pytest.mark.slow
def test_the_same_command_continues_a_run_and_another_one_leaves_it_alone(shell: Shell) -> None:
    save_model(random_model(), Path("model"))
    Path("f.toml").write_text("learning_rate = 0.5\ntokens = 100\n[model]\ndropout = 0.25\n[softmax]\ninner_dim = 6\n")
    texts = ("finetune", "new.txt", "--model", "model", "--held-out", "held.txt", "--run", "run")
    command = (*texts, *SMALL, "--config", "f.toml", "--learning-rate", "0.01")
    assert shell(*command).code == 0
    config = config_of("run")
    assert (config.learning_rate, config.tokens, config.epochs) == (0.01, 100, None)  # flags go first
    assert (config.softmax.kind, config.softmax.inner_dim) == ("full", 6)
    assert open_model("run").bilm.config.dropout == 0.25
    before = {path: path.read_bytes() for path in Path("run").rglob("*.safetensors")}
    ran = shell(*command)
    assert (ran.code, "Training is already complete" in ran.err) == (0, True)
    ran = shell(*command, "--window-length", "6")
    assert (ran.code, "run was started with window length 5, and now it is 6" in ran.err) == (2, True)
    assert {path: path.read_bytes() for path in Path("run").rglob("*.safetensors")} == before
    assert shell(*command, "--window-length", "6", "--overwrite").code == 0
    assert config_of("run").window_length == 6


@pytest.mark.slow
def test_words_without_unk_are_no_vocabulary_to_predict(shell: Shell) -> None:
    words = ["<S>", "</S>", "the", "zebra", "a"]
    config = dataclasses.replace(PRESETS["tiny"], char_cnn=None, n_words=len(words))
    save_model(random_model(config), Path("words.hdf5"))
    Path("words_vocab.txt").write_text("\n".join(words) + "\n")
    arguments = ("finetune", "new.txt", "--model", "words.hdf5", "--held-out", "held.txt", "--run", "run", *QUICK)
    ran = shell(*arguments)
    assert ran.code == 2
    assert "not a valid vocabulary" in ran.err
    assert "Or give other words with vocabulary or max_words" in ran.err
    ran = shell(*arguments, "--max-words", "9")
    assert ran.code == 0, ran.err
    assert fell("run")
    initial = load_folder("run/initial")
    assert initial.vocabulary is not None
    table = initial.bilm.state_dict()["token_layer.embedding.weight"]
    with h5py.File("words.hdf5") as file:
        for row, word in enumerate(words):
            np.testing.assert_array_equal(table[1 + initial.vocabulary.ids[word]], file["embedding"][row])
