"""Muon: orthogonal steps of matrices, block by block, and Adam for the rest."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import Parameter

from elmokit.engine.architecture import PRESETS
from elmokit.network.bilm import BiLM
from elmokit.network.softmax_module import FullSoftmax
from elmokit.training.distributed import World
from elmokit.training.losses import WindowLosses
from elmokit.training.optimizers import COEFFICIENTS, MOMENTUM, Muon, matrix_blocks, orthogonalize, set_learning_rate
from elmokit.training.training_config import TrainingConfig
from elmokit.training.training_state import config_optimizer


def random(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def bilm_of(**changes: object) -> BiLM:
    bilm = BiLM(dataclasses.replace(PRESETS["tiny"], **changes))  # type: ignore[arg-type]
    bilm.reset_parameters(seed=0)
    return bilm


@pytest.mark.parametrize("shape", [(8, 12), (8, 32), (3, 100)])
def test_orthogonalized_matrices_have_singular_values_around_one(shape: tuple[int, int]) -> None:
    singular = torch.linalg.svdvals(orthogonalize(random(5, *shape)))
    assert singular.min() > 0.4
    assert singular.max() < 1.3


def test_the_polynomials_equal_newton_schulz_iterations_on_the_matrix() -> None:
    matrices = random(3, 6, 20)
    a, b, c = COEFFICIENTS
    expected = matrices / matrices.norm(dim=(1, 2), keepdim=True)
    for _ in range(5):
        square = expected @ expected.mT
        expected = a * expected + (b * square + c * square @ square) @ expected
    torch.testing.assert_close(orthogonalize(matrices), expected, atol=1e-4, rtol=1e-4)


def test_orthogonalized_matrices_keep_their_singular_vectors() -> None:
    matrix = random(6, 20)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    cosine = torch.nn.functional.cosine_similarity(
        orthogonalize(matrix[None])[0].flatten(), (left @ right).flatten(), 0
    )
    assert cosine > 0.97


def test_the_matrices_are_those_of_lstm_highway_and_projections() -> None:
    bilm = bilm_of()
    names = {name for name, parameter in bilm.named_parameters() if parameter in matrix_blocks(bilm)}
    assert names == {
        *(f"directions.{d}.layers.{n}.{part}" for d in (0, 1) for n in (0, 1) for part in ("weight", "projection")),
        *(f"token_layer.highways.0.{part}.weight" for part in ("transform", "gate")),
        "token_layer.projection.weight",
    }


def test_each_gate_moves_by_the_same_amount_for_input_and_state() -> None:
    weight = Parameter(random(4 * 6, 2 * 3))
    before = weight.detach().clone()
    # One gate has a gradient that is a thousand times that of another.
    weight.grad = random(24, 6, seed=1) * torch.repeat_interleave(torch.tensor([1.0, 1e-3, 10.0, 1.0]), 6)[:, None]
    Muon([weight], {weight: (4, 2)}, lr=1.0, matrix_lr=0.1, fused=False).step()
    for rows in (before - weight).chunk(4):
        for block in rows.chunk(2, dim=1):
            singular = torch.linalg.svdvals(block) / (0.1 * (6 / 3) ** 0.5)
            assert singular.min() > 0.4
            assert singular.max() < 1.3


def test_a_step_without_earlier_gradients_is_along_the_gradient() -> None:
    weight = Parameter(random(4, 9))
    before, gradient = weight.detach().clone(), random(4, 9, seed=2)
    weight.grad = gradient.clone()
    Muon([weight], {weight: (1, 1)}, lr=1.0, matrix_lr=0.5, fused=False).step()
    torch.testing.assert_close(before - weight.detach(), 0.5 * orthogonalize(gradient[None])[0], atol=1e-4, rtol=1e-3)


def test_the_momentum_is_nesterovs() -> None:
    weight, gradients = Parameter(torch.zeros(4, 4)), [random(4, 4, seed=seed) for seed in range(3)]
    optimizer = Muon([weight], {weight: (1, 1)}, lr=1.0, matrix_lr=1.0, fused=False)
    mean = torch.zeros(4, 4)
    for gradient in gradients:
        before, weight.grad = weight.detach().clone(), gradient.clone()
        optimizer.step()
        mean = MOMENTUM * mean + (1 - MOMENTUM) * gradient
        expected = orthogonalize((MOMENTUM * mean + (1 - MOMENTUM) * gradient)[None])[0]
        torch.testing.assert_close(before - weight.detach(), expected, atol=1e-4, rtol=1e-3)


def test_other_parameters_get_adams_steps() -> None:
    weight, bias, same = Parameter(random(4, 4)), Parameter(random(4)), Parameter(random(4))
    muon = Muon([weight, bias], {weight: (1, 1)}, lr=0.1, matrix_lr=1.0, fused=False)
    adam = torch.optim.Adam([same], lr=0.1)
    for seed in range(3):
        weight.grad = random(4, 4, seed=seed)
        bias.grad = random(4, seed=seed)
        same.grad = bias.grad.clone()
        muon.step()
        adam.step()
        assert weight.grad is not None, "as other optimizers, it keeps the gradients"
    assert torch.equal(bias, same)


def test_the_schedule_scales_both_learning_rates() -> None:
    weight, bias = Parameter(random(4, 4)), Parameter(random(4))
    optimizer = Muon([weight, bias], {weight: (1, 1)}, lr=0.01, matrix_lr=0.04, fused=False)
    set_learning_rate(optimizer, 0.005)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.005, 0.02])


def test_frozen_matrices_are_not_moved() -> None:
    config = TrainingConfig(model=PRESETS["tiny"], frozen_layers=(1,))
    bilm = bilm_of()
    for module in bilm.modules_of_layer(1):
        module.requires_grad_(False)
    optimizer = config_optimizer(config, WindowLosses(bilm, FullSoftmax(5, 32), 0), World())
    trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    assert all((parameter in trained) == parameter.requires_grad for parameter in bilm.parameters())


@pytest.mark.parametrize("changes", [{"char_cnn": None, "n_words": 9}, {"hidden_dim": 32}, {"n_layers": 1}])
def test_every_kind_of_model_takes_a_step(changes: dict[str, object]) -> None:
    bilm = bilm_of(**changes)
    parameters = list(bilm.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    for seed, parameter in enumerate(parameters):
        parameter.grad = random(*parameter.shape, seed=seed)
    Muon(parameters, matrix_blocks(bilm), lr=0.1, matrix_lr=0.1, fused=True).step()
    assert all(not torch.equal(old, new) for old, new in zip(before, parameters, strict=True))
