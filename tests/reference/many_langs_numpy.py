"""ELMoForManyLangs by its formulas, one sentence, one token, one step at a time, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference.bilm_numpy import sigmoid

Array = NDArray[np.float64]
Tensors = dict[str, Array]


def read_dic(text: str) -> dict[str, int]:
    """Strip, then split; a line that is left with its number alone stands for U+3000."""
    rows = {}
    for line in text.split("\n"):
        fields = line.strip().split("\t")
        if fields != [""]:
            token, row = fields if len(fields) == 2 else ("\u3000", fields[0])
            rows[token] = int(row)
    return rows


def char_row(token: str, chars: dict[str, int], max_chars: int) -> list[int]:
    """The slot before a token holds what is called its end, and the slot after it what is called its begin."""
    whole = token in ("<bos>", "<eos>")
    inner = [chars[token]] if whole else [chars.get(char, chars["<oov>"]) for char in token]
    row = [chars["<eow>"], *inner, chars["<bow>"]]
    return row + [chars["<pad>"]] * (max_chars - len(row))


def token_vector(
    token: str, settings: dict[str, Any], words: dict[str, int], chars: dict[str, int], tensors: Tensors
) -> Array:
    """Word vector, then the char CNN's features after its highways; a projection over both."""
    spec = settings["token_embedder"]
    features = []
    if spec["word_dim"]:
        features.append(tensors["word_emb_layer.embedding.weight"][words.get(token, words["<oov>"])])
    if spec["char_dim"]:
        row = char_row(token, chars, spec["max_characters_per_token"])
        embedded = tensors["char_emb_layer.embedding.weight"][row]  # (chars, char_dim)
        convolutions = [layer(tensors, f"convolutions.{k}") for k in range(len(spec["filters"]))]
        highways = [layer(tensors, f"highways._layers.{k}") for k in range(spec["n_highway"])]
        features.append(char_features(embedded, convolutions, spec["activation"], highways))
    return tensors["projection.weight"] @ np.concatenate(features) + tensors["projection.bias"]


def layer(tensors: Tensors, name: str) -> tuple[Array, Array]:
    return tensors[f"{name}.weight"], tensors[f"{name}.bias"]


def char_features(embedded: Array, convolutions: list[Any], activation: str, highways: list[Any]) -> Array:
    """The features of a token whose characters have the vectors ``(chars, dim)``, after its highways."""
    pooled = []
    for weight, bias in convolutions:
        width = weight.shape[2]
        responses = [
            np.einsum("odw,wd->o", weight, embedded[start : start + width]) + bias
            for start in range(len(embedded) - width + 1)
        ]
        highest = np.max(responses, axis=0)
        pooled.append(np.maximum(highest, 0) if activation == "relu" else np.tanh(highest))
    x = np.concatenate(pooled)
    for weight, bias in highways:
        both = weight @ x + bias
        transformed, gate = np.maximum(both[: len(x)], 0), sigmoid(both[len(x) :])
        x = gate * x + (1 - gate) * transformed
    return x


def read_direction(inputs: list[Array], name: str, settings: dict[str, Any], tensors: Tensors) -> list[list[Array]]:
    """The outputs of each layer, in the order of ``inputs``; gates lie in the order i, f, g, o."""
    spec = settings["encoder"]
    layers = []
    for k in range(spec["n_layers"]):
        place = f"{name}_layer_{k}"
        h, c = np.zeros(spec["projection_dim"]), np.zeros(spec["dim"])
        outputs = []
        for x in inputs:
            sums = tensors[f"{place}.input_linearity.weight"] @ x
            sums = sums + tensors[f"{place}.state_linearity.weight"] @ h + tensors[f"{place}.state_linearity.bias"]
            i, f, g, o = np.split(sums, 4)
            c = sigmoid(i) * np.tanh(g) + sigmoid(f) * c
            if spec["cell_clip"]:
                c = np.clip(c, -spec["cell_clip"], spec["cell_clip"])
            h = tensors[f"{place}.state_projection.weight"] @ (sigmoid(o) * np.tanh(c))
            if spec["proj_clip"]:
                h = np.clip(h, -spec["proj_clip"], spec["proj_clip"])
            outputs.append(h if k == 0 else h + x)
        layers.append(outputs)
        inputs = outputs
    return layers


def sentence_layers(
    sentence: list[str],
    settings: dict[str, Any],
    words: dict[str, int],
    chars: dict[str, int],
    token_embedder: Tensors,
    encoder: Tensors,
) -> Array:
    """``(layers, tokens, 2 * projection_dim)`` of a sentence that is read from the zero state, boundaries off."""
    cut = [token[: settings["token_embedder"]["max_characters_per_token"] - 2] for token in sentence]
    vectors = [token_vector(token, settings, words, chars, token_embedder) for token in ("<bos>", *cut, "<eos>")]
    forward = read_direction(vectors, "forward", settings, encoder)
    return without_boundaries(vectors, forward, read_direction(vectors[::-1], "backward", settings, encoder))


def without_boundaries(vectors: list[Array], forward: list[list[Array]], backward: list[list[Array]]) -> Array:
    """All layers of a sentence, of what each direction returned in its own order."""
    layers = [[np.concatenate([v, v]) for v in vectors]]
    for ahead, back in zip(forward, backward, strict=True):
        layers.append([np.concatenate(pair) for pair in zip(ahead, back[::-1], strict=True)])
    return np.array(layers)[:, 1:-1]
