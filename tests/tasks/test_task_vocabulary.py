"""The words and characters of a run."""

from __future__ import annotations

import contextlib
import gzip
import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.errors import ConfigError, TextError
from elmokit.tasks import task_vocabulary
from elmokit.tasks.task_config import CharsConfig, WordsConfig
from elmokit.tasks.task_vocabulary import WordVectors, make_chars, make_table, read_word_vectors

TRAIN = Counter({"the": 5, "The": 3, "cat": 1, "dog": 1})
DEV = Counter({"cow": 2, "emu": 1})


@pytest.fixture
def vectors(tmp_path: Path) -> str:
    path = tmp_path / "v.txt"
    path.write_text("the 3 4\ncow 1 1\nzebra 1 1\ncat 0 2\n")
    return str(path)


def test_without_files_the_training_words_count_alone() -> None:
    made = make_table("words", WordsConfig(dim=3), TRAIN, DEV)
    assert made.table.words == ["the", "The", "cat", "dog"]
    assert made.vectors is None
    assert make_table("words", WordsConfig(dim=3, min_count=2), TRAIN, DEV).table.words == ["the", "The"]
    assert make_table("words", WordsConfig(dim=3, lowercase=True), TRAIN, DEV).table.words == ["the", "cat", "dog"]


def test_words_of_dev_get_a_row_where_a_file_has_a_vector(vectors: str) -> None:
    made = make_table("words", WordsConfig(vectors=vectors, min_count=2), TRAIN, DEV)
    assert made.table.words == ["the", "The", "cat", "cow"]
    assert made.table.dim == 2
    assert made.vectors[2].tolist() == [3, 4]
    assert made.vectors[5].tolist() == [1, 1]
    assert not made.vectors[0].any()
    assert made.vectors[1].any()
    assert made.vectors[3].any()  # "The" is not in the file, and drawn around its mean


def test_coverage_counts_training_words_without_a_vector(vectors: str) -> None:
    coverage = make_table("words", WordsConfig(vectors=vectors), TRAIN, DEV).coverage
    assert (coverage.unknown_types, coverage.unknown_tokens) == (0.5, 0.4)


def test_files_stand_side_by_side_each_scaled_to_length_one(vectors: str) -> None:
    config = WordsConfig(vectors=(vectors, vectors), unit_length=True, unknown="zero")
    made = make_table("words", config, TRAIN, DEV)
    assert made.table.dim == 4
    torch.testing.assert_close(made.vectors[2], torch.tensor([0.6, 0.8, 0.6, 0.8]))
    assert not made.vectors[1].any()


@pytest.mark.parametrize(
    ("settings", "words", "named"),
    [
        ({"vectors": "v.txt", "dim": 3}, TRAIN, r"words\.dim is 3, but the vectors in v\.txt have 2"),
        ({}, TRAIN, "words has neither vectors nor dim"),
        ({"vectors": "v.txt"}, Counter({"xyz": 1}), r"None of the training words is in v\.txt"),
    ],
)
def test_words_without_vectors_are_refused(
    settings: dict[str, Any], words: Counter[str], named: str, vectors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(vectors).parent)
    with pytest.raises(ConfigError, match=named):
        make_table("words", WordsConfig(**settings), words, Counter())


def test_characters_are_counted_by_token() -> None:
    assert make_chars(CharsConfig(), Counter({"ab": 2, "c": 1})) == ["a", "b", "c"]
    assert make_chars(CharsConfig(min_count=2), Counter({"ab": 2, "c": 1})) == ["a", "b"]


VECTORS = {"the": [0.5, -1.0], "cat": [2.0, 0.25], "é": [1.0, 1.0]}


def glove(vectors: dict[str, list[float]]) -> bytes:
    return "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in vectors.items()).encode()


def word2vec_binary(vectors: dict[str, list[float]], newline: bytes = b"\n") -> bytes:
    rows = [word.encode() + b" " + np.array(row, dtype="<f4").tobytes() + newline for word, row in vectors.items()]
    return f"{len(vectors)} 2\n".encode() + b"".join(rows)


def check(found: WordVectors, words: set[str]) -> None:
    assert found.dim == 2
    assert set(found.vectors) == words
    for word, vector in found.vectors.items():
        assert vector.dtype == np.float32
        np.testing.assert_array_equal(vector, VECTORS[word])


@pytest.mark.parametrize(
    "content",
    [
        glove(VECTORS),
        b"3 2\n" + glove(VECTORS),
        b"3 2\n" + glove(VECTORS).replace(b"\n", b" \n"),
        word2vec_binary(VECTORS),
        word2vec_binary(VECTORS, newline=b""),
        glove(VECTORS).replace(b" ", b"\t"),
        b"3 2\n" + glove(VECTORS).replace(b" ", b"\t"),
        glove(VECTORS).replace(b" ", b"\t", 1),
        glove(VECTORS).replace(b" ", b"  ", 1),
        b"\xef\xbb\xbf" + glove(VECTORS),
        b"\xef\xbb\xbf3 2\n" + glove(VECTORS),
        glove(VECTORS) + b"cat 7 7\n. . . 9 9\n",
    ],
)
@pytest.mark.parametrize("name", ["v.txt", "v.txt.gz"])
def test_wanted_words_are_read_in_every_form(content: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content, mtime=0) if name.endswith("gz") else content)
    check(read_word_vectors(str(path), {"cat", "é", "dog", "."}), {"cat", "é"})


class CountingFile(io.BytesIO):
    """A file that counts the bytes that are read from it."""

    n_read = 0

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(size)
        self.n_read += len(content)
        return content


def test_many_short_words_cost_no_copies_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    n_words = 10_000
    entry = np.array([1.0, 2.0], dtype="<f4").tobytes()
    content = f"{n_words} 2\n".encode() + b"".join(f"w{n} ".encode() + entry for n in range(n_words))
    file = CountingFile(content)
    monkeypatch.setattr(task_vocabulary, "open_binary", lambda _: file)
    found = read_word_vectors("v.bin", {"w0", "w9999"})
    assert file.n_read <= len(content)
    assert set(found.vectors) == {"w0", "w9999"}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "line 1: expected a word and its numbers"),
        (b"the\n", "line 1: expected a word and its numbers"),
        (b"the cat sat\n", "line 1: expected a word and its numbers"),
        (glove(VECTORS) + b"dog 1 x\n", "line 4: expected 2 finite numbers of float32 after 'dog'"),
        (glove(VECTORS) + b"dog 1\n", "line 4"),
        (glove(VECTORS) + b"dog 1 1e39\n", "line 4"),
        (b"the 1 nan\n", "line 1"),
        (word2vec_binary(VECTORS)[:-4], "word 3 of 3: expected 2 finite numbers"),
        (b"3 2\n", "word 1 of 3: expected 2 finite numbers"),
        (word2vec_binary({"the": [1.0, float("nan")]}), "word 1 of 1"),
        (gzip.compress(glove(VECTORS), mtime=0)[:-12], "cannot be read"),
        (None, "Cannot read"),
    ],
)
def test_vectors_that_cannot_be_read_are_named(content: bytes | None, named: str, tmp_path: Path) -> None:
    path = tmp_path / ("v.gz" if content and content[:2] == b"\x1f\x8b" else "v.txt")
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TextError, match=named):
        read_word_vectors(str(path), {"dog", "the"})


@settings(max_examples=50)
@given(st.binary(max_size=60))
def test_any_bytes_give_vectors_or_one_clear_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("v") / "v.txt"
    path.write_bytes(content)
    with contextlib.suppress(TextError):
        found = read_word_vectors(str(path), {"a", "1"})
        assert all(vector.shape == (found.dim,) for vector in found.vectors.values())
