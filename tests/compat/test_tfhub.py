from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from elmokit.compat import tfhub as hub
from elmokit.embedding.elmo import Elmo
from elmokit.engine.architecture import PRESETS
from elmokit.formats.save import save_model
from elmokit.pretrained.model import PretrainedBiLM
from tests.conftest import aligned_model, random_model

STRINGS = ["the cat sat on the mat", "dogs ran", ""]
SENTENCES = [string.split() for string in STRINGS]
MIX = {"weights": [0.5, -1.0, 2.0], "gamma": 1.5}
NAMES = ["word_emb", "lstm_outputs1", "lstm_outputs2", "elmo", "default", "sequence_len"]
PER_TOKEN = NAMES[:4]


def with_mix() -> PretrainedBiLM:
    model = random_model()
    return model.replace(card={"mix": MIX})


def outputs_of(module: hub.Module, *arguments: Any) -> dict[str, Tensor]:
    outputs = module(*arguments, as_dict=True)
    assert isinstance(outputs, dict)
    return outputs


def test_outputs_have_the_published_names_and_shapes(model: PretrainedBiLM) -> None:
    outputs = outputs_of(hub.Module(model), STRINGS, "default")
    assert list(outputs) == NAMES
    assert {name: tuple(output.shape) for name, output in outputs.items()} == {
        "word_emb": (3, 6, 32),
        "lstm_outputs1": (3, 6, 64),
        "lstm_outputs2": (3, 6, 64),
        "elmo": (3, 6, 64),
        "default": (3, 64),
        "sequence_len": (3,),
    }


def test_vectors_of_an_aligned_model_are_aligned() -> None:
    model = aligned_model()
    outputs = outputs_of(hub.Module(model), {"tokens": [["the", "", "cat"]], "sequence_len": [3]}, "tokens")
    (expected,) = Elmo(model, start="zero").embed([["the", "", "cat"]])
    for name, layer in zip(["word_emb", "lstm_outputs1", "lstm_outputs2"], expected, strict=True):
        np.testing.assert_allclose(outputs[name][0].numpy(), layer, atol=1e-5)


def test_layers_are_those_of_the_embedder_from_a_zero_state_and_zero_beyond_a_sentence(model: PretrainedBiLM) -> None:
    outputs = outputs_of(hub.Module(model), STRINGS)
    for row, layers in enumerate(Elmo(model, start="zero").embed(SENTENCES)):
        n_tokens = layers.shape[1]
        found = (torch.cat([outputs["word_emb"]] * 2, dim=-1), outputs["lstm_outputs1"], outputs["lstm_outputs2"])
        for layer, expected in zip(found, layers, strict=True):
            np.testing.assert_allclose(layer[row, :n_tokens].numpy(), expected, atol=1e-5)
            assert not layer[row, n_tokens:].any()
        assert not outputs["elmo"][row, n_tokens:].any()


def test_the_mix_is_the_one_that_the_module_brought() -> None:
    outputs = outputs_of(hub.Module(with_mix()), STRINGS)
    shares = 1.5 * torch.tensor(MIX["weights"]).softmax(0)
    layers = (torch.cat([outputs["word_emb"]] * 2, dim=-1), outputs["lstm_outputs1"], outputs["lstm_outputs2"])
    expected = sum(share * layer for share, layer in zip(shares, layers, strict=True))
    torch.testing.assert_close(outputs["elmo"], expected)
    for row, sentence in enumerate(SENTENCES[:2]):
        mean = outputs["elmo"][row, : len(sentence)].mean(dim=0)
        torch.testing.assert_close(outputs["default"][row], mean)
    assert not outputs["default"][2].any()
    assert outputs["sequence_len"].tolist() == [len(sentence) for sentence in SENTENCES]


@pytest.mark.parametrize("kind", ["lists", "arrays of bytes", "arrays of strings"])
def test_tokens_give_what_strings_give_in_the_width_of_the_matrix(model: PretrainedBiLM, kind: str) -> None:
    tokens: Any = [sentence + [""] * (8 - len(sentence)) for sentence in SENTENCES]
    lengths: Any = [len(sentence) for sentence in SENTENCES]
    if kind != "lists":
        tokens, lengths = np.array(tokens, dtype="S" if "bytes" in kind else object), np.array(lengths)
    outputs = outputs_of(hub.Module(model), {"tokens": tokens, "sequence_len": lengths}, "tokens")
    by_strings = outputs_of(hub.Module(model), STRINGS)
    assert outputs["elmo"].shape == (3, 8, 64)
    for name in PER_TOKEN:
        torch.testing.assert_close(outputs[name][:, :6], by_strings[name])
        assert not outputs[name][:, 6:].any()
    torch.testing.assert_close(outputs["default"], by_strings["default"])


def test_tensors_of_other_libraries_are_read_through_their_numpy_method(model: PretrainedBiLM) -> None:
    class Constant:  # as TensorFlow's eager tensors, which cannot be iterated as strings
        def __init__(self, values: Any) -> None:
            self.values = np.array(values)

        def numpy(self) -> Any:
            return self.values

    by_strings = hub.Module(model).signatures["default"](Constant([string.encode() for string in STRINGS]))
    torch.testing.assert_close(by_strings["elmo"], outputs_of(hub.Module(model), STRINGS)["elmo"])
    tokens = {"tokens": Constant([["the", "cat"], ["dogs", ""]]), "sequence_len": Constant([2, 1])}
    assert outputs_of(hub.Module(model), tokens, "tokens")["sequence_len"].tolist() == [2, 1]


def test_tokens_beyond_the_length_do_not_matter_and_an_empty_token_within_it_is_a_token(
    model: PretrainedBiLM,
) -> None:
    module = hub.Module(model)
    one = outputs_of(module, {"tokens": [["the", "cat", ""]], "sequence_len": [2]}, "tokens")
    other = outputs_of(module, {"tokens": [["the", "cat", "sat"]], "sequence_len": [2]}, "tokens")
    longer = outputs_of(module, {"tokens": [["the", "cat", ""]], "sequence_len": [3]}, "tokens")
    assert torch.equal(one["elmo"], other["elmo"])
    assert longer["word_emb"][0, 2].any()


def test_strings_are_cut_at_spaces_only(model: PretrainedBiLM) -> None:
    module = hub.Module(model)
    assert outputs_of(module, ["  the   cat "])["elmo"].shape[1] == 2
    assert outputs_of(module, ["the\tcat\u00a0sat"])["elmo"].shape[1] == 1


def test_signatures_are_functions_as_in_tensorflow_2(tmp_path: Any, model: PretrainedBiLM) -> None:
    save_model(model, tmp_path / "model")
    module = hub.load(tmp_path / "model")
    assert module.get_signature_names() == list(module.signatures) == ["default", "tokens"]
    expected = outputs_of(module, STRINGS)
    assert torch.equal(module.signatures["default"](STRINGS)["elmo"], expected["elmo"])
    tokens = module.signatures["tokens"](tokens=SENTENCES[:1], sequence_len=torch.tensor([6]))
    torch.testing.assert_close(tokens["default"][0], expected["default"][0])


@pytest.mark.parametrize(
    ("arguments", "learning"),
    [
        ({}, set()),
        ({"trainable": True}, {"mixes"}),
        ({"trainable_lstm": True}, {"directions"}),
        ({"trainable": True, "trainable_lstm": True}, {"mixes", "directions"}),
    ],
)
def test_only_what_is_trainable_gets_a_gradient(arguments: dict[str, bool], learning: set[str]) -> None:
    module = hub.Module(random_model(replace(PRESETS["tiny"], dropout=0.5)), **arguments).train()
    output = outputs_of(module, STRINGS)["elmo"]
    assert output.requires_grad == bool(learning)
    if learning:
        (output**2).sum().backward()
    got = {name for name, parameter in module.named_parameters() if parameter.grad is not None}
    expected = {name for name, _ in module.named_parameters() if any(f".{part}." in name for part in learning)}
    assert got == expected
    assert sum(p.numel() for n, p in module.named_parameters() if n in got and ".mixes." in n) in (0, 4)


@pytest.mark.parametrize("start", ["zero", "warm"])
def test_a_call_does_not_depend_on_the_calls_before(model: PretrainedBiLM, start: Any) -> None:
    module = hub.Module(model, start=start)
    first = outputs_of(module, STRINGS)
    outputs_of(module, ["something else"])
    second = outputs_of(module, STRINGS)
    assert all(torch.equal(first[name], second[name]) for name in NAMES)


def test_carried_state_is_that_of_the_embedder_and_can_be_forgotten() -> None:
    model = random_model(scale=1.0)  # larger weights would enlarge rounding from batch to batch
    module = hub.Module(model, start="stateful")
    batches = [["the cat", "dogs ran on", "mat"], ["sat on the mat"], ["the dog", "the mat"]]
    expected = Elmo(model, start="stateful")
    state = expected.zero_state(0)
    for batch in batches:
        sentences = [string.split() for string in batch]
        layers, after = expected.embed_batch(sentences, state.first_rows(len(batch)))
        state = state.with_first_rows(after)
        outputs = outputs_of(module, batch)
        for row, sentence in enumerate(sentences):
            found = outputs["lstm_outputs2"][row, : len(sentence)].numpy()
            np.testing.assert_allclose(found, layers[row][2], atol=1e-5)
    module.forget()
    zero = outputs_of(hub.Module(model), batches[0])
    torch.testing.assert_close(outputs_of(module, batches[0])["elmo"], zero["elmo"])


@pytest.mark.parametrize("trainable_lstm", [False, True])
def test_outputs_have_numpy_values_and_gradients_while_the_mix_is_trained(
    model: PretrainedBiLM, trainable_lstm: bool
) -> None:
    module = hub.Module(model, trainable=True, trainable_lstm=trainable_lstm)
    frozen = outputs_of(hub.Module(model), STRINGS)
    for name, output in outputs_of(module, STRINGS).items():
        np.testing.assert_allclose(output.numpy(), frozen[name].numpy(), atol=1e-5)
        np.testing.assert_array_equal(np.asarray(output), output.numpy())
    tokens = {"tokens": [["the"]], "sequence_len": [1]}
    default = module(tokens, "tokens")
    assert isinstance(default, Tensor)
    assert (2 * default).numpy().shape == (1, 64)
    default.square().sum().backward()
    assert module.mix.weight.grad is not None
    assert type(module.mix.weight.grad) is Tensor
