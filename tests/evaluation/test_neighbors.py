from __future__ import annotations

import numpy as np
import pytest

from elmokit.evaluation.neighbors import in_context, nearest_tokens

VECTORS = [
    np.array([[[1, 0], [0, 1]], [[0, 1], [1, 1]]], dtype=np.float32),  # (layers, tokens, dim)
    np.array([[[0, 1], [3, 0.1]], [[1, 0], [1, 0]]], dtype=np.float32),
    np.array([[[-1, 0]], [[2, 2]]], dtype=np.float32),
]


def test_nearest_tokens_are_by_cosine_in_one_layer_and_in_other_sentences() -> None:
    places = [(n.sentence, n.token) for n in nearest_tokens(VECTORS, 0, 0, layer=0)]
    assert places == [(1, 1), (1, 0), (2, 0)]
    best = nearest_tokens(VECTORS, 0, 1, layer=1, n_neighbors=1)
    assert [(n.sentence, n.token) for n in best] == [(2, 0)]
    assert best[0].similarity == pytest.approx(1.0)


def test_nearest_tokens_can_be_limited_to_candidates() -> None:
    found = nearest_tokens(VECTORS, 0, 0, layer=0, among=[(0, 1), (1, 0), (2, 0)])
    assert [(n.sentence, n.token) for n in found] == [(1, 0), (2, 0)]


def test_words_in_context_are_aligned_and_never_cut() -> None:
    tokens = ["one", "two", "three", "four", "five"]
    assert in_context(tokens, 2, width=8) == " one two [three] four"
    assert in_context(tokens, 0, width=8) == "         [one] two"
    assert in_context(tokens, 4, width=3) == "    [five]"
