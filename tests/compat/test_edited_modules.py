"""What people do around PyTorch modules works with ours: edited weights, hooks, replaced modules, tracing."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize, prune

import elmokit
from elmokit import ElmoModule
from elmokit.compat.allennlp import Elmo, batch_to_ids
from elmokit.compat.allennlp_command import ElmoEmbedder
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

    def fresh(self) -> Tensor:
        """What a copy computes, which has no packed weights yet."""
        return copy.deepcopy(self)()


def _joined(arrays: list[Any]) -> Tensor:
    return torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays]))


def _layers(embedder: ElmoEmbedder) -> Tensor:
    embedder.reset_states()
    return _joined(embedder.embed_batch(SENTENCES))


def _of(owner: nn.Module, call: Callable[[Any], Tensor]) -> Case:
    return Case(owner, owner, call)


def _embedder(options: str, weights: str) -> Case:
    embedder = ElmoEmbedder(options, weights)
    return Case(embedder.elmo_bilm, embedder, _layers)


def _front_door(options: str, weights: str) -> Case:
    elmo = elmokit.Elmo(elmokit.open_model(weights, options=options), start="zero")
    return Case(elmo.computer.use_module(), elmo, lambda of: _joined(of.embed(SENTENCES, layers="all")))


CASES: dict[str, Callable[[str, str], Case]] = {
    "Elmo": lambda *files: _of(Elmo(*files, 1, stateful=False).eval(), lambda of: of(IDS)["elmo_representations"][0]),
    "ElmoEmbedder": _embedder,
    "compat.bilm": lambda *files: _of(
        BidirectionalLanguageModel(*files, stateful=False), lambda of: of(BOUNDED_IDS)["lm_embeddings"]
    ),
    "ElmoModule": lambda options, weights: _of(
        ElmoModule.from_pretrained(weights, options=options), lambda of: of(of.ids(SENTENCES)).mixes[0]
    ),
    "elmokit.Elmo": _front_door,
}


def named(cases: Iterable[str]) -> Any:
    """Return a mark that tries these cases; those whose code paths others have too are slow."""
    fast = ("ElmoEmbedder", "ElmoModule")
    marks = {name: () if name in fast else pytest.mark.slow for name in cases}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks[name]) for name in marks])


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


# Edited weights


EDITS: dict[str, Callable[[nn.Parameter], object]] = {
    "a column of .data": lambda weight: weight.data[..., -1:].add_(0.5),
    "an operation": lambda weight: weight.mul_(1.5),
    "the NumPy view": lambda weight: weight.detach().numpy()[..., -1:].__iadd__(0.5),
    "other .data": lambda weight: setattr(weight, "data", weight.data.flip(0) * 1.1),
}


@pytest.mark.parametrize("edit", EDITS)
@named(CASES)
def test_an_edited_weight_is_never_ignored(name: str, edit: str, files: tuple[str, str]) -> None:
    case = new_case(name, files)
    before, effects = case(), []
    for weight in case.module.parameters():
        if weight.numel() > 1:  # a factor stays what it is
            EDITS[edit](weight)
            after = case()
            effects.append(not torch.equal(after, before))
            before = after
    torch.testing.assert_close(before, case.fresh(), rtol=1e-5, atol=1e-5)
    assert sum(effects) >= len(effects) - 2  # a filter may never win, and a character may not occur


# Hooks and replaced modules


OF_ELMO = "_elmo_lstm."
CALLED_IN_ALLENNLP = [
    *("_token_embedder", "_token_embedder.char_conv_0", "_token_embedder.char_conv_2", "_token_embedder._highways"),
    *("_token_embedder._highways._layers.1", "_token_embedder._projection", "_elmo_lstm"),
    *(
        f"_elmo_lstm.{direction}_layer_{k}{part}"
        for k in (0, 1)
        for direction in ("forward", "backward")
        for part in ("", ".input_linearity", ".state_linearity", ".state_projection")
    ),
]
CALLED_IN_OURS = [
    *("token_layer", "token_layer.char_embedding", "token_layer.convolutions.1", "token_layer.highways.0"),
    *("token_layer.highways.1.transform", "token_layer.highways.0.gate", "token_layer.projection"),
    *("directions.0", "directions.1.layers.0", "directions.0.layers.1", "directions.1.dropout"),
]
CALLED = {
    "Elmo": [OF_ELMO + name for name in CALLED_IN_ALLENNLP],
    "ElmoEmbedder": ["", *CALLED_IN_ALLENNLP],
    "compat.bilm": ["bilm", *(f"bilm.{name}" for name in CALLED_IN_OURS)],
    "ElmoModule": ["bilm", *(f"bilm.{name}" for name in CALLED_IN_OURS)],
    "elmokit.Elmo": ["", *CALLED_IN_OURS],
}


@pytest.mark.parametrize("needs_gradients", [False, True])
@named(CALLED)
def test_hooks_of_every_module_are_called(name: str, needs_gradients: bool, files: tuple[str, str]) -> None:
    case = new_case(name, files)
    before = case()
    for inner in CALLED[name]:
        calls: list[str] = []
        module = case.module.get_submodule(inner)
        handles = [
            module.register_forward_pre_hook(lambda *_, calls=calls: calls.append("before")),  # type: ignore[misc]
            module.register_forward_hook(lambda *_, calls=calls: calls.append("after")),  # type: ignore[misc]
        ]
        with torch.set_grad_enabled(needs_gradients):
            case.module.requires_grad_(needs_gradients)
            torch.testing.assert_close(case(), before, rtol=1e-5, atol=1e-5, msg=inner)
        assert len(calls) >= 2, inner
        for handle in handles:
            handle.remove()
    calls = []
    handle = register_module_forward_hook(lambda module, *_: calls.append(type(module).__name__))
    try:
        torch.testing.assert_close(case(), before, rtol=1e-5, atol=1e-5)
    finally:
        handle.remove()
    assert {"Conv1d", "TileLinear"} < set(calls)


class Doubled(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Any) -> Any:
        return 2 * self.inner(*inputs)


class DoubledLinear(nn.Linear):
    """As an adapter replaces a layer: a subclass with the same parameters."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


class Double(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class DoubledTensor(Tensor):
    """As quantized weights are: a tensor whose products are something else than its numbers say."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(function, types, args, kwargs)
        return 2 * result.as_subclass(Tensor) if function is nn.functional.linear else result


def _subclass(parent: nn.Module, name: str) -> None:
    old = parent.get_submodule(name)
    assert isinstance(old, nn.Linear)
    new = DoubledLinear(old.in_features, old.out_features, bias=old.bias is not None)
    new.load_state_dict(old.state_dict())
    setattr(parent, name, new)


def _replace(parent: nn.Module, name: str, new: Callable[[nn.Module], nn.Module]) -> None:
    setattr(parent, name, new(parent.get_submodule(name)))


def _override(parent: nn.Module, name: str) -> None:
    module = parent.get_submodule(name)
    forward = module.forward
    module.forward = lambda *inputs: 2 * forward(*inputs)  # type: ignore[method-assign]


def _parametrize(parent: nn.Module, name: str) -> None:
    module = parent.get_submodule(name)
    for kind in [kind for kind, _ in module.named_parameters()]:
        parametrize.register_parametrization(module, kind, Double())


def _with_mask(parent: nn.Module, name: str) -> None:
    module = parent.get_submodule(name)
    for kind in [kind for kind, _ in module.named_parameters()]:
        prune.custom_from_mask(module, kind, 2 * torch.ones_like(getattr(module, kind)))


def _other_weights(parent: nn.Module, name: str) -> None:
    module = parent.get_submodule(name)
    assert isinstance(module.weight, Tensor)
    module.weight = nn.Parameter(module.weight.detach().as_subclass(DoubledTensor))  # type: ignore[arg-type]


def _hook(parent: nn.Module, name: str) -> None:
    parent.get_submodule(name).register_forward_hook(lambda module, inputs, outputs: 2 * outputs)


CHANGES: dict[str, Callable[[nn.Module, str], object]] = {
    "a hook": _hook,
    "a subclass": _subclass,
    "a wrapper": lambda parent, name: _replace(parent, name, Doubled),
    "a forward of its own": _override,
    "parametrizations": _parametrize,
    "prune": _with_mask,
    "a tensor subclass": _other_weights,
}
LINEAR = {
    "Elmo": [
        *("_elmo_lstm._token_embedder._projection", "_elmo_lstm._token_embedder._highways._layers.0"),
        *(
            "_elmo_lstm._elmo_lstm.forward_layer_0.state_projection",
            "_elmo_lstm._elmo_lstm.backward_layer_1.state_linearity",
        ),
        "_elmo_lstm._elmo_lstm.forward_layer_1.input_linearity",
    ],
    "ElmoEmbedder": ["_token_embedder._projection", "_elmo_lstm.backward_layer_0.state_projection"],
    "compat.bilm": ["bilm.token_layer.projection"],
    "ElmoModule": [f"bilm.token_layer.{name}" for name in ("projection", "highways.0.gate", "highways.1.transform")],
    "elmokit.Elmo": ["token_layer.highways.0.transform"],
}


@functools.cache
def with_doubled_weights(name: str, inner: str, files: tuple[str, str]) -> Tensor:
    """What a module computes whose inner layer has weights of twice the size."""
    case = new_case(name, files)
    for weight in case.module.get_submodule(inner).parameters():
        weight.mul_(2)
    return case()


@pytest.mark.parametrize("change", CHANGES)
@named(LINEAR)
def test_a_changed_layer_is_used(name: str, change: str, files: tuple[str, str]) -> None:
    for inner in LINEAR[name]:
        case, doubled = new_case(name, files), with_doubled_weights(name, inner, files)
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
    case.module.get_submodule("_elmo_lstm._token_embedder.char_conv_1").register_forward_hook(
        lambda module, inputs, outputs: seen.append(("char_conv_1", tuple(inputs[0].shape)))
    )
    case()
    # 3 sentences of 4, 1 and 2 tokens, with boundaries, longest first; 8 and 14 are the sizes of outputs and cells.
    assert seen[0] == ("char_conv_1", (18, 4, 50))
    cells = [call for call in seen if "." not in call[0]]
    assert [call[0] for call in cells[1:]] == [
        f"{direction}_layer_{k}" for k in (0, 1) for direction in ("forward", "backward")
    ]
    assert all(call[1:] == ((3, 6, 8), [6, 4, 3]) for call in cells[1:])
    of_first = [call[0].rpartition(".")[2:] + call[1:] for call in seen if call[0].startswith("forward_layer_0.")]
    linears = ("input_linearity", 8), ("state_linearity", 8), ("state_projection", 14)
    assert of_first == [(name, (n, size)) for n in (3, 3, 3, 2, 1, 1) for name, size in linears]
    of_last = [call[1][0] for call in seen if call[0] == "backward_layer_1.input_linearity"]
    assert of_last == [1, 1, 2, 3, 3, 3]


class LowRank(nn.Module):
    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.down = nn.Linear(inner.in_features, 2, bias=False)
        self.up = nn.Linear(2, inner.out_features, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.inner(inputs) + self.up(self.down(inputs))
        return outputs


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("Elmo", "_elmo_lstm._elmo_lstm.forward_layer_0.state_projection"),
        ("Elmo", "_elmo_lstm._token_embedder._projection"),
        ("ElmoModule", "bilm.token_layer.projection"),
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
        assert weight.grad is not None
        assert weight.grad.abs().max() > 0
    assert adapter.inner.weight.grad is None


@pytest.mark.filterwarnings("ignore")  # of `torch.ao`
@named(["Elmo", "ElmoModule", "compat.bilm"])
def test_dynamic_quantization_works(name: str, files: tuple[str, str]) -> None:
    case = new_case(name, files)
    before = case()
    tagger = nn.ModuleDict({"elmo": case.module, "head": nn.Linear(3, 3)})
    quantized = torch.ao.quantization.quantize_dynamic(tagger, {nn.Linear})
    assert not isinstance(quantized["head"], nn.Linear)
    torch.testing.assert_close(case.call(quantized["elmo"]), before, rtol=0.1, atol=0.1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of `torch.func.jvp`
@named(["Elmo", "ElmoModule", "compat.bilm"])
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


# Settings, copies and dtypes


def test_a_changed_bound_or_activation_is_used(files: tuple[str, str]) -> None:
    for name, layers in (("Elmo", "_elmo_lstm._elmo_lstm"), ("ElmoModule", "bilm")):
        case = new_case(name, files)
        before = case()
        for layer in case.module.get_submodule(layers).modules():
            for bound in ("cell_clip", "memory_cell_clip_value"):
                if hasattr(layer, bound):
                    setattr(layer, bound, 0.01)
                    after = case()
                    assert not torch.allclose(after, before, atol=1e-4)
                    torch.testing.assert_close(after, case.fresh(), rtol=1e-5, atol=1e-5)
                    before = after
        encoder = case.module.get_submodule("bilm.token_layer" if layers == "bilm" else "_elmo_lstm._token_embedder")
        encoder.activation = "tanh" if encoder.activation == "relu" else "relu"  # type: ignore[assignment]
        assert not torch.allclose(case(), before, atol=1e-4)


@pytest.mark.parametrize("name", ["Elmo", "ElmoModule", "compat.bilm"])
def test_copies_and_other_dtypes_compute_the_same(name: str, files: tuple[str, str]) -> None:
    case = new_case(name, files)
    before = case()
    torch.testing.assert_close(case.call(pickle.loads(pickle.dumps(case.owner))), before)
    torch.testing.assert_close(case.fresh(), before)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        for convert, tolerance in ((nn.Module.double, 1e-5), (nn.Module.bfloat16, 0.3), (nn.Module.float, 0.3)):
            convert(case.module)
            torch.testing.assert_close(case().float(), before, rtol=0, atol=tolerance)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


# Tracing and compiling


REFUSALS: dict[str, Callable[[nn.Module, Tensor, Path], object]] = {
    "jit.trace": lambda module, ids, path: torch.jit.trace(module, (ids,), check_trace=False, strict=False),
    "onnx.export": lambda module, ids, path: torch.onnx.export(module, (ids,), path / "model.onnx", dynamo=False),
    "export": lambda module, ids, path: torch.export.export(module, (ids,), strict=False),
}


@pytest.mark.filterwarnings("ignore")  # of PyTorch's deprecated exporters
@pytest.mark.parametrize("how", ["jit.trace", "onnx.export", pytest.param("export", marks=pytest.mark.slow)])
@named(["Elmo", "ElmoModule", "compat.bilm"])
def test_traces_are_refused(name: str, how: str, files: tuple[str, str], tmp_path: Path) -> None:
    case = new_case(name, files)
    ids = BOUNDED_IDS if name in ("ElmoModule", "compat.bilm") else IDS
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
