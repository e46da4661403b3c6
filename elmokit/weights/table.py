"""Which tensor of a file is which tensor of ours: one row per tensor, layout both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elmokit.errors import FormatError, TensorMismatchError
from elmokit.nn.lstm import FORGET_OFFSET

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in a file, and how it lies here."""

    to_ours: Callable[[Tensor], Tensor]
    to_theirs: Callable[[Tensor], Tensor]


SAME = Layout(lambda theirs: theirs, lambda ours: ours)


def _swapped(tensor: Tensor) -> Tensor:
    """The gate blocks i, f, g, o as i, g, f, o, and the other way round."""
    first, second, third, fourth = tensor.chunk(4)
    return torch.cat([first, third, second, fourth])


def _raised_forget(bias: Tensor, offset: float) -> Tensor:
    """A bias of blocks i, g, f, o with the forget block raised."""
    i, g, f, o = bias.chunk(4)
    return torch.cat([i, g, f + offset, o])


GATES = Layout(_swapped, _swapped)
"""Rows of gates in PyTorch's order i, f, g, o, as AllenNLP and ELMoForManyLangs keep them."""
GATE_BIAS = Layout(
    lambda theirs: _raised_forget(_swapped(theirs), -FORGET_OFFSET),
    lambda ours: _swapped(_raised_forget(ours, FORGET_OFFSET)),
)
"""A bias in that order which holds the 1 that the network adds to the forget gate."""


@dataclass(frozen=True)
class TensorRow:
    """One tensor by both names."""

    ours: str
    theirs: str
    layout: Layout = SAME
    also: tuple[str, ...] = ()
    """Further names that the same tensor has in files in the wild; never written."""


def same_rows(module: nn.Module, prefix: str = "") -> list[TensorRow]:
    """The rows of a file that holds a module's tensors under their own names."""
    return [TensorRow(name, prefix + name) for name in module.state_dict()]


def fill(
    module: nn.Module,
    rows: Iterable[TensorRow],
    shapes: Mapping[str, Shape],
    read: Callable[[str], Tensor],
    what: str,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Give a module that was built on the meta device the tensors of a file.

    Nothing is read before every shape was found right.

    Args:
        shapes: the shape of every tensor in the file, by its name there.
        read: a tensor by its name in the file.
        what: the file, for the error.

    Raises:
        TensorMismatchError: tensors are missing, unexpected or misshapen; all of them, by both names.
        FormatError: tensors hold NaN or infinity.
    """
    wanted = module.state_dict()
    missing: list[str] = []
    misshapen: list[str] = []
    found: list[tuple[TensorRow, str]] = []
    for row in rows:
        shape = tuple(row.layout.to_theirs(wanted[row.ours].to("meta")).shape)
        name = next((name for name in (row.theirs, *row.also) if name in shapes), None)
        if name is None:
            missing.append(f"{row.theirs} {shape} (here {row.ours})")
            continue
        found.append((row, name))
        if shapes[name] != shape:
            misshapen.append(f"{name} (here {row.ours}) is {shapes[name]}, expected {shape}")
    unexpected = sorted(set(shapes) - {name for _, name in found})
    problems = [
        f"{kind}: {'; '.join(names)}"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("misshapen", misshapen))
        if names
    ]
    if problems:
        raise TensorMismatchError(
            f"{what} does not hold the tensors that its configuration describes. {'. '.join(problems)}. "
            "Check that the configuration belongs to these weights."
        )
    tensors = {row.ours: row.layout.to_ours(read(name)).to(dtype).contiguous() for row, name in found}
    if spoilt := [f"{name} (here {row.ours})" for row, name in found if not _is_finite(tensors[row.ours])]:
        raise FormatError(
            f"{what} holds NaN or infinity in {'; '.join(spoilt)}. Training diverged, or the file is damaged: download "
            "or copy it again."
        )
    module.load_state_dict(tensors, assign=True)
    module.eval()  # what comes from a file is for use; training switches dropout on itself


def _is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are; by the least and the greatest, which are NaN where any is, in one pass."""
    return tensor.numel() == 0 or bool(torch.stack(tensor.aminmax()).isfinite().all())


def to_theirs(module: nn.Module, rows: Iterable[TensorRow]) -> dict[str, Tensor]:
    """A module's tensors under the names and in the layout of a file."""
    ours = module.state_dict()
    return {row.theirs: row.layout.to_theirs(ours[row.ours].detach().cpu()).contiguous() for row in rows}
