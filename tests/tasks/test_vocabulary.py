"""The words and characters of a run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from elmokit.errors import ConfigError
from elmokit.tasks.task_config import CharsConfig, WordsConfig
from elmokit.tasks.vocabulary import make_chars, make_table

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
    assert made.vectors is not None
    assert made.vectors[2].tolist() == [3, 4]
    assert made.vectors[5].tolist() == [1, 1]
    assert not made.vectors[0].any()
    assert made.vectors[1].any()
    assert made.vectors[3].any()  # "The" is not in the file, and drawn around its mean


def test_coverage_counts_training_words_without_a_vector(vectors: str) -> None:
    coverage = make_table("words", WordsConfig(vectors=vectors), TRAIN, DEV).coverage
    assert coverage is not None
    assert (coverage.unknown_types, coverage.unknown_tokens) == (0.5, 0.4)


def test_files_stand_side_by_side_each_scaled_to_length_one(vectors: str) -> None:
    config = WordsConfig(vectors=(vectors, vectors), unit_length=True, unknown="zero")
    made = make_table("words", config, TRAIN, DEV)
    assert made.table.dim == 4
    assert made.vectors is not None
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
