"""Several processes that train one model: what ``torchrun`` started, or one process alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from elmokit.errors import TrainingError

PATIENCE = timedelta(hours=6)  # how long a process waits for the others, for example while one scores held-out text


@dataclass(frozen=True)
class World:
    """This process among those that train together. The one of rank 0 writes and reports."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Its place on its machine, which is the number of its GPU."""

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def gather(self, part: Any) -> list[Any] | None:
        """Every process's part, in the order of ranks, for the leading one; None for the others."""
        if self.size == 1:
            return [part]
        parts: list[Any] | None = [None] * self.size if self.is_main_process else None
        dist.gather_object(part, parts)
        return parts

    def broadcast(self, what: Any) -> Any:
        """What the leading process has, to all."""
        if self.size == 1:
            return what
        box = [what]
        dist.broadcast_object_list(box)
        return box[0]

    def mean(self, values: Tensor) -> Tensor:
        """The mean over processes."""
        if self.size > 1:
            dist.all_reduce(values)
            values /= self.size
        return values


@contextmanager
def joined_world(device: torch.device | str = "cpu") -> Iterator[World]:
    """The processes that ``torchrun`` started, joined over gloo (CPUs) or nccl (GPUs); a world of one without it.

    Raises:
        TrainingError: they cannot be joined.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    found = [os.environ.get(name) for name in names]
    if None in found or found[1] == "1":
        yield World()
        return
    world = World(*(int(value) for value in found if value is not None))
    on_gpu = torch.device(device).type == "cuda"
    try:
        if on_gpu:
            torch.cuda.set_device(world.local_rank)
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise TrainingError(f"Process {world.rank} of {world.size} cannot join the others: {error}") from None
    try:
        yield world
    finally:
        dist.destroy_process_group()
