"""Tokens to vectors: ids, words, characters, mixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmokit.errors import ConfigError
from elmokit.tasks.inputs import BYTES, ElmoLayers, ElmoShape, InputLayer, Inputs, Texts, Vocabularies, WordTable
from elmokit.tasks.task_config import CharsConfig, ElmoConfig, MixConfig, WordsConfig

SENTENCES = [["The", "cat", "ran"], [], ["cat"]]


def fake_layers(sentences: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(3, len(sentence), 4)).astype(np.float16) for sentence in sentences]


class FakeLayers(ElmoLayers):
    def of_texts(self, texts: Texts) -> list[list[NDArray[Any]]]:
        return [fake_layers(sentences) for sentences in texts]


def made_inputs(with_elmo: bool = True) -> Inputs:
    tables = {"words": WordTable(["the", "cat"], 5, True), "heads": WordTable(["cat"], 2, False)}
    return Inputs(Vocabularies(tables, list("Tcahen"), 3), FakeLayers(ElmoShape(3, 4)) if with_elmo else None)


def made_layer(inputs: Inputs, elmo: ElmoConfig | None = None, **starts: Tensor) -> InputLayer:
    words = {"words": WordsConfig(dim=5), "heads": WordsConfig(dim=2)}
    return InputLayer(inputs, words, CharsConfig(dim=3, filters=((2, 6),)), elmo, starts)


def test_ids_are_padded_and_unknown_words_are_one() -> None:
    batch = made_inputs().batch(SENTENCES)
    assert batch.words["words"].tolist() == [[2, 3, 1], [0, 0, 0], [3, 0, 0]]
    assert batch.words["heads"].tolist() == [[1, 2, 1], [0, 0, 0], [2, 0, 0]]
    assert batch.mask.tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    assert batch.chars.tolist() == [[2, 5, 6], [3, 4, 1], [1, 4, 7]]  # The, cat, ran, cut at three
    assert batch.char_index.tolist() == [[0, 1, 2], [0, 0, 0], [1, 0, 0]]
    assert batch.layers.shape == (3, 3, 3, 4)
    assert not batch.layers[:, 1].any()
    np.testing.assert_array_equal(batch.layers[:, 0].numpy(), fake_layers(SENTENCES)[0].astype(np.float32))


def test_the_parts_stand_side_by_side_and_sizes_are_derived() -> None:
    inputs = made_inputs()
    layer = made_layer(inputs, ElmoConfig())
    assert layer.output_dim == 5 + 6 + 4
    assert layer.elmo_output_dim == 0
    batch = inputs.batch(SENTENCES)
    vectors = layer(batch)
    assert vectors.shape == (3, 3, 15)
    assert not vectors[~batch.mask].any()
    torch.testing.assert_close(vectors[..., :5], layer.word_vectors(batch))
    torch.testing.assert_close(vectors[..., 5:11], layer.char_features(batch))
    torch.testing.assert_close(vectors[..., 11:], batch.layers.mean(0))
    assert layer.word_vectors(batch, "heads").shape == (3, 3, 2)
    assert made_layer(made_inputs(with_elmo=False)).output_dim == 11


def test_the_output_mix_is_appended_above() -> None:
    inputs = made_inputs()
    layer = made_layer(inputs, ElmoConfig(input=None, output=MixConfig(dropout=0.5)))
    batch, hidden = inputs.batch(SENTENCES), torch.randn(3, 3, 2)
    assert (layer.output_dim, layer.elmo_output_dim) == (11, 4)
    assert layer.at_output(hidden, batch).shape == (3, 3, 6)
    dropped = layer.at_output(hidden, batch)[..., 2:]
    assert (dropped[0] == 0).any()
    layer.eval()
    torch.testing.assert_close(layer.at_output(hidden, batch)[..., 2:], batch.layers.mean(0))
    assert made_layer(inputs).at_output(hidden, batch) is hidden


def test_the_penalty_is_lambda_times_the_raw_weights_squares() -> None:
    layer = made_layer(made_inputs(), ElmoConfig(input=MixConfig(penalty=0.1), output=MixConfig(penalty=2.0)))
    with torch.no_grad():
        layer.mixes["input"].weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
        layer.mixes["output"].weight.copy_(torch.tensor([1.0, 0.0, 0.0]))
        layer.mixes["input"].gamma.fill_(7.0)
    penalty = layer.penalty()
    torch.testing.assert_close(penalty, torch.tensor(0.1 * 14 + 2.0))
    weights = layer.mix_weights()["input"]
    torch.testing.assert_close(torch.tensor(weights["weights"]), torch.tensor([1.0, 2.0, 3.0]).softmax(0))
    assert (weights["gamma"], weights["layers"]) == (7.0, [0, 1, 2])
    assert made_layer(made_inputs()).penalty() == 0


@pytest.mark.parametrize(
    ("layers", "expected"), [("top", [2]), ("average", [0, 1, 2]), ((0, 1), [0, 1]), ("all", [0, 1, 2])]
)
def test_top_only_average_and_chosen_layers(layers: Any, expected: list[int]) -> None:
    inputs = made_inputs()
    layer = made_layer(inputs, ElmoConfig(input=MixConfig(layers=layers, penalty=0.1)))
    batch = inputs.batch(SENTENCES)
    torch.testing.assert_close(layer.elmo_mix(batch, "input"), batch.layers[expected].mean(0))
    learned = {name for name, weight in layer.mixes.named_parameters() if weight.requires_grad}
    with_weights = layers in ("all", (0, 1))
    assert learned == ({"input.weight", "input.gamma"} if with_weights else {"input.gamma"})


def test_a_layer_that_the_model_has_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="layers 0 to 2"):
        made_layer(made_inputs(), ElmoConfig(input=MixConfig(layers=(0, 3))))


def test_given_vectors_are_the_start_and_may_stay_as_they_are() -> None:
    start = torch.arange(20.0).view(4, 5)
    inputs = made_inputs(with_elmo=False)
    layer = InputLayer(inputs, {"words": WordsConfig(vectors="f", train=False)}, None, None, {"words": start})
    weight = layer.words["words"].weight
    torch.testing.assert_close(weight, start)
    assert not weight.requires_grad
    scratch = InputLayer(inputs, {"words": WordsConfig(dim=5, train=False)}, None, None)
    assert scratch.words["words"].weight.requires_grad  # without a file there is nothing worth keeping


def test_words_can_be_spelled_in_bytes() -> None:
    """The rows are those of AllenNLP's character tokenizer: byte + 1, and 259 and 260 around the word."""
    marked = Inputs(Vocabularies({}, BYTES, spelling="marked bytes")).batch([["a\u00e9"]])
    assert marked.chars.tolist() == [[259, ord("a") + 1, 0xC3 + 1, 0xA9 + 1, 260]]
    plain = Inputs(Vocabularies({}, BYTES, spelling="bytes")).batch([["a"]])
    assert plain.chars.tolist() == [[ord("a") + 1]]


def test_the_layers_of_several_texts_are_computed_together() -> None:
    class NumberedTexts(ElmoLayers):
        def of_texts(self, texts: Texts) -> list[list[NDArray[Any]]]:
            return [[np.full((1, len(one), 2), number) for one in text] for number, text in enumerate(texts)]

    inputs = Inputs(Vocabularies({}), NumberedTexts(ElmoShape(1, 2)))
    first, second = inputs.batches([["a"]], [["b", "c"]])
    assert (first.layers == 0).all()
    assert second.layers.tolist() == [[[[1.0, 1.0], [1.0, 1.0]]]]
