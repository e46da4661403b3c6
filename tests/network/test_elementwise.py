"""Elementwise functions by row: bits that do not depend on the batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from elmokit import Elmo
from elmokit.engine.architecture import PRESETS
from elmokit.network.tile_layers import apply_by_row
from tests.conftest import random_model

SIZES = [1, 7, 16, 35, 56, 63, 64, 65, 100, 130]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads may divide a row between them
    yield
    torch.set_num_threads(n_threads)


@pytest.mark.parametrize("function", [torch.sigmoid, torch.tanh])
@pytest.mark.parametrize("dim", SIZES)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(function: Callable[[Tensor], Tensor], dim: int) -> None:
    inputs = 3 * torch.randn(37, dim, generator=torch.Generator().manual_seed(dim))
    together = apply_by_row(function, inputs)
    assert together.shape == inputs.shape
    torch.testing.assert_close(together, function(inputs))
    for n_rows in (1, 2, 5):
        for first in range(0, len(inputs), n_rows):
            rows = inputs[first : first + n_rows]
            assert torch.equal(apply_by_row(function, rows), together[first : first + n_rows])


def test_vectors_of_a_model_with_odd_sizes_do_not_depend_on_the_batch() -> None:
    # 56 features in its char CNN. Without rows of whole blocks, one of these 300 sentences differs.
    elmo = Elmo(random_model(PRESETS["tiny"]), token_cache_mib=0)
    rng = random.Random(1)
    sentences = [[f"w{rng.randrange(300)}" for _ in range(rng.randint(1, 20))] for _ in range(300)]
    for sentence, vectors in zip(sentences, elmo.embed(sentences), strict=True):
        np.testing.assert_array_equal(elmo.embed([sentence])[0], vectors)
