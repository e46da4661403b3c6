"""Keep what was computed from a module's parameters until a parameter changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
N_SAMPLED = 16  # numbers of each parameter that are compared on every call
_State = tuple[list[int], list[list[float]]]


class PackedWeights(Generic[T]):
    """A value derived from parameters, such as packed weights, that is derived again when a parameter changes.

    PyTorch counts most in-place writes to a tensor (``_version``), but neither those of fused optimizers nor those
    through ``.data``. So we also compare the memory address and a few of the numbers of every parameter. Only a write
    of other single numbers through ``.data`` goes unnoticed.

    Copying or pickling a module does not copy the value: the copy derives its own.
    """

    def __init__(self) -> None:
        self._kept: tuple[str, list[Tensor], _State, T] | None = None

    def get(self, key: str, parameters: Sequence[Tensor], make: Callable[[], T]) -> T:
        """Return the kept value, or call ``make`` and keep its result.

        Args:
            key: Names the kind of value, for example the backend; another key derives the value again.
            parameters: What the value depends on.
            make: Derives the value.
        """
        kept = self._kept
        state = _state(parameters)
        # The address detects a tensor that was replaced (`.data = ...`, `.to(...)`), the version most in-place writes,
        # and the sample the others: `Adam(fused=True)` does not count its writes, so that every evaluation of a
        # training after the first once used outdated weights.
        if kept is not None and kept[0] == key and kept[2] == state and _same_memory(kept[1], parameters):
            return kept[3]
        self._kept = None  # free the old value before the new one takes memory
        value = make()
        # Holding on to the parameters keeps their memory from being reused for others at the same address.
        self._kept = (key, [parameter.detach() for parameter in parameters], state, value)
        return value

    @property
    def value(self) -> T | None:
        """The kept value, or None."""
        return None if self._kept is None else self._kept[3]

    def __reduce__(self) -> tuple[type[PackedWeights[T]], tuple[()]]:
        return PackedWeights, ()


def _same_memory(these: Sequence[Tensor], those: Sequence[Tensor]) -> bool:
    return all(this.data_ptr() == that.data_ptr() for this, that in zip(these, those, strict=True))


def _state(parameters: Sequence[Tensor]) -> _State:
    # Tensors made in inference mode have no version counter.
    versions = [0 if parameter.is_inference() else parameter._version for parameter in parameters]
    samples = [_sample(parameter.detach().flatten()) for parameter in parameters]
    if all(sample.device.type == "cpu" for sample in samples):
        return versions, [sample.tolist() for sample in samples]
    return versions, _read_at_once(samples)


def _sample(numbers: Tensor) -> Tensor:
    # Spread evenly over the tensor, because an optimizer changes nearly all numbers at once: any few of them will do.
    return numbers[:: max(1, len(numbers) // N_SAMPLED)]


def _read_at_once(samples: Sequence[Tensor]) -> list[list[float]]:
    """Copy all samples from a GPU at once: each copy waits until the GPU has computed everything before it."""
    return [torch.cat([sample.double() for sample in samples]).tolist()]
