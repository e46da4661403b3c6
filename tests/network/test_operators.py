"""What people do around modules works, because operators of PyTorch are given the tensors in use.

One table of edits and modules, each against the formulas with the tensors that the edit leaves.
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

from elmokit.engine.architecture import PRESETS, BiLMConfig, CharCNNConfig, WordFeaturesConfig
from elmokit.network.backends import multiplies_bfloat16
from elmokit.network.bilm import BiLM
from elmokit.network.char_convolution import Characters, CharConvolution
from elmokit.network.lstm_module import LSTMState, ProjectedLSTM
from elmokit.network.operators import LSTMWeights, loaded_library, lstm_formulas, take_rows
from elmokit.network.tile_layers import TileLinear

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


def write_data(module: nn.Module) -> nn.Module:
    weight_of(module).data.mul_(2)
    return module


def write_numpy(module: nn.Module) -> nn.Module:
    array = weight_of(module).detach().numpy()
    array *= 2
    return module


def replace_parameter(module: nn.Module) -> nn.Module:
    module.weight = nn.Parameter(2 * weight_of(module), requires_grad=False)
    return module


def transpose_weight(module: nn.Module) -> nn.Module:
    """Replace the parameter by one whose columns are contiguous, not its rows."""
    axes = range(weight_of(module).ndim)
    columns = (2 * weight_of(module)).permute(*reversed(axes)).contiguous()
    module.weight = nn.Parameter(columns.permute(*reversed(axes)), requires_grad=False)
    return module


def parametrize_weight(module: nn.Module) -> nn.Module:
    parametrize.register_parametrization(module, "weight", Twice())
    return module


def prune_weight(module: nn.Module) -> nn.Module:
    prune.l1_unstructured(module, "weight", amount=0.5)  # type: ignore[no-untyped-call]
    return module


def pickle_module(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(write_data(module), file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


def step_fused(module: nn.Module) -> nn.Module:
    """Take a step of an optimizer that counts no version of what it writes to."""
    weight = weight_of(module).requires_grad_()
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=0.5, fused=True).step()
    return module.requires_grad_(False)


def weight_of(module: nn.Module) -> Tensor:
    assert isinstance(module.weight, Tensor)
    return module.weight


EDITS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "a write to .data": write_data,
    "a write through NumPy": write_numpy,
    "another parameter": replace_parameter,
    "a parameter in another order": transpose_weight,
    "a step of a fused optimizer": step_fused,
    "a parametrization": parametrize_weight,
    "a pruned weight": prune_weight,
    "a copy": lambda module: copy.deepcopy(write_data(module)),
    "a pickled copy": pickle_module,
    "float64": lambda module: module.double(),
    "bfloat16": lambda module: module.bfloat16(),
}


class Computed(NamedTuple):
    """A module, how it is called, and the formulas."""

    new: Callable[[], nn.Module]
    call: Callable[[nn.Module, torch.dtype], Tensor]
    formulas: Callable[[nn.Module, torch.dtype], Tensor]


def run_layer(layer: nn.Module, dtype: torch.dtype) -> Tensor:
    inputs, state = batch()
    outputs, after = layer(inputs.to(dtype), LSTMState(*(part.to(dtype) for part in state)), MASK)
    return torch.cat([part.flatten() for part in (outputs, *after)])


def run_formulas(layer: nn.Module, dtype: torch.dtype) -> Tensor:
    assert isinstance(layer, ProjectedLSTM)
    inputs, state = batch()
    results = lstm_formulas(inputs.to(dtype), *(part.to(dtype) for part in state), layer.weights, MASK, reverse=False)
    return torch.cat([part.flatten() for part in results])


def new_linear() -> nn.Module:
    torch.manual_seed(0)
    return TileLinear(DIM, 5).requires_grad_(False)


def new_convolution() -> nn.Module:
    torch.manual_seed(0)
    return CharConvolution(DIM, 5, 2).requires_grad_(False)


def some_characters(dtype: torch.dtype) -> Characters:
    torch.manual_seed(1)
    return Characters(
        torch.ones(3, 6, dtype=torch.int64), torch.tensor([6, 2, 0]), torch.randn(3, 6, DIM).to(dtype), None
    )


def responses(layer: nn.Module, dtype: torch.dtype) -> Tensor:
    vectors = some_characters(dtype).vectors
    every = nn.functional.conv1d(vectors.mT, weight_of(layer), layer.bias)  # type: ignore[arg-type]
    return torch.stack([every[row, :, :n].amax(dim=1) for row, n in enumerate((5, 3, 1))])


MODULES = {
    "an LSTM layer": Computed(new_layer, run_layer, run_formulas),
    "a linear layer": Computed(
        new_linear,
        lambda layer, dtype: layer(batch()[0].to(dtype)),
        lambda layer, dtype: nn.functional.linear(batch()[0].to(dtype), weight_of(layer), layer.bias),  # type: ignore[arg-type]
    ),
    "a convolution": Computed(new_convolution, lambda layer, dtype: layer(some_characters(dtype)), responses),
}


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("name", MODULES)
def test_an_edited_module_computes_with_its_tensors(name: str, edit: str, needs_gradient: bool) -> None:
    computed = MODULES[name]
    module = computed.new()
    before = computed.call(module, torch.float32)  # which keeps nothing
    module = EDITS[edit](module)
    if needs_gradient:
        module.bias.requires_grad_()  # type: ignore[operator, union-attr]
    dtype = weight_of(module).dtype
    found = computed.call(module, dtype)
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(found, computed.formulas(module, dtype), atol=tolerance, rtol=tolerance)
    assert found.requires_grad == needs_gradient
    if dtype == torch.float32:
        assert not torch.equal(found, before)


CNN = CharCNNConfig(((1, 4), (2, 8)), char_dim=3, n_highway=1, max_chars=6, n_chars=20)
CONFIGS = {
    "characters": BiLMConfig(CNN, projection_dim=8, hidden_dim=14),
    "words": BiLMConfig(None, n_words=20, projection_dim=8, hidden_dim=14),
    "both": BiLMConfig(CNN, word_features=WordFeaturesConfig(20, 5), projection_dim=8, hidden_dim=14),
    "one direction": BiLMConfig(CNN, projection_dim=8, hidden_dim=8, bidirectional=False),
}


class Call:
    """A biLM with random weights and ids."""

    def __init__(self, name: str) -> None:
        self.bilm = BiLM(CONFIGS[name]).eval()
        torch.manual_seed(0)
        for weight in self.bilm.requires_grad_(False).parameters():
            weight.uniform_(-0.6, 0.6)
        width = {"characters": (6,), "words": (), "both": (7,), "one direction": (6,)}[name]
        self.ids = torch.randint(1, 20, (2, 5, *width))
        self.ids[1, 3:] = 0

    def __call__(self) -> Tensor:
        layers: Tensor = self.bilm(self.ids, self.bilm.mask_of(self.ids), self.bilm.zero_state(2)).layers
        return layers


@pytest.mark.parametrize("name", CONFIGS)
def test_a_hook_of_every_module_is_called_and_changes_the_result(name: str) -> None:
    call = Call(name)
    before = call()
    for path, module in call.bilm.named_modules():
        if isinstance(module, nn.ModuleList) or not path:
            continue
        calls: list[str] = []

        def changed(module: nn.Module, inputs: object, outputs: object, calls: list[str] = calls) -> object:
            calls.append("")
            return 0.5 * outputs if isinstance(outputs, Tensor) else None

        handle = module.register_forward_hook(changed)
        after = call()
        assert calls, path
        has_tensors = path.startswith("token_layer") or "dropout" in path
        assert torch.allclose(after, before, rtol=1e-5, atol=1e-6) != has_tensors, path
        handle.remove()
        assert torch.equal(call(), before)


SETTINGS: dict[str, Callable[[nn.Module], object]] = {
    "token_layer": lambda layer: setattr(layer, "activation", "tanh"),
    "token_layer.char_embedding": lambda table: setattr(table, "max_norm", 0.5),
    "directions.0.layers.1": lambda layer: setattr(layer, "cell_clip", 0.01),
    "directions.1.layers.0": lambda layer: setattr(layer, "projection_clip", 0.01),
    "directions.1": lambda stack: setattr(stack, "skip_connections", False),
}


@pytest.mark.parametrize("path", SETTINGS)
def test_a_changed_setting_is_used(path: str) -> None:
    call = Call("characters")
    before = call()
    SETTINGS[path](call.bilm.get_submodule(path))
    assert not torch.allclose(call(), before, atol=1e-4)


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


class Vectors(nn.Module):
    """All layers of a biLM, from ids on."""

    def __init__(self, bilm: BiLM) -> None:
        super().__init__()
        self.bilm = bilm

    def forward(self, ids: Tensor) -> Tensor:
        mask, state = self.bilm.mask_of(ids), self.bilm.zero_state(ids.shape[0])
        layers: Tensor = self.bilm(ids, mask, state).layers
        return layers


def ids_of(*lengths: int, n_chars: int = 6) -> Tensor:
    """Random ids of sentences of these lengths."""
    ids = torch.randint(1, 20, (len(lengths), max(lengths), n_chars), generator=torch.Generator().manual_seed(0))
    return ids * (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])[..., None]


@pytest.mark.slow
@INSIDE_PYTORCH
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_bilm_gives_the_same_bits_from_ids_on(backend: str) -> None:
    module = Vectors(Call("characters").bilm)
    compiled, ids = torch.compile(module, backend=backend, fullgraph=True), ids_of(3, 1)
    with torch.no_grad():
        assert torch.equal(compiled(ids), module(ids))
    weights = [*module.bilm.requires_grad_().parameters()]
    for is_rounded in (False,) if backend == "inductor" else (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_rounded):
            found, wanted = (torch.autograd.grad(of(ids).float().square().sum(), weights) for of in (compiled, module))
        for ours, theirs in zip(found, wanted, strict=True):
            # In bfloat16, compiled functions sum convolutions in another order.
            assert (ours - theirs).norm() <= (0.1 if is_rounded else 1e-5) * theirs.norm()


@pytest.mark.slow
@INSIDE_PYTORCH
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("how", ["export", "jit.trace"])
def test_an_exported_bilm_takes_batches_of_any_size(how: str) -> None:
    module, example = Vectors(Call("characters").bilm), ids_of(3, 1)
    with torch.no_grad():
        if how == "export":
            sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("steps")}
            exported = torch.export.export(module, (example,), dynamic_shapes=(sizes,)).module()
        else:
            exported = torch.jit.trace(module, (example,), check_trace=False)
        for ids in (ids_of(7, 1, 2, 3, 5), ids_of(4, 4)):
            assert torch.equal(exported(ids), module(ids))


def some(*shape: int, trained: bool = True) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_(trained)


def table_arguments() -> tuple[Tensor, ...]:
    wide = loaded_library().panel_width()
    ids = torch.randint(0, 9, (4, 8), generator=torch.Generator().manual_seed(0))
    return ids, torch.tensor([6, 6, 1, 2]), some(1, 9, 3, wide), some(6)


LSTM = (some(40, 12), some(40), some(6, 10))
STATE = (some(3, 6, trained=False), some(3, 10, trained=False))
CONVOLUTION = ((9, 4), (6, 4, 2), (6,))
OPERATORS: dict[str, Callable[[], tuple[object, ...]]] = {
    "linear": lambda: (some(3, 5, trained=False), some(4, 5, trained=False), some(4, trained=False)),
    "convolve_rows": lambda: (torch.tensor([[1, 0, 2], [2, 2, 2]]), *(some(*of, trained=False) for of in CONVOLUTION)),
    "convolve": lambda: (some(3, 9, 4), torch.tensor([1, 7, 3]), some(6, 4, 3), some(6)),
    "add": lambda: (some(3, 5, trained=False), some(3, 5, trained=False)),
    "take_rows": lambda: (some(9, 3, trained=False), torch.tensor([[1, 8], [0, 1]])),
    "join_features": lambda: ([some(3, 5, trained=False), some(3, 2, trained=False)],),
    "lstm_layer": lambda: (
        *(some(*shape, trained=False) for shape in ((3, 4, 6), (3, 6), (3, 10), (40, 6), (40, 6), (40,), (6, 10))),
        *(MASK.new_ones(3, 4), 3.0, 3.0, True, True, False),
    ),
    "lstm_window": lambda: (some(4, 3, 6), some(3, 6), some(3, 10), *LSTM, 3.0, 3.0, None),
    "lstm_tile_window": lambda: (some(3, 4, 6), *STATE, *LSTM, 3.0, 3.0),
    "table_convolve": table_arguments,
    "tile_linear": lambda: (some(3, 5), some(4, 5), some(4)),
    "highway": lambda: (some(3, 5), some(3, 5), some(3, 5)),
    "tile_cross_entropy": lambda: (some(7, 5), some(20, 5), some(20), some(7), torch.full((7,), -1)),
    "seeded_dropout": lambda: (some(7, 5), torch.tensor(5), 0.5),
}
WITH_TILES = ["lstm_tile_window", "tile_linear", "tile_cross_entropy"]


@pytest.mark.slow
@INSIDE_PYTORCH
@pytest.mark.parametrize("name", OPERATORS)
def test_pytorch_finds_operators_as_it_expects_them(name: str) -> None:
    if name in WITH_TILES and not multiplies_bfloat16():
        pytest.skip("this processor does not multiply bfloat16 numbers")
    torch.library.opcheck(getattr(torch.ops.elmokit, name).default, OPERATORS[name]())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padding_stays_zero_where_inputs_are_added_in_every_dtype(dtype: torch.dtype) -> None:
    layer = ProjectedLSTM(6, 10, 6, None, None).to(dtype).requires_grad_(False)
    state = LSTMState(*(part.to(dtype) for part in STATE))
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    outputs, _ = layer(some(3, 2, 6, trained=False).to(dtype), state, mask, adds_inputs=True)
    assert not outputs[~mask].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_that_a_table_does_not_have_are_refused_in_every_dtype(dtype: torch.dtype) -> None:
    table = some(9, 3, trained=False).to(dtype)
    for number in (-1, 9):  # not counted from the end
        with pytest.raises(IndexError, match="index out of range"):
            take_rows(table, torch.tensor([number]))


@torch.no_grad()
def test_a_module_computes_where_its_tensors_are_whatever_the_default_device() -> None:
    bilm = BiLM(PRESETS["tiny"])
    ids = torch.randint(1, 262, (2, 5, 50), generator=torch.Generator().manual_seed(0))
    expected = bilm.token_vectors(ids)
    with torch.device("meta"):
        vectors = bilm.token_vectors(ids)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", [*WITH_TILES, "highway"])
def test_operators_with_tiles_equal_their_plain_forms(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not multiplies_bfloat16():
        pytest.skip("this processor does not multiply bfloat16 numbers")
    arguments = OPERATORS[name]()
    wanted = [argument for argument in arguments if isinstance(argument, Tensor) and argument.requires_grad]
    results = []
    for backend in ("auto", "reference"):
        monkeypatch.setenv("ELMOKIT_BACKEND", backend)
        outputs = getattr(torch.ops.elmokit, name).default(*arguments)
        outputs = outputs if isinstance(outputs, Tensor) else outputs[0]
        results.append([outputs, *torch.autograd.grad(outputs.square().sum(), wanted)])
    for ours, plain in zip(*results, strict=True):
        assert (ours - plain).norm() <= 0.02 * plain.norm()


def test_dropout_without_c_functions_repeats_its_choice_in_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMOKIT_BACKEND", "reference")
    inputs = torch.ones(50, 40, requires_grad=True)
    outputs = torch.ops.elmokit.seeded_dropout.default(inputs, torch.tensor(7), 0.25)
    assert 0.7 < float((outputs > 0).float().mean()) < 0.8
    (gradient,) = torch.autograd.grad(outputs.sum(), inputs)
    assert torch.equal(gradient, outputs)
