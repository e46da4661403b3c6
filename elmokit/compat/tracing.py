"""Methods of the old APIs whose steps depend on the values in a batch, such as the lengths of its rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from elmokit.errors import ConfigError

T = TypeVar("T")
P = ParamSpec("P")


def untraced(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that ``torch.compile`` calls without compiling, and that cannot be traced or exported."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.jit.is_tracing() or getattr(torch.compiler, "is_exporting", bool)():  # type: ignore[attr-defined, no-untyped-call]
            raise ConfigError(
                "PyTorch cannot trace or export the modules of the old APIs, whose steps depend on the input: "
                "export elmokit.ElmoModule, or write the model with `elmokit convert MODEL MODEL.onnx`."
            )
        # Not decorated with `torch.compiler.disable`, which imports `torch._dynamo` and takes seconds.
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*args, **kwargs)  # type: ignore[no-any-return, no-untyped-call]
        return function(*args, **kwargs)

    return call
