"""A GPU computes what the CPU computes. Skipped without CUDA.

``ELMOKIT_TEST_DEVICE=cpu`` runs the tests on the CPU, where they compare it with itself. That shows that the tests
themselves work.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmokit import Elmo, ElmoModule, LanguageModel, SentenceEmbedder, embed_file, finetune, open_model, train
from elmokit.compat.allennlp import ElmoEmbedder
from elmokit.embedding import documents
from elmokit.formats.save import save_model
from elmokit.text import batching
from tests.conftest import random_model
from tests.helpers.killing import Killed
from tests.helpers.tiny_training import kill_after

DEVICE = os.environ.get("ELMOKIT_TEST_DEVICE", "cuda")
if DEVICE == "cuda" and not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
ON_GPU = DEVICE.startswith("cuda")
SENTENCES = [line.split() for line in ("The bank raised its rate .", "", "She sat on the bank of the river .", "Oslo")]
TEXT = "the cat sat on the mat .\nthe dog ran on .\na cat ran .\n" * 60
TOLERANCE = 1e-4  # sums are in another order on a GPU
SETTINGS = {"preset": "tiny", "batch_size": 4, "window_length": 8, "dropout": 0.0, "log_every": 1, "eval_every": 10}


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, Path]:
    """A text to train on, and one to evaluate on."""
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "dev.txt").write_text(TEXT[:200])
    return {"texts": tmp_path / "text.txt", "held_out": tmp_path / "dev.txt"}


def losses_of(run: Path) -> np.ndarray:
    return np.array([json.loads(line)["losses"] for line in (run / "metrics.jsonl").read_text().splitlines()])


def assert_equal_vectors(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=TOLERANCE)


def embedded(device: str, **settings: Any) -> list[np.ndarray]:
    """Vectors of every layer selection."""
    elmo = ElmoModule.from_pretrained(device=device, precision="float32", **settings).elmo
    return [array for layers in ("all", 0, "mix") for array in elmo.embed(SENTENCES, layers=layers)]


def written(device: str) -> list[np.ndarray]:
    """Vectors of a file."""
    with tempfile.TemporaryDirectory() as folder:
        text, output = Path(folder, "in.txt"), Path(folder, "out.npz")
        text.write_text("\n".join(" ".join(sentence) for sentence in SENTENCES) + "\n")
        embed_file(Elmo.from_pretrained(device=device, precision="float32"), text, output)
        with np.load(output) as archive:
            return [archive["vectors"]]


def predicted(device: str) -> list[np.ndarray]:
    """Surprisals, perplexities, and the ids of substitutes."""
    lm = LanguageModel.from_pretrained(device=device, precision="float32")
    words = [word.word_id for word in lm.substitutes(SENTENCES[0], 1, n=3)]
    documents = lm.perplexity([SENTENCES], documents=True).mean
    return [*(one.nats for one in lm.surprisal(SENTENCES)), np.array([*words, documents])]


COMPUTED: dict[str, Callable[[str], list[np.ndarray]]] = {
    **{f"vectors, {start}": partial(embedded, start=start) for start in ("warm", "zero", "stateful")},
    "an Elmo made on the device": lambda device: Elmo(open_model(precision="float32"), device=device).embed(SENTENCES),
    "a file": written,
    "sentence vectors": lambda device: list(
        SentenceEmbedder.from_pretrained(device=device, precision="float32").embed(SENTENCES)
    ),
    "predictions": predicted,
}


@pytest.mark.parametrize("what", COMPUTED)
def test_numbers_equal_those_of_the_cpu(what: str) -> None:
    for one, other in zip(COMPUTED[what](DEVICE), COMPUTED[what]("cpu"), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3 if what in ("predictions", "sentence vectors") else TOLERANCE)


def test_vectors_of_a_batch_equal_those_of_single_sentences() -> None:
    elmo = Elmo.from_pretrained(device=DEVICE, precision="float32")
    sentences = [["the"] * length for length in range(1, 90)]
    assert_equal_vectors(elmo.embed(sentences), [elmo.embed([sentence])[0] for sentence in sentences])


def test_changed_weights_are_noticed() -> None:
    elmo = Elmo.from_pretrained(device=DEVICE, precision="float32")
    before = elmo.embed(SENTENCES)[0]
    with torch.no_grad():
        for parameter in elmo.computer.use_module().parameters():
            parameter.data.mul_(1.01)  # which PyTorch does not count
    assert np.abs(elmo.embed(SENTENCES)[0] - before).max() > TOLERANCE


def test_a_long_text_in_windows_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    elmo = Elmo.from_pretrained(device=DEVICE, precision="float32")
    whole = elmo.embed([["the", "river", "bank"] * 20])
    monkeypatch.setattr(batching, "LONG_SENTENCE_TOKENS", 30)
    monkeypatch.setattr(documents, "WINDOW_TOKENS", 16)
    assert_equal_vectors(elmo.embed([["the", "river", "bank"] * 20]), whole)


@pytest.mark.parametrize("trainable", [False, True])
def test_gradients_equal_those_of_the_cpu(trainable: bool) -> None:
    gradients = []
    for device in ("cpu", DEVICE):
        elmo = ElmoModule(random_model(), trainable=trainable).to(device)
        (mix,), _, _ = elmo(elmo.ids(SENTENCES))
        mix.square().mean().backward()
        gradients.append({name: p.grad.cpu() for name, p in elmo.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=TOLERANCE, rtol=1e-3)


def test_training_takes_the_same_steps_as_on_the_cpu(tmp_path: Path, texts: dict[str, Path]) -> None:
    for n_samples in (0, 5):
        found = []
        for device in ("cpu", DEVICE):
            run = tmp_path / f"{len(found)}-{n_samples}"
            result = train(**texts, out=run, device=device, tokens=640, n_samples=n_samples, **SETTINGS)
            found.append((losses_of(run), result.perplexity.mean))
        np.testing.assert_allclose(found[1][0], found[0][0], rtol=2e-3)
        assert found[1][1] == pytest.approx(found[0][1], rel=5e-3)


@pytest.mark.parametrize("recipe", ["modern", "bilm-tf"])
def test_a_resumed_training_takes_the_same_steps(tmp_path: Path, texts: dict[str, Path], recipe: str) -> None:
    settings = {**SETTINGS, "recipe": recipe, "dropout": 0.1, "save_every": 4, "tokens": 640}
    train(**texts, out=tmp_path / "whole", device=DEVICE, **settings)
    with pytest.raises(Killed):
        train(**texts, out=tmp_path / "halves", device=DEVICE, report=kill_after(10), **settings)
    train(**texts, out=tmp_path / "halves", device=DEVICE, **settings)
    np.testing.assert_allclose(losses_of(tmp_path / "halves"), losses_of(tmp_path / "whole"), rtol=2e-3)


def test_training_in_bfloat16_stays_close_to_float32(tmp_path: Path, texts: dict[str, Path]) -> None:
    for precision in ("float32", "bfloat16"):
        train(**texts, out=tmp_path / precision, device=DEVICE, tokens=640, precision=precision, **SETTINGS)
    np.testing.assert_allclose(losses_of(tmp_path / "bfloat16"), losses_of(tmp_path / "float32"), rtol=0.05)


def test_a_model_is_fine_tuned_on_the_gpu(tmp_path: Path, texts: dict[str, Path]) -> None:
    save_model(random_model(), tmp_path / "model")
    result = finetune(tmp_path / "model", **texts, out=tmp_path / "run", device=DEVICE, epochs=5, batch_size=4)
    before, after = (result.before_and_after["held-out"][when] for when in ("before", "after"))
    assert after[0] < before[0]


@pytest.mark.skipif(not ON_GPU, reason="ElmoEmbedder takes the number of a CUDA device")
def test_the_old_embedder_computes_on_its_cuda_device(tmp_path: Path) -> None:
    save_model(random_model(), tmp_path / "elmo_weights.hdf5")
    files = tmp_path / "elmo_options.json", tmp_path / "elmo_weights.hdf5"
    on_cpu, on_gpu = (ElmoEmbedder(*map(str, files), cuda_device=number) for number in (-1, 0))
    tokens = SENTENCES[0]
    np.testing.assert_allclose(on_gpu.embed_sentence(tokens), on_cpu.embed_sentence(tokens), atol=TOLERANCE)
