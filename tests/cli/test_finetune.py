"""The shell's fine-tuning: from every format, frozen or not, guarded, resumed; bad input is one line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.engine.architecture import PRESETS, BiLMConfig
from elmokit.engine.state import State
from elmokit.formats.folder import load_folder, save_folder
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.pretrained.model import PretrainedBiLM
from tests.conftest import random_model
from tests.helpers import trace_b
from tests.helpers.many_langs_files import toy_model
from tests.helpers.shell import Shell
from tests.helpers.tiny_training import config_of
from tests.helpers.weights import softmax_of

NEW_TEXT = "a zebra ran .\nthe yak sat on a zebra .\nthe zebra and the yak ran on .\n" * 8
OLD_TEXT = "the cat sat on the mat .\nthe dog ran .\n"
SMALL = ("--batch-size", "4", "--window-length", "5", "--eval-every", "10", "--save-every", "10", "--threads", "1")
QUICK = (*SMALL, "--tokens", "400", "--learning-rate", "0.02")  # 20 steps
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
    own = {f"softmax.{name}": array for name, array in model.softmax.arrays.items()}
    return {name: torch.from_numpy(array.copy()) for name, array in {**model.arrays, **own}.items()}


def changed(run: str) -> set[str]:
    """The tensors that training changed."""
    before, after = weights(load_folder(Path(run) / "initial")), weights(open_model(run))
    return {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}


@pytest.mark.slow
def test_from_a_folder_of_ours_with_the_old_domain_beside(shell: Shell) -> None:
    model = random_model()
    model = model.replace(start_state=State.zero(model.config, 1))
    save_model(model, Path("model"))
    texts = ("new.txt", "--held-out", "held.txt", "--old-text", "old.txt")
    ran = shell("finetune", *texts, "--model", "model", "--run", "run", *QUICK)
    assert ran.code == 0, ran.err
    assert fell("run")
    tuned = open_model("run")
    assert tuned.vocabulary.words == open_model("model").vocabulary.words  # type: ignore[union-attr]
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
    named = "42.1% unknown words: 'a', 'zebra', 'yak', 'and'"
    assert last[0] == f"Held-out perplexity (forward / backward): {before} before, {after} after ({named})."
    assert last[1] == f"Old text: {old_before} before, {old_after} after (0.0% unknown words)."
    assert last[2] == f"The best model, from step {tuned.card['n_steps']}, is in run/model."
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
    assert tuned.config == dataclasses.replace(config, n_words=config.n_words and 12)
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
    assert checkpoint.softmax is not None
    for softmax in (softmax_of(open_model("run/initial")), softmax_of(open_model("ours"))):
        torch.testing.assert_close(softmax.state_dict(), softmax_of(checkpoint).state_dict())


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
    assert tuned.config == config
    assert set(tuned.vocabulary.words) == {"<S>", "</S>", "<UNK>", *NEW_TEXT.split()}


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
