"""The precisions that a model can be computed in: one table."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from elmokit.errors import ConfigError

Precision = Literal["float32", "bfloat16", "int8"]
"""The lowest precision in which weights may be computed; see :data:`PRECISIONS`."""


class PrecisionInfo(NamedTuple):
    """What a precision rounds."""

    bytes_per_weight: int
    rounds: str


# In the order of their numbers in `elmokit.h`, the most precise first. `packed_product.h` has their products, and
# `engine.c` says where which one is faster.
PRECISIONS: dict[Precision, PrecisionInfo] = {
    "float32": PrecisionInfo(4, "nothing"),
    "bfloat16": PrecisionInfo(2, "each weight to 8 binary digits; with AMX, also the inputs of each product"),
    "int8": PrecisionInfo(1, "each row of weights to 255 levels, and the inputs of each product likewise"),
}
NAMES: tuple[Precision, ...] = get_args(Precision)


def check_precision(precision: str | None) -> None:
    """Check that a precision exists; None means the model's own.

    Raises:
        ConfigError: It does not.
    """
    if precision is not None and precision not in PRECISIONS:
        raise ConfigError(f"precision is {precision!r}. Use one of {', '.join(PRECISIONS)}.")
