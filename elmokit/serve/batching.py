"""Compute requests that wait at the same time together.

A thread takes sentences from the queue, up to a number of tokens, computes them with one call of the model, and
delivers the results to the event loop. The thread is the only one that computes, so models need no locks, and the next
batch starts without waiting for the event loop.

Sentences are taken from the waiting requests in turn, a few of each, so that a request with thousands of sentences
does not hold up the others.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from elmokit.text.batching import N_BOUNDARIES

TURN_SENTENCES = 16
"""Sentences that are taken from a request before it is another request's turn."""

Compute = Callable[[list[Any]], Iterable[Any]]
"""Maps items to one result each, in their order. The result of an item does not depend on the others."""


class QueueFull(Exception):
    """The queue is full. There will probably be room after ``retry_after`` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("the queue is full")
        self.retry_after = retry_after


class BatchObserver(Protocol):
    """What is informed about batches, for metrics."""

    def batch_computed(self, n_requests: int, n_sentences: int, n_tokens: int, seconds: float) -> None:
        """Record a batch."""


@dataclass(eq=False)
class _Waiting:
    """A request in the queue."""

    key: Hashable
    compute: Compute
    items: Sequence[Any]
    sizes: Sequence[int]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Any]]
    arrived: float
    n_tokens: int
    n_taken: int = 0
    results: dict[int, Any] = field(default_factory=dict)

    def resolve(self, error: BaseException | None = None) -> None:
        """Deliver the results, or an error, in the event loop."""

        def deliver() -> None:
            if self.future.done():
                return
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result([self.results[number] for number in range(len(self.items))])

        # The loop is closed if the server was stopped without waiting for its requests.
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(deliver)


class Batcher:
    """A bounded queue of requests, and the thread that computes those of one kind together."""

    def __init__(
        self,
        *,
        batch_tokens: int,  # that are computed together, with sentence boundaries
        wait_seconds: float,  # how long the first request of a batch waits for others
        max_requests: int,
        max_tokens: int,
        # Called with the numbers of requests and tokens by which the queue has changed.
        queue_changed: Callable[[int, int], object] = lambda n_requests, n_tokens: None,
        observer: BatchObserver | None = None,
    ) -> None:
        self.batch_tokens, self.wait_seconds = batch_tokens, wait_seconds
        self.max_requests, self.max_tokens = max_requests, max_tokens
        self.queue_changed, self.observer = queue_changed, observer
        self._changed = threading.Condition()
        # For each kind of computation its requests, the kind that waits longest first.
        self._queues: OrderedDict[Hashable, deque[_Waiting]] = OrderedDict()
        self._n_requests = self._n_tokens = 0
        self._tokens_per_second = 5000.0
        self._is_stopping = False
        self._batch_started: float | None = None
        self._thread = threading.Thread(target=self._work, name="elmokit-compute", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Compute what is waiting, then stop the thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join()

    @property
    def is_running(self) -> bool:
        """Whether the thread accepts requests."""
        return self._thread.is_alive() and not self._is_stopping

    @property
    def batch_seconds(self) -> float:
        """For how long the present batch has been computed; 0 if there is none."""
        started = self._batch_started
        return 0.0 if started is None else time.monotonic() - started

    def submit(
        self, key: Hashable, compute: Compute, items: Sequence[Any], lengths: Sequence[int]
    ) -> asyncio.Future[list[Any]]:
        """Queue a request of at least one item; call it in the event loop. The future has one result per item."""
        # Items of requests with equal keys are computed by one call, in the thread. If the future is cancelled, the
        # items that are still waiting are dropped.
        sizes = [length + N_BOUNDARIES for length in lengths]
        loop = asyncio.get_running_loop()
        waiting = _Waiting(key, compute, items, sizes, loop, loop.create_future(), time.monotonic(), sum(sizes))
        with self._changed:
            # A request that is larger than the queue is accepted if nothing else waits.
            is_full = self._n_requests and self._n_tokens + waiting.n_tokens > self.max_tokens
            if is_full or self._n_requests >= self.max_requests or self._is_stopping:
                raise QueueFull(max(1.0, self._n_tokens / self._tokens_per_second))
            self._queues.setdefault(key, deque()).append(waiting)
            self._count(1, waiting.n_tokens)
            self._changed.notify()
        waiting.future.add_done_callback(lambda future: self._finish(waiting))
        return waiting.future

    def _finish(self, waiting: _Waiting) -> None:
        """Forget a request that has its results, failed or was cancelled."""
        with self._changed:
            self._count(-1, -waiting.n_tokens)
            self._drop(waiting)

    def _count(self, n_requests: int, n_tokens: int) -> None:
        self._n_requests += n_requests
        self._n_tokens += n_tokens
        self.queue_changed(n_requests, n_tokens)

    def _drop(self, waiting: _Waiting) -> None:
        """Remove a request from the queue, if it is there."""
        queue = self._queues.get(waiting.key)
        if queue is not None and waiting in queue:
            queue.remove(waiting)
            if not queue:
                del self._queues[waiting.key]

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queues and not self._is_stopping:
                    self._changed.wait()
                if not self._queues:
                    return
                self._wait_for_others()
                taken = self._take() if self._queues else []
            if taken:
                self._batch_started = time.monotonic()
                self._compute(taken)
                self._batch_started = None

    def _wait_for_others(self) -> None:
        """Wait until the batch is full or its first request has waited long enough."""
        while self._queues and not self._is_stopping:
            queue = next(iter(self._queues.values()))
            remaining = queue[0].arrived + self.wait_seconds - time.monotonic()
            if remaining <= 0 or sum(waiting.n_tokens for waiting in queue) >= self.batch_tokens:
                return
            self._changed.wait(remaining)

    def _take(self) -> list[tuple[_Waiting, int]]:
        """Take the next batch: requests with the numbers of their items."""
        key, queue = self._queues.popitem(last=False)
        taken: list[tuple[_Waiting, int]] = []
        n_tokens = 0
        is_full = False
        while queue and not is_full:
            waiting = queue.popleft()
            turn = range(waiting.n_taken, min(waiting.n_taken + TURN_SENTENCES, len(waiting.items)))
            for number in turn:
                n_tokens += waiting.sizes[number]
                # A sentence that is longer than a batch is computed alone.
                if taken and n_tokens > self.batch_tokens:
                    is_full = True
                    break
                taken.append((waiting, number))
                waiting.n_taken += 1
            if is_full:
                queue.appendleft(waiting)  # first in the next batch, or a long sentence might wait forever
            elif waiting.n_taken < len(waiting.items):
                queue.append(waiting)  # the next turn is another request's
        if queue:
            self._queues[key] = queue  # at the end: other kinds come first
        return taken

    def _compute(self, taken: list[tuple[_Waiting, int]]) -> None:
        first, _ = taken[0]
        started = time.monotonic()
        requests = list(dict.fromkeys(waiting for waiting, _ in taken))
        try:
            self._store(taken, first.compute)
        except Exception:
            # One request must not fail because of another: compute each alone.
            for waiting in requests:
                if waiting.future.done():  # its client has left, or its time is over
                    continue
                try:
                    self._store([(request, number) for request, number in taken if request is waiting], waiting.compute)
                except Exception as error:
                    with self._changed:
                        self._drop(waiting)
                    waiting.resolve(error)
        for waiting in requests:
            if len(waiting.results) == len(waiting.items):
                waiting.resolve()
        seconds = time.monotonic() - started
        n_tokens = sum(waiting.sizes[number] for waiting, number in taken)
        self._tokens_per_second += 0.1 * (n_tokens / max(seconds, 1e-6) - self._tokens_per_second)
        if self.observer is not None:
            self.observer.batch_computed(len(requests), len(taken), n_tokens, seconds)

    @staticmethod
    def _store(taken: list[tuple[_Waiting, int]], compute: Compute) -> None:
        for (waiting, number), result in zip(
            taken, compute([waiting.items[number] for waiting, number in taken]), strict=True
        ):
            waiting.results[number] = result
