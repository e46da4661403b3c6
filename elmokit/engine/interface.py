"""The interface of a network without gradients, and code shared by its implementations.

There are two: :class:`~elmokit.engine.engine.Engine` calls C functions, and
:class:`~elmokit.engine.reference.ReferenceEngine` computes the plain formulas in NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.architecture import BiLMConfig, tensor_shapes
from elmokit.engine.library import WRONG_SIZES, check_array
from elmokit.engine.precision import Computation
from elmokit.engine.state import Floats, Ids, State


class NetworkInput(NamedTuple):
    """A batch of sentences."""

    vectors: Floats
    """The token vectors of the batch, ``(words, projection_dim)``."""
    words: Ids
    """The row of ``vectors`` for each position, all sentences concatenated."""
    lengths: Ids
    """The number of positions of each sentence, including boundaries."""
    start: State
    """The initial state, with one row per sentence or one row for all."""


class Network(Protocol):
    """A biLM for inference.

    The LSTM state is an argument and a result; the network stores none. Several threads can use it simultaneously.
    """

    @property
    def config(self) -> BiLMConfig:
        """The architecture."""

    @property
    def n_bytes(self) -> int:
        """The size of the weights in memory, in bytes."""

    @property
    def token_layer_version(self) -> object:
        """An object that stays the same as long as the token layer computes the same vectors."""

    def computation(self) -> Computation:
        """Describe how the layers are computed, to find out whether stored vectors are comparable."""

    def token_vectors(self, ids: Ids) -> Floats:
        """Compute the context-free vectors of tokens.

        Args:
            ids: Char ids ``(tokens, chars)``; a word id and char ids ``(tokens, 1 + chars)`` for a model with word
                features; or word ids ``(tokens,)`` for a word-input model. 0 means "no token".

        Returns:
            ``(tokens, projection_dim)``

        Raises:
            ValueError: An id is not a row of its table, or the number of ids per token is wrong.
        """

    def layers(
        self, inputs: NetworkInput, wanted: Sequence[int], *, n_edges: int = 0, returns_state: bool = False
    ) -> tuple[list[Floats], State | None]:
        """Compute the layers of a batch of sentences.

        Args:
            inputs: The sentences.
            wanted: The layers to return, in this order.
            n_edges: Number of positions to omit at each end of each sentence.
            returns_state: Return the state after each sentence.

        Returns:
            A separate array per sentence, ``(wanted layers, positions, output_dim)``; and the state, or None.

        Raises:
            ValueError: An argument does not fit the others or the model.
        """

    def direction(self, number: int, inputs: NetworkInput, wanted: Sequence[int]) -> tuple[list[Floats], State]:
        """Compute the layers of a batch in one direction, for scores, documents and long sentences.

        Args:
            number: The direction.
            inputs, wanted: As in :meth:`layers`. If no layers are wanted, only the state is computed.

        Returns:
            A separate array per sentence, ``(wanted layers, positions, projection_dim)``; and the state after each
            sentence. The state of the other direction is arbitrary.

        Raises:
            ValueError: An argument does not fit the others or the model.
        """


def read_weights(
    config: BiLMConfig,
    arrays: Mapping[str, Floats],  # named as in `tensor_shapes`
    prefix: str,  # the prefix of the part's names
    dtype: Any,  # the dtype to return; arrays that already have it are not copied
    *,
    without: str | tuple[str, ...] = (),  # skip names that start with this, or one of these, after the prefix
) -> dict[str, NDArray[Any]]:
    """Read the weights of a part of a model, each once, named without the prefix."""
    shapes = {name.removeprefix(prefix): s for name, s in tensor_shapes(config).items() if name.startswith(prefix)}
    # AllenNLP's layers have a projection even if the sizes are equal.
    dim = config.projection_dim
    if prefix.startswith("directions.") and "projection" not in shapes and f"{prefix}projection" in arrays:
        shapes["projection"] = (dim, config.hidden_dim)
    elif prefix == "token_layer." and "projection.weight" not in shapes and f"{prefix}projection.weight" in arrays:
        shapes |= {"projection.weight": (dim, dim), "projection.bias": (dim,)}
    weights = {}
    for name, shape in shapes.items():
        if not name.startswith(without):
            weights[name] = np.ascontiguousarray(arrays[prefix + name], dtype)
            check_array(prefix + name, weights[name], dtype, shape)
    return weights


def check_batch(
    config: BiLMConfig, dtype: Any, inputs: NetworkInput, lengths: Sequence[int], wanted: Sequence[int]
) -> None:
    """Check the arguments of :meth:`Network.layers`, because invalid indices would read the wrong memory or row."""
    if not _are_in_range(config, inputs, lengths, wanted):
        raise ValueError("The words, lengths, start state or wanted layers of the batch do not match the model.")
    vectors, words, _, start = inputs
    check_array("vectors", vectors, dtype, (-1, config.projection_dim))
    check_array("words", words, np.int64, (-1,))
    rows = (config.n_directions, config.n_layers, start.n_rows)
    check_array("hidden", np.ascontiguousarray(start.hidden), dtype, (*rows, config.projection_dim))
    check_array("cell", np.ascontiguousarray(start.cell), dtype, (*rows, config.hidden_dim))


def _are_in_range(config: BiLMConfig, inputs: NetworkInput, lengths: Sequence[int], wanted: Sequence[int]) -> bool:
    """Check the rows, lengths and layers of a batch."""
    vectors, words, _, start = inputs
    if len(words) and (words.min() < 0 or words.max() >= len(vectors)):
        return False
    if min(lengths, default=0) < 0:
        return False
    if sum(lengths) != len(words) or start.n_rows not in (1, len(lengths)):
        return False
    distinct = set(wanted)
    return len(distinct) == len(wanted) and distinct.issubset(range(config.n_layers + 1))


def check_direction(config: BiLMConfig, number: int) -> None:
    """Check that the model has this direction."""
    if not 0 <= number < config.n_directions:
        raise ValueError(f"The model has no direction {number}.")


def token_rows(config: BiLMConfig, ids: Ids) -> Ids:
    """Return a model's token ids as ``(tokens, ids per token)``."""
    rows = as_rows(ids)
    if rows.shape[1] != (config.ids_per_token or rows.shape[1]):
        raise ValueError(WRONG_SIZES)
    return rows


def as_rows(ids: Ids) -> Ids:
    """Return token ids as ``(tokens, ids per token)``; word ids ``(tokens,)`` get a second axis."""
    ids = np.ascontiguousarray(ids, np.int64)
    rows = ids[:, None] if ids.ndim == 1 else ids
    check_array("ids", rows, np.int64, (-1, -1))
    return rows
