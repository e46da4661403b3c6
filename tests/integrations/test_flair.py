"""ELMo in flair, through that library's own tagger, trainer and model files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmokit import Elmo
from elmokit.errors import ConfigError, FormatError
from elmokit.formats.save import save_model
from tests.conftest import aligned_model, random_model
from tests.helpers.allennlp_files import write_files
from tests.helpers.hosts import need_host
from tests.helpers.many_langs_files import toy_model
from tests.helpers.paths import ROOT

need_host("flair")
pytestmark = pytest.mark.filterwarnings("default")  # its dependencies warn on import

import flair  # noqa: E402
from flair.data import Corpus, Sentence  # noqa: E402
from flair.embeddings import StackedEmbeddings  # noqa: E402
from flair.embeddings.base import load_embeddings  # noqa: E402
from flair.models import SequenceTagger  # noqa: E402
from flair.trainers import ModelTrainer  # noqa: E402

from elmokit.integrations.flair import ElmoTokenEmbeddings  # noqa: E402

WORDS = ["the", "cat", "sat", "on", "the", "mat", "."]
TAGS = ["D", "N", "V", "P", "D", "N", "."]
LOAD = """
import sys
import elmokit.integrations.flair
from flair.data import Sentence
from flair.models import SequenceTagger
tagger = SequenceTagger.load(sys.argv[1])
sentence = Sentence(["the", "cat", "sat", "on", "the", "mat", "."])
tagger.predict(sentence)
print(*[token.tag for token in sentence])
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The path of a tiny model."""
    save_model(random_model(), tmp_path / "model")
    return str(tmp_path / "model")


def vectors(embeddings: Any, *sentences: list[str]) -> list[torch.Tensor]:
    made = [Sentence(words) for words in sentences]
    embeddings.embed(made)
    return [torch.stack([token.embedding for token in sentence]) for sentence in made]


@pytest.mark.parametrize(("layers", "expected"), [("all", "average"), ("top", "top"), (0, 0)])
def test_vectors_are_the_mix(model: str, layers: Any, expected: Any) -> None:
    embeddings = ElmoTokenEmbeddings(model, layers=layers)
    first, second = vectors(embeddings, WORDS, ["a", "dog"])
    arrays = Elmo.from_pretrained(model).embed([WORDS, ["a", "dog"]], layers=expected)
    for given, array in zip([first, second], arrays, strict=True):
        np.testing.assert_allclose(given, array, atol=1e-5)
    assert embeddings.embedding_length == first.shape[1] == 64


@pytest.mark.parametrize(("learn_mix", "trainable"), [(True, False), (False, False), (False, True), (True, True)])
def test_what_is_learned_gets_gradients_in_training(model: str, learn_mix: bool, trainable: bool) -> None:
    embeddings = ElmoTokenEmbeddings(model, learn_mix=learn_mix, trainable=trainable)
    assert not vectors(embeddings, WORDS)[0].requires_grad
    embeddings.train()
    (trained,) = vectors(embeddings, WORDS)
    assert embeddings.static_embeddings != trained.requires_grad == (learn_mix or trainable)
    if trained.requires_grad:
        (trained**2).sum().backward()
    assert (embeddings.elmo.mixes[0].get_parameter("gamma").grad is not None) == learn_mix
    assert any(parameter.grad is not None for parameter in embeddings.elmo.bilm.parameters()) == trainable


KINDS: dict[str, Callable[[Path], Any]] = {
    "characters": lambda path: save_model(random_model(), path)[0].parent,
    "allennlp": lambda path: write_files(path).weights,
    "many-langs": lambda path: toy_model().write(path),
    "aligned": lambda path: save_model(aligned_model(), path)[0].parent,
}


@pytest.mark.parametrize("kind", KINDS)
def test_params_and_state_dict_restore_the_embeddings_without_the_model(tmp_path: Path, kind: str) -> None:
    source = KINDS[kind](tmp_path / "model")
    embeddings = ElmoTokenEmbeddings(source, layers=[0, 1], learn_mix=True, start="warm", name="mine")
    with torch.no_grad():
        embeddings.elmo.mixes[0].get_parameter("weight").copy_(torch.tensor([1.0, -1.0]))
    expected = vectors(embeddings, WORDS)[0]
    torch.save(embeddings.save_embeddings(), tmp_path / "saved.pt")
    shutil.rmtree(tmp_path / "model")
    again = load_embeddings(torch.load(tmp_path / "saved.pt", weights_only=True))
    assert (again.name, again.layers) == ("mine", [0, 1])
    torch.testing.assert_close(vectors(again, WORDS)[0], expected, rtol=0, atol=0)
    empty = ElmoTokenEmbeddings.from_params(embeddings.to_params())
    with pytest.raises(FormatError, match="computes NaN or infinity"):
        vectors(empty, WORDS)


@pytest.mark.slow
@pytest.mark.parametrize("trainable", [False, True])
def test_tagger_is_trained_saved_and_loaded_in_another_process(model: str, tmp_path: Path, trainable: bool) -> None:
    flair.set_seed(0)
    sentences = []
    for words, tags in [(WORDS, TAGS), (WORDS[:3], TAGS[:3]), (["a", "dog"], ["D", "N"])] * 10:
        sentence = Sentence(words)
        for token, tag in zip(sentence, tags, strict=True):
            token.set_label("pos", tag)
        sentences.append(sentence)
    corpus = Corpus(sentences, sentences[:3], sentences[:3])
    embeddings = StackedEmbeddings([ElmoTokenEmbeddings(model, trainable=trainable)])
    tagger = SequenceTagger(
        embeddings, corpus.make_label_dictionary("pos"), "pos", use_rnn=False, use_crf=False, word_dropout=0.0
    )
    before = {name: value.clone() for name, value in embeddings.state_dict().items()}
    ModelTrainer(tagger, corpus).train(
        tmp_path / "run", optimizer=torch.optim.Adam, learning_rate=0.01, mini_batch_size=4, max_epochs=4
    )
    changed = {name for name, value in embeddings.state_dict().items() if not torch.equal(value, before[name])}
    assert any("mixes" in name for name in changed)
    assert any("bilm" in name for name in changed) == trainable
    sentence = Sentence(WORDS)
    tagger.predict(sentence)
    shutil.rmtree(model)
    ran = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "run" / "final-model.pt")],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.stdout.split()[-7:] == [token.tag for token in sentence]


def test_flairs_own_elmo_embeddings_work_through_the_shim(tmp_path: Path) -> None:
    from flair.embeddings import ELMoEmbeddings

    import elmokit.compat.as_allennlp  # noqa: F401

    files = write_files(tmp_path / "model")
    embeddings = ELMoEmbeddings(options_file=files.options, weight_file=files.weights)
    (given,) = vectors(embeddings, WORDS)
    # AllenNLP carried the state from call to call, and flair embeds a sentence to find out the number of dimensions.
    elmo = Elmo.from_pretrained(files.weights, options=files.options)
    _, state = elmo.embed_batch([["hello"]], elmo.zero_state(1))
    (layers,), _ = elmo.embed_batch([WORDS], state)
    np.testing.assert_allclose(given, np.concatenate(list(layers), axis=1), atol=1e-5)


def test_mistakes_are_errors(model: str) -> None:
    with pytest.raises(ConfigError, match="start is 'stateful'"):
        ElmoTokenEmbeddings(model, start="stateful")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"layers is \[9\]"):
        ElmoTokenEmbeddings(model, layers=9)
