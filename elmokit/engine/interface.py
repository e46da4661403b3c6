"""The interface of a network without gradients, and what all of its implementations share.

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
    """Sentences that a network reads together."""

    vectors: Floats
    """The token vectors of the batch, ``(words, projection_dim)``."""
    words: Ids
    """For each position of each sentence, a row of ``vectors``: all sentences one after the other."""
    lengths: Ids
    """The number of positions of each sentence, boundaries included."""
    start: State
    """The state before the first position, of one row for each sentence or of one row for all."""


class Network(Protocol):
    """A biLM that is ready to compute.

    It has no state: the LSTM state goes in and comes out. Several threads may use one network at the same time.
    """

    @property
    def config(self) -> BiLMConfig:
        """The architecture."""

    @property
    def n_bytes(self) -> int:
        """The memory that the weights take."""

    @property
    def token_layer_version(self) -> object:
        """An object that stays the same for as long as the token layer computes the same vectors."""

    def computation(self) -> Computation:
        """Describe what computes the layers, to compare with what computed others."""

    def token_vectors(self, ids: Ids) -> Floats:
        """Compute the context-free vectors of tokens.

        Args:
            ids: Char ids ``(tokens, chars)``; a word id and char ids ``(tokens, 1 + chars)`` for a model with word
                features; or word ids ``(tokens,)`` for a word-input model. 0 means "no token".

        Returns:
            ``(tokens, projection_dim)``

        Raises:
            ValueError: An id is not a row of its table, or there are too many or too few for a token.
        """

    def layers(
        self, inputs: NetworkInput, wanted: Sequence[int], *, n_edges: int = 0, returns_state: bool = False
    ) -> tuple[list[Floats], State | None]:
        """Compute the layers of some sentences.

        Args:
            inputs: The sentences.
            wanted: The layers to return, in this order.
            n_edges: Positions at both ends of each sentence that are not returned.
            returns_state: Return the state after each sentence.

        Returns:
            For each sentence an array of its own, ``(wanted layers, positions, output_dim)``; and the state, or None.

        Raises:
            ValueError: An argument does not fit the others or the model.
        """

    def direction(self, number: int, inputs: NetworkInput, wanted: Sequence[int]) -> tuple[list[Floats], State]:
        """Compute the layers of some sentences in one direction, for scores, documents and long sentences.

        Args:
            number: The direction.
            inputs, wanted: As in :meth:`layers`. Without wanted layers, only the state is computed.

        Returns:
            For each sentence an array of its own, ``(wanted layers, positions, projection_dim)``; and the state after
            each sentence, whose other direction is arbitrary.

        Raises:
            ValueError: An argument does not fit the others or the model.
        """


def read_weights(
    config: BiLMConfig,
    arrays: Mapping[str, Floats],  # by the names of `tensor_shapes`
    prefix: str,  # what the names of the part begin with
    dtype: Any,  # to convert them to; those that have it are not copied
    *,
    without: str | tuple[str, ...] = (),  # leave out names that begin with this, or one of these, after the prefix
) -> dict[str, NDArray[Any]]:
    """Read the weights of a part of a model, each once, by their names without the prefix."""
    shapes = {name.removeprefix(prefix): s for name, s in tensor_shapes(config).items() if name.startswith(prefix)}
    # AllenNLP's layers have a projection even where the sizes are equal.
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
    """Check the arguments of :meth:`Network.layers`: C would read foreign memory, and NumPy count from the end."""
    if not _are_in_range(config, inputs, lengths, wanted):
        raise ValueError("The words, lengths, start state or wanted layers of the batch do not fit the model.")
    vectors, words, _, start = inputs
    check_array("vectors", vectors, dtype, (-1, config.projection_dim))
    check_array("words", words, np.int64, (-1,))
    rows = (config.n_directions, config.n_layers, start.n_rows)
    check_array("hidden", np.ascontiguousarray(start.hidden), dtype, (*rows, config.projection_dim))
    check_array("cell", np.ascontiguousarray(start.cell), dtype, (*rows, config.hidden_dim))


def _are_in_range(config: BiLMConfig, inputs: NetworkInput, lengths: Sequence[int], wanted: Sequence[int]) -> bool:
    """Check the numbers of a batch: rows, lengths and layers."""
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
    """Check that the model has a direction of this number."""
    if not 0 <= number < config.n_directions:
        raise ValueError(f"The model has no direction {number}.")


def token_rows(config: BiLMConfig, ids: Ids) -> Ids:
    """Return the ids of a model's tokens as ``(tokens, ids of a token)``."""
    rows = as_rows(ids)
    if rows.shape[1] != (config.ids_per_token or rows.shape[1]):
        raise ValueError(WRONG_SIZES)
    return rows


def as_rows(ids: Ids) -> Ids:
    """Return the ids of tokens as ``(tokens, ids of a token)``, also those of words, which are ``(tokens,)``."""
    ids = np.ascontiguousarray(ids, np.int64)
    rows = ids[:, None] if ids.ndim == 1 else ids
    check_array("ids", rows, np.int64, (-1, -1))
    return rows
