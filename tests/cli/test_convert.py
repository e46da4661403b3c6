"""The shell's conversion of a training run: all that was trained is kept, or said to be left out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from elmokit import LanguageModel, SentenceEmbedder
from elmokit.engine.architecture import PRESETS
from elmokit.engine.state import State
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.pretrained.model import describe
from elmokit.text.vocabulary import Vocabulary
from tests.conftest import WORDS, random_model
from tests.helpers.shell import Shell
from tests.helpers.weights import same_weights

TEXT = "the cat sat on the mat .\nthe dog ran .\n" * 10
TRAIN = ("text.txt", "--held-out", "text.txt", "--preset", "tiny", "--max-words", "9", "--tokens", "60")
SMALL = ("--batch-size", "2", "--window-length", "5", "--eval-every", "3", "--save-every", "2", "--threads", "1")
KINDS = {
    "inner layer": ("--softmax-inner-dim", "5"),
    "tied": ("--softmax", "tied", "--input", "words"),
    "one layer, forward": ("--n-layers", "1", "--forward-only"),
}


def test_a_start_state_is_stored_with_a_converted_model(shell: Shell) -> None:
    save_model(random_model(), Path("old.hdf5"))
    with pytest.warns(UserWarning, match="old.hdf5 has no stored start state"):
        assert shell("convert", "old.hdf5", "plain").code == 0
    assert open_model("plain").start_state is None
    assert shell("convert", "old.hdf5", "zero", "--start", "zero").code == 0
    model = open_model("zero")
    assert not model.start_state.hidden.any()
    assert model.card["warm_state"] == "zero"
    assert json.loads(shell("info", "--model", "zero", "--json").out)["start state"].startswith("zero, as in TF-Hub")
    model.card["warm_state"] = "mean state of a text"
    model = model.replace(start_state=State(*(state + 1 for state in model.start_state)))
    assert describe(model)["start state"] == "stored with the model: mean state of a text"
    assert "AllenNLP and bilm-tf used stateful, TF-Hub zero" in " ".join(
        shell("info", "--model", "old.hdf5", "--all").out.split()
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_converts_with_all_that_was_trained_or_what_is_left_out_is_said(shell: Shell, kind: str) -> None:
    Path("text.txt").write_text(TEXT)
    assert shell("train", *TRAIN, *SMALL, *KINDS[kind], "--run", "run").code == 0
    ran = shell("convert", "run", "ours", "--storage", "float16")
    assert (ran.code, ran.err) == (0, "wrote ours\n")
    assert {tensor.dtype for tensor in load_file("ours/softmax.safetensors").values()} == {torch.float16}
    before, ours = open_model("run/model"), open_model("ours")
    assert before.card == ours.card
    for name in ("corpus", "command", "elmokit", "train", "n_steps", "n_predictions", "held_out_perplexity"):
        assert name in ours.card
    assert ours.vocabulary.words == before.vocabulary.words
    texts = [["the", "cat", "sat", "on", "the", "mat", "."], ["the", "dog", "ran", "."]]
    nats = [LanguageModel(model).perplexity(texts).mean_nats for model in (before, ours)]
    assert nats[0] == pytest.approx(nats[1], abs=1e-2)
    Path("there").mkdir()
    ran = shell("convert", "run", "there/out.hdf5")
    assert ran.code == 0
    assert ran.err.endswith("Not saved (.hdf5 files cannot hold it): softmax, vocabulary, start state\n")
    after = open_model("there/out.hdf5")
    assert after.config == before.config
    assert after.card == {name: fact for name, fact in before.card.items() if name != "warm_state"}
    assert same_weights(after, before)
    options = json.loads(Path("there/out_options.json").read_text())
    if kind == "tied":
        assert "wrote there/out_vocab.txt\n" in ran.err
        assert Path("there/out_vocab.txt").read_text() == Path("run/model/vocab.txt").read_text()
    else:
        assert options["char_cnn"]["n_characters"] == 262
        assert not Path("there/out_vocab.txt").exists()
    with h5py.File("there/out.hdf5") as file:  # two directions, which the old loaders ask for
        assert set(file["RNN_1/RNN/MultiRNNCell"]) == {f"Cell{k}" for k in range(options["lstm"]["n_layers"])}
        assert np.any(file["RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"][...]) == options["bidirectional"]


def test_a_word_input_model_keeps_its_list_of_words(shell: Shell) -> None:
    words = [word for word in WORDS if word != "<UNK>"]
    model = random_model(dataclasses.replace(PRESETS["tiny"], char_cnn=None, n_words=len(words)))
    save_model(model.replace(softmax=None, vocabulary=Vocabulary(words, strict=False)), Path("old"))
    Path("new").mkdir()
    ran = shell("convert", "old", "new/weights.hdf5")
    assert "left out" not in ran.err
    again = open_model("new")
    assert again.vocabulary.words == words
    ran = shell("convert", "old", "new/other.hdf5")
    assert ran.err == "wrote new/other.hdf5\nwrote new/other_options.json\nwrote new/other_vocab.txt\n"


def test_a_run_without_a_saved_model_names_its_checkpoint(shell: Shell) -> None:
    Path("run/checkpoints/step-00000004").mkdir(parents=True)
    Path("run/journal.json").write_text("{}")
    Path("model").rename("run/checkpoints/step-00000004/model")
    ran = shell("convert", "run", "out.hdf5")
    assert ran.code == 2
    assert "a training run that has not saved a model yet; its newest checkpoint is run/checkpoints/step-0" in ran.err
    assert shell("convert", "run/checkpoints/step-00000004/model", "out.hdf5").code == 0


def test_the_precision_of_a_converted_model_is_kept_until_another_is_given(shell: Shell, folder: Path) -> None:
    assert shell("convert", str(folder), "quick", "--precision", "int8").code == 0
    assert shell("convert", "quick", "again").code == 0
    assert open_model("again").precision == "int8"
    assert shell("convert", "quick", "exact", "--precision", "float32").code == 0
    assert open_model("exact").precision == "float32"
    ran = shell("convert", "quick", "weights.hdf5")
    assert "Not saved (.hdf5 files cannot hold it): " in ran.err
    assert "precision" in ran.err


def test_whiten_stores_a_whitening_of_sentence_vectors(shell: Shell, folder: Path) -> None:
    Path("text.txt").write_text("the cat sat .\nthe dog ran .\na mat\n", encoding="utf-8")
    ran = shell("convert", "model", "whitened", "--whiten", "text.txt", "--calibrate", "text.txt")
    assert ran.code == 0, ran.err
    assert SentenceEmbedder.from_pretrained("whitened").linear_map is not None
    assert open_model("whitened").start_state is not None
    assert "stored with the model" in shell("info", "--model", "whitened", "--all").out
    ran = shell("convert", "whitened", "plain.hdf5")
    assert "Not saved (.hdf5 files cannot hold it): softmax, vocabulary, start state, whitening" in ran.err
    torch.save(torch.eye(open_model("model").config.output_dim), "matrix.pth")
    ran = shell("convert", "whitened", "aligned", "--alignment", "matrix.pth")
    assert "left out: whitening; fitted to the vectors before the alignment" in ran.err
    assert open_model("aligned").whitening is None
