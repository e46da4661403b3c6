from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.errors import TextError
from elmokit.text.batching import make_batch, plan_batches
from elmokit.text.characters import encode_tokens

encode = partial(encode_tokens, max_chars=50)


def test_boundaries_are_added_and_each_distinct_token_stands_once() -> None:
    batch = make_batch([["the", "cat", "the"], [], ["cat"]], encode)
    assert batch.words == ["<S>", "the", "cat", "</S>"]
    assert batch.index.tolist() == [[0, 1, 2, 1, 3], [0, 3, 0, 0, 0], [0, 2, 3, 0, 0]]
    assert batch.mask.sum(axis=1).tolist() == [5, 2, 3]
    np.testing.assert_array_equal(batch.tokens, encode(batch.words))


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 120))
def test_plan_holds_every_sentence_once_and_stays_within_the_budget(lengths: list[int], budget: int) -> None:
    plan = plan_batches(lengths, budget)
    assert sorted(place for batch in plan for place in batch) == list(range(len(lengths)))
    for batch in plan:
        padded = len(batch) * (max(lengths[place] for place in batch) + 2)
        assert padded <= budget or len(batch) == 1


def test_similar_lengths_go_together() -> None:
    assert plan_batches([1, 30, 2, 31], 66) == [[3, 1], [2, 0]]
    assert plan_batches([1, 30, 2, 31], 33) == [[3], [1], [2, 0]]


def test_a_string_in_place_of_a_list_of_tokens_is_refused() -> None:
    with pytest.raises(TextError, match="A sentence is a list of tokens; given the string 'the cat'"):
        make_batch(["the cat"], encode)
    with pytest.raises(TextError, match="A token is a string; given None"):
        make_batch([["the", None]], encode)  # type: ignore[list-item]
