"""Metrics of the server in the format of Prometheus."""

from __future__ import annotations

import os
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from elmokit.serve.lifecycle import METRICS_VARIABLE

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (16, 64, 256, 1024, 2048, 4096, 8192, 16384, 65536)


class Metrics:
    """Counters, gauges and histograms of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "elmokit_requests", "Requests by path and status.", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "elmokit_request_seconds",
            "Time from the first byte of a request to the last of its answer.",
            ["path"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.tokens = Counter("elmokit_tokens", "Tokens of answered requests.", ["path"], registry=self.registry)
        self.dropped = Counter(
            "elmokit_requests_dropped",
            "Requests that were not answered because the client left.",
            ["path"],
            registry=self.registry,
        )
        self.batch_requests = Histogram(
            "elmokit_batch_requests", "Requests per batch.", buckets=SENTENCES, registry=self.registry
        )
        self.batch_sentences = Histogram(
            "elmokit_batch_sentences", "Sentences per batch.", buckets=SENTENCES, registry=self.registry
        )
        self.batch_tokens = Histogram(
            "elmokit_batch_tokens",
            "Tokens per batch, with sentence boundaries.",
            buckets=TOKENS,
            registry=self.registry,
        )
        self.batch_seconds = Histogram(
            "elmokit_batch_seconds", "Time to compute a batch.", buckets=SECONDS, registry=self.registry
        )
        self.queue_requests = Gauge(
            "elmokit_queue_requests",
            "Requests that wait or are computed.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.queue_tokens = Gauge(
            "elmokit_queue_tokens",
            "Tokens that wait or are computed.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )

    def batch_computed(self, n_requests: int, n_sentences: int, n_tokens: int, seconds: float) -> None:
        """Record a batch."""
        self.batch_requests.observe(n_requests)
        self.batch_sentences.observe(n_sentences)
        self.batch_tokens.observe(n_tokens)
        self.batch_seconds.observe(seconds)

    def queue_changed(self, n_requests: int, n_tokens: int) -> None:
        """Record the requests and tokens by which a queue has changed."""
        # At once, and not when the metrics are read: only one of several processes is asked for those of all.
        self.queue_requests.inc(n_requests)
        self.queue_tokens.inc(n_tokens)

    def text(self) -> bytes:
        """Return all metrics, of all processes."""
        if METRICS_VARIABLE not in os.environ:
            return bytes(generate_latest(self.registry))
        everyone = CollectorRegistry()
        collector: Any = MultiProcessCollector  # not annotated by its library
        collector(everyone)
        return bytes(generate_latest(everyone))
