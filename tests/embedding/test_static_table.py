"""Sentence vectors as a static word table in the layout of model2vec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from elmokit import Elmo, SentenceEmbedder, open_model, save_model
from elmokit.embedding.static_table import UNKNOWN, export_static
from elmokit.errors import OutputError
from elmokit.formats.model import PretrainedBiLM
from tests.helpers.shell import Shell

SENTENCES = [["the", "cat", "sat", "on", "the", "mat"], ["the", "dog", "ran"], ["cat"]]
FROM_MODEL2VEC = "This text isn't the U.S. Senate's, but a well-known one: \u201cit\u2019s 3.5 km\u201d."
TOKENS = [
    "This",
    "text",
    "is",
    "n't",
    "the",
    "U.S.",
    "Senate",
    "'s",
    "but",
    "a",
    "well-known",
    "one",
    "it",
    "3.5",
    "km",
]


@pytest.fixture
def embedder(model: PretrainedBiLM) -> SentenceEmbedder:
    rng = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "mat", "dog", "ran"]
    return SentenceEmbedder(Elmo(model)).fit([list(rng.choice(words, size=5)) for _ in range(200)])


def mean_rows(directory: Path, sentences: list[list[str]]) -> NDArray[np.float64]:
    """Average the rows of the words that are in the table, as model2vec does."""
    table = load_file(directory / "model.safetensors")["embeddings"].astype(np.float64)
    words = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    return np.stack([table[[words[word] for word in sentence if word in words]].mean(axis=0) for sentence in sentences])


def unit(vectors: NDArray[Any]) -> NDArray[Any]:
    lengths: NDArray[Any] = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / lengths


def test_the_mean_of_a_sentences_rows_has_the_direction_of_its_vector(
    embedder: SentenceEmbedder, tmp_path: Path
) -> None:
    export_static(embedder, tmp_path / "static")
    means = mean_rows(tmp_path / "static", SENTENCES)
    # 2^-11 is the rounding of float16, relative to the largest number of the table.
    np.testing.assert_allclose(unit(means), unit(embedder.embed(SENTENCES)), atol=20 * 2**-11)


def test_plain_means_are_those_of_all_tokens_marks_too(model: PretrainedBiLM, tmp_path: Path) -> None:
    embedder, sentences = SentenceEmbedder.by_name(Elmo(model), "mean"), [["the", "cat", "."], ["sat", ",", ","]]
    export_static(embedder, tmp_path / "static", ["the", "cat", ".", "sat", ","])
    means = mean_rows(tmp_path / "static", sentences)
    np.testing.assert_allclose(unit(means), unit(embedder.embed(sentences)), atol=20 * 2**-11)


def test_a_blank_line_in_a_list_of_words_is_not_a_word(model: PretrainedBiLM, tmp_path: Path) -> None:
    export_static(SentenceEmbedder.by_name(Elmo(model), "mean"), tmp_path / "static", ["the", "", "cat"])
    content = json.loads((tmp_path / "static" / "tokenizer.json").read_text(encoding="utf-8"))
    assert list(content["model"]["vocab"]) == ["[UNK]", "the", "cat"]


def test_the_table_has_a_row_for_each_word_with_a_letter_and_one_of_zeros_for_all_others(
    embedder: SentenceEmbedder, tmp_path: Path
) -> None:
    export_static(embedder, tmp_path / "static", ["cat", ".", "zebra", "cat", "<S>", "3"])
    content = json.loads((tmp_path / "static" / "tokenizer.json").read_text(encoding="utf-8"))
    assert content["model"]["vocab"] == {"[UNK]": 0, "cat": 1, "zebra": 2, "3": 3}
    table = load_file(tmp_path / "static" / "model.safetensors")["embeddings"]
    assert (table.shape, table.dtype) == ((4, embedder.dim), np.float16)
    assert not table[0].any()


def test_the_command_writes_the_table(shell: Shell) -> None:
    Path("words.txt").write_text("cat\ndog\n")
    ran = shell("export", "static", "static", "--model", "model", "--words", "words.txt")
    assert ran.code == 0, ran.err
    assert "wrote static" in ran.err
    assert len(load_file(Path("static") / "model.safetensors")["embeddings"]) == 3
    again = shell("export", "static", "static", "--model", "model")
    assert again.code == 2
    assert "static" in again.err


def test_only_a_table_is_overwritten_by_a_table(embedder: SentenceEmbedder, tmp_path: Path) -> None:
    victim, model, table, empty = (tmp_path / name for name in ("victim", "model", "table", "empty"))
    (victim / "photos").mkdir(parents=True)
    with pytest.raises(OutputError, match="victim contains photos, which overwriting would delete"):
        export_static(embedder, victim, overwrite=True)
    assert (victim / "photos").is_dir()
    save_model(embedder.elmo.model.replace(softmax=None, vocabulary=None, whitening=None), model)
    assert {file.name for file in model.iterdir()} == {"config.json", "model.safetensors"}
    with pytest.raises(OutputError, match="model is not a table of model2vec, so it is not overwritten"):
        export_static(embedder, model, overwrite=True)
    assert open_model(model).family == "elmokit"
    empty.mkdir()
    export_static(embedder, empty, overwrite=True)
    for words in (["cat"], ["cat", "dog"]):
        export_static(embedder, table, words, overwrite=True)
    assert len(load_file(table / "model.safetensors")["embeddings"]) == 3


def test_model2vec_loads_the_table_and_splits_text_as_in_the_penn_treebank(tmp_path: Path) -> None:
    StaticModel = pytest.importorskip("model2vec").StaticModel
    embedder = SentenceEmbedder.from_pretrained()
    export_static(embedder, tmp_path / "static", [*TOKENS, "'s"])
    static = StaticModel.from_pretrained(str(tmp_path / "static"))
    (ids,) = static.tokenize([FROM_MODEL2VEC])
    tokens = [static.tokens[number] for number in ids]
    assert tokens == [*TOKENS[:13], "'s", *TOKENS[13:]]
    np.testing.assert_allclose(static.encode([FROM_MODEL2VEC]), unit(embedder.embed([tokens])), atol=20 * 2**-11)


def test_every_word_of_the_table_is_found_in_a_text(tmp_path: Path) -> None:
    model2vec = pytest.importorskip("model2vec")
    embedder = SentenceEmbedder.from_pretrained()
    export_static(embedder, tmp_path / "static")
    tokenizer = model2vec.StaticModel.from_pretrained(str(tmp_path / "static")).tokenizer
    words = [word for word in tokenizer.get_vocab() if word != UNKNOWN]
    assert "Mr." in words
    assert [word for word in words if tokenizer.encode(f"a {word} b").tokens != ["a", word, "b"]] == []
    # The period of the last sentence is a token of its own, whatever is before it.
    assert tokenizer.encode("Mr. Lee has 3,000, at No. 5. No.").tokens == [
        *("Mr.", "Lee", "has", "3,000", UNKNOWN, "at", "No.", "5", UNKNOWN, "No", UNKNOWN)
    ]
