"""What people do around an LSTM module works, because an operator of PyTorch is given the tensors in use.

One table of edits, each against the formulas with the tensors that the edit leaves.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from elmokit.engine.architecture import PRESETS
from elmokit.network.bilm import BiLM
from elmokit.network.lstm_module import LSTMState, ProjectedLSTM
from elmokit.network.operators import LSTMWeights, lstm_formulas

# PyTorch's own code uses what it deprecates.
INSIDE_PYTORCH = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
DIM, HIDDEN_DIM = 4, 7
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()


class Twice(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return 2 * values


def new_layer() -> ProjectedLSTM:
    layer = ProjectedLSTM(DIM, HIDDEN_DIM, DIM, 3.0, 3.0)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    return layer.requires_grad_(False)


def batch() -> tuple[Tensor, LSTMState]:
    generator = torch.Generator().manual_seed(1)
    hidden, cell = (0.1 * torch.randn(2, size, generator=generator) for size in (DIM, HIDDEN_DIM))
    return torch.randn(2, 3, DIM, generator=generator), LSTMState(hidden, cell)


def write_data(layer: ProjectedLSTM) -> ProjectedLSTM:
    layer.weight.data.mul_(2)
    return layer


def write_numpy(layer: ProjectedLSTM) -> ProjectedLSTM:
    array = layer.weight.numpy()
    array *= 2
    return layer


def replace_parameter(layer: ProjectedLSTM) -> ProjectedLSTM:
    layer.weight = nn.Parameter(2 * layer.weight, requires_grad=False)
    return layer


def parametrize_weight(layer: ProjectedLSTM) -> ProjectedLSTM:
    parametrize.register_parametrization(layer, "weight", Twice())
    return layer


def prune_weight(layer: ProjectedLSTM) -> ProjectedLSTM:
    prune.l1_unstructured(layer, "weight", amount=0.5)  # type: ignore[no-untyped-call]
    return layer


def pickle_layer(layer: ProjectedLSTM) -> ProjectedLSTM:
    file = io.BytesIO()
    torch.save(write_data(layer), file)
    file.seek(0)
    loaded: ProjectedLSTM = torch.load(file, weights_only=False)
    return loaded


EDITS: dict[str, Callable[[ProjectedLSTM], ProjectedLSTM]] = {
    "a write to .data": write_data,
    "a write through NumPy": write_numpy,
    "another parameter": replace_parameter,
    "a parametrization": parametrize_weight,
    "a pruned weight": prune_weight,
    "a copy": lambda layer: copy.deepcopy(write_data(layer)),
    "a pickled copy": pickle_layer,
    "float64": lambda layer: layer.double(),
    "bfloat16": lambda layer: layer.bfloat16(),
}


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_layer_computes_with_its_tensors(edit: str, needs_gradient: bool) -> None:
    layer, (inputs, state) = new_layer(), batch()
    before, _ = layer(inputs, state, MASK)  # which keeps nothing
    layer = EDITS[edit](layer)
    if needs_gradient:
        layer.bias.requires_grad_()
    dtype = layer.weight.dtype
    inputs, state = inputs.to(dtype), LSTMState(*(part.to(dtype) for part in state))
    found, after = layer(inputs, state, MASK)
    wanted, *wanted_state = lstm_formulas(inputs, *state, layer.weights, MASK, reverse=False)
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close([found, *after], [wanted, *wanted_state], atol=tolerance, rtol=0)
    assert found.requires_grad == needs_gradient
    if dtype == torch.float32:
        assert not torch.equal(found, before)


def test_hooks_and_replaced_layers_of_a_bilm_are_called() -> None:
    bilm = BiLM(PRESETS["tiny"]).eval().requires_grad_(False)
    bilm.reset_parameters(0)
    vectors, mask, state = torch.randn(2, 3, 32), MASK, bilm.zero_state(2)
    before = bilm.contextualize(vectors, mask, state).layers
    layer = bilm.directions[1].get_submodule("layers.0")
    handle = layer.register_forward_hook(lambda _, __, output: (2 * output[0], output[1]))
    hooked = bilm.contextualize(vectors, mask, state).layers
    assert torch.equal(hooked[1, ..., 32:], 2 * before[1, ..., 32:])
    assert torch.equal(hooked[1, ..., :32], before[1, ..., :32])
    handle.remove()
    assert torch.equal(bilm.contextualize(vectors, mask, state).layers, before)


class Run(NamedTuple):
    """A function of a layer's inputs, and what it needs."""

    inputs: Tensor
    function: Callable[[Tensor], Tensor]
    formulas: Callable[[Tensor], Tensor]


def a_run() -> Run:
    layer, (inputs, state) = new_layer(), batch()

    def function(values: Tensor) -> Tensor:
        outputs: Tensor = layer(values, state, MASK)[0]
        return outputs

    def formulas(values: Tensor) -> Tensor:
        return lstm_formulas(values, *state, layer.weights, MASK, reverse=False)[0]

    return Run(inputs, function, formulas)


@INSIDE_PYTORCH
def test_forward_derivatives_equal_those_of_the_formulas() -> None:
    inputs, function, formulas = a_run()
    tangent = torch.randn(inputs.shape)
    found, wanted = (torch.func.jvp(one, (inputs,), (tangent,))[1] for one in (function, formulas))
    assert wanted.any()
    torch.testing.assert_close(found, wanted)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(inputs, tangent)  # type: ignore[no-untyped-call]
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(function(dual)).tangent, wanted)  # type: ignore[no-untyped-call]


@INSIDE_PYTORCH
def test_gradients_and_maps_of_torch_func_equal_those_of_the_formulas() -> None:
    inputs, function, formulas = a_run()
    found, wanted = (torch.func.grad(lambda values, one=one: one(values).sum())(inputs) for one in (function, formulas))
    torch.testing.assert_close(found, wanted)
    several = torch.randn(3, *inputs.shape)
    torch.testing.assert_close(torch.func.vmap(function)(several), torch.stack([formulas(one) for one in several]))


def test_functional_calls_take_the_given_tensors() -> None:
    layer, (inputs, state) = new_layer(), batch()
    weight = torch.randn(layer.weight.shape)
    found, _ = torch.func.functional_call(layer, {"weight": weight}, (inputs, state))
    weights = LSTMWeights(weight, layer.bias, layer.projection, 3.0, 3.0)
    torch.testing.assert_close(found, lstm_formulas(inputs, *state, weights, None, reverse=False)[0])


def test_checkpointing_gives_the_same_gradients() -> None:
    inputs, function, _ = a_run()
    inputs.requires_grad_()
    (wanted,) = torch.autograd.grad(function(inputs).sum(), inputs)
    outputs = torch.utils.checkpoint.checkpoint(function, inputs, use_reentrant=False)
    (found,) = torch.autograd.grad(outputs.sum(), inputs)
    assert torch.equal(found, wanted)


@pytest.mark.slow
@INSIDE_PYTORCH
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_layers_give_the_same_bits(backend: str) -> None:
    bilm = BiLM(PRESETS["tiny"]).eval()
    bilm.reset_parameters(0)
    vectors, state = torch.randn(2, 3, 32, requires_grad=True), bilm.zero_state(2)

    def run(values: Tensor) -> Tensor:
        return bilm.contextualize(values, MASK, state).layers

    compiled = torch.compile(run, backend=backend, fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(vectors), run(vectors))
    found, wanted = (torch.autograd.grad(one(vectors).square().sum(), vectors)[0] for one in (compiled, run))
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.slow
@INSIDE_PYTORCH
def test_an_exported_bilm_takes_batches_of_any_size() -> None:
    bilm = BiLM(PRESETS["tiny"]).eval().requires_grad_(False)
    bilm.reset_parameters(0)

    class Contextualize(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bilm = bilm

        def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
            layers: Tensor = self.bilm.contextualize(vectors, mask, self.bilm.zero_state(vectors.shape[0])).layers
            return layers

    module, rows, steps = Contextualize(), torch.export.Dim("rows"), torch.export.Dim("steps")
    with torch.no_grad():
        exported = torch.export.export(
            module, (torch.randn(2, 3, 32), MASK), dynamic_shapes=({0: rows, 1: steps}, {0: rows, 1: steps})
        ).module()
        vectors, mask = torch.randn(5, 7, 32), torch.arange(7) < torch.tensor([[7], [1], [0], [3], [5]])
        assert torch.equal(exported(vectors, mask), module(vectors, mask))
