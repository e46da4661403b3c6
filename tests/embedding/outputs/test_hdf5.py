from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.embedding.outputs.hdf5 import (
    HDF5Format,
    read_sentence_map,
    sentence_key,
    sentence_map,
    sentence_of_key,
)
from elmokit.embedding.outputs.layout import DatasetNames, VectorFileLayout
from elmokit.embedding.outputs.writer import DATA_START, WriteProgress, open_resumable
from elmokit.embedding.reading import SentenceCounts
from elmokit.errors import FormatError, ModelError
from tests.reference.hdf5_h5py import VectorWriter

DIM = 4
LINES = st.text(alphabet=st.sampled_from("ab/.%#2F5E0 \0é\r"), max_size=6)


def write(path: Path, sentences: Sequence[str], dtype: str = "float32", **switches: object) -> list[np.ndarray]:
    """Vectors of the sentences, one token a character, by the corpus writer."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((3, len(sentence), DIM)).astype(dtype) for sentence in sentences]
    names = "".join(f"{sentence}\n" for sentence in sentences).encode()
    lengths = np.array(list(map(len, sentences)), dtype=np.int64)
    with open_resumable(path, {}, overwrite=True) as writer:
        offset = DATA_START
        for array in arrays:
            writer.write_vectors(offset, array)
            offset += array.nbytes
        done = WriteProgress(len(sentences), int(lengths.sum()), int((lengths == 0).sum()), offset)
        writer.end_pool(done, lengths, names)
        writer.end_data()
        HDF5Format().write(writer, VectorFileLayout((0, 1, 2), DIM, dtype, **switches))  # type: ignore[arg-type]
    return arrays


@settings(max_examples=40)
@given(
    st.lists(LINES, max_size=20),
    st.sampled_from(["numbers", "sentences"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["float32", "float16"]),
)
def test_files_equal_what_h5py_writes(
    tmp_path_factory: pytest.TempPathFactory,
    sentences: list[str],
    keys: DatasetNames,
    with_map: bool,
    with_old_map: bool,
    dtype: str,
) -> None:
    folder = tmp_path_factory.mktemp("hdf5")
    arrays = write(
        folder / "ours.hdf5", sentences, dtype, keys=keys, with_sentences=with_map, with_old_map=with_old_map
    )
    with h5py.File(folder / "theirs.hdf5", "w") as theirs:
        writer = VectorWriter(theirs, keys, with_map, with_old_map, dtype)  # type: ignore[arg-type]
        for sentence, array in zip(sentences, arrays, strict=True):
            writer.write(sentence, array)
        writer.finish()
        with h5py.File(folder / "ours.hdf5") as ours:
            assert list(ours) == list(theirs)
            for name in theirs:
                assert (ours[name].dtype, ours[name].shape) == (theirs[name].dtype, theirs[name].shape)
                np.testing.assert_array_equal(ours[name][...], theirs[name][...])
                assert ours[name].id.get_type().equal(theirs[name].id.get_type())


def test_layout_is_that_of_allennlp(tmp_path: Path) -> None:
    write(tmp_path / "out.hdf5", ["a b", "c/d .", "a b"])
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert set(file) == {"0", "1", "2", "sentence_to_index"}
        assert (file["0"].shape, file["0"].dtype) == ((3, 3, DIM), np.float32)
        assert file["sentence_to_index"].shape == (1,)
        assert json.loads(file["sentence_to_index"][0]) == {"a b": "2", "c/d .": "1"}
        assert read_sentence_map(file) == {"a b": 2, "c/d .": 1}


def test_the_maps_old_name_is_written_on_request_and_understood(tmp_path: Path) -> None:
    write(tmp_path / "out.hdf5", ["a"], with_old_map=True)
    with h5py.File(tmp_path / "out.hdf5", "r+") as file:
        assert set(file) == {"0", "sentence_to_index", "sentence_indices"}
        del file["sentence_to_index"]
        assert read_sentence_map(file) == {"a": 0}


def test_a_file_without_a_map_says_so(tmp_path: Path) -> None:
    write(tmp_path / "out.hdf5", ["a"], "float16", with_sentences=False)
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert set(file) == {"0"}
        assert file["0"].dtype == np.float16
        with pytest.raises(FormatError, match=r"out\.hdf5 has no sentence map"):
            read_sentence_map(file)


@given(st.lists(LINES, max_size=12))
def test_the_map_is_the_json_of_a_dict(sentences: list[str]) -> None:
    expected = json.dumps({sentence: str(number) for number, sentence in enumerate(sentences)})
    assert b"".join(sentence_map(lambda: sentences)).decode() == expected


def test_sentences_with_the_same_hash_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmokit.embedding.outputs.hdf5.hash", len, raising=False)
    sentences = ["ab", "cd", "e", "ab"]
    assert json.loads(b"".join(sentence_map(lambda: sentences))) == {"ab": "3", "cd": "1", "e": "2"}


@pytest.mark.parametrize("n", [1, 500])
def test_the_size_is_estimated(tmp_path: Path, n: int) -> None:
    sentences = [f"sentence number {number}" for number in range(n)]
    n_bytes = sum(map(len, sentences))
    write(tmp_path / "numbers.hdf5", sentences)
    write(tmp_path / "keys.hdf5", sentences, keys="sentences")
    for name, keys in (("numbers", "numbers"), ("keys", "sentences")):
        layout = VectorFileLayout((0, 1, 2), DIM, keys=keys)  # type: ignore[arg-type]
        estimate = HDF5Format().file_bytes(layout, SentenceCounts(n, n_bytes, 0, n_bytes))
        assert estimate == pytest.approx((tmp_path / f"{name}.hdf5").stat().st_size, rel=0.02, abs=50)


@given(st.text(max_size=20), st.text(max_size=20), st.integers(1, 3), st.integers(1, 3))
def test_keys_are_as_distinct_as_sentences(first: str, second: str, n: int, m: int) -> None:
    assert (sentence_key(first, n) == sentence_key(second, m)) == ((first, n) == (second, m))
    assert sentence_of_key(sentence_key(first, n)) == first


def test_plain_sentences_are_their_own_keys() -> None:
    assert sentence_key("100 % of the cats .") == "100 % of the cats ."
    assert sentence_key("a / b") == "a %2F b"


def test_the_map_is_read_from_a_path(tmp_path: Path) -> None:
    path = tmp_path / "out.hdf5"
    write(path, ["a b", "c"])
    assert read_sentence_map(path) == read_sentence_map(str(path)) == {"a b": 0, "c": 1}
    (tmp_path / "text.txt").write_text("text")
    for name, what in (("text.txt", "not a readable HDF5 file"), ("missing.hdf5", "missing")):
        with pytest.raises(ModelError, match=rf"{name} is {what}"):
            read_sentence_map(tmp_path / name)
