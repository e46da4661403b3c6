"""Map the tensors of a file to ours: one row per tensor, with the conversion of its layout in both directions.

Each format is a list of ``TensorRow``. ``fill`` reads a model through it and ``to_theirs`` writes one, so names and
layouts are written down once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elmokit.errors import FormatError, TensorMismatchError
from elmokit.nn.lstm import FORGET_OFFSET

Shape = tuple[int, ...]
SHOWN = 5
"""How many tensors an error lists of each kind."""


@dataclass(frozen=True)
class Layout:
    """How to convert a tensor between the layout of a file and ours."""

    to_ours: Callable[[Tensor], Tensor]
    to_theirs: Callable[[Tensor], Tensor]


# A layout is a pair of functions and not a permutation, because some formats also transpose, add or drop rows.
SAME = Layout(lambda theirs: theirs, lambda ours: ours)


def _swapped(tensor: Tensor) -> Tensor:
    """Swap the second and third gate block: i, f, g, o becomes i, g, f, o, and the other way round."""
    first, second, third, fourth = tensor.chunk(4)
    return torch.cat([first, third, second, fourth])


def raised_forget(bias: Tensor, offset: float) -> Tensor:
    """Add an offset to the forget block of a bias with blocks i, g, f, o."""
    i, g, f, o = bias.chunk(4)
    return torch.cat([i, g, f + offset, o])


GATES = Layout(_swapped, _swapped)
"""Gates in PyTorch's order i, f, g, o, as in AllenNLP and ELMoForManyLangs. Ours is TensorFlow's: i, g, f, o."""
# TensorFlow adds the 1 in every step, so the published HDF5 files hold the bias without it; modules that were written
# in PyTorch store the sum.
GATE_BIAS = Layout(
    lambda theirs: raised_forget(_swapped(theirs), -FORGET_OFFSET),
    lambda ours: _swapped(raised_forget(ours, FORGET_OFFSET)),
)
"""A bias in that order, which includes the 1 that our network adds to the forget gate itself."""


@dataclass(frozen=True)
class TensorRow:
    """One tensor, by our name and by the name in the file."""

    ours: str
    theirs: str
    layout: Layout = SAME
    also: tuple[str, ...] = ()
    """Other names that the tensor has in existing files. Read, but never written."""


def same_rows(module: nn.Module, prefix: str = "") -> list[TensorRow]:
    """List the rows of a file that holds a module's tensors under our names."""
    return [TensorRow(name, prefix + name) for name in module.state_dict()]


def fill(
    module: nn.Module,
    rows: Iterable[TensorRow],
    shapes: Mapping[str, Shape],
    read: Callable[[str], Tensor],
    what: str,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Load the tensors of a file into a module that was built on the meta device.

    All names and shapes are checked before anything is read.

    Args:
        shapes: The shape of every tensor in the file, by its name there.
        read: Reads a tensor by its name in the file.
        what: The file, for the error message.

    Raises:
        TensorMismatchError: Tensors are missing, unexpected or have the wrong shape. The message lists them all, by
            both names.
        FormatError: Tensors contain NaN or infinity.
    """
    wanted = module.state_dict()
    missing: list[str] = []
    wrong_shape: list[str] = []
    found: list[tuple[TensorRow, str]] = []
    for row in rows:
        # On the meta device a conversion moves no data: it only says which shape the file must have.
        shape = tuple(row.layout.to_theirs(wanted[row.ours].to("meta")).shape)
        name = next((name for name in (row.theirs, *row.also) if name in shapes), None)
        if name is None:
            missing.append(f"{row.theirs} {shape} (elmokit: {row.ours})")
            continue
        found.append((row, name))
        if shapes[name] != shape:
            wrong_shape.append(f"{name} (elmokit: {row.ours}) is {shapes[name]}, expected {shape}")
    # All kinds of problems in one message: with wrong options nearly every tensor differs, and the pattern shows which
    # option it is.
    unexpected = sorted(set(shapes) - {name for _, name in found})
    problems = [
        f"{kind}: {_first(names)}"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("wrong shape", wrong_shape))
        if names
    ]
    if problems:
        raise TensorMismatchError(
            f"{what} does not hold the tensors that its configuration describes. {'. '.join(problems)}. "
            "Check that the configuration belongs to these weights."
        )
    tensors = {row.ours: row.layout.to_ours(read(name)).to(dtype).contiguous() for row, name in found}
    # A layout that selects rows, by a vocabulary, can turn the right shape of a file into a wrong one.
    wrong_shape = [
        f"{name} (elmokit: {row.ours}) becomes {tuple(tensor.shape)}, expected {tuple(wanted[row.ours].shape)}"
        for (row, name), tensor in zip(found, tensors.values(), strict=True)
        if tensor.shape != wanted[row.ours].shape
    ]
    if wrong_shape:
        raise TensorMismatchError(
            f"{what}: the vocabulary does not belong to the tensors. {_first(wrong_shape)}. Copy the files again."
        )
    if damaged := [f"{name} (elmokit: {row.ours})" for row, name in found if not _is_finite(tensors[row.ours])]:
        raise FormatError(
            f"{what} holds NaN or infinity in {_first(damaged)}. Training diverged, or the file is damaged: "
            "download or copy it again."
        )
    # `assign`, because a parameter on the meta device has no memory to copy into.
    module.load_state_dict(tensors, assign=True)
    module.eval()  # a loaded model is used as it is; training turns dropout on itself


def _first(names: list[str]) -> str:
    """List the first names, and say how many more there are."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return "; ".join(names[:SHOWN]) + more


def _is_finite(tensor: Tensor) -> bool:
    """Check that a tensor has no NaN and no infinity.

    Minimum and maximum take one pass without a temporary array, and are NaN if any number is.
    """
    return tensor.numel() == 0 or bool(torch.stack(tensor.aminmax()).isfinite().all())


def to_theirs(module: nn.Module, rows: Iterable[TensorRow]) -> dict[str, Tensor]:
    """Convert a module's tensors to the names and the layout of a file."""
    ours = module.state_dict()
    return {row.theirs: row.layout.to_theirs(ours[row.ours].detach().cpu()).contiguous() for row in rows}
