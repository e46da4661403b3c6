"""Antecedents: candidates, pair scores in blocks, refinement, the loss."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elmokit.tasks import coref_model
from elmokit.tasks.coref_model import (
    Candidates,
    CoarseScorer,
    PairScorer,
    SpanRefinement,
    antecedent_loss,
    distance_buckets,
    nearest_antecedents,
)

MENTIONS = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0])
SPEAKERS = torch.tensor([0, 1, 0, 0, 1])
GENRE = torch.tensor(1)


def with_none(scores: Tensor) -> Tensor:
    return torch.cat([scores.new_zeros(len(scores), 1), scores], dim=1)


def plain_scores(scorer: PairScorer, spans: Tensor, candidates: Candidates) -> Tensor:
    """Score pairs by the definition: form the vector of each pair."""
    own = spans[:, None].expand(-1, candidates.indices.shape[1], -1)
    other = spans[candidates.indices]
    features = scorer.features(0, len(spans), candidates.indices, SPEAKERS, GENRE)
    score: Tensor = scorer.scorer(torch.cat([own, other, own * other, features], -1))
    return score


def test_distances_fall_into_ten_buckets() -> None:
    offsets = torch.tensor([0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 63, 64, 1000])
    assert distance_buckets(offsets).tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9]


def test_nearest_antecedents_are_the_spans_directly_before() -> None:
    found = nearest_antecedents(MENTIONS, 2)
    assert [row[exists].tolist() for row, exists in zip(found.indices, found.exists, strict=True)] == [
        [],
        [0],
        [1, 0],
        [2, 1],
        [3, 2],
    ]
    assert found.scores[4].tolist() == [1.0, 3.0]
    assert found.scores[0].isneginf().all()


def test_coarse_scores_choose_the_best_earlier_spans() -> None:
    torch.manual_seed(0)
    scorer = CoarseScorer(3, dropout=0.0)
    spans = torch.randn(5, 3)
    found = scorer(spans, MENTIONS, 2)
    whole = scorer.source(spans) @ spans.t() + MENTIONS[:, None] + MENTIONS
    for row in range(5):
        best = whole[row, :row].topk(min(2, row))
        assert found.indices[row][found.exists[row]].tolist() == best.indices.tolist()
        assert torch.allclose(found.scores[row][found.exists[row]], best.values)


@pytest.mark.parametrize("floats", [1 << 24, 1])
def test_pairs_scored_in_blocks_equal_pairs_scored_by_the_definition(
    floats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coref_model, "FLOATS_AT_ONCE", floats)
    torch.manual_seed(0)
    scorer = PairScorer(3, 2, n_genres=2, hidden_dim=4, n_layers=2, dropout=0.0).double()
    spans = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    candidates = nearest_antecedents(MENTIONS.double(), 3)
    fast = scorer(spans, candidates, SPEAKERS, GENRE)
    plain = plain_scores(scorer, spans, candidates)
    assert torch.allclose(fast, plain)
    upstream, weights = torch.randn_like(plain), [spans, *scorer.parameters()]
    for one, other in zip(
        torch.autograd.grad(fast, weights, upstream), torch.autograd.grad(plain, weights, upstream), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-12)


def test_in_training_dropout_is_the_same_when_a_block_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coref_model, "FLOATS_AT_ONCE", 1)
    torch.manual_seed(0)
    scorer = PairScorer(3, 2, n_genres=2, hidden_dim=4, n_layers=2, dropout=0.5).double().train()
    spans = torch.randn(5, 3, dtype=torch.float64)
    candidates = nearest_antecedents(MENTIONS.double(), 3)

    def loss() -> Tensor:
        torch.manual_seed(1)
        scores: Tensor = scorer(spans, candidates, SPEAKERS, GENRE)
        return scores[candidates.exists].sum()

    weight = scorer.scorer.last.weight
    (gradient,) = torch.autograd.grad(loss(), weight)
    with torch.no_grad():
        before = loss()
        weight[0, 0] += 1e-6
        after = loss()
    assert gradient[0, 0].item() == pytest.approx((after - before).item() / 1e-6, abs=1e-4)


def test_a_refined_span_lies_between_itself_and_its_expected_antecedent() -> None:
    torch.manual_seed(0)
    spans, candidates = torch.randn(5, 3), nearest_antecedents(MENTIONS, 2)
    scores = with_none(candidates.scores)
    refine = SpanRefinement(3)
    with torch.no_grad():
        refine.gate.weight.zero_()
        refine.gate.bias.fill_(30.0)
    found = refine(spans, candidates, scores)
    assert torch.allclose(found[0], spans[0], atol=1e-6)  # nothing before it: "none" means the span itself
    weights = scores[3].softmax(0)
    assert torch.allclose(found[3], weights[0] * spans[3] + weights[1] * spans[2] + weights[2] * spans[1], atol=1e-6)


def test_the_loss_sums_over_all_correct_antecedents() -> None:
    candidates = nearest_antecedents(MENTIONS, 4)
    clusters = torch.tensor([1, 0, 1, 2, 1])
    scores = with_none(torch.randn(5, 4).masked_fill(~candidates.exists, float("-inf")))
    probabilities = scores.softmax(1)
    # Columns: none, then the spans 1, 2, 3, 4 places before.
    right = [probabilities[0, 0], probabilities[1, 0], probabilities[2, 2], probabilities[3, 0]]
    right.append(probabilities[4, 2] + probabilities[4, 4])
    assert antecedent_loss(scores, candidates, clusters).item() == pytest.approx(
        -sum(p.log().item() for p in right), rel=1e-5
    )
