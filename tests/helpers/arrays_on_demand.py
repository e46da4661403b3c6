"""Weights that are read when they are asked for, without PyTorch."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping

import numpy as np

from elmokit.engine.architecture import BiLMConfig, tensor_shapes
from elmokit.engine.state import Floats


class ArraysOnDemand(Mapping[str, Floats]):
    """Arrays that are made when they are asked for, as a file would be read.

    Attributes:
        asked: Names, in the order in which they were asked for.
        most: Bytes of the arrays that were in use at the same time, at most.
    """

    def __init__(self, config: BiLMConfig) -> None:
        self.shapes, self.asked, self.most = tensor_shapes(config), list[str](), 0
        self._used: list[weakref.ref[Floats]] = []

    def __getitem__(self, name: str) -> Floats:
        array = np.random.default_rng(len(self.asked)).random(self.shapes[name], np.float32) - np.float32(0.5)
        self.asked.append(name)
        self._used.append(weakref.ref(array))
        self.most = max(self.most, sum(used.nbytes for ref in self._used if (used := ref()) is not None))
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)
