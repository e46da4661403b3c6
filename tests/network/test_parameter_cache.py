"""Packed weights and cached vectors are computed again after any change of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from elmokit import Elmo, ElmoModule
from elmokit.lm.perplexity import perplexity
from elmokit.network.backends import ParameterCache
from tests.conftest import random_model
from tests.helpers.instruction_sets import machine_library

SENTENCES = [["the", "cat", "sat", "."], ["the", "dog", "ran", "on", "the", "mat"]] * 3
OPTIMIZERS: dict[str, Callable[[Iterable[torch.nn.Parameter]], Optimizer]] = {
    "Adam": lambda parameters: Adam(parameters, lr=0.003),
    "fused Adam": lambda parameters: Adam(parameters, lr=0.003, fused=True),
    "fused AdamW": lambda parameters: AdamW(parameters, lr=0.003, fused=True),
    "fused SGD": lambda parameters: SGD(parameters, lr=0.5, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_any_optimizer_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(scale=1.0)
    elmo = ElmoModule(model, start="zero", trainable=True)
    optimizer = OPTIMIZERS[name](elmo.bilm.parameters())
    computer = elmo.elmo.computer
    before, score_before = elmo.elmo.embed(SENTENCES), perplexity(computer, SENTENCES).mean  # packs, keeps vectors
    vectors, mask, _ = elmo(elmo.ids(SENTENCES))
    (vectors[0][mask] ** 2).mean().backward()
    optimizer.step()
    after, score_after = elmo.elmo.embed(SENTENCES), perplexity(computer, SENTENCES).mean
    monkeypatch.setenv("ELMOKIT_BACKEND", "reference")
    fresh = Elmo(elmo.to_model(), start="zero", token_cache_mib=0)
    for ours, reference, old in zip(after, fresh.embed(SENTENCES), before, strict=True):
        np.testing.assert_allclose(ours, reference, atol=1e-5)
        assert np.abs(ours - old).max() > 1e-3
    assert score_after == pytest.approx(perplexity(elmo.to_model(), SENTENCES).mean, rel=1e-5)
    assert score_after != score_before


def _swap_rows(weight: Tensor) -> None:
    weight.data[[0, 1]] = weight.data[[1, 0]]


# All but the first escape a sample of a few numbers; the last ones escape a sum of all.
EDITS: dict[str, Callable[[Tensor], object]] = {
    "an operation": lambda weight: weight.detach().mul_(1.5),
    "a number of .data": lambda weight: weight.data.view(-1)[-2:-1].add_(0.75),
    "a number of the NumPy view": lambda weight: np.negative(
        view := weight.detach().numpy().reshape(-1)[-3:], out=view
    ),
    "the bits": lambda weight: weight.data.view(torch.int32).bitwise_xor_(1 << 22),
    "two rows that change places": _swap_rows,
    "the signs": lambda weight: weight.data.neg_(),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_value_is_derived_again_after_any_write(edit: str) -> None:
    machine_library()
    cache: ParameterCache[object] = ParameterCache()
    generator = torch.Generator().manual_seed(0)
    for shape in ((2, 1), (5,), (7, 9), (33, 64), (64, 1030)):
        weights = [torch.randn(3, generator=generator), torch.randn(shape, generator=generator)]
        before = cache.get("key", weights, object)
        assert cache.get("key", weights, object) is before
        EDITS[edit](weights[1])
        after = cache.get("key", weights, object)
        assert after is not before, shape
        assert cache.get("key", weights, object) is after


def test_a_value_is_derived_again_for_other_tensors() -> None:
    cache: ParameterCache[object] = ParameterCache()
    weight = torch.arange(6.0).view(2, 3)
    values = [
        cache.get(key, weights, object)
        for key, weights in (
            *(("a", [weight]), ("b", [weight]), ("b", [weight.view(3, 2)]), ("b", [weight, weight])),
            *(("b", [weight.view(torch.int32)]), ("b", [weight.T]), ("b", [])),
        )
    ]
    assert len({id(value) for value in values}) == len(values)


def test_of_a_table_the_rows_that_are_used_count() -> None:
    machine_library()
    cache: ParameterCache[object] = ParameterCache()
    table = torch.randn(9, 70)

    def value(*rows: int, of: Tensor = table) -> object:
        return cache.get("key", [], object, of, torch.tensor(rows))

    before = value(0, 3)
    assert value(8, 3, 3) is before
    table.data[8, 69] += 1
    assert value(0, 3) is before
    after = value(3, 8)
    assert after is not before
    assert value(8) is after
    assert value(8, of=table.clone()) is after
    assert value(8, of=table[:, :64]) is not after
