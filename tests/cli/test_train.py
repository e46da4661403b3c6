"""``elmokit train``: files and flags of one set of names, resuming, and one line for bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from elmokit.embedding.computer import Computer
from elmokit.embedding.start_state import mean_state
from elmokit.formats.open import open_model
from elmokit.network.bilm import BiLMState
from tests.helpers.shell import Shell
from tests.helpers.tiny_training import config_of

TEXT = "the cat sat on the mat .\nthe dog ran .\n"
SMALL = ("--preset", "tiny", "--batch-size", "2", "--window-length", "5")
START = ("train", "corpus.txt", "--held-out", "corpus.txt", "--out", "run", *SMALL)


@pytest.fixture
def corpus(folder: Path) -> Path:
    Path("corpus.txt").write_text(TEXT * 20)
    return folder


@pytest.mark.slow
def test_a_run_says_what_it_takes_what_it_does_and_what_it_made(shell: Shell, corpus: Path) -> None:
    ran = shell(*START, "--max-words", "8", "--tokens", "400", "--log-every", "10")
    assert ran.code == 0, ran.err
    assert "40 sentences, 220 tokens, 8 types; " in ran.out
    assert re.search(r"\n86,200 parameters in the biLM and [\d,]{3,5} in the softmax\n", ran.out)
    assert re.search(r"\n20 steps of 10 predictions per direction left; about \d+ s\n", ran.out)
    (line,) = [line for line in ran.out.splitlines() if line.startswith("step     10 ")]
    for part in (" 25.0%  epoch 0.38 ", " tokens/s ", " left  training loss "):
        assert part in line
    assert "held-out perplexity" in ran.out
    card = open_model("run/model").card
    assert card["corpus"]["n_tokens"] == 220
    assert card["n_predictions"] == 400
    assert card["command"].startswith("elmokit train corpus.txt")
    assert len(card["held_out_perplexity"]) == 2
    assert card["elmokit"]


def test_a_trained_model_starts_from_the_mean_state_after_sentences_of_its_text(shell: Shell, corpus: Path) -> None:
    Path("documents.txt").write_text("the cat sat . " * 100 + "\n" + "the dog ran .\n" * 2000)
    ran = shell(*START[:2], "documents.txt", *START[2:], "--max-words", "8", "--tokens", "10")
    assert ran.code == 0, ran.err
    model = open_model("run/model")
    assert model.card["warm_state"] == "mean state after a sentence, over 32 sentences of the training text"
    # The first 40 and 500 lines of both files; the long one is cut to 200 tokens.
    sentences = [line.split() for line in TEXT.splitlines()] * 20
    sentences.append(["the", "cat", "sat", "."] * 50)
    sentences += [["the", "dog", "ran", "."]] * 499
    chosen = [sentences[number * len(sentences) // 32] for number in range(32)]
    (checkpoint,) = Path("run/checkpoints").iterdir()
    end = load_file(checkpoint / "state.safetensors")  # the calibration starts from the LSTM state of the training
    model = model.replace(start_state=BiLMState(end["hidden"], end["cell"]).mean_row().numpy())
    for ours, other in zip(open_model("run/model").start_state or (), mean_state(Computer(model), chosen), strict=True):
        np.testing.assert_allclose(ours, other, rtol=1.3e-6, atol=1e-5)


@pytest.mark.slow
def test_a_file_and_flags_say_the_same_and_flags_go_first(shell: Shell, corpus: Path) -> None:
    Path("run.toml").write_text(
        """
        preset = "tiny"
        tokens = 60
        batch_size = 2
        window_length = 5
        learning_rate = 0.01
        frozen_layers = [0]
        [data]
        texts = ["corpus.txt"]
        held_out = ["corpus.txt"]
        max_words = 8
        [model]
        n_layers = 1
        [softmax]
        inner_dim = 4
        """
    )
    assert shell("train", "--config", "run.toml", "--out", "a", "--learning-rate", "0.02").code == 0
    flags = ("--n-layers", "1", "--softmax-inner-dim", "4", "--frozen-layers", "0")
    ran = shell(
        *START[:4], "--out", "b", *SMALL, *flags, "--max-words", "8", "--tokens", "60", "--learning-rate", "0.02"
    )
    assert ran.code == 0, ran.err
    assert config_of("a") == config_of("b")
    assert config_of("a").learning_rate == 0.02


@pytest.mark.slow
def test_training_stops_early_and_its_last_lines_tell_the_end_from_the_best(shell: Shell, corpus: Path) -> None:
    Path("other.txt").write_text("mat the . dog on cat\n" * 10)
    flags = ("--recipe", "bilm-tf", "--tokens", "100000", "--eval-every", "20", "--patience", "2", "--max-words", "9")
    ran = shell("train", "corpus.txt", "--held-out", "other.txt", "--out", "run", *SMALL, *flags)
    assert ran.code == 0, ran.err
    config = config_of("run")
    assert (config.recipe, config.learning_rate, config.n_samples) == ("bilm-tf", 0.2, 8192)
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    looks = [line for line in lines if line["held_out"]]
    assert lines[-1]["fraction"] < 0.5
    best = min(range(len(looks)), key=lambda place: looks[place]["held_out"][0] * looks[place]["held_out"][1])
    assert best == len(looks) - 3
    card = open_model("run/model").card
    assert card["n_steps"] == looks[best]["n_steps"]
    perplexity = " / ".join(f"{value:.2f}" for value in card["held_out_perplexity"])
    assert f"The best model, {perplexity} at step {card['n_steps']}, is in run/model." in ran.out
    (last,) = (line for line in ran.out.splitlines() if line.startswith("Held-out perplexity"))
    assert perplexity not in last
    assert "at the end" in last


@pytest.mark.slow
def test_the_same_command_resumes_wherever_the_text_is(shell: Shell, corpus: Path) -> None:
    command = (*START, "--max-words", "6")
    assert shell(*command, "--tokens", "50").code == 0
    Path("moved").mkdir()
    Path("corpus.txt").rename("moved/corpus.txt")
    moved = ("train", "moved", "--held-out", "moved/corpus.txt", *command[4:])
    ran = shell(*moved, "--tokens", "150")
    assert ran.code == 0, ran.err
    assert open_model("run").card["n_predictions"] == 150
    Path("moved/corpus.txt").write_text(TEXT * 21)
    assert "another text file corpus.txt" in shell(*moved).err
    assert "batch size 2, and now it is 3" in shell(*moved, "--batch-size", "3").err


@pytest.mark.parametrize("flags", [("--frozen-layers", "9"), ("--epochs", "1", "--tokens", "1"), ("--config", "typo")])
def test_settings_are_checked_before_the_text_is_counted(shell: Shell, corpus: Path, flags: list[str]) -> None:
    Path("typo").write_text("batchsize = 3\n")
    for command in (
        START,
        ("finetune", "corpus.txt", "--model", "en-mini", "--held-out", "corpus.txt", "--out", "run"),
    ):
        ran = shell(*command, *flags)
        assert ran.code == 2
        assert "Counting" not in ran.err
