from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.text.vocabulary import Vocabulary

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


@given(st.lists(st.text(alphabet=st.sampled_from("ab\u00a0\u3000\r\x85\u2028!MAXTERID"), max_size=4)))
def test_a_counted_vocabulary_survives_a_round_trip(words: list[str]) -> None:
    vocabulary = Vocabulary.from_counts({**dict.fromkeys(words, 1), "!!!MAXTERMID": 9, "<S>": 9}, 100)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.txt"
        path.write_text(vocabulary.to_text(), encoding="utf-8", newline="\n")
        assert Vocabulary.from_file(path).words == vocabulary.words
