"""Hooks, replaced modules and edited weights of every kind of token layer, and of a softmax with an inner layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from elmokit.engine.architecture import BiLMConfig, CharCNNConfig, WordFeaturesConfig
from elmokit.network.bilm import BiLM

CNN = CharCNNConfig(((1, 4), (2, 8)), char_dim=3, n_highway=1, max_chars=6, n_chars=20)
CONFIGS = {
    "characters": BiLMConfig(CNN, projection_dim=8, hidden_dim=14),
    "words": BiLMConfig(None, n_words=20, projection_dim=8, hidden_dim=14),
    "both": BiLMConfig(CNN, word_features=WordFeaturesConfig(20, 5), projection_dim=8, hidden_dim=14),
    "one direction": BiLMConfig(CNN, projection_dim=8, hidden_dim=8, bidirectional=False),
}


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


class Call:
    """A biLM with random weights and ids."""

    def __init__(self, name: str) -> None:
        self.bilm = BiLM(CONFIGS[name]).eval()
        torch.manual_seed(0)
        for weight in self.bilm.parameters():
            weight.uniform_(-0.6, 0.6)
        width = {"characters": (7,), "words": (), "both": (7,), "one direction": (6,)}[name]
        self.ids = torch.randint(1, 20, (2, 5, *width))
        self.ids[1, 3:] = 0

    def __call__(self) -> Tensor:
        layers: Tensor = self.bilm(self.ids, self.bilm.mask_of(self.ids), self.bilm.zero_state(2)).layers
        return layers


@pytest.mark.parametrize("name", CONFIGS)
def test_an_edited_weight_is_seen(name: str) -> None:
    call = Call(name)
    before, n_effects, weights = call(), 0, list(call.bilm.parameters())
    for weight in weights:
        weight.data[..., -1] += 0.3
        after = call()
        torch.testing.assert_close(after, copy.deepcopy(call)(), rtol=1e-5, atol=1e-6)
        n_effects += not torch.equal(after, before)
        before = after
    assert n_effects >= len(weights) - 2  # one filter may never win


@pytest.mark.parametrize("name", CONFIGS)
def test_a_hook_of_every_module_is_called_and_changes_the_result(name: str) -> None:
    call = Call(name)
    before = call()
    version = call.bilm.token_layer_version()
    assert call.bilm.token_layer_version() is version
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
        is_module_of_tokens = path.startswith("token_layer")
        assert torch.allclose(after, before, rtol=1e-5, atol=1e-6) != (is_module_of_tokens or "dropout" in path), path
        if is_module_of_tokens:  # vectors that a cache keeps would not see the hook
            assert call.bilm.token_layer_version() is not call.bilm.token_layer_version()
        handle.remove()
        assert torch.equal(call(), before)


SETTINGS: dict[str, Callable[[nn.Module], object]] = {
    "token_layer.char_embedding": lambda table: setattr(table, "max_norm", 0.5),
    "token_layer.convolutions.1": lambda layer: setattr(layer, "stride", (2,)),
    "directions.0.layers.1": lambda layer: setattr(layer, "cell_clip", 0.01),
    "directions.1.layers.0": lambda layer: setattr(layer, "projection_clip", 0.01),
    "directions.1": lambda stack: setattr(stack, "skip_connections", False),
}


@pytest.mark.parametrize("path", SETTINGS)
def test_a_changed_setting_is_used(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call("characters")
    before = call()
    SETTINGS[path](call.bilm.get_submodule(path))
    after = call()
    assert not torch.allclose(after, before, atol=1e-4)
    monkeypatch.setenv("ELMOKIT_BACKEND", "reference")
    torch.testing.assert_close(copy.deepcopy(call)(), after, rtol=1e-5, atol=1e-6)


def test_a_direction_that_was_replaced_is_used() -> None:
    call, expected = Call("characters"), Call("characters")
    for weight in expected.bilm.directions[0].parameters():
        weight.mul_(1.5)
    call()
    call.bilm.directions[0] = copy.deepcopy(expected.bilm.directions[0])
    call.bilm.directions[0].register_forward_hook(lambda *_: None)
    torch.testing.assert_close(call(), expected(), rtol=1e-5, atol=1e-6)
    vectors, states = call.bilm.token_vectors(call.ids), call.bilm.zero_state(2)
    for direction in (0, 1):
        found, _ = call.bilm.run_direction(direction, vectors, states.of_direction(direction))
        wanted, _ = expected.bilm.run_direction(direction, vectors, states.of_direction(direction))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
