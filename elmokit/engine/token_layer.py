"""The token layer in C: maps a token's characters, its word id or both to a context-free vector."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from elmokit.engine.architecture import BiLMConfig, CharCNNConfig
from elmokit.engine.interface import as_rows, read_weights
from elmokit.engine.library import Library, address, check, open_packed, pointers
from elmokit.engine.precision import Precision
from elmokit.engine.state import Floats, Ids, IntegerRows, StoredArrays

WORD_FEATURES = "word_embedding.weight"  # in the token layer: the word table of a model that also reads characters


class TokenLayer:
    """A packed token layer, which maps a token's characters, its word id or both to a context-free vector."""

    def __init__(
        self,
        config: BiLMConfig,
        arrays: Mapping[str, Floats],  # in float32, named as in `tensor_shapes`; each is accessed once
        precision: Precision,  # the lowest allowed precision of the weights
        library: Library,
    ) -> None:
        self.config, self._library = config, library
        highways = f"{_chars_prefix(config)}highways."
        self._handle = self._open(arrays, highways, precision)
        for number in range(0 if config.char_cnn is None else config.char_cnn.n_highway):
            self._pack_highway(arrays, number, f"token_layer.{highways}{number}.")

    def _open(self, arrays: Mapping[str, Floats], highways: str, precision: Precision) -> int | None:
        table = None
        if self.config.word_features is not None and isinstance(arrays, StoredArrays):
            table = arrays.integers(f"token_layer.{WORD_FEATURES}")
        without = (highways, WORD_FEATURES) if table else (highways,)
        weights = read_weights(self.config, arrays, "token_layer.", np.float32, without=without)
        fields = _TokenFields(self.config, weights, table)
        struct = self._library.structs["token_weights"](**fields.values)
        return open_packed(self, self._library, "tokens", struct, precision)

    def _pack_highway(self, arrays: Mapping[str, Floats], number: int, prefix: str) -> None:
        weights = read_weights(self.config, arrays, prefix, np.float32)
        parts = pointers(weights, ("transform.weight", "transform.bias", "gate.weight", "gate.bias"))
        check(self._library, self._library.pack_highway(self._handle, number, *parts))

    @property
    def n_bytes(self) -> int:
        """The size of the packed weights, in bytes."""
        return int(self._library.tokens_bytes(self._handle))

    def __call__(self, ids: Ids, threads: int = 1) -> Floats:
        """Compute context-free token vectors; see :meth:`~elmokit.engine.interface.Network.token_vectors`."""
        rows = as_rows(ids)
        vectors = np.empty((len(rows), self.config.projection_dim), np.float32)
        library = self._library
        reason = library.token_vectors(
            *(self._handle, threads, *rows.shape),
            *(address("ids", rows, np.int64), address("vectors", vectors, np.float32)),
        )
        check(library, reason)
        return vectors


def _chars_prefix(config: BiLMConfig) -> str:
    """Return the prefix of the char CNN's tensors within the token layer."""
    return "" if config.word_features is None else "chars."


class _TokenFields:
    """The fields of ``elmokit_token_weights``, and the arrays of sizes and pointers that they point to."""

    def __init__(
        self,
        config: BiLMConfig,
        weights: Mapping[str, Floats],
        integers: IntegerRows | None,  # the word table with its scales, if it is not among the weights
    ) -> None:
        self.values: dict[str, Any] = {"output_dim": config.projection_dim}
        self._weights, self._integers = weights, integers
        words, cnn = config.word_features, config.char_cnn
        if config.n_words is not None:
            self._add_words("embedding.weight", config.n_words, config.projection_dim)
        if words is not None:
            self._add_words(WORD_FEATURES, words.n_words, words.word_dim)
        if cnn is not None:
            self._add_characters(cnn, _chars_prefix(config))
        self.values["projection"] = self._pointer("projection.weight")
        self.values["projection_bias"] = self._pointer("projection.bias")

    def _pointer(self, name: str) -> int | None:
        return pointers(self._weights, [name])[0]

    def _add_words(self, name: str, n_words: int, dim: int) -> None:
        self.values |= {"n_words": n_words + 1, "word_dim": dim, "words": self._pointer(name)}
        if self._integers is not None:
            table, scales = self._integers
            self.values |= {
                "word_integers": address("word_integers", table, np.int8, (n_words + 1, dim)),
                "word_scales": address("word_scales", scales, np.float32, (n_words + 1,)),
            }

    def _add_characters(self, cnn: CharCNNConfig, prefix: str) -> None:
        convolutions = [f"{prefix}convolutions.{number}." for number in range(len(cnn.filters))]
        self.widths, self.n_filters = np.array(cnn.filters).T.copy()
        self.arrays = [
            _pointer_array(pointers(self._weights, [f"{name}{part}" for name in convolutions]))
            for part in ("weight", "bias")
        ]
        self.values |= {
            "n_characters": cnn.n_chars + 1,
            "character_dim": cnn.char_dim,
            "characters": self._pointer(f"{prefix}char_embedding.weight"),
            "n_convolutions": len(convolutions),
            "widths": address("widths", self.widths, np.int64),
            "n_filters": address("n_filters", self.n_filters, np.int64),
            "filters": ctypes.addressof(self.arrays[0]),
            "filter_biases": ctypes.addressof(self.arrays[1]),
            "uses_tanh": cnn.activation == "tanh",
            "n_highways": cnn.n_highway,
        }


def _pointer_array(listed: list[int | None]) -> ctypes.Array[Any]:
    return (ctypes.c_void_p * len(listed))(*listed)
