"""The number of threads that a process may use, and a lock that is free after a fork."""

from __future__ import annotations

import functools
import math
import os
import sys
from pathlib import Path
from threading import RLock
from weakref import WeakSet

from elmokit.config import whole_number

# Control groups store the quota and its period in one file (version 2) or two (version 1).
CONTROL_GROUP = Path("/sys/fs/cgroup")
_requested: int | None = None


class ForkSafeLock:
    """A reentrant lock that is free in a forked process, where the thread that held it does not exist."""

    def __init__(self) -> None:
        self._lock = RLock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    @staticmethod
    def renew_all() -> None:
        """Replace all locks, which threads of the parent may have held."""
        for lock in _LOCKS:
            lock._lock = RLock()


_LOCKS: WeakSet[ForkSafeLock] = WeakSet()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=ForkSafeLock.renew_all)


def set_threads(n_threads: int) -> None:
    """Set the number of threads that this process uses to compute a batch."""
    global _requested
    _requested = n_threads
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(n_threads)


def n_threads() -> int:
    """Return the number of threads to compute a batch with.

    It is the number that was set (:func:`set_threads`, ``torch.set_num_threads`` or ``OMP_NUM_THREADS``), but at most
    the number of threads that can run at the same time.
    """
    requested = _requested
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        requested = torch.get_num_threads()  # PyTorch has read the variable
    elif requested is None:
        requested = _threads_of_openmp()
    return available_threads() if requested is None else min(requested, available_threads())


def _threads_of_openmp() -> int | None:
    """Return the number set by ``OMP_NUM_THREADS``; None without it."""
    # OpenMP allows a list, whose first number is for the outermost level.
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    number = whole_number(first.strip())
    return None if number is None else max(1, number)


@functools.cache
def available_threads() -> int:
    """Return the number of threads that can run at the same time.

    It is the number of cores that this process may run on, limited by its share of processor time. A container with a
    quota of two cores sees all cores of its machine, but with more than two threads, each would be suspended most of
    the time.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    quota = cores_of_quota(CONTROL_GROUP)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def cores_of_quota(group: Path) -> float | None:
    """Return a control group's quota of processor time, in cores; None if there is no limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            text = " ".join((group / name).read_text() for name in names)
            quota, period = map(float, text.split())
        except (OSError, ValueError):  # the file is missing or contains "max"
            continue
        if quota > 0 and period > 0:  # -1 means no limit
            return quota / period
    return None
