"""Packed weights and cached vectors are computed again after any change of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from elmokit import Elmo, ElmoModule
from elmokit.lm.perplexity import perplexity
from elmokit.network.backends import _read_at_once
from tests.conftest import random_model

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
    optimizer = OPTIMIZERS[name](model.bilm.parameters())
    before, score_before = (
        elmo.elmo.embed(SENTENCES),
        perplexity(model, SENTENCES).mean,
    )  # packs the weights, keeps vectors
    vectors, mask, _ = elmo(elmo.ids(SENTENCES))
    (vectors[0][mask] ** 2).mean().backward()
    optimizer.step()
    after, score_after = elmo.elmo.embed(SENTENCES), perplexity(model, SENTENCES).mean
    monkeypatch.setenv("ELMOKIT_BACKEND", "reference")
    fresh = Elmo(model, start="zero", token_cache_mib=0)
    for ours, reference, old in zip(after, fresh.embed(SENTENCES), before, strict=True):
        np.testing.assert_allclose(ours, reference, atol=1e-5)
        assert np.abs(ours - old).max() > 1e-3
    assert score_after == pytest.approx(perplexity(model, SENTENCES).mean, rel=1e-5)
    assert score_after != score_before


def test_the_numbers_of_a_gpu_are_read_at_once_and_exactly() -> None:
    samples = [torch.tensor([0.1, -1e-30]), torch.tensor([0.1], dtype=torch.float16), torch.empty(0)]
    (read,) = _read_at_once(samples)
    assert read == [number for sample in samples for number in sample.tolist()]
