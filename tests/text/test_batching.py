from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.text import batching
from elmokit.text.batching import N_BOUNDARIES, make_batch, map_in_batches, plan_batches, read_ahead
from elmokit.text.characters import encode_tokens

encode = partial(encode_tokens, max_chars=50)


def test_boundaries_are_added_and_each_distinct_token_is_listed_once() -> None:
    batch = make_batch([["the", "cat", "the"], [], ["cat"]], encode)
    assert batch.words == ["<S>", "the", "cat", "</S>"]
    assert batch.index.tolist() == [[0, 1, 2, 1, 3], [0, 3, 0, 0, 0], [0, 2, 3, 0, 0]]
    assert batch.mask.sum(axis=1).tolist() == [5, 2, 3]
    np.testing.assert_array_equal(batch.ids, encode(batch.words))


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 120))
def test_every_sentence_is_planned_once_and_batches_fit_the_limit(lengths: list[int], budget: int) -> None:
    plan = plan_batches(lengths, budget)
    assert sorted(number for batch in plan for number in batch) == list(range(len(lengths)))
    for batch in plan:
        padded = len(batch) * (max(lengths[number] for number in batch) + 2)
        assert padded <= budget or len(batch) == 1


@given(st.lists(st.integers(0, 20)), st.integers(1, 60), st.integers(0, 10))
def test_reading_ahead_keeps_the_order_and_resumes_with_the_same_lists(
    lengths: list[int], limit: int, n_done: int
) -> None:
    lists = list(read_ahead(lengths, max_tokens=limit, length=int))
    assert [length for taken in lists for length in taken] == lengths
    assert all(sum(taken[:-1]) + N_BOUNDARIES * (len(taken) - 1) < limit for taken in lists)
    n_kept = sum(map(len, lists[:n_done]))
    assert list(read_ahead(lengths[n_kept:], max_tokens=limit, length=int)) == lists[n_done:]


def test_reading_ahead_stops_at_a_number_of_items() -> None:
    assert list(read_ahead(iter("abcde"), max_items=2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(read_ahead([], max_items=2)) == []


def test_similar_lengths_go_together_and_a_long_sentence_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan_batches([1, 30, 2, 31], 66) == [[3, 1], [2, 0]]
    monkeypatch.setattr(batching, "LONG_SENTENCE_TOKENS", 10)
    assert plan_batches([3, 12, 11, 4], 1000) == [[1], [2], [3, 0]]


def test_batches_can_be_planned_by_number_of_sentences_and_by_several_lengths() -> None:
    assert plan_batches([(2, 9), (3, 1), (2, 10)], batch_size=2) == [[1, 2], [0]]
    assert plan_batches([5, 5, 5], 10, n_boundaries=0) == [[0, 1], [2]]


@given(st.lists(st.text("ab", max_size=6), max_size=30), st.integers(1, 30))
def test_results_come_in_the_order_of_the_items(items: list[str], batch_tokens: int) -> None:
    results = map_in_batches(iter(items), lambda batch: map(str.upper, batch), batch_tokens=batch_tokens)
    assert list(results) == [item.upper() for item in items]
