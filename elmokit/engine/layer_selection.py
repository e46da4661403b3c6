"""Layer selection: all layers, some of them, a plain mean or a learned mix; and the alignment of layers."""

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
    """A learned mix of all layers, such as the first one of an :class:`~elmokit.ElmoModule`."""

    @property
    def layer_norm(self) -> bool:
        """Whether the layers are first normalized over all vectors of a batch."""

    @property
    def checksum(self) -> int:
        """A checksum of its weights."""

    def __call__(self, layers: Sequence[Floats]) -> list[Floats]:
        """Mix the layers of each sentence in a batch, ``(layers, tokens, dim)``, into ``(tokens, dim)``."""


class FixedMix:
    """A mix stored in a published model: gamma times a softmax-weighted sum of the layers."""

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
    """The layers to compute, each once."""
    returned: int | tuple[int, ...] | Literal["average"] | Mix
    """What to return: one or several of ``computed``, by position, their mean, or a mix of them."""

    @property
    def needs_whole_batch(self) -> bool:
        """Whether a vector depends on all vectors of its batch, as with a mix that normalizes over them."""
        return not isinstance(self.returned, int | tuple | str) and self.returned.layer_norm

    @property
    def is_context_free(self) -> bool:
        """Whether only layer 0 is requested."""
        return self.computed == (0,)

    def apply(self, layers: list[Floats]) -> list[Floats]:
        """Select the requested layers from each sentence's computed layers ``(computed, tokens, dim)``."""
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
    """Convert NumPy layer numbers to Python ints or lists, which JSON can store."""
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
    """Check and resolve the requested layers; see ``Elmo.embed``."""
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
    """Check whether a value is an integer, excluding True and False."""
    return isinstance(value, Integral) and not isinstance(value, bool)


@dataclass(frozen=True, eq=False)
class LayerAlignment:
    """A linear map for each layer, which makes two models' vectors comparable (Schuster et al. 2019).

    Models that were trained separately use different directions for the same features, so cosines between their vectors
    are meaningless. An :class:`~elmokit.Elmo` whose model has an alignment returns vectors in the other model's space.

    Attributes:
        matrices: ``(layers, dim, dim)``. A vector ``x`` in layer k becomes ``matrices[k] @ x + offsets[k]``.
        offsets: ``(layers, dim)``.

    Raises:
        ValueError: The shapes are wrong.
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
        """Create an alignment without offsets."""
        return cls(matrices, np.zeros(matrices.shape[:2], np.float32))

    def apply(self, layers: Floats, numbers: Sequence[int]) -> Floats:
        """Align the layers of a sentence.

        Args:
            layers: ``(layers, tokens, dim)``.
            numbers: The number of each layer.

        Returns:
            The same shape.
        """
        chosen = list(numbers)
        with np.errstate(over="ignore", invalid="ignore"):  # users of the vectors check them
            aligned = layers @ self.matrices[chosen].swapaxes(1, 2) + self.offsets[chosen, None]
        return np.asarray(aligned, np.float32)
