from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.embedding.elmo import Elmo
from elmokit.errors import ConfigError
from elmokit.evaluation import probe_corpus as corpus
from elmokit.evaluation.probe_corpus import model_digest, read_chunks, text_digest
from tests.conftest import random_model


@given(st.lists(st.integers(0, 20)), st.integers(1, 30), st.integers(0, 10))
def test_chunks_contain_everything_in_order_and_are_the_same_on_resume(
    lengths: list[int], limit: int, n_done: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "CHUNK_TOKENS", limit)
        whole = list(read_chunks(lengths, int))
        assert [length for chunk in whole for length in chunk] == lengths
        n_kept = sum(map(len, whole[:n_done]))
        assert list(read_chunks(lengths[n_kept:], int)) == whole[n_done:]


def test_digests_are_equal_for_equal_models_and_texts_only() -> None:
    elmo = Elmo(random_model())
    assert model_digest(elmo) == model_digest(Elmo(random_model()))
    assert model_digest(elmo) != model_digest(Elmo(random_model(seed=1)))
    assert model_digest(elmo) != model_digest(Elmo(random_model(), start="zero"))
    assert text_digest([["a", "b"], ["c"]]) == text_digest([["a", "b"], ["c"]])
    assert text_digest([["a", "b"], ["c"]]) != text_digest([["a"], ["b", "c"]])
    assert text_digest([["ab"]]) != text_digest([["a", "b"]])
    with pytest.raises(ConfigError, match="depend on the previous sentences"):
        model_digest(Elmo(random_model(), start="stateful"))
