"""Documents: each sentence is read from the state after the one before it, and a document depends on itself alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.embedding.corpus import BatchEmbedder, embed_file
from elmokit.embedding.documents import PIECE_TOKENS, by_document
from elmokit.embedding.elmo import Elmo, Vectors
from elmokit.embedding.outputs.layout import Layout
from elmokit.embedding.outputs.output_format import read_about
from elmokit.embedding.sentence_vectors import SentenceEmbedder
from elmokit.engine.architecture import PRESETS
from elmokit.engine.precision import Precision
from elmokit.engine.threads import set_threads
from elmokit.network.bilm import BiLMState
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.text import Text
from tests.conftest import random_model

DOCUMENTS = [
    [["the", "cat", "sat", "."], [], ["the", "dog", "ran", "on", "the", "mat", "."]],
    [["sat"]],
    [],
    [["the"] * (PIECE_TOKENS + 1), ["cat", "."], ["the", "mat"]],
    [["a", "zebra", "."]] * 3,
]


def assert_same(found: Sequence[Sequence[Vectors]], expected: Sequence[Sequence[Vectors]]) -> None:
    for arrays, others in zip(found, expected, strict=True):
        for array, other in zip(arrays, others, strict=True):
            np.testing.assert_array_equal(array, other)


def plain_vectors(model: PretrainedBiLM, document: list[list[str]]) -> list[np.ndarray]:
    """Token by token, with the state of each direction passed on: what the vectors are by definition."""
    assert model.start_state is not None
    found: list[list[np.ndarray]] = [[] for _ in document]
    for direction, backward in enumerate(model.config.read_backward):
        states = BiLMState.from_numpy(model.start_state).of_direction(direction)
        for number, sentence in enumerate(document):
            outputs = []
            for token in ["</S>", *reversed(sentence)] if backward else ["<S>", *sentence]:
                vector = model.build_bilm().token_vectors(torch.from_numpy(model.encode([token])))
                layers, states = model.build_bilm().run_direction(direction, vector[None], states)
                outputs.append(np.stack([vector[0].numpy(), *(layer[0, 0].numpy() for layer in layers)]))
            outputs = outputs[:0:-1] if backward else outputs[1:]  # without the boundary
            found[number].append(np.array(outputs).reshape(-1, *vector_shape(model)).swapaxes(0, 1))
    return [np.concatenate(parts, axis=-1) for parts in found]


def vector_shape(model: PretrainedBiLM) -> tuple[int, int]:
    return model.config.n_layers + 1, model.config.projection_dim


@pytest.mark.parametrize("bidirectional", [True, False])
def test_vectors_equal_those_of_a_plain_run_from_token_to_token(bidirectional: bool) -> None:
    model = random_model(replace(PRESETS["tiny"], bidirectional=bidirectional))
    elmo = Elmo(model)
    model = model.replace(start_state=elmo.start_state)
    found = elmo.embed_documents([DOCUMENTS[0], DOCUMENTS[4]])
    with torch.no_grad():
        for document, arrays in zip([DOCUMENTS[0], DOCUMENTS[4]], found, strict=True):
            for array, expected in zip(arrays, plain_vectors(model, document), strict=True):
                np.testing.assert_allclose(array, expected, atol=2e-5)  # the LSTMs magnify the rounding of layer 0


@pytest.mark.parametrize("precision", ["int8", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_document_has_the_same_bits_in_any_batch_order_and_number_of_threads(precision: Precision) -> None:
    elmo = Elmo.from_pretrained(precision=precision)
    whole = elmo.embed_documents(DOCUMENTS)
    for batch_tokens in (1, 3 * PIECE_TOKENS):
        assert_same(list(elmo.embed_documents(iter(DOCUMENTS), batch_tokens=batch_tokens)), whole)
    assert_same(elmo.embed_documents(DOCUMENTS[::-1]), whole[::-1])
    n_before = torch.get_num_threads()
    try:
        set_threads(2)
        assert_same(elmo.embed_documents(DOCUMENTS), whole)
    finally:
        set_threads(n_before)
    # A document of one sentence is that sentence, and the beginning of a document does not depend on its end.
    assert_same(elmo.embed_documents([[tokens] for tokens in DOCUMENTS[4]]), [[v] for v in elmo.embed(DOCUMENTS[4])])
    assert_same(elmo.embed_documents([DOCUMENTS[4][:5]]), [whole[4][:5]])
    assert np.abs(whole[4][0] - whole[4][1])[1:].max() > 1e-3


def test_layers_and_raw_text_are_as_in_embed() -> None:
    elmo = Elmo(random_model())
    (full,) = elmo.embed_documents([DOCUMENTS[0]])
    for layers, expected in (
        ("top", [v[2] for v in full]),
        (0, [v[0] for v in full]),
        ([2, 0], [v[[2, 0]] for v in full]),
    ):
        assert_same(elmo.embed_documents([DOCUMENTS[0]], layers=layers), [expected])  # type: ignore[call-overload]
    tokenized = [["The", "cat", "sat", "."], ["It", "ran", "."]]
    for texts in ("The cat sat. It ran.", ["The cat sat. It ran."]):
        assert_same(elmo.embed_documents(texts, tokenize=True), elmo.embed_documents([tokenized]))  # type: ignore[call-overload]


def test_a_stream_of_documents_is_read_only_a_little_ahead() -> None:
    n_read = itertools.count()

    def endless() -> Iterator[list[list[str]]]:
        while True:
            next(n_read)
            yield [["the", "cat"], ["sat"]]

    first = next(Elmo(random_model()).embed_documents(endless(), batch_tokens=10))
    assert [array.shape for array in first] == [(3, 2, 64), (3, 1, 64)]
    assert next(n_read) <= 8 * 10 // 7 + 1


def test_results_are_returned_by_document_and_empty_ones_have_none() -> None:
    def flat(documents: Iterator[Sequence[Sequence[str]]]) -> Iterator[int]:
        return (len(tokens) for document in documents for tokens in document)

    found = list(by_document([[], [["a"], []], [], [["a", "b"]], []], flat))
    assert found == [[], [1, 0], [], [2], []]
    assert list(by_document([[], []], flat)) == [[], []]


TEXT = "the cat sat .\nthe dog ran .\n\nthe cat sat .\n\n\nthe dog\n"
ROWS = [
    [["the", "cat", "sat", "."], ["the", "dog", "ran", "."], []],
    [["the", "cat", "sat", "."], []],
    [[]],
    [["the", "dog"]],
]


@pytest.mark.parametrize("batch_tokens", [2048, 1])
def test_a_blank_line_ends_a_document_of_a_file_and_keeps_its_row(tmp_path: Path, batch_tokens: int) -> None:
    elmo = Elmo(random_model())
    (tmp_path / "text.txt").write_text(TEXT)
    summary = embed_file(
        elmo, Text(tmp_path / "text.txt", documents=True), tmp_path / "out.npz", Layout(batch_tokens=batch_tokens)
    )
    assert (summary.n_sentences, summary.n_blank) == (7, 3)
    assert read_about(tmp_path / "out.npz")["documents"] is True
    with np.load(tmp_path / "out.npz") as file:
        assert file["offsets"].tolist() == [0, 4, 8, 8, 12, 12, 12, 14]
        expected = np.concatenate([array for arrays in elmo.embed_documents(ROWS) for array in arrays], axis=1)
        np.testing.assert_array_equal(file["vectors"], expected.swapaxes(0, 1))


def test_blank_lines_of_raw_text_have_rows_between_documents(tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("The cat sat. It ran.\n\nThe dog.\n")
    elmo = Elmo(random_model())
    embed_file(elmo, Text(tmp_path / "raw.txt", documents=True, kind="raw"), tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as file:
        assert file["offsets"].tolist() == [0, 4, 7, 7, 10]
        (expected,) = elmo.embed([["The", "dog", "."]])
        np.testing.assert_array_equal(file["vectors"][7:].swapaxes(0, 1), expected)


def test_sentence_vectors_of_documents_are_pooled_from_their_token_vectors(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    embedder = SentenceEmbedder.by_name(Elmo(random_model()), "mean", 2)
    embed_file(embedder, Text(tmp_path / "text.txt", documents=True), tmp_path / "out.npz")
    vectors = embedder.elmo.embed_documents(ROWS, layers=2)
    expected = [
        embedder.pool(tokens, array)
        for document, arrays in zip(ROWS, vectors, strict=True)
        for tokens, array in zip(document, arrays, strict=True)
    ]
    with np.load(tmp_path / "out.npz") as file:
        np.testing.assert_array_equal(file["vectors"], expected)


def test_a_pool_is_bounded_and_its_state_is_that_of_its_last_document() -> None:
    embedder = BatchEmbedder(Elmo(random_model()), Layout(batch_tokens=4), documents=True)
    pools = list(embedder.read_pools([["the", "cat"]] * 100))
    assert max(map(len, pools)) == 32
    for pool, is_start in (([["the"], []], True), ([[], ["the"]], False)):
        list(embedder.compute(pool, [0, 1]))
        assert np.array_equal(embedder.state.cell, embedder.elmo.start_state.cell) == is_start
