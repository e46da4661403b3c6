"""A head for sentence vectors learns from pairs of sentences, and is stored and used with the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from elmokit import Elmo, SentenceEmbedder, SentencePooling, open_model, save_model
from elmokit.errors import (
    ConfigError,
    ElmoError,
    FormatError,
    ModelError,
    TensorMismatchError,
    TextError,
    TrainingError,
)
from elmokit.evaluation.similarity import ScoredPair, score_similarity
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.sentence_pooling import SentenceHead, Whitening
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.sentence_head import HeadConfig, train_sentence_head
from tests.conftest import random_model
from tests.helpers.shell import Shell

ANIMALS, PLACES, NOISE = ["cat", "dog"], ["mat", "on"], ["the", "sat", "ran"]
QUICK = HeadConfig(n_steps=60, learning_rate=0.02, word_learning_rate=0.05, decay=0.01)


def sentence(topic: list[str], rng: Random) -> list[str]:
    words = [rng.choice(topic), *rng.choices(NOISE, k=rng.randrange(1, 5))]
    rng.shuffle(words)
    return [*words, "."]


def topic_pairs(n: int, seed: int) -> Iterator[ScoredPair]:
    """Yield pairs that are similar if both are about animals, or both about places."""
    rng = Random(seed)
    for _ in range(n):
        first, second = rng.choices([ANIMALS, PLACES], k=2)
        yield ScoredPair(sentence(first, rng), sentence(second, rng), 5.0 * (first is second))


@pytest.fixture(scope="module")
def trained() -> PretrainedBiLM:
    model = random_model()
    model.sentence_head = train_sentence_head(Elmo(model), list(topic_pairs(200, seed=1)), config=QUICK)
    return model


def test_scores_of_any_size_give_the_same_head() -> None:
    pairs = list(topic_pairs(50, seed=1))
    heads = [
        train_sentence_head(
            Elmo(random_model()), [replace(pair, score=pair.score * scale) for pair in pairs], config=QUICK
        )
        for scale in (1, 1e300)
    ]
    np.testing.assert_allclose(heads[0].projection, heads[1].projection, rtol=1e-4, atol=1e-5)


def test_a_head_learns_what_makes_sentences_similar(trained: PretrainedBiLM) -> None:
    elmo, held_out = Elmo(trained), list(topic_pairs(200, seed=2))
    before = score_similarity(SentenceEmbedder(elmo), held_out).spearman
    after = score_similarity(SentenceEmbedder.by_name(elmo, "trained"), held_out).spearman
    assert before < 0.5
    assert after > 0.8
    assert trained.sentence_head is not None
    assert trained.vocabulary is not None
    weights = dict(zip(trained.vocabulary.words, trained.sentence_head.word_weights, strict=True))
    assert max(weights[word] for word in NOISE) < min(weights[word] for word in ANIMALS + PLACES)
    assert weights["<UNK>"] == 1  # in no pair


def test_the_same_pairs_and_seed_give_the_same_head(trained: PretrainedBiLM) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        again = train_sentence_head(Elmo(random_model()), list(topic_pairs(200, seed=1)), config=QUICK)
    finally:
        torch.use_deterministic_algorithms(False)
    assert trained.sentence_head is not None
    np.testing.assert_allclose(again.projection, trained.sentence_head.projection, rtol=1e-3, atol=1e-4)


def test_entailed_pairs_give_weight_to_the_words_that_partners_share(model: PretrainedBiLM) -> None:
    rng = Random(0)
    words = [f"{letter}{number}" for letter in "abcde" for number in range(8)]  # in no vocabulary: one weight
    pairs = [([word, *rng.choices(NOISE, k=3)], [*rng.choices(NOISE, k=3), word]) for word in words]
    weights = train_sentence_head(Elmo(model), (), pairs, replace(QUICK, learning_rate=1e-4)).word_weights
    assert model.vocabulary is not None
    # The other two words of NOISE are so frequent that they say little with any weight.
    assert weights[model.vocabulary.ids["ran"]] < 0.8 < 1.2 < weights[model.vocabulary.unknown_id]


def test_a_head_that_may_not_move_is_the_whitening_that_it_starts_from(model: PretrainedBiLM) -> None:
    elmo = Elmo(model)
    pairs = list(topic_pairs(60, seed=3))
    SentenceEmbedder(elmo, SentencePooling()).fit(one for pair in pairs for one in (pair.first, pair.second))
    held = HeadConfig(n_steps=20, learning_rate=1e-9, word_learning_rate=0)
    head = train_sentence_head(elmo, pairs, config=held)
    sentences = [pair.first for pair in pairs]
    expected = SentenceEmbedder(elmo).embed(sentences)
    np.testing.assert_allclose(SentenceEmbedder(elmo, linear_map=head).embed(sentences), expected, atol=1e-4)


def test_a_head_maps_each_word_and_weights_it(model: PretrainedBiLM) -> None:
    assert model.vocabulary is not None
    elmo, dim = Elmo(model), model.config.output_dim
    weights = np.ones(len(model.vocabulary), np.float32)
    weights[model.vocabulary.ids["cat"]], weights[model.vocabulary.unknown_id] = 3.0, 0.5
    mean, projection = np.full(dim, 0.25, np.float32), np.eye(dim, 2, dtype=np.float32)
    head = SentenceHead(SentencePooling("mean"), mean, projection, weights)
    tokens = ["The", "Cat", "zebra"]
    (vectors,) = elmo.embed([["the", "cat", "zebra"]], layers=0)
    mapped = (vectors - mean) @ projection
    unit = mapped / np.linalg.norm(mapped, axis=1, keepdims=True)
    expected = (unit[0] + 3 * unit[1] + 0.5 * unit[2]) / 4.5
    embedder = SentenceEmbedder(elmo, linear_map=head)
    np.testing.assert_allclose(embedder.embed([tokens])[0], expected, rtol=1e-5, atol=1e-6)
    rows = embedder.word_rows(tokens)
    np.testing.assert_allclose(rows.sum(axis=0) / 4.5, expected, rtol=1e-4, atol=1e-6)


def head_of(model: PretrainedBiLM, weights: float) -> SentenceHead:
    """A head that gives every word the same weight."""
    assert model.vocabulary is not None
    dim = model.config.output_dim
    mean, projection = np.zeros(dim, np.float32), np.eye(dim, 2, dtype=np.float32)
    return SentenceHead(SentencePooling("sif"), mean, projection, np.full(len(model.vocabulary), weights, np.float32))


@pytest.mark.parametrize("weight", [1e-45, 3e38])
def test_word_weights_whose_sum_float32_cannot_hold_give_the_vectors_of_equal_ones(
    model: PretrainedBiLM, weight: float
) -> None:
    sentences = [["the", "cat"], ["cat"], [], ["."]]
    small, plain = (SentenceEmbedder(Elmo(model), linear_map=head_of(model, one)) for one in (weight, 1.0))
    np.testing.assert_allclose(small.embed(sentences), plain.embed(sentences), rtol=1e-5, atol=1e-6)


def test_a_head_is_stored_with_the_model(trained: PretrainedBiLM, tmp_path: Path) -> None:
    save_model(trained, tmp_path / "model")
    again = open_model(tmp_path / "model")
    sentences = [["the", "cat", "sat"], [], ["zebra"]]
    expected = SentenceEmbedder.by_name(Elmo(trained), "trained").embed(sentences)
    np.testing.assert_array_equal(SentenceEmbedder.by_name(Elmo(again), "trained").embed(sentences), expected)
    save_model(again, tmp_path / "copy")
    name = "sentence_head.safetensors"
    assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("mean", (3,), r"has mean \(3,\)"),
        ("projection", (3, 2), r"projection \(3, 2\)"),
        ("word_weights", (2,), r"word_weights \(2,\); expected .* word_weights \(\d+,\)"),
    ],
)
def test_a_head_of_another_size_is_refused(
    trained: PretrainedBiLM, tmp_path: Path, name: str, shape: tuple[int, ...], message: str
) -> None:
    save_model(trained, tmp_path / "model")
    path = tmp_path / "model" / "sentence_head.safetensors"
    save_file({**load_file(path), name: torch.zeros(shape)}, path)
    with pytest.raises(TensorMismatchError, match=message):
        open_model(tmp_path / "model")


@pytest.mark.parametrize("weight", [np.nan, 0.0, -1.0])
def test_a_head_of_unsound_numbers_is_refused(trained: PretrainedBiLM, tmp_path: Path, weight: float) -> None:
    save_model(trained, tmp_path / "model")
    path = tmp_path / "model" / "sentence_head.safetensors"
    tensors = load_file(path)
    tensors["word_weights"][1] = weight
    save_file(tensors, path)
    with pytest.raises(FormatError, match="NaN or infinity"):
        open_model(tmp_path / "model")


def test_a_model_with_another_vocabulary_has_no_head(trained: PretrainedBiLM, tmp_path: Path) -> None:
    assert trained.vocabulary is not None
    assert trained.replace(card={}).sentence_head is trained.sentence_head
    other = trained.replace(vocabulary=Vocabulary([*trained.vocabulary.words[:-1], "another"]), softmax=None)
    for model in (other, trained.replace(vocabulary=None, softmax=None)):
        assert model.sentence_head is None
        save_model(model, tmp_path / "model", overwrite=True)
        assert open_model(tmp_path / "model").sentence_head is None


def test_the_command_trains_measures_and_saves_a_head(folder: Path, shell: Shell) -> None:
    for name, seed in (("train.csv", 1), ("dev.csv", 2)):
        rows = (f"{' '.join(pair.first)},{' '.join(pair.second)},{pair.score}" for pair in topic_pairs(100, seed))
        Path(name).write_text("\n".join(rows), encoding="utf-8")
    labels = [("entailment", "the cat sat", "cat sat"), ("neutral", "the dog", "mat"), ("entailment", "mat", "the mat")]
    Path("labels.jsonl").write_text(
        "\n".join(json.dumps({"gold_label": a, "sentence1": b, "sentence2": c}) for a, b, c in labels), encoding="utf-8"
    )
    command = [
        "sentence-head",
        "train.csv",
        "labels.jsonl",
        "--model",
        "model",
        "--held-out",
        "dev.csv",
        "--out",
        "new",
    ]
    settings = ["--tokenizer", "spaces", "--steps", "30", "--learning-rate", "0.02"]
    ran = shell(*command, *settings)
    assert "Trained on 100 scored pairs and 2 entailed pairs." in ran.out
    assert "dev.csv, 100 pairs, Spearman correlation" in ran.out
    card = open_model("new").card["sentence_head"]
    assert card["pairs"] == ["train.csv", "labels.jsonl"]
    assert card["spearman"] > card["spearman_before"]
    Path("same.csv").write_text("the cat,the cat,1\nthe mat,the mat,2\n", encoding="utf-8")
    same = shell(*command[:6], "same.csv", "--out", "same", *settings).out
    assert "none, as all cosines are equal; before: none" in same
    assert open_model("same").card["sentence_head"]["spearman"] is None
    assert (folder / "new" / "model.safetensors").read_bytes() == (folder / "model" / "model.safetensors").read_bytes()
    shell("embed", "text.txt", "vectors.npz", "--model", "new", "--pool", "trained")
    shell("export", "static", "table", "--model", "new", "--pool", "trained")
    assert "stored head" in shell("evaluate", "similarity", "dev.csv", "--model", "new", "--tokenizer", "spaces").out
    assert "exists" in shell(*command, *settings).err
    assert "cannot store a head" in shell(*command[:-1], "new.hdf5").err
    assert (
        "stores no head. Train one" in shell("embed", "text.txt", "b.npz", "--model", "model", "--pool", "trained").err
    )


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("mean", lambda array: array[:3], TensorMismatchError),
        ("projection", lambda array: array[:3], TensorMismatchError),
        ("projection", lambda array: array * np.nan, FormatError),
        ("word_weights", lambda array: array[:2], TensorMismatchError),
        ("word_weights", lambda array: array * 0, FormatError),
    ],
)
def test_a_stored_head_that_does_not_fit_is_neither_written_nor_read(
    name: str,
    change: Callable[[NDArray[np.float32]], NDArray[np.float32]],
    error: type[ElmoError],
    model: PretrainedBiLM,
    tmp_path: Path,
) -> None:
    good = head_of(model, 1.0)
    head = replace(good, **{name: change(getattr(good, name))})
    with pytest.raises(ModelError, match="sentence head"):
        save_model(model.replace(sentence_head=head), tmp_path / "model")
    if name != "word_weights":
        whitening = Whitening(head.pooling, head.mean, head.projection)
        with pytest.raises(ModelError, match="whitening"):
            save_model(model.replace(whitening=whitening), tmp_path / "model")
    assert not list(tmp_path.iterdir())
    save_model(model.replace(sentence_head=good), tmp_path / "model")
    path = tmp_path / "model" / "sentence_head.safetensors"
    save_file({**load_file(path), name: torch.from_numpy(getattr(head, name).copy())}, path)
    with pytest.raises(error, match=r"sentence_head\.safetensors"):
        open_model(tmp_path / "model")


SAME = [ScoredPair(["the"], ["cat"], 1.0)] * 5 + [ScoredPair([], ["cat"], 2.0)]


@pytest.mark.parametrize(
    ("settings", "error", "name"),
    [
        ({"n_steps": 5, "learning_rate": 1e30}, TrainingError, "diverged"),
        ({"n_steps": 30, "word_learning_rate": 100.0}, TrainingError, "diverged"),
        ({"n_steps": 0}, ConfigError, "n_steps"),
        ({"learning_rate": 0.0}, ConfigError, "learning_rate"),
        ({"word_learning_rate": -1.0}, ConfigError, "word_learning_rate"),
        ({"decay": float("nan")}, ConfigError, "decay"),
        ({"scored": SAME, "entailed": [(["the"], ["cat"]), (["the"], [])]}, TextError, "5 and 1"),
        ({"model": random_model().replace(vocabulary=None, softmax=None)}, ConfigError, "vocabulary"),
    ],
)
def test_a_training_of_a_head_refuses(settings: dict[str, Any], error: type[ElmoError], name: str) -> None:
    given = {"scored": list(topic_pairs(50, seed=1)), "entailed": (), "model": random_model(), **settings}
    scored, entailed, model = (given.pop(key) for key in ("scored", "entailed", "model"))
    with pytest.raises(error, match=name):
        train_sentence_head(Elmo(model), scored, entailed, HeadConfig(**given))


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan])
def test_a_sentence_whose_words_weigh_nothing_is_refused(model: PretrainedBiLM, weight: float) -> None:
    with pytest.raises(ConfigError, match="weights"):
        SentenceEmbedder(Elmo(model), linear_map=head_of(model, weight)).embed([["the", "cat"]])
