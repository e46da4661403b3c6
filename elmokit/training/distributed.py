"""Training in several processes started by ``torchrun``, or in a single one."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from elmokit.config import check_choice
from elmokit.errors import ElmoError, TrainingError
from elmokit.network.tensors import name_device, parse_device

Result = TypeVar("Result")
TIMEOUT = timedelta(hours=6)  # processes wait while the main one counts a large corpus or evaluates held-out text


@dataclass(frozen=True)
class World:
    """This process among those that train together. Rank 0, the main process, writes files and reports."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """The rank on this machine, which is the number of its GPU."""

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def gather(self, item: Any) -> list[Any] | None:
        """Collect an object from every process: a list in the order of ranks in the main process, None in others."""
        if self.size == 1:
            return [item]
        items: list[Any] | None = [None] * self.size if self.is_main_process else None
        dist.gather_object(item, items)
        return items

    def broadcast(self, item: Any) -> Any:
        """Send the main process's object to all processes and return it."""
        if self.size == 1:
            return item
        box = [item]
        dist.broadcast_object_list(box)
        return box[0]

    def on_main_process(self, function: Callable[[], Result]) -> Result:
        """Call a function in the main process; all processes return its result, or raise its ``ElmoError``."""
        result: Any = None
        # Errors that the user can fix are raised in all processes, so none waits for the main one.
        error: ElmoError | None = None
        if self.is_main_process:
            try:
                result = function()
            except ElmoError as raised:
                error = raised
        result, error = self.broadcast((result, error))
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def any(self, condition: bool, device: torch.device) -> bool:
        """Check whether a condition holds in any process. All processes must call this."""
        if self.size == 1:
            return condition
        flag = torch.tensor([float(condition)], device=device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())

    def divide_rows(self, function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """Return ``function(rows)``, computed by all processes; it maps each row on its own."""
        if self.size == 1 or len(rows) < self.size:
            return function(rows)
        n_own = -(-len(rows) // self.size)
        # All parts must have the same size, so the last ones start earlier and repeat rows of the previous ones.
        starts = [min(rank * n_own, len(rows) - n_own) for rank in range(self.size)]
        own = function(rows[starts[self.rank] : starts[self.rank] + n_own]).contiguous()
        parts = [torch.empty_like(own) for _ in starts]
        dist.all_gather(parts, own)
        results = torch.empty_like(rows)
        for start, part in zip(starts, parts, strict=True):
            results[start : start + n_own] = part
        return results

    def mean(self, values: Tensor) -> Tensor:
        """Average a tensor over processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
            values /= self.size
        return values


@contextmanager
def init_distributed(device: torch.device | str = "cpu") -> Iterator[World]:
    """Connect the processes that ``torchrun`` started, if any, over gloo (CPU) or nccl (GPU), while the block runs."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    values = [os.environ.get(name) for name in names]
    if None in values or values[1] == "1":
        yield World()
        return
    world = World(*(int(value) for value in values if value is not None))
    on_gpu = torch.device(device).type == "cuda"
    try:
        if on_gpu:
            torch.cuda.set_device(world.local_rank)
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise TrainingError(f"Process {world.rank} of {world.size} cannot connect to the others: {error}") from None
    try:
        yield world
        # torchrun stops all processes when one fails, and the main one may still be writing.
        dist.barrier()
    finally:
        # Gloo's threads end with the last reference to the process group. A thread that is left when Python ends may
        # abort the process, and DistributedDataParallel, which refers to the group, is part of a cycle.
        gc.collect()
        dist.destroy_process_group()


def training_device(name: str | torch.device) -> torch.device:
    """Return the device to train on: ``cpu``, ``cuda``, ``cuda:N``, or for ``auto`` a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = name_device(name)
    check_choice("device", device.type, ("cpu", "cuda"))
    return parse_device(device)
