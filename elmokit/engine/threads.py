"""How many threads a process may use."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path

# Version 2 of control groups has the quota and its period in one file, version 1 in two.
CONTROL_GROUP = Path("/sys/fs/cgroup")


@functools.cache
def available_threads() -> int:
    """Return the number of threads that can run at the same time.

    It is the number of cores that this process may run on, but no more than its share of processor time: a container
    with a quota of two cores sees all cores of its machine, and with more threads than two, each of them would be
    stopped for most of the time.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cores_of_quota(CONTROL_GROUP)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def cores_of_quota(group: Path) -> float | None:
    """Return the share of processor time that a control group grants, in cores; None if there is no bound.

    Args:
        group: The directory of the control group.
    """
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            text = " ".join((group / name).read_text() for name in names)
            quota, period = map(float, text.split())
        except (OSError, ValueError):  # there is no such file, or it says "max"
            continue
        if quota > 0 and period > 0:  # -1 means no bound
            return quota / period
    return None
