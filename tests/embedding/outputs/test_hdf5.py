from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.embedding.corpus import embed_file
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.outputs import hdf5
from elmokit.embedding.outputs.hdf5 import (
    HDF5Format,
    read_sentence_map,
    sentence_key,
    sentence_of_key,
)
from elmokit.embedding.outputs.output_format import DatasetNames, VectorFileLayout
from elmokit.embedding.outputs.writer import has_partial_output, open_resumable
from elmokit.embedding.reading import CorpusSentence
from elmokit.errors import FormatError, ModelError, TextError
from elmokit.storage import hdf5_files
from elmokit.storage.progress import StageCounter
from tests.conftest import random_model

DIM = 4
LINES = st.text(alphabet=st.sampled_from("ab/.%#2F5E0 \0é\r"), max_size=6)


def write(path: Path, sentences: Sequence[str], dtype: str = "float32", **switches: object) -> list[np.ndarray]:
    """Vectors of the sentences, one token a character, by the corpus writer."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((3, len(sentence), DIM)).astype(dtype) for sentence in sentences]
    layout = VectorFileLayout((0, 1, 2), DIM, dtype, **switches)  # type: ignore[arg-type]
    with open_resumable(path, {}, overwrite=True) as writer:
        writer.read_text(CorpusSentence(sentence, list(sentence), sentence) for sentence in sentences)
        HDF5Format().allocate(writer, layout, StageCounter(None, "", None))
        for offset, array in zip(writer.offsets().tolist(), arrays, strict=True):
            writer.write_vectors(offset, array)
        writer.commit()
    return arrays


def write_by_h5py(
    file: h5py.File, sentences: Iterable[tuple[str, np.ndarray]], keys: DatasetNames, map_names: list[str]
) -> None:
    """Write sentences with their vectors by h5py alone: slow, obvious, and what the corpus writer is compared with."""
    last_line: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for number, (sentence, vectors) in enumerate(sentences):
        seen[sentence] += 1
        key = str(number) if keys == "numbers" else sentence_key(sentence, seen[sentence])
        file.create_dataset(key, data=vectors)
        last_line[sentence] = str(number)  # as in AllenNLP
    for name in map_names:
        file.create_dataset(name, (1,), dtype=h5py.string_dtype("utf-8"), data=[json.dumps(last_line)])


@settings(max_examples=20)
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
        map_names = ["sentence_to_index", "sentence_indices"] if with_old_map else ["sentence_to_index"]
        has_map = with_map and keys == "numbers"
        write_by_h5py(theirs, zip(sentences, arrays, strict=True), keys, map_names if has_map else [])
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


def test_a_long_sentence_can_be_a_name_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.hdf5"
    (array,) = write(path, ["a" * 59_000], keys="sentences")
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["a" * 59_000][...], array)
    with pytest.raises(TextError, match="Sentence 0 has 61000 characters"):
        write(path, ["a" * 61_000], keys="sentences")


@pytest.mark.parametrize("keys", ["numbers", "sentences"])
def test_files_with_many_names_have_a_newer_format_with_the_same_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    sentences = [f"sentence number {number}" for number in range(500)]
    versions, contents = [], []
    for limit in (hdf5_files.MAX_OLD_NAME_BYTES, 0):
        monkeypatch.setattr(hdf5_files, "MAX_OLD_NAME_BYTES", limit)
        path = tmp_path / f"{limit}.hdf5"
        write(path, sentences, keys=keys)
        versions.append(path.read_bytes()[8])  # of the superblock
        with h5py.File(path) as file:
            contents.append({name: file[name][...].tobytes() for name in file if name != "sentence_to_index"})
    assert versions == [0, 2]
    assert contents[0] == contents[1]


class Interrupting:
    """An object that is deleted when a Ctrl-C arrives, as h5py's are."""

    def __del__(self) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_dropped", [False, True], ids=["in the loop", "in a destructor, where Python drops it"])
def test_an_interruption_of_the_layout_keeps_the_text_and_changes_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dropped: bool
) -> None:
    monkeypatch.setattr(hdf5, "SENTENCES_AT_ONCE", 20)
    (tmp_path / "text.txt").write_text("".join(f"{'the cat ' * (number % 5)}.\n" for number in range(100)))
    elmo, n_added = Elmo(random_model()), [0]
    add = hdf5._Room.add

    def add_and_interrupt(room: hdf5._Room, name: str, n_rows: int) -> int:
        n_added[0] += 1
        if n_added[0] == 50 and not is_dropped:
            raise KeyboardInterrupt
        if n_added[0] == 50:
            Interrupting()
        return add(room, name, n_rows)

    embed_file(elmo, tmp_path / "text.txt", tmp_path / "whole.hdf5")
    monkeypatch.setattr(hdf5._Room, "add", add_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        embed_file(elmo, tmp_path / "text.txt", tmp_path / "parts.hdf5")
    assert n_added[0] <= 60
    assert has_partial_output(tmp_path / "parts.hdf5")
    stages: dict[str, list[int]] = {}
    embed_file(
        elmo,
        tmp_path / "text.txt",
        tmp_path / "parts.hdf5",
        progress=lambda stage, done, total: stages.setdefault(stage, []).append(done),
    )
    assert stages["laying out the file"] == [20, 40, 60, 80, 100]
    assert (tmp_path / "parts.hdf5").read_bytes() == (tmp_path / "whole.hdf5").read_bytes()


@pytest.mark.slow
@given(st.text(max_size=20), st.text(max_size=20), st.integers(1, 3), st.integers(1, 3))
def test_keys_are_as_distinct_as_sentences(first: str, second: str, n: int, m: int) -> None:
    assert (sentence_key(first, n) == sentence_key(second, m)) == ((first, n) == (second, m))
    assert sentence_of_key(sentence_key(first, n)) == first


def test_plain_sentences_are_their_own_keys() -> None:
    assert sentence_key("100 % of the cats .") == "100 % of the cats ."
    assert sentence_key("a / b") == "a %2F b"
    assert sentence_key(".") == "%2E"


def test_the_map_is_read_from_a_path(tmp_path: Path) -> None:
    path = tmp_path / "out.hdf5"
    write(path, ["a b", "c"])
    assert read_sentence_map(path) == read_sentence_map(str(path)) == {"a b": 0, "c": 1}
    (tmp_path / "text.txt").write_text("text")
    for name, what in (("text.txt", "not a readable HDF5 file"), ("missing.hdf5", "missing")):
        with pytest.raises(ModelError, match=rf"{name} is {what}"):
            read_sentence_map(tmp_path / name)
