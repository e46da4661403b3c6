"""Compute simultaneous requests in batches.

Sentences are taken from the queue, up to a number of tokens, and computed by one call of the model in a thread. No
other thread computes, so models need no locks. A few sentences are taken from each waiting request in turn, so a
request with thousands of sentences does not delay the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from elmokit.serve.metrics import Metrics
from elmokit.serve.problems import Problem
from elmokit.text.batching import N_BOUNDARIES

TURN_SENTENCES = 16
"""Number of sentences taken from a request before it is another request's turn."""

Compute = Callable[[list[Any]], Iterable[Any]]
"""Maps items to one result each, in order. An item's result does not depend on the other items."""


@dataclass(eq=False)
class _Waiting:
    """A request in the queue."""

    compute: Compute
    items: Sequence[Any]
    sizes: Sequence[int]
    future: asyncio.Future[list[Any]]
    arrived: float
    n_taken: int = 0
    results: list[Any] = field(default_factory=list)


Taken = list[tuple[_Waiting, slice]]
"""The requests of a batch, each with the slice of its items that the batch computes."""


class Batcher:
    """A bounded queue of requests. Requests of the same kind are computed together."""

    def __init__(
        self,
        *,
        batch_tokens: int,  # maximum tokens computed together, with sentence boundaries
        wait_seconds: float,  # how long the first request of a batch waits for others
        max_requests: int,
        max_tokens: int,
        metrics: Metrics,
    ) -> None:
        self.batch_tokens, self.wait_seconds = batch_tokens, wait_seconds
        self.max_requests, self.max_tokens, self.metrics = max_requests, max_tokens, metrics
        self.batch_started: float | None = None
        self._thread = ThreadPoolExecutor(1, "elmokit-compute")
        self._has_arrived = asyncio.Event()
        # The requests of each kind of computation; the kind that has waited longest comes first.
        self._queues: OrderedDict[Hashable, deque[_Waiting]] = OrderedDict()
        self._n_requests = self._n_tokens = 0
        self._tokens_per_second = 5000.0

    @property
    def batch_seconds(self) -> float:
        """How long the current batch has been computing; 0 if there is none."""
        return 0.0 if self.batch_started is None else time.monotonic() - self.batch_started

    async def submit(self, key: Hashable, compute: Compute, items: Sequence[Any], lengths: Sequence[int]) -> list[Any]:
        """Queue a request with at least one item, and wait for one result per item."""
        # Items of requests with equal keys are computed in one call. If a request is cancelled, its items that are
        # still waiting are dropped.
        sizes = [length + N_BOUNDARIES for length in lengths]
        n_tokens = sum(sizes)
        # A request larger than the queue is accepted if nothing else is waiting.
        is_full = self._n_requests and self._n_tokens + n_tokens > self.max_tokens
        if is_full or self._n_requests >= self.max_requests:
            seconds = max(1, math.ceil(self._n_tokens / self._tokens_per_second))
            raise Problem(
                429,
                f"The queue is full. Try again in {seconds} seconds.",
                code="queue_full",
                headers={"Retry-After": str(seconds)},
            )
        waiting = _Waiting(compute, items, sizes, asyncio.get_running_loop().create_future(), time.monotonic())
        self._queues.setdefault(key, deque()).append(waiting)
        self._count(1, n_tokens)
        self._has_arrived.set()
        try:
            return await waiting.future
        finally:
            self._count(-1, -n_tokens)

    def _count(self, n_requests: int, n_tokens: int) -> None:
        self._n_requests += n_requests
        self._n_tokens += n_tokens
        self.metrics.queue_changed(n_requests, n_tokens)

    async def run(self) -> None:
        """Compute submitted requests, forever."""
        while True:
            if not self._queues:
                self._has_arrived.clear()
                await self._has_arrived.wait()
            await self._wait_for_others()
            if taken := self._take():
                await self._compute(taken)

    async def _wait_for_others(self) -> None:
        """Wait until the batch is full or its first request has waited long enough."""
        queue = next(iter(self._queues.values()))
        while (remaining := queue[0].arrived + self.wait_seconds - time.monotonic()) > 0:
            if sum(sum(waiting.sizes) for waiting in queue) >= self.batch_tokens:
                return
            self._has_arrived.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_arrived.wait(), remaining)

    def _take(self) -> Taken:
        """Take the next batch."""
        key, queue = self._queues.popitem(last=False)
        taken: Taken = []
        n_tokens = 0
        while queue:
            waiting = queue.popleft()
            if waiting.future.done():  # the client has disconnected or the request has timed out
                continue
            start = waiting.n_taken
            for size in waiting.sizes[start : start + TURN_SENTENCES]:
                # A sentence longer than a batch is computed alone.
                if n_tokens and n_tokens + size > self.batch_tokens:
                    break
                n_tokens += size
                waiting.n_taken += 1
            if waiting.n_taken > start:
                taken.append((waiting, slice(start, waiting.n_taken)))
            if waiting.n_taken < min(start + TURN_SENTENCES, len(waiting.items)):
                queue.appendleft(waiting)  # first in the next batch; otherwise, a long sentence might wait forever
                break
            if waiting.n_taken < len(waiting.items):
                queue.append(waiting)  # the next turn is another request's
        if queue:
            self._queues[key] = queue  # at the end, so other kinds come first
        return taken

    async def _compute(self, taken: Taken) -> None:
        """Compute a batch, and deliver the results of completed requests."""
        self.batch_started = started = time.monotonic()
        results = await asyncio.get_running_loop().run_in_executor(self._thread, _results, taken)
        self.batch_started = None
        seconds = time.monotonic() - started
        for (waiting, _), result in zip(taken, results, strict=True):
            if waiting.future.done():
                continue
            if isinstance(result, Exception):
                waiting.future.set_exception(result)
                continue
            waiting.results += result
            if len(waiting.results) == len(waiting.items):
                waiting.future.set_result(waiting.results)
        sizes = [size for waiting, part in taken for size in waiting.sizes[part]]
        self._tokens_per_second += 0.1 * (sum(sizes) / max(seconds, 1e-6) - self._tokens_per_second)
        self.metrics.batch_computed(len({waiting for waiting, _ in taken}), len(sizes), sum(sizes), seconds)


def _results(taken: Taken) -> list[Any]:
    """Compute a batch. If a part causes an error, the error takes the place of its results."""
    parts = [waiting.items[part] for waiting, part in taken]
    compute = taken[0][0].compute
    try:
        results = iter(compute(list(chain.from_iterable(parts))))
        return [list(islice(results, len(part))) for part in parts]
    except Exception as error:
        if len(taken) == 1:
            return [error]
        # One request must not fail because of another, so compute each alone.
        return [result for one in taken for result in _results([one])]
