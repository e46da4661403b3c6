"""fastNLP's ELMo by its formulas, one sentence, one token, one step at a time, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference.many_langs_numpy import char_features, layer, read_direction, without_boundaries

Array = NDArray[np.float64]
Tensors = dict[str, Array]


def char_row(token: str, chars: dict[str, int], max_chars: int) -> list[int]:
    """``<bow>``, the characters (or one sentence mark), ``<eow>``, padding; ``<oov>`` for what is not listed."""
    whole = token in ("<bos>", "<eos>")
    inner = [token] if whole else list(token[: max_chars - 2])
    row = [chars.get(char, chars["<oov>"]) for char in ["<bow>", *inner, "<eow>"]]
    return row + [chars["<pad>"]] * (max_chars - len(row))


def token_vector(token: str, config: dict[str, Any], chars: dict[str, int], tensors: Tensors) -> Array:
    spec = config["char_cnn"]
    row = char_row(token, chars, spec["max_characters_per_token"])
    embedded = tensors["char_emb_layer.weight"][row]  # (chars, dim)
    convolutions = [layer(tensors, f"char_conv_{k}") for k in range(len(spec["filters"]))]
    highways = [layer(tensors, f"_highways._layers.{k}") for k in range(spec["n_highway"])]
    x = char_features(embedded, convolutions, spec["activation"], highways)
    return tensors["_projection.weight"] @ x + tensors["_projection.bias"]


def sentence_layers(
    sentence: list[str], config: dict[str, Any], chars: dict[str, int], char_cnn: Tensors, lstm: Tensors
) -> Array:
    """``(layers, tokens, 2 * projection_dim)`` of a sentence that is read from the zero state, boundaries off."""
    vectors = [token_vector(token, config, chars, char_cnn) for token in ("<bos>", *sentence, "<eos>")]
    settings = {"encoder": config["lstm"]}
    forward = read_direction(vectors, "forward", settings, lstm)
    return without_boundaries(vectors, forward, read_direction(vectors[::-1], "backward", settings, lstm))
