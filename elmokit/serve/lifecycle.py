"""What the parts of the server share about its processes."""

from __future__ import annotations

from dataclasses import dataclass

METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""The directory through which several processes add up their metrics. prometheus_client reads it when it is imported,
so it must be set before."""


@dataclass
class Lifecycle:
    """Whether the server is about to stop."""

    is_stopping: bool = False
