"""Agreement of cosines with people's scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elmokit import SentenceEmbedder
from elmokit.errors import TextError
from elmokit.scoring.similarity import ScoredPair, read_scored_pairs, score_similarity
from elmokit.text.tokenize import treebank_tokenizer


@pytest.fixture(scope="module")
def embedder() -> SentenceEmbedder:
    return SentenceEmbedder.from_pretrained()


PAIRS = [
    ScoredPair(["A", "man", "plays", "the", "guitar", "."], ["Someone", "is", "playing", "a", "guitar", "."], 4.5),
    ScoredPair(["A", "man", "plays", "the", "guitar", "."], ["A", "man", "plays", "the", "piano", "."], 2.5),
    ScoredPair(["Oil", "prices", "fell", "sharply", "."], ["A", "dog", "ran", "."], 0.0),
    ScoredPair(["Oil", "prices", "fell", "sharply", "."], ["The", "price", "of", "oil", "fell", "."], 4.0),
    ScoredPair(["Yes", "."], ["Yes", "."], 5.0),
]


def test_the_model_in_the_package_orders_pairs_like_people(embedder: SentenceEmbedder) -> None:
    scores = score_similarity(embedder, PAIRS)
    assert scores.spearman > 0.8
    assert scores.cosines[-1] == pytest.approx(1)


def test_spearman_gives_equal_values_their_mean_rank(
    embedder: SentenceEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    cosines = [0.1, 0.5, 0.5, 0.9]
    scores = [1.0, 2.0, 3.0, 3.0]

    def vectors(_: object) -> np.ndarray:
        # The pair of (1, 0) and (c, sqrt(1 - c^2)) has the cosine c.
        return np.array([row for c in cosines for row in ((1, 0), (c, (1 - c * c) ** 0.5))], np.float32)

    monkeypatch.setattr(embedder, "embed", vectors)
    result = score_similarity(embedder, [ScoredPair([], [], score) for score in scores])
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3.5, 3.5: their linear correlation.
    assert result.spearman == pytest.approx(np.corrcoef([1, 2.5, 2.5, 4], [1, 2, 3.5, 3.5])[0, 1], abs=1e-6)


def test_pairs_with_one_score_have_no_correlation(embedder: SentenceEmbedder) -> None:
    with pytest.raises(TextError, match="all 1 have the same"):
        score_similarity(embedder, PAIRS[:1])


def test_pairs_are_read_from_csv_with_quotes(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text('"Yes, it is.",It isn\'t.,2.5\n', encoding="utf-8")
    (pair,) = read_scored_pairs(path, treebank_tokenizer())
    assert pair == ScoredPair(["Yes", ",", "it", "is", "."], ["It", "is", "n't", "."], 2.5)


def test_a_line_end_within_quotes_separates_words(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text('"the\ncat",a dog,2.5\n', encoding="utf-8")
    assert read_scored_pairs(path) == [ScoredPair(["the", "cat"], ["a", "dog"], 2.5)]


@pytest.mark.parametrize("row", ["only one,field", "a,b,c", "a,b,1,more", "a,b,nan"])
def test_a_row_of_another_layout_is_reported_with_its_number(row: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(f"a,b,1\n{row}\n", encoding="utf-8")
    with pytest.raises(TextError, match="row 2: expected two sentences and a number"):
        read_scored_pairs(path)


def test_a_file_that_is_not_csv_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("a" * 200_000 + ",b,1\n", encoding="utf-8")  # longer than a field of a CSV file may be
    with pytest.raises(TextError, match="not a CSV file"):
        read_scored_pairs(path)
