from __future__ import annotations

import gzip
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.errors import ConfigError, FormatError, ModelNotFoundError, TextError
from elmokit.text.vocabulary import Vocabulary, read_words

COUNTS = {"b": 3, "d": 1, "a": 2, "c": 2, "<S>": 9}


@pytest.mark.parametrize(
    ("limits", "words"),
    [({}, "bacd"), ({"max_words": 5}, "ba"), ({"min_count": 2}, "bac"), ({"max_words": 4, "min_count": 2}, "b")],
)
def test_most_frequent_words_come_after_the_specials(limits: dict[str, int], words: str) -> None:
    assert Vocabulary.from_counts(COUNTS, **limits).words == ["<S>", "</S>", "<UNK>", *words]


def test_unknown_words_get_the_id_of_unk() -> None:
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "the"])
    assert vocabulary.word_ids(["the", "zebra"]).tolist() == [3, 2]
    assert (vocabulary.begin_id, vocabulary.end_id, vocabulary.unknown_id) == (0, 1, 2)


def test_file_round_trip_keeps_words_that_hold_odd_spaces(tmp_path: Path) -> None:
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "a\u00a0b", "Āt"])
    path = tmp_path / "vocab.txt"
    path.write_text(vocabulary.to_text() + "!!!MAXTERMID\n", encoding="utf-8")
    assert Vocabulary.from_file(path).words == vocabulary.words


def test_counted_words_that_a_file_cannot_represent_are_left_out(tmp_path: Path) -> None:
    vocabulary = Vocabulary.from_counts({"\u3000": 9, "\u00a0a": 8, "a": 7, "!!!MAXTERMID": 6, "a\u00a0b": 5}, 10)
    assert vocabulary.words[3:] == ["a", "a\u00a0b"]
    (tmp_path / "vocab.txt").write_text(vocabulary.to_text(), encoding="utf-8")
    assert Vocabulary.from_file(tmp_path / "vocab.txt").words == vocabulary.words


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<S>\n<UNK>\nthe\n", "missing: </S>"),
        ("<S>\n</S>\n<UNK>\na\nb\na\n", "'a' occurs more than once"),
        ("<S>\n</S>\n\n<UNK>\n", "Line 3 of the vocabulary .* is blank"),
    ],
)
def test_files_that_bilm_tf_silently_corrupts_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(FormatError, match=f"{message}.*elmokit vocab --repair"):
        Vocabulary.from_file(path)


def test_an_empty_word_is_refused() -> None:
    with pytest.raises(FormatError, match="Word 4 of the vocabulary is empty"):
        Vocabulary(["<S>", "</S>", "<UNK>", "", "a"])


def test_a_file_can_be_compressed_and_a_missing_one_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt.gz"
    with pytest.raises(ModelNotFoundError, match=r"The vocabulary file .* does not exist"):
        Vocabulary.from_file(path)
    path.write_bytes(gzip.compress(b"<S>\n</S>\n<UNK>\na\n"))
    assert Vocabulary.from_file(path).words == ["<S>", "</S>", "<UNK>", "a"]


def test_the_many_blank_lines_of_a_small_compressed_file_are_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "vocab.txt.gz", "wb", compresslevel=1) as file:
        for _ in range(51):
            file.write(b"\n" * 1_000_000)
    with pytest.raises(FormatError, match="more than 50,000,000 lines"):
        read_words(tmp_path / "vocab.txt.gz")


def test_a_vocabulary_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"<S>\n</S>\n<UNK>\n\xff\n")
    with pytest.raises(FormatError, match="is not UTF-8"):
        Vocabulary.from_file(path)


def test_limits_that_leave_no_room_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_words is 3"):
        Vocabulary.from_counts({"a": 1}, 3)
    with pytest.raises(ConfigError, match="min_count is 0"):
        Vocabulary.from_counts({"a": 1}, min_count=0)


@given(st.lists(st.text(alphabet=st.sampled_from("ab\u00a0\u3000\r\x85\u2028!MAXTERID"), max_size=4)))
def test_a_counted_vocabulary_survives_a_round_trip(words: list[str]) -> None:
    vocabulary = Vocabulary.from_counts({**dict.fromkeys(words, 1), "!!!MAXTERMID": 9, "<S>": 9}, 100)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.txt"
        path.write_text(vocabulary.to_text(), encoding="utf-8", newline="\n")
        assert Vocabulary.from_file(path).words == vocabulary.words


@pytest.mark.parametrize("word", [" cat", "cat\u3000", "a\nb", "!!!MAXTERMID"])
def test_a_word_that_its_file_cannot_hold_is_refused(word: str) -> None:
    with pytest.raises(TextError, match=re.escape(f"{word!r} would not be read from it as it is")):
        Vocabulary(["<S>", "</S>", "<UNK>", word]).to_text()
