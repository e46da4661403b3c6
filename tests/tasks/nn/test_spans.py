"""Spans: enumeration, vectors, mention scores and pruning."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmokit.tasks.nn.spans import MentionScorer, SpanVectors, all_spans, prune_spans, windowed_means

SENTENCE_ENDS = torch.tensor([2, 2, 2, 6, 6, 6, 6])


def test_spans_stay_within_a_sentence() -> None:
    starts, ends = all_spans(SENTENCE_ENDS, 3)
    found = list(zip(starts.tolist(), ends.tolist(), strict=True))
    wanted = [(i, j) for i in range(7) for j in range(i, i + 3) if j <= SENTENCE_ENDS[i]]
    assert found == wanted
    assert all_spans(SENTENCE_ENDS[:0], 3)[0].shape == (0,)


spans_and_scores = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(0, 1000)), unique_by=lambda one: one[:2], max_size=20
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(spans_and_scores, st.integers(0, 8))
def test_pruning_equals_the_greedy_definition(spans: list[tuple[int, int, int]], n_best: int) -> None:
    starts, ends = [start for start, _, _ in spans], [start + width for start, width, _ in spans]
    scores = [score + place / 100 for place, (_, _, score) in enumerate(spans)]
    chosen: list[int] = []
    for place in sorted(range(len(spans)), key=lambda place: -scores[place]):
        crosses = any(
            starts[place] < starts[other] <= ends[place] < ends[other]
            or starts[other] < starts[place] <= ends[other] < ends[place]
            for other in chosen
        )
        if not crosses and len(chosen) < n_best:
            chosen.append(place)
    wanted = sorted(chosen, key=lambda place: (starts[place], ends[place]))
    assert prune_spans(scores, starts, ends, n_best) == wanted


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_windowed_means_equal_those_by_softmax(scale: float) -> None:
    torch.manual_seed(0)
    scores = (scale * torch.randn(9, dtype=torch.float64)).requires_grad_()
    values = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    means = windowed_means(scores, values, 4)
    plain = torch.stack(
        [torch.stack([scores[i : i + w + 1].softmax(0) @ values[i : i + w + 1] for w in range(4)]) for i in range(9)]
    )
    assert torch.allclose(means, plain)
    upstream = torch.randn_like(plain)
    for one, other in zip(
        torch.autograd.grad(means, (scores, values), upstream),
        torch.autograd.grad(plain, (scores, values), upstream),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=1e-10)


def test_a_span_vector_is_start_end_width_and_attended_tokens() -> None:
    vectors = SpanVectors(4, 3, max_width=3, width_dim=2, dropout=0.0)
    context, heads = torch.randn(7, 4), torch.randn(7, 3)
    starts, ends = torch.tensor([1, 4]), torch.tensor([1, 6])
    found = vectors(context, heads, vectors.spans(starts, ends))
    assert found.shape == (2, vectors.output_dim) == (2, 13)
    attention = vectors.attention(context)[:, 0]
    for row, (start, end) in enumerate([(1, 1), (4, 6)]):
        attended = attention[start : end + 1].softmax(0) @ heads[start : end + 1]
        wanted = torch.cat([context[start], context[end], vectors.width.weight[end - start], attended])
        assert torch.allclose(found[row], wanted, atol=1e-6)


def test_scores_without_span_vectors_equal_scores_of_span_vectors() -> None:
    torch.manual_seed(0)
    vectors = SpanVectors(4, 3, max_width=3, width_dim=2, dropout=0.5).double()
    mentions = MentionScorer(vectors, hidden_dim=5, n_layers=2, dropout=0.0).double()
    context = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    heads = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    spans = vectors.spans(*all_spans(SENTENCE_ENDS, 3))  # their widths are dropped once, for both
    fast = mentions(vectors.attention(context)[:, 0], context, heads, spans)
    plain = mentions.scorer(vectors(context, heads, spans))
    assert torch.allclose(fast, plain)
    weights = [context, heads, *mentions.parameters(), *vectors.parameters()]
    upstream = torch.randn_like(plain)
    for one, other in zip(
        torch.autograd.grad(fast, weights, upstream, retain_graph=True),
        torch.autograd.grad(plain, weights, upstream),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=1e-10)
