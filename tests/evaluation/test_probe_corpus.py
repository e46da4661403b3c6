from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.embedding.elmo import Elmo
from elmokit.errors import ConfigError
from elmokit.evaluation import probe_corpus as corpus
from elmokit.evaluation.probe_corpus import model_digest, read_chunks
from elmokit.evaluation.tagged import read_tagged
from elmokit.storage.checksums import sentences_digest
from elmokit.text.text import Text
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
    assert sentences_digest([["a", "b"], ["c"]]) == sentences_digest([["a", "b"], ["c"]])
    assert sentences_digest([["a", "b"], ["c"]]) != sentences_digest([["a"], ["b", "c"]])
    assert sentences_digest([["ab"]]) != sentences_digest([["a", "b"]])
    with pytest.raises(ConfigError, match="start is 'stateful'"):
        model_digest(Elmo(random_model(), start="stateful"))


def test_capitals_in_the_names_of_files_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "DEV.CONLLU").write_text("1\tGo\t_\tVERB" + "\t_" * 6)
    paths = corpus.find_corpus_files(tmp_path)
    assert list(corpus.read_corpus_files(Text(paths))) == [["Go"]]
    assert [sentence.tags for sentence in read_tagged(paths[0])] == [["VERB"]]
