"""The server's metrics, in Prometheus format."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (16, 64, 256, 1024, 2048, 4096, 8192, 16384, 65536)


class Metrics:
    """Counters, gauges and histograms of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        waiting = partial(Gauge, registry=self.registry, multiprocess_mode="livesum")
        self.requests = counter("elmokit_requests", "Requests by path and status.", ["path", "status"])
        self.seconds = histogram(
            "elmokit_request_seconds",
            "Time from the first byte of a request to the last byte of its answer.",
            ["path"],
            buckets=SECONDS,
        )
        self.tokens = counter("elmokit_tokens", "Tokens of answered requests.", ["path"])
        self.dropped = counter(
            "elmokit_requests_dropped", "Requests that were not answered because the client disconnected.", ["path"]
        )
        self.batch_requests = histogram("elmokit_batch_requests", "Requests per batch.", buckets=SENTENCES)
        self.batch_sentences = histogram("elmokit_batch_sentences", "Sentences per batch.", buckets=SENTENCES)
        self.batch_tokens = histogram(
            "elmokit_batch_tokens", "Tokens per batch, with sentence boundaries.", buckets=TOKENS
        )
        self.batch_seconds = histogram("elmokit_batch_seconds", "Time to compute a batch.", buckets=SECONDS)
        self.queue_requests = waiting("elmokit_queue_requests", "Requests in progress.")
        self.queue_tokens = waiting("elmokit_queue_tokens", "Tokens in progress.")

    def batch_computed(self, n_requests: int, n_sentences: int, n_tokens: int, seconds: float) -> None:
        """Record a batch."""
        self.batch_requests.observe(n_requests)
        self.batch_sentences.observe(n_sentences)
        self.batch_tokens.observe(n_tokens)
        self.batch_seconds.observe(seconds)

    def queue_changed(self, n_requests: int, n_tokens: int) -> None:
        """Record a change in the number of queued requests and tokens."""
        # Recorded immediately: when metrics are read, only one of several processes is asked for all of them.
        self.queue_requests.inc(n_requests)
        self.queue_tokens.inc(n_tokens)

    def text(self) -> bytes:
        """Return all metrics, of all processes."""
        folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        if folder is None:
            return bytes(generate_latest(self.registry))
        _forget_ended_processes(folder)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)
        return bytes(generate_latest(everyone))


def _forget_ended_processes(folder: str) -> None:
    """Remove the gauges of processes that were killed, if the system lists processes. Their counters are kept."""
    for path in Path(folder).glob("gauge_live*.db"):
        pid = path.stem.rpartition("_")[2]
        if Path("/proc/self").exists() and not Path("/proc", pid).exists():
            with contextlib.suppress(FileNotFoundError):  # another process has already removed it
                mark_process_dead(int(pid), folder)
