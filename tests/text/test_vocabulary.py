from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.text.vocabulary import UnknownWords, Vocabulary, name_words

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


def test_the_first_unknown_words_are_named_each_once() -> None:
    unknown = UnknownWords()
    for words, is_unknown in ((["the", "scalpel"], [False, True]), (["Zo\u00eb", "scalpel"], np.array([True, True]))):
        unknown.add(words, is_unknown)
    assert (unknown.n_words, unknown.n_unknown, unknown.ratio) == (4, 3, 0.75)
    assert name_words(unknown.first) == "'scalpel', 'Zo\u00eb'"
    unknown.add([f"w{number}" for number in range(20)], [True] * 20)
    assert unknown.n_unknown == 23
    named = ", ".join(repr(f"w{n}") for n in range(8))
    assert name_words(unknown.first) == f"such as 'scalpel', 'Zo\u00eb', {named}"


def test_file_round_trip_keeps_words_that_hold_odd_spaces(tmp_path: Path) -> None:
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "a\u00a0b", "Āt"])
    path = tmp_path / "vocab.txt"
    path.write_text(vocabulary.to_text() + "!!!MAXTERMID\n", encoding="utf-8")
    assert Vocabulary.from_file(path).words == vocabulary.words


@given(st.lists(st.text(alphabet=st.sampled_from("ab\u00a0\u3000\r\x85\u2028!MAXTERID"), max_size=4)))
def test_a_counted_vocabulary_survives_a_round_trip(words: list[str]) -> None:
    vocabulary = Vocabulary.from_counts({**dict.fromkeys(words, 1), "!!!MAXTERMID": 9, "<S>": 9}, 100)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.txt"
        path.write_text(vocabulary.to_text(), encoding="utf-8", newline="\n")
        assert Vocabulary.from_file(path).words == vocabulary.words
