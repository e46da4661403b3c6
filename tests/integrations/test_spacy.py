"""ELMo in spaCy, found by name through its entry points."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmokit import Elmo, ElmoModule
from elmokit.errors import ConfigError, ModelNotFoundError
from elmokit.formats.save import save_model
from tests.conftest import random_model
from tests.helpers.hosts import need_host

need_host("spacy")

import spacy  # noqa: E402
from spacy.tokens import Doc, DocBin  # noqa: E402
from spacy.training import Example  # noqa: E402
from spacy.util import load_config  # noqa: E402
from thinc.api import set_dropout_rate  # noqa: E402

WORDS = ["the", "cat", "sat", "on", "the", "mat", "."]
TAGS = ["D", "N", "V", "P", "D", "N", "."]
DIM = 64


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The path of a tiny model."""
    save_model(random_model(), tmp_path / "model")
    return str(tmp_path / "model")


def architecture(model: str | None, **settings: Any) -> dict[str, Any]:
    return {"@architectures": "elmokit.Tok2Vec.v1", "model": model, **settings}


def pipeline(*, tagger: bool = False, **settings: Any) -> spacy.Language:
    """An initialized pipeline with ELMo as its tok2vec, and a tagger that listens to it."""
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": architecture(**settings)})
    if not tagger:
        nlp.initialize()
        return nlp
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": DIM}
    nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": listener}})
    nlp.initialize(lambda: examples(nlp))
    return nlp


def examples(nlp: spacy.Language) -> list[Example]:
    made = [(WORDS, TAGS), (WORDS[:3], TAGS[:3]), (["a", " ", "dog"], ["D", "_SP", "N"])]
    return [Example(Doc(nlp.vocab, words=words), Doc(nlp.vocab, words=words, tags=tags)) for words, tags in made]


def network(nlp: spacy.Language) -> Any:
    """The PyTorch module inside the tok2vec component."""
    return nlp.get_pipe("tok2vec").model.shims[0]._model


def train(nlp: spacy.Language, n_steps: int = 60) -> list[float]:
    optimizer, losses = nlp.resume_training(), []
    optimizer.learn_rate = 0.01
    for _ in range(n_steps):
        losses.append(nlp.update(examples(nlp), sgd=optimizer, losses={})["tagger"])
    return losses


@pytest.mark.parametrize(("layers", "expected"), [("all", "average"), ("top", "top"), (1, 1), ([0, 1], [0, 1])])
def test_tensors_of_docs_are_the_mix(model: str, layers: Any, expected: Any) -> None:
    nlp = pipeline(model=model, layers=layers)
    (vectors,) = Elmo.from_pretrained(model).embed([WORDS], layers=expected)
    mix = vectors.mean(axis=0) if isinstance(expected, list) else vectors
    docs = list(nlp.pipe([Doc(nlp.vocab, words=words) for words in (WORDS[:2], WORDS, [], WORDS)]))
    # The pipe is a PyTorch module, which adds in another order than the engine.
    np.testing.assert_allclose(docs[1].tensor, mix, atol=2e-5)
    np.testing.assert_allclose(docs[3].tensor, mix, atol=2e-5)
    assert [doc.tensor.shape for doc in docs] == [(2, DIM), (7, DIM), (0, DIM), (7, DIM)]


def test_whitespace_gets_zeros_and_changes_no_other_vector(model: str) -> None:
    nlp = pipeline(model=model)
    spaced, plain = nlp("the cat  sat\n"), nlp("the cat sat")
    np.testing.assert_allclose(spaced.tensor[[0, 1, 3]], plain.tensor, atol=1e-6)
    assert not spaced.tensor[[2, 4]].any()
    assert nlp("").tensor.shape == (0, DIM)
    assert not nlp(" ").tensor.any()


def test_sentences_that_are_set_are_embedded_by_themselves(model: str) -> None:
    nlp = pipeline(model=model)
    whole = nlp("the cat sat. the dog ran.")
    nlp.add_pipe("sentencizer", first=True)
    doc = nlp("the cat sat. the dog ran.")
    np.testing.assert_allclose(doc.tensor[4:], nlp("the dog ran.").tensor, atol=1e-6)
    assert np.abs(whole.tensor[4:] - doc.tensor[4:]).max() > 1e-3


@pytest.mark.parametrize("trainable", [False, True])
def test_gradients_are_those_of_elmo(model: str, trainable: bool) -> None:
    nlp, elmo = pipeline(model=model, trainable=trainable), ElmoModule.from_pretrained(model, trainable=trainable)
    thinc_model = nlp.get_pipe("tok2vec").model
    set_dropout_rate(thinc_model, 0.0)
    sentences = [WORDS, ["a", "dog"]]
    gradients = [np.random.default_rng(0).normal(size=(len(words), DIM)).astype("float32") for words in sentences]
    _, backprop = thinc_model.begin_update([Doc(nlp.vocab, words=words) for words in sentences])
    backprop(gradients)
    (mix,), mask, _ = elmo(elmo.ids(sentences))
    mix[mask].backward(torch.from_numpy(np.concatenate(gradients)))
    expected = {name: value.grad.reshape(-1) for name, value in elmo.named_parameters() if value.grad is not None}
    computed = {
        name.removeprefix("_elmo."): value.grad.reshape(-1)
        for name, value in network(nlp).named_parameters()
        if value.grad is not None
    }
    assert expected.keys() == computed.keys()
    assert any(name.startswith("bilm") for name in computed) == trainable
    for name, gradient in expected.items():
        torch.testing.assert_close(computed[name], gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("trainable", [False, True])
def test_tagger_that_listens_learns_and_is_saved_with_the_weights(model: str, tmp_path: Path, trainable: bool) -> None:
    nlp = pipeline(model=model, tagger=True, trainable=trainable)
    before = {name: value.clone() for name, value in network(nlp).state_dict().items()}
    losses = train(nlp)
    assert losses[-1] < 0.5 * losses[0]
    after = network(nlp).state_dict()
    assert not torch.equal(after["_elmo.mixes.0.weight"], before["_elmo.mixes.0.weight"])
    is_unchanged = all(torch.equal(after[name], before[name]) for name in after if "bilm" in name)
    assert is_unchanged != trainable
    doc = nlp(Doc(nlp.vocab, words=WORDS))
    assert [token.tag_ for token in doc] == TAGS
    nlp.to_disk(tmp_path / "pipeline")
    shutil.rmtree(model)  # it is not needed any more
    again = spacy.load(tmp_path / "pipeline")
    doc_again = again(Doc(again.vocab, words=WORDS))
    np.testing.assert_array_equal(doc_again.tensor, doc.tensor)
    assert [token.tag_ for token in doc_again] == TAGS
    assert again.to_bytes() == nlp.to_bytes()
    assert train(again, 1)[0] < losses[0]


def test_dropout_is_that_of_the_training(model: str) -> None:
    nlp = pipeline(model=model)
    thinc_model, docs = nlp.get_pipe("tok2vec").model, [Doc(nlp.vocab, words=WORDS)]
    set_dropout_rate(thinc_model, 0.5)
    (vectors,), _ = thinc_model.begin_update(docs)
    assert 0.3 < (vectors == 0).mean() < 0.7
    assert (thinc_model.predict(docs)[0] != 0).all()


def test_listeners_can_be_replaced_with_copies(model: str) -> None:
    nlp = pipeline(model=model, tagger=True)
    train(nlp)
    nlp.replace_listeners("tok2vec", "tagger", ["model.tok2vec"])
    nlp.remove_pipe("tok2vec")
    assert [token.tag_ for token in nlp(Doc(nlp.vocab, words=WORDS))] == TAGS


@pytest.mark.slow
@pytest.mark.parametrize("task", ["tagger", "ner"])
def test_spacy_train_accepts_a_config_of_init_config(model: str, tmp_path: Path, task: str) -> None:
    def run(*arguments: object) -> None:
        subprocess.run([sys.executable, "-m", "spacy", *map(str, arguments)], check=True, cwd=tmp_path)

    nlp = spacy.blank("en")
    docs = [
        Doc(nlp.vocab, words=WORDS, tags=TAGS, ents=["O", "B-ANIMAL", *["O"] * 5], sent_starts=[True] + [False] * 6)
    ] * 20
    DocBin(docs=docs).to_disk(tmp_path / "docs.spacy")
    run("init", "config", "base.cfg", "-p", task)
    config = load_config(tmp_path / "base.cfg", interpolate=False)
    # The two changes that the how-to page shows.
    config["components"]["tok2vec"]["model"]["embed"] = architecture(model)
    config["components"]["tok2vec"]["model"]["encode"]["width"] = DIM
    config["training"].update(max_steps=30, eval_frequency=10)
    config.to_disk(tmp_path / "elmo.cfg")
    run("train", "elmo.cfg", "--paths.train", "docs.spacy", "--paths.dev", "docs.spacy", "-o", "trained")
    doc = spacy.load(tmp_path / "trained" / "model-last")(Doc(nlp.vocab, words=WORDS))
    if task == "tagger":
        assert [token.tag_ for token in doc] == TAGS
    else:
        assert [(span.text, span.label_) for span in doc.ents] == [("cat", "ANIMAL")]


def test_the_component_sets_all_layers_of_docs_tokens_and_spans(model: str) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo_layers", config={"model": model})
    (expected,) = Elmo.from_pretrained(model).embed([WORDS])
    docs = [Doc(nlp.vocab, words=words) for words in (WORDS, [], ["the", " ", "cat"])]
    doc, empty, spaced = nlp.pipe(docs, batch_size=2)
    np.testing.assert_allclose(doc._.elmo_layers, expected, atol=1e-6)
    np.testing.assert_allclose(doc[2]._.elmo_layers, expected[:, 2], atol=1e-6)
    np.testing.assert_allclose(doc[1:3]._.elmo_layers, expected[:, 1:3], atol=1e-6)
    assert empty._.elmo_layers.shape == (3, 0, DIM)
    assert not spaced[1]._.elmo_layers.any()
    other = Doc(nlp.vocab, words=WORDS)
    assert other._.elmo_layers is other[0]._.elmo_layers is other[:2]._.elmo_layers is None


def test_layers_of_a_doc_that_was_retokenized_later_are_refused(model: str) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo_layers", config={"model": model})
    doc = nlp("the cat sat")
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:2])
    for part in (doc[1], doc[:1]):
        with pytest.raises(ConfigError, match=r"2 tokens.* 3"):
            part._.elmo_layers  # noqa: B018


def test_the_component_is_saved_with_its_model(model: str, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo_layers", config={"model": model, "start": "zero"})
    expected = nlp("the cat")._.elmo_layers
    nlp.to_disk(tmp_path / "pipeline")
    nlp.to_disk(tmp_path / "pipeline")  # replaces what is there
    shutil.rmtree(model)
    np.testing.assert_array_equal(spacy.load(tmp_path / "pipeline")("the cat")._.elmo_layers, expected)
    copy = spacy.blank("en")
    copy.add_pipe("elmo_layers", config={"start": "zero"})
    copy.from_bytes(nlp.to_bytes())
    np.testing.assert_array_equal(copy("the cat")._.elmo_layers, expected)


def test_mistakes_are_errors(model: str) -> None:
    with pytest.raises(ValueError, match=r"'nO'.* 96 to 64"):
        pipeline(model=model, width=96)
    with pytest.raises(ModelNotFoundError):
        pipeline(model="orignal")
    nlp = spacy.blank("en")
    with pytest.raises(ConfigError, match="start"):
        nlp.add_pipe("elmo_layers", config={"model": model, "start": "stateful"})
    nlp.add_pipe("tok2vec", config={"model": architecture(model)})
    with pytest.raises(ConfigError, match=r"nlp\.initialize"):
        nlp("the cat")
