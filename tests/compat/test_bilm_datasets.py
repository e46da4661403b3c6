"""bilm-tf's datasets: its own tests, and what its README says of them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit.compat.bilm import BidirectionalLMDataset, LMDataset, UnicodeCharsVocabulary, Vocabulary

WORDS = ["<S>", "</S>", "<UNK>", "the", ".", "Āt"]
TEXT = "the unknown .\nth .\nthe\n"
# Inputs and targets of the first two batches of 2 rows x 3 positions.
FORWARD = [
    ([[0, 3, 2], [0, 2, 4]], [[3, 2, 4], [2, 4, 1]]),
    ([[4, 0, 3], [0, 3, 2]], [[1, 3, 1], [3, 2, 4]]),
]
REVERSE = [
    ([[1, 4, 2], [1, 4, 2]], [[4, 2, 3], [4, 2, 0]]),
    ([[3, 1, 3], [1, 4, 2]], [[0, 3, 0], [4, 2, 3]]),
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "text.txt"


@pytest.fixture
def chars(tmp_path: Path) -> UnicodeCharsVocabulary:
    (tmp_path / "vocab").write_text("\n".join(WORDS), encoding="utf-8")
    return UnicodeCharsVocabulary(tmp_path / "vocab", 5, validate_file=True)


@pytest.fixture
def words(tmp_path: Path, chars: UnicodeCharsVocabulary) -> Vocabulary:
    return Vocabulary(tmp_path / "vocab", validate_file=True)


def check(
    batch: dict[str, Any], expected: tuple[Any, Any], chars: UnicodeCharsVocabulary | None, suffix: str = ""
) -> None:
    inputs, targets = expected
    assert batch[f"token_ids{suffix}"].tolist() == inputs
    assert batch[f"next_token_id{suffix}"].tolist() == targets
    assert batch[f"token_ids{suffix}"].dtype == batch[f"next_token_id{suffix}"].dtype == np.int32
    found = batch[f"tokens_characters{suffix}"]
    if chars is None:
        assert found is None
        return
    assert (found.shape, found.dtype) == ((2, 3, 5), np.int32)
    for row, ids in zip(found, inputs, strict=True):
        for own, index in zip(row, ids, strict=True):
            if index != 2:  # the id of <UNK> is that of several words, each with its own characters
                assert own.tolist() == chars.word_char_ids[index].tolist()


@pytest.mark.parametrize(("reverse", "expected"), [(False, FORWARD), (True, REVERSE)])
def test_batches_of_one_direction(
    text: Path, chars: UnicodeCharsVocabulary, words: Vocabulary, reverse: bool, expected: list[Any]
) -> None:
    for vocabulary in (chars, words):
        data = LMDataset(str(text), vocabulary, reverse=reverse)
        batches = list(islice(data.iter_batches(2, 3), 2))
        for batch, values in zip(batches, expected, strict=True):
            assert set(batch) == {"token_ids", "tokens_characters", "next_token_id"}
            check(batch, values, chars if vocabulary is chars else None)
        assert data.vocab is vocabulary
        assert data.max_word_length == (5 if vocabulary is chars else None)


ODD_LINES = b"\xef\xbb\xbfthe unknown\xc2\xa0.\r\n\nth\xe3\x80\x80.\rthe\r\r\n \t\nthe\x1fthe .\n\n"


def lines_of_python(path: Path) -> list[list[str]]:
    """Read a file as bilm-tf does: a Python program with ``readlines()`` and ``split()``."""
    with path.open(encoding="utf-8") as file:
        return [line.split() for line in file.readlines()]


def test_lines_and_tokens_are_those_of_python(tmp_path: Path, chars: UnicodeCharsVocabulary) -> None:
    path = tmp_path / "odd.txt"
    path.write_bytes(ODD_LINES)
    expected = [
        [0, *(WORDS.index(word) if word in WORDS else 2 for word in words), 1] for words in lines_of_python(path)
    ]
    assert len(expected) == 8
    assert expected.count([0, 1]) == 4  # blank lines
    data = LMDataset(str(path), chars, test=True)
    sentences = list(data.get_sentence())
    assert [ids.tolist() for ids, _ in sentences] == expected
    assert sentences[0][1] is not None
    assert sentences[0][1][1].tolist() == [258, 0xEF, 0xBB, 0xBF, 259]  # the byte order mark, and no room for more
    (batch,) = data.iter_batches(1, sum(map(len, expected)) - len(expected))
    assert batch["next_token_id"] is not None
    assert batch["next_token_id"][0].tolist() == [word for ids in expected for word in ids[1:]]


def test_unknown_words_stay_unknown_if_a_word_is_repeated_in_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "vocab").write_text("<S>\n</S>\n<UNK>\ncat\ncat\nsat\n")
    (tmp_path / "text.txt").write_text("cat new sat\n")
    chars = UnicodeCharsVocabulary(tmp_path / "vocab", 5)
    batch: dict[str, Any] = next(LMDataset(str(tmp_path / "text.txt"), chars, test=True).iter_batches(1, 4))
    assert batch["token_ids"].tolist() == [[0, 4, 2, 5]]
    assert batch["next_token_id"].tolist() == [[4, 2, 5, 1]]
    assert batch["tokens_characters"][0, 2].tolist() == chars.word_to_char_ids("new").tolist()


def test_batches_of_both_directions(text: Path, chars: UnicodeCharsVocabulary, words: Vocabulary) -> None:
    for vocabulary in (chars, words):
        batches = list(islice(BidirectionalLMDataset(str(text), vocabulary).iter_batches(2, 3), 2))
        for batch, forward, reverse in zip(batches, FORWARD, REVERSE, strict=True):
            assert len(batch) == 6
            check(batch, forward, chars if vocabulary is chars else None)
            check(batch, reverse, chars if vocabulary is chars else None, "_reverse")


@pytest.mark.parametrize(("batch_size", "n_predictions"), [(1, 15), (2, 10), (3, 9), (4, 8), (5, 0)])
def test_a_test_ends_where_bilm_tf_ends(tmp_path: Path, words: Vocabulary, batch_size: int, n_predictions: int) -> None:
    path = tmp_path / "four.txt"
    path.write_text("a b c\nd e\nf\ng h i j k\n", encoding="utf-8")
    for data in (LMDataset(str(path), words, test=True), BidirectionalLMDataset(str(path), words, test=True)):
        batches = list(data.iter_batches(batch_size, 1))
        assert len(batches) * batch_size == n_predictions
        assert len(list(data.iter_batches(batch_size, 1))) == len(batches)


def test_a_test_reads_the_last_file_first_and_blank_lines_too(tmp_path: Path, words: Vocabulary) -> None:
    for name, text in (("a", "the\n"), ("b", "\n.\n")):
        (tmp_path / f"{name}.part").write_text(text, encoding="utf-8")
    batches = LMDataset(str(tmp_path / "*.part"), words, test=True).iter_batches(1, 1)
    predictions = [int(batch["next_token_id"][0, 0]) for batch in batches]
    assert predictions == [1, 4, 1, 3, 1]


def test_shuffling_follows_the_seed_and_directions_differ(tmp_path: Path, words: Vocabulary) -> None:
    path = tmp_path / "long.txt"
    path.write_text("".join(["the . the\n", "Āt\n", ". .\n", "the\n"] * 5), encoding="utf-8")

    def read(**settings: Any) -> dict[str, list[Any]]:
        batch = next(BidirectionalLMDataset(str(path), words, **settings).iter_batches(2, 20))
        return {key: value.tolist() for key, value in batch.items() if value is not None}

    assert read(shuffle_on_load=True) == read(shuffle_on_load=True)
    assert read(shuffle_on_load=True)["token_ids"] != read(shuffle_on_load=True, seed=1)["token_ids"]
    assert read(shuffle_on_load=True)["token_ids"] != read()["token_ids"]
    data = LMDataset(str(path), words, shuffle_on_load=True)
    first, second = (next(data.iter_batches(2, 20))["token_ids"] for _ in range(2))
    assert not np.array_equal(first, second)  # type: ignore[arg-type]


def test_sentences_come_one_by_one(text: Path, chars: UnicodeCharsVocabulary, words: Vocabulary) -> None:
    found = list(LMDataset(str(text), chars, reverse=True, test=True).get_sentence())
    assert [ids.tolist() for ids, _ in found] == [[1, 4, 2, 3, 0], [1, 4, 2, 0], [1, 3, 0]]
    assert found[2][1].tolist() == [chars.eos_chars.tolist(), chars.word_char_ids[3].tolist(), chars.bos_chars.tolist()]
    endless = LMDataset(str(text), words).get_sentence()
    assert [len(ids) for ids, _ in islice(endless, 5)] == [5, 4, 3, 5, 4]
