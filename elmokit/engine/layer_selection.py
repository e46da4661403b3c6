"""The layers of a biLM that a caller asks for: all, some, the plain mean or a learned mix, and their alignment."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.state import Floats
from elmokit.errors import ConfigError

Layers = Literal["all", "top", "average", "mix"] | int | Sequence[int] | NDArray[np.integer[Any]]
"""The layers to return; see ``Elmo.embed``."""


class Mix(Protocol):
    """A learned mix of all layers: the first of an :class:`~elmokit.ElmoModule`."""

    @property
    def layer_norm(self) -> bool:
        """Whether it normalizes the layers over all vectors of a batch first."""

    @property
    def checksum(self) -> int:
        """A checksum of its weights."""

    def __call__(self, layers: Sequence[Floats]) -> list[Floats]:
        """Mix the layers of each sentence of a batch, ``(layers, tokens, dim)``, to ``(tokens, dim)``."""


class FixedMix:
    """The mix that a published model brings with it: gamma times a softmax-weighted sum of the layers."""

    layer_norm = False

    def __init__(self, weights: Sequence[float], gamma: float) -> None:
        raw = np.array(weights, np.float32)
        exponentials = np.exp(raw - raw.max())
        self.weights = exponentials / exponentials.sum()
        self.gamma = np.float32(gamma)

    @property
    def checksum(self) -> int:
        """A checksum of its weights."""
        return zlib.crc32(self.weights.tobytes() + self.gamma.tobytes())

    def __call__(self, layers: Sequence[Floats]) -> list[Floats]:
        """Mix the layers of each sentence; see :class:`Mix`."""
        factors = (self.gamma * self.weights)[:, None, None]
        return [(factors * array).sum(axis=0) for array in layers]


@dataclass(frozen=True)
class LayerSelection:
    """The requested layers."""

    computed: tuple[int, ...]
    """The layers that are needed, each once."""
    returned: int | tuple[int, ...] | Literal["average"] | Mix
    """What is returned: one of ``computed`` by its position there, several, their mean, or a mix of them."""

    @property
    def needs_whole_batch(self) -> bool:
        """Whether a vector depends on all vectors of its batch: a mix that normalizes over them."""
        return not isinstance(self.returned, int | tuple | str) and self.returned.layer_norm

    @property
    def is_context_free(self) -> bool:
        """Whether layer 0 alone is requested."""
        return self.computed == (0,)

    def apply(self, layers: list[Floats]) -> list[Floats]:
        """Select what was requested of the layers ``(computed, tokens, dim)`` of each sentence of a batch."""
        returned = self.returned
        if isinstance(returned, int):
            return [array[returned] for array in layers]
        if isinstance(returned, str):  # "average"
            return [array.mean(axis=0, dtype=np.float32) for array in layers]
        if isinstance(returned, tuple):
            if returned == tuple(range(len(self.computed))):
                return layers
            return [array[list(returned)] for array in layers]
        return returned(layers)


def plain_layers(layers: Layers) -> Layers:
    """Return NumPy's layer numbers as Python's, which JSON can store, and an array of them as a list."""
    given: Any = layers
    if isinstance(given, str):
        return given  # type: ignore[return-value]
    if isinstance(given, np.ndarray | np.generic):
        given = given.tolist()
    if isinstance(given, Iterable):
        given = [number.item() if isinstance(number, np.generic) else number for number in given]
    plain: Layers = given
    return plain


def select_layers(
    layers: Layers,
    n_layers: int,  # of the model, layer 0 included
    mix: Mix | None,  # what "mix" selects, if there is one
    model_name: str,  # for error messages
) -> LayerSelection:
    """Check which layers are requested, as in ``Elmo.embed``."""
    every = tuple(range(n_layers))
    layers = plain_layers(layers)
    if layers == "all":
        return LayerSelection(every, every)
    if layers == "top":
        return LayerSelection((n_layers - 1,), 0)
    if layers == "average":
        return LayerSelection(every, "average")
    if layers == "mix":
        if mix is None:
            raise ConfigError("layers is 'mix', but there is no scalar mix here; an ElmoModule with n_mixes=1 has one.")
        return LayerSelection(every, mix)
    available = f"{model_name} has layers 0 to {n_layers - 1}"
    numbers: list[Any] = layers if isinstance(layers, list) else [layers]
    if not numbers or not all(map(_is_number, numbers)):
        raise ConfigError(
            f"layers is {layers!r}. Choose 'all', 'top', 'average', 'mix', a layer number or a list of numbers; "
            f"{available}."
        )
    for number in numbers:
        if number not in every:
            raise ConfigError(f"Layer {number} does not exist: {available}.")
    if not isinstance(layers, list):
        return LayerSelection((int(numbers[0]),), 0)
    computed = tuple(dict.fromkeys(map(int, numbers)))
    return LayerSelection(computed, tuple(map(computed.index, numbers)))


def _is_number(value: object) -> bool:
    """Check for a whole number, which True and False are not here."""
    return isinstance(value, Integral) and not isinstance(value, bool)


@dataclass(frozen=True, eq=False)
class LayerAlignment:
    """A linear map for each layer, which makes the vectors of two models comparable (Schuster et al. 2019).

    Models that were trained apart use different directions for the same thing, so that cosines between their vectors
    mean nothing. An :class:`~elmokit.Elmo` whose model has an alignment returns vectors in the space of another model.

    Attributes:
        matrices: ``(layers, dim, dim)``. A vector ``x`` of layer k becomes ``matrices[k] @ x + offsets[k]``.
        offsets: ``(layers, dim)``.

    Raises:
        ValueError: The shapes are others.
    """

    matrices: Floats
    offsets: Floats

    def __post_init__(self) -> None:
        matrices, offsets = self.matrices, self.offsets
        if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or offsets.shape != matrices.shape[:2]:
            raise ValueError(
                f"Expected matrices (layers, dim, dim) and offsets (layers, dim), but got {matrices.shape} and "
                f"{offsets.shape}."
            )

    @classmethod
    def of_matrices(cls, matrices: Floats) -> LayerAlignment:
        """Return the alignment without offsets."""
        return cls(matrices, np.zeros(matrices.shape[:2], np.float32))

    def apply(self, layers: Floats, numbers: Sequence[int]) -> Floats:
        """Align layers of a sentence.

        Args:
            layers: ``(layers, tokens, dim)``.
            numbers: The number of each layer.

        Returns:
            The same shape.
        """
        chosen = list(numbers)
        with np.errstate(over="ignore", invalid="ignore"):  # who uses the vectors checks them
            aligned = layers @ self.matrices[chosen].swapaxes(1, 2) + self.offsets[chosen, None]
        return np.asarray(aligned, np.float32)
