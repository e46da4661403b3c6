from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.corpus.hdf5 import VectorWriter, read_sentence_map, sentence_key, sentence_of_key
from elmokit.errors import FormatError, TextError

VECTORS = np.ones((3, 2, 4), dtype=np.float32)


def test_layout_is_that_of_allennlp(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "out.hdf5", "w") as file:
        writer = VectorWriter(file)
        for sentence in ("a b", "c/d .", "a b"):
            writer.write(sentence, VECTORS)
        writer.finish()
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert set(file) == {"0", "1", "2", "sentence_to_index"}
        assert (file["0"].shape, file["0"].dtype) == ((3, 2, 4), np.float32)
        assert file["sentence_to_index"].shape == (1,)
        assert json.loads(file["sentence_to_index"][0]) == {"a b": "2", "c/d .": "1"}
        assert read_sentence_map(file) == {"a b": 2, "c/d .": 1}


def test_the_maps_old_name_is_written_on_request_and_understood(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "out.hdf5", "w") as file:
        writer = VectorWriter(file, with_old_map=True)
        writer.write("a", VECTORS)
        writer.finish()
        assert set(file) == {"0", "sentence_to_index", "sentence_indices"}
        del file["sentence_to_index"]
        assert read_sentence_map(file) == {"a": 0}


def test_a_file_without_a_map_says_so(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "out.hdf5", "w") as file:
        writer = VectorWriter(file, with_map=False, dtype="float16")
        writer.write("a", VECTORS)
        writer.finish()
        assert set(file) == {"0"}
        assert file["0"].dtype == np.float16
        with pytest.raises(FormatError, match="holds no sentence map"):
            read_sentence_map(file)


@given(st.lists(st.text(alphabet=st.sampled_from("ab/.%#2F5E0 \0"), max_size=6), max_size=20))
def test_no_sentence_is_lost_under_its_own_key(sentences: list[str]) -> None:
    with h5py.File("keys", "w", driver="core", backing_store=False) as file:
        writer = VectorWriter(file, keys="sentences")
        for number, sentence in enumerate(sentences):
            writer.write(sentence, np.full((1, 1), number, dtype=np.float32))
        writer.finish()
        assert len(file) == len(sentences)
        assert sorted(sentence_of_key(key) for key in file) == sorted(sentences)


@given(st.text(max_size=20), st.text(max_size=20), st.integers(1, 3), st.integers(1, 3))
def test_keys_are_as_distinct_as_sentences(first: str, second: str, n: int, m: int) -> None:
    assert (sentence_key(first, n) == sentence_key(second, m)) == ((first, n) == (second, m))
    assert sentence_of_key(sentence_key(first, n)) == first


def test_plain_sentences_are_their_own_keys() -> None:
    assert sentence_key("100 % of the cats .") == "100 % of the cats ."
    assert sentence_key("a / b") == "a %2F b"


def test_a_sentence_too_long_for_a_key_is_a_clear_error() -> None:
    with h5py.File("keys", "w", driver="core", backing_store=False) as file:
        writer = VectorWriter(file, keys="sentences")
        with pytest.raises(TextError, match="Leave out --use-sentence-keys"):
            writer.write("a " * 40_000, VECTORS)
