"""The precisions that a model can be computed in: one table, and who chooses."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple, get_args

from elmokit.config import check_choice
from elmokit.errors import SettingError

Precision = Literal["float32", "bfloat16", "int8", "int7"]
"""The lowest precision in which weights may be computed; see :data:`PRECISIONS`."""


class PrecisionInfo(NamedTuple):
    """What a precision rounds."""

    bytes_per_weight: int
    rounds: str


# In the order of their numbers in `packed_product.h`, the most precise first. That file has their products, `matrix.c`
# packs their weights, and `engine.c` says where which one is faster.
PRECISIONS: dict[Precision, PrecisionInfo] = {
    "float32": PrecisionInfo(4, "nothing"),
    "bfloat16": PrecisionInfo(2, "each weight to 8 binary digits; with AMX, also the inputs of each product"),
    "int8": PrecisionInfo(1, "each row of weights to 255 levels, and the inputs of each product likewise"),
    "int7": PrecisionInfo(1, "each row of weights to 127 levels or more, and the inputs of each product to 255"),
}
NAMES: tuple[Precision, ...] = get_args(Precision)

VARIABLE = "ELMOKIT_BACKEND"
BackendRequest = Literal["reference"] | Precision
"""The lowest precision that is accepted; or the plain formulas, slow and exact, which everything else is tested
against."""
REQUESTS: tuple[BackendRequest, ...] = ("reference", *NAMES)


def check_precision(precision: str | None) -> None:
    """Check that a precision exists; None means the model's own."""
    if precision is not None:
        check_choice("precision", precision, PRECISIONS)


def requested_backend(precision: Precision | None = None) -> BackendRequest:
    """Resolve what is requested: ``ELMOKIT_BACKEND`` if set, else the model's precision, else float32.

    The environment variable is for those who cannot change the call. It is ``auto`` (no override), a precision, or
    ``reference``.

    Raises:
        ConfigError: ``ELMOKIT_BACKEND`` has an unknown value.
    """
    # Read on every call, not on import: tests and notebooks change the variable while the process runs.
    override = os.environ.get(VARIABLE) or "auto"
    if override == "auto":
        return precision or "float32"
    for request in REQUESTS:
        if override == request:
            return request
    raise SettingError(VARIABLE, f"is {override!r}; it must be one of auto, {', '.join(REQUESTS)}.")
