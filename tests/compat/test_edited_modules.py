"""What people do around AllenNLP's modules works with ours: adapters, quantized layers, hooks, functional calls."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize

from elmokit import ElmoModule
from elmokit.compat.allennlp import Elmo, batch_to_ids
from elmokit.compat.bilm import BidirectionalLanguageModel
from elmokit.errors import ConfigError
from tests.helpers.allennlp_files import write_files

SENTENCES = [["The", "cat", "sat", "."], ["A"], ["the", "dog"]]
IDS = batch_to_ids(SENTENCES)
BOUNDED_IDS = batch_to_ids([["<S>", *sentence, "</S>"] for sentence in SENTENCES])


class Case(NamedTuple):
    """A module, and how it is called; both together can be copied."""

    module: nn.Module
    owner: Any
    call: Callable[[Any], Tensor]

    def __call__(self) -> Tensor:
        return self.call(self.owner)


def _of(owner: nn.Module, call: Callable[[Any], Tensor]) -> Case:
    return Case(owner, owner, call)


CASES: dict[str, Callable[[str, str], Case]] = {
    "Elmo": lambda *files: _of(Elmo(*files, 1, stateful=False).eval(), lambda of: of(IDS)["elmo_representations"][0]),
    "compat.bilm": lambda *files: _of(
        BidirectionalLanguageModel(*files, stateful=False), lambda of: of(BOUNDED_IDS)["lm_embeddings"]
    ),
    "ElmoModule": lambda options, weights: _of(
        ElmoModule.from_pretrained(weights, options=options), lambda of: of(of.ids(SENTENCES)).mixes[0]
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("model")
    return write_files(folder / "files")[:2]


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def new_case(name: str, files: tuple[str, str]) -> Case:
    torch.manual_seed(0)
    case = CASES[name](*files)
    for parameter in case.module.parameters():  # biases that are 0 would let changes go unnoticed
        parameter.add_(torch.empty_like(parameter).uniform_(-0.1, 0.1))
    return case


CELLS = [f"{direction}_layer_{k}" for k in (0, 1) for direction in ("forward", "backward")]
LINEARS = ("input_linearity", "state_linearity", "state_projection")
LSTM, TOKENS = "_elmo_lstm._elmo_lstm", "_elmo_lstm._token_embedder"
CALLED = [
    *(f"{TOKENS}{name}" for name in ("", ".char_conv_0", "._highways", "._highways._layers.1", "._projection")),
    *(f"{LSTM}.{cell}" for cell in CELLS),
    *(f"{LSTM}.{cell}.{linear}" for cell in CELLS for linear in LINEARS),
]


@pytest.mark.parametrize("needs_gradients", [False, True])
def test_hooks_of_every_module_are_called(needs_gradients: bool, files: tuple[str, str]) -> None:
    case = new_case("Elmo", files)
    before = case()
    case.module.requires_grad_(needs_gradients)
    for inner in CALLED:
        calls: list[str] = []
        handle = case.module.get_submodule(inner).register_forward_hook(lambda *_, calls=calls: calls.append(""))  # type: ignore[misc]
        with torch.set_grad_enabled(needs_gradients):
            torch.testing.assert_close(case(), before, rtol=1e-5, atol=1e-5, msg=inner)
        assert calls, inner
        handle.remove()
    calls = []
    handle = register_module_forward_hook(lambda module, *_: calls.append(type(module).__name__))
    try:
        torch.testing.assert_close(case(), before, rtol=1e-5, atol=1e-5)
    finally:
        handle.remove()
    assert {"Linear", "CharConvolution", "TileLinear"} < set(calls)


class Doubled(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Any) -> Any:
        return 2 * self.inner(*inputs)


class Double(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class DoubledTensor(Tensor):
    """As quantized weights are: a tensor whose products are something else than its numbers say."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(function, types, args, kwargs)
        return 2 * result.as_subclass(Tensor) if function is nn.functional.linear else result


def _replace(parent: nn.Module, name: str, new: Callable[[nn.Module], nn.Module]) -> None:
    setattr(parent, name, new(parent.get_submodule(name)))


def _parametrize(parent: nn.Module, name: str) -> None:
    module = parent.get_submodule(name)
    for kind in [kind for kind, _ in module.named_parameters()]:
        parametrize.register_parametrization(module, kind, Double())


def _other_weights(parent: nn.Module, name: str) -> None:
    module = parent.get_submodule(name)
    assert isinstance(module.weight, Tensor)
    module.weight = nn.Parameter(module.weight.detach().as_subclass(DoubledTensor))  # type: ignore[arg-type]


def _hook(parent: nn.Module, name: str) -> None:
    parent.get_submodule(name).register_forward_hook(lambda module, inputs, outputs: 2 * outputs)


CHANGES: dict[str, Callable[[nn.Module, str], object]] = {
    "a hook": _hook,
    "a wrapper": lambda parent, name: _replace(parent, name, Doubled),
    "parametrizations": _parametrize,
    "a tensor subclass": _other_weights,
}
CHANGED = [
    *(f"{LSTM}.forward_layer_0.state_projection", f"{LSTM}.backward_layer_1.state_linearity"),
    *(f"{LSTM}.forward_layer_1.input_linearity", f"{TOKENS}._projection", f"{TOKENS}._highways._layers.0"),
]


@pytest.mark.parametrize(
    "change", ["a hook", *(pytest.param(change, marks=pytest.mark.slow) for change in CHANGES if change != "a hook")]
)
def test_a_changed_layer_is_used(change: str, files: tuple[str, str]) -> None:
    for inner in CHANGED:
        case, expected = new_case("Elmo", files), new_case("Elmo", files)
        for weight in expected.module.get_submodule(inner).parameters():
            weight.mul_(2)
        doubled = expected()
        assert not torch.allclose(case(), doubled, atol=1e-3)
        parent, _, child = inner.rpartition(".")
        CHANGES[change](case.module.get_submodule(parent), child)
        torch.testing.assert_close(case(), doubled, rtol=1e-5, atol=1e-5, msg=inner)
        with torch.enable_grad():
            case.module.requires_grad_(True)
            torch.testing.assert_close(case(), doubled, rtol=1e-5, atol=1e-5, msg=inner)


def test_hooks_see_the_calls_of_allennlp(files: tuple[str, str]) -> None:
    case = new_case("Elmo", files)
    seen: list[tuple[Any, ...]] = []

    def note(module: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> None:
        shapes = [tuple(value.shape) for value in inputs if isinstance(value, Tensor)]
        lengths = [value for value in inputs if isinstance(value, list)]
        seen.append((names[module], *shapes, *lengths))

    lstm = case.module.get_submodule("_elmo_lstm._elmo_lstm")
    names = {module: name for name, module in lstm.named_modules() if name}
    for module in names:
        module.register_forward_hook(note)
    case()
    # 3 sentences of 4, 1 and 2 tokens, with boundaries, longest first; 8 and 14 are the sizes of outputs and cells.
    cells = [call for call in seen if "." not in call[0]]
    assert [call[0] for call in cells] == CELLS
    assert all(call[1:] == ((3, 6, 8), [6, 4, 3]) for call in cells)
    of_first = [call[0].rpartition(".")[2:] + call[1:] for call in seen if call[0].startswith("forward_layer_0.")]
    linears = ("input_linearity", 8), ("state_linearity", 8), ("state_projection", 14)
    assert of_first == [(name, (n, size)) for n in (3, 3, 3, 2, 1, 1) for name, size in linears]
    of_last = [call[1][0] for call in seen if call[0] == "backward_layer_1.input_linearity"]
    assert of_last == [1, 1, 2, 3, 3, 3]


class LowRank(nn.Module):
    """An adapter as LoRA (peft) has it."""

    def __init__(self, inner: nn.Linear | nn.Conv1d) -> None:
        super().__init__()
        self.inner = inner
        self.down: nn.Linear | nn.Conv1d
        self.up: nn.Linear | nn.Conv1d
        if isinstance(inner, nn.Linear):
            self.down = nn.Linear(inner.in_features, 2, bias=False)
            self.up = nn.Linear(2, inner.out_features, bias=False)
        else:
            make = type(inner)
            self.down = make(inner.in_channels, 2, inner.kernel_size, inner.stride, inner.padding, bias=False)
            self.up = make(2, inner.out_channels, (1,), (1,), bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.inner(inputs) + self.up(self.down(inputs))
        return outputs


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("Elmo", "_elmo_lstm._elmo_lstm.forward_layer_0.state_projection"),
        ("Elmo", "_elmo_lstm._token_embedder._projection"),
        ("Elmo", "_elmo_lstm._token_embedder.char_conv_1"),
        ("ElmoModule", "bilm.token_layer.projection"),
        ("ElmoModule", "bilm.token_layer.convolutions.1"),
    ],
)
def test_an_adapter_is_trained_in_a_frozen_bilm(name: str, inner: str, files: tuple[str, str]) -> None:
    case = new_case(name, files)
    parent, _, child = inner.rpartition(".")
    case.module.requires_grad_(False)
    _replace(case.module.get_submodule(parent), child, LowRank)  # type: ignore[arg-type]
    with torch.enable_grad():
        case().square().sum().backward()
    adapter = case.module.get_submodule(inner)
    assert isinstance(adapter, LowRank)
    for weight in (adapter.up.weight, adapter.down.weight):
        assert weight.grad.abs().max() > 0
    assert adapter.inner.weight.grad is None


@pytest.mark.filterwarnings("ignore")  # of `torch.ao`
@pytest.mark.parametrize("name", CASES)
def test_dynamic_quantization_works(name: str, files: tuple[str, str]) -> None:
    case = new_case(name, files)
    before = case()
    tagger = nn.ModuleDict({"elmo": case.module, "head": nn.Linear(3, 3)})
    quantized = torch.ao.quantization.quantize_dynamic(tagger, {nn.Linear})
    assert not isinstance(quantized["head"], nn.Linear)
    torch.testing.assert_close(case.call(quantized["elmo"]), before, rtol=0.1, atol=0.1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of `torch.func.jvp`
@pytest.mark.parametrize("name", CASES)
def test_functional_calls_and_their_gradients(name: str, files: tuple[str, str]) -> None:
    case = new_case(name, files)
    module = case.module
    case()
    weights = {key: weight.detach() * 1.1 for key, weight in module.named_parameters()}

    def outputs(of: dict[str, Tensor]) -> Tensor:
        result: Tensor = case.call(Called(module, of))
        return result

    changed = copy.deepcopy(case)
    changed.module.load_state_dict(weights, strict=False)
    torch.testing.assert_close(outputs(weights), changed(), rtol=1e-5, atol=1e-5)
    tangents = {key: 0.01 * torch.ones_like(weight) for key, weight in weights.items()}
    moved = {key: [weights[key] + sign * tangents[key] / 10 for sign in (-1, 1)] for key in weights}
    difference = 5 * (
        outputs({key: pair[1] for key, pair in moved.items()}) - outputs({key: pair[0] for key, pair in moved.items()})
    )
    _, tangent = torch.func.jvp(outputs, (weights,), (tangents,))
    torch.testing.assert_close(tangent, difference, rtol=0.05, atol=0.01)
    stacked = {key: torch.stack(pair) for key, pair in moved.items()}
    both = torch.func.vmap(outputs)(stacked)
    for number in (0, 1):
        expected = outputs({key: pair[number] for key, pair in moved.items()})
        torch.testing.assert_close(both[number], expected, rtol=1e-4, atol=1e-5)
    if name != "compat.bilm":  # whose calls have no gradients
        gradients = torch.func.grad(lambda of: outputs(of).sum())(weights)
        slope = sum((gradients[key] * tangents[key]).sum() for key in weights)
        torch.testing.assert_close(slope, tangent.sum(), rtol=1e-3, atol=1e-3)


class Called:
    """A module with other weights, called by ``torch.func.functional_call``."""

    def __init__(self, module: nn.Module, weights: dict[str, Tensor]) -> None:
        self.module, self.weights = module, weights

    def __call__(self, ids: Tensor) -> Any:
        return torch.func.functional_call(self.module, self.weights, (ids,))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


# Tracing and compiling


REFUSALS: dict[str, Callable[[nn.Module, Tensor, Path], object]] = {
    "jit.trace": lambda module, ids, path: torch.jit.trace(module, (ids,), check_trace=False, strict=False),
    "onnx.export": lambda module, ids, path: torch.onnx.export(module, (ids,), path / "model.onnx", dynamo=False),
    "export": lambda module, ids, path: torch.export.export(module, (ids,), strict=False),
}


@pytest.mark.filterwarnings("ignore")  # of PyTorch's deprecated exporters
@pytest.mark.parametrize("how", ["jit.trace", "onnx.export", pytest.param("export", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["Elmo", "compat.bilm"])
def test_traces_are_refused(name: str, how: str, files: tuple[str, str], tmp_path: Path) -> None:
    case = new_case(name, files)
    ids = BOUNDED_IDS if name == "compat.bilm" else IDS
    for needs_gradients in (False, True):
        case.module.requires_grad_(needs_gradients)
        with torch.set_grad_enabled(needs_gradients), pytest.raises(ConfigError, match="elmokit convert MODEL"):
            REFUSALS[how](case.module, ids, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch's compiler
@pytest.mark.parametrize(("name", "trains"), [("Elmo", True), ("compat.bilm", False)])
def test_a_model_around_it_can_be_compiled(name: str, trains: bool, files: tuple[str, str]) -> None:
    case = new_case(name, files)
    with torch.set_grad_enabled(trains):
        expected = case().square().sum()
        compiled = torch.compile(lambda: case().square().sum(), backend="eager")
        torch.testing.assert_close(compiled(), expected)
        if trains:
            case.module.requires_grad_(True)
            compiled().backward()
            assert all(weight.grad is not None for weight in case.module.parameters())
