"""Compare the weights of models."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from elmokit.engine.state import Floats
from elmokit.network.softmax_module import SoftmaxModule
from elmokit.pretrained.model import PretrainedBiLM


def softmax_of(model: PretrainedBiLM) -> SoftmaxModule:
    """Return the softmax of a model as a PyTorch module."""
    _, softmax = model.build_modules()
    assert softmax is not None
    return softmax


def same_weights(first: PretrainedBiLM, second: PretrainedBiLM) -> bool:
    """Check for the same architecture, and the same weights bit for bit."""
    ours, theirs = first.arrays, second.arrays
    return (
        first.config == second.config
        and set(ours) == set(theirs)
        and all(np.array_equal(ours[name], theirs[name]) for name in ours)
    )


def numbers(model: PretrainedBiLM) -> Iterator[tuple[str, Floats]]:
    """Everything that a model computes with."""
    yield from model.arrays.items()
    if model.softmax is not None:
        yield from ((f"softmax.{name}", array) for name, array in model.softmax.arrays.items())
        yield "softmax", model.softmax.weight
    if model.start_state is not None:
        yield from model.start_state._asdict().items()
    if model.alignment is not None:
        yield "alignment", model.alignment.matrices


def same_numbers(first: PretrainedBiLM, second: PretrainedBiLM) -> bool:
    """Check for the same architecture, and that everything that the models compute with is the same bit for bit."""
    others = dict(numbers(second))
    return (
        same_weights(first, second)
        and all(np.array_equal(array, others.pop(name)) for name, array in numbers(first))
        and not others
    )
