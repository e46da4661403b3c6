"""Pretrained word vectors: text and binary, and files that are none."""

from __future__ import annotations

import contextlib
import gzip
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.errors import TextError
from elmokit.tasks.word_vectors import WordVectors, read_word_vectors

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
    ],
    ids=["glove", "word2vec text", "with trailing blanks", "binary", "binary without line ends"],
)
@pytest.mark.parametrize("name", ["v.txt", "v.txt.gz"])
def test_wanted_words_are_read_in_every_form(content: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content, mtime=0) if name.endswith("gz") else content)
    found = read_word_vectors(str(path), {"cat", "é", "dog"})
    check(found, {"cat", "é"})
    assert found.n_read == 3


def test_many_short_words_cost_no_copies_of_the_rest(tmp_path: Path) -> None:
    n_words = 150_000
    entry = np.array([1.0, 2.0], dtype="<f4").tobytes()
    path = tmp_path / "v.bin"
    path.write_bytes(f"{n_words} 2\n".encode() + b"".join(f"w{n} ".encode() + entry for n in range(n_words)))
    started = time.process_time()
    found = read_word_vectors(str(path), {"w0", "w149999"})
    assert time.process_time() - started < 3  # 12 with a copy of the buffer for each word
    assert found.n_read == n_words
    assert set(found.vectors) == {"w0", "w149999"}


def test_a_word_of_several_parts_and_one_that_stands_twice(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(glove(VECTORS) + b". . . 9 9\ncat 7 7\n")
    check(read_word_vectors(str(path), {"cat", "."}), {"cat"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: expected a word and its numbers"),
        (b"the\n", "line 1: expected a word and its numbers"),
        (b"the cat sat\n", "line 1: expected a word and its numbers"),
        (glove(VECTORS) + b"dog 1 x\n", "line 4: expected 2 numbers after 'dog'"),
        (glove(VECTORS) + b"dog 1\n", "line 4"),
        (word2vec_binary(VECTORS)[:-4], "word 3 of 3 is cut short"),
        (b"the 1 1e999\n", "line 1: a number of 'the' is infinite"),
        (glove(VECTORS) + b"dog 1 1e39\n", "line 4: a number of 'dog' is infinite"),
        (glove(VECTORS) + b"dog 1 nan\n", "line 4: a number of 'dog' is infinite, NaN or too large for float32"),
        (word2vec_binary({"the": [1.0, float("nan")]}), "word 1 of 1: a number of 'the' is infinite"),
        (b"3 2\n", "word 1 of 3 is cut short"),
        (gzip.compress(glove(VECTORS), mtime=0)[:-12], "cannot be read"),
    ],
)
def test_what_is_damaged_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / ("v.gz" if content[:2] == b"\x1f\x8b" else "v.txt")
    path.write_bytes(content)
    with pytest.raises(TextError) as error:
        read_word_vectors(str(path), {"dog", "the"})
    assert message in str(error.value)


def test_a_number_that_is_too_large_is_no_header(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(b"1" * 5000 + b" 2\nthe 3\n")
    assert read_word_vectors(str(path), {"the"}).vectors == {"the": [3]}


@settings(max_examples=50)
@given(st.binary(max_size=60))
def test_any_bytes_give_vectors_or_one_clear_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("v") / "v.txt"
    path.write_bytes(content)
    with contextlib.suppress(TextError):
        found = read_word_vectors(str(path), {"a", "1"})
        assert all(vector.shape == (found.dim,) for vector in found.vectors.values())


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(TextError, match="Cannot read"):
        read_word_vectors("no/such/file", {"a"})
