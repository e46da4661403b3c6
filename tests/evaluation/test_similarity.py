"""Agreement of cosines with human scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from elmokit import SentenceEmbedder, SentencePooling
from elmokit.embedding.sentence_vectors import fit_whitening
from elmokit.errors import TextError
from elmokit.evaluation.similarity import ScoredPair, evaluate_similarity, read_scored_pairs, score_similarity
from elmokit.text.tokenize import treebank_tokens
from tests.helpers.shell import Shell


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


def test_the_included_model_ranks_pairs_like_people(embedder: SentenceEmbedder) -> None:
    scores = score_similarity(embedder, PAIRS)
    assert scores.pearson > 0.9
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


def test_identical_pairs_have_equal_cosines_and_no_correlation(embedder: SentenceEmbedder) -> None:
    pairs = [ScoredPair(pair.first, pair.first, score) for score, pair in enumerate(PAIRS)]
    assert len(set(score_similarity(embedder, pairs).cosines)) > 1  # float32 rounds
    assert np.isnan(score_similarity(embedder, pairs).spearman)
    result = evaluate_similarity(embedder.elmo, {"pairs": pairs})
    assert result.notes() == [
        "pairs: Spearman correlation of cosines with human scores, 5 pairs. Where all cosines are equal, there is "
        "no correlation."
    ]
    assert {pooling["spearman"] for pooling in result.to_dict()["pairs"]["poolings"]} == {None}


@pytest.mark.parametrize("pairs", [[], PAIRS[:1], [*PAIRS, ScoredPair(["cat"], ["dog"], float("nan"))]])
def test_scores_without_a_correlation_are_refused(embedder: SentenceEmbedder, pairs: list[ScoredPair]) -> None:
    with pytest.raises(TextError, match="finite scores that differ"):
        score_similarity(embedder, pairs)


def test_pairs_are_read_from_csv_with_quotes_and_line_ends_within_them(tmp_path: Path) -> None:
    path = tmp_path / "PAIRS.CSV"
    path.write_text('"Yes, it\nis.",It isn\'t.,2.5\n', encoding="utf-8")
    (pair,) = read_scored_pairs(path, treebank_tokens)
    assert pair == ScoredPair(["Yes", ",", "it", "is", "."], ["It", "is", "n't", "."], 2.5)


def test_lists_of_word_pairs_are_read_with_their_columns(tmp_path: Path) -> None:
    expected = [ScoredPair(["cat"], ["dog"], 7.5), ScoredPair(["cat"], ["mat"], 1.0)]
    for name, content, columns in (
        ("tabs.tsv", "Word 1\tWord 2\tScore\ncat\tdog\t7.5\ncat\tmat\t1\n", None),
        ("spaces.txt", "cat dog 7.5\n\ncat  mat 1\n", None),
        ("more.txt", "word1\tword2\tPOS\tSimLex\ncat\tdog\tN\t7.5\ncat\tmat\tN\t1\n", (1, 2, 4)),
    ):
        (tmp_path / name).write_text(content)
        assert read_scored_pairs(tmp_path / name, columns=columns) == expected
    with pytest.raises(TextError, match=r"row 1: .*in columns 1, 2 and 9"):
        read_scored_pairs(tmp_path / "more.txt", columns=(1, 2, 9))


def test_every_pooling_scores_like_its_own_embedder(embedder: SentenceEmbedder) -> None:
    result = evaluate_similarity(embedder.elmo, {"pairs": PAIRS}, smoothings=(3e-4, 1e-2))
    found = {(one.layers, one.weighting): one.spearman for one in result.scores["pairs"]}
    for layers, weighting, pooling in (
        ("0", "mean", SentencePooling("mean")),
        ("1", "sif 0.01", SentencePooling(layers=1, smoothing=1e-2)),
        ("average", "sif 0.0003", SentencePooling(layers="average")),
        ("all", "mean", SentencePooling("mean", layers="all")),
        ("0", "stored whitening", None),
    ):
        alone = score_similarity(SentenceEmbedder(embedder.elmo, pooling), PAIRS)
        assert found[layers, weighting] == pytest.approx(alone.spearman)
    head = score_similarity(SentenceEmbedder.by_name(embedder.elmo, "trained"), PAIRS)
    assert found["0", "stored head"] == pytest.approx(head.spearman)
    assert len(found) == 5 * 3 + 2
    assert result.table_rows()[0]["sif 0.01"] == found["0", "sif 0.01"]


@pytest.mark.slow
def test_a_whitening_is_fitted_for_every_pooling_and_not_stored(embedder: SentenceEmbedder) -> None:
    text = [sentence for pair in PAIRS for sentence in (pair.first, pair.second)]
    stored = embedder.elmo.model.whitening
    result = evaluate_similarity(embedder.elmo, {"pairs": PAIRS}, whiten=text)
    assert embedder.elmo.model.whitening is stored
    own = SentenceEmbedder(embedder.elmo, SentencePooling(layers=1))
    own.linear_map = fit_whitening([SentenceEmbedder(embedder.elmo, own.pooling).embed(text)], own.pooling)
    (found,) = (s for s in result.scores["pairs"] if (s.layers, s.weighting) == ("1", "sif, whitened"))
    assert found.spearman == pytest.approx(score_similarity(own, PAIRS).spearman)


def test_the_command_shows_every_pooling(shell: Shell) -> None:
    Path("words.txt").write_text("cat dog 7.5\ncat mat 1\nthe cat 0\n")
    call = ("evaluate", "similarity", "words.txt", "--model", "model", "--tokenizer", "spaces")
    ran = shell(*call, "--whiten", "text.txt")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[0].split()[:3] == ["pairs", "layers", "mean"]
    assert [line.split()[1] for line in ran.out.splitlines()[1:6]] == ["0", "1", "2", "average", "all"]
    facts = json.loads(shell(*call, "--json").out)
    assert {one["weighting"] for one in facts["words.txt"]["poolings"]} == {"mean", "sif"}
