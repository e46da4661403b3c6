"""Requests that wait together are computed together, and none holds up or breaks another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from elmokit.serve.batcher import TURN_SENTENCES, Batcher
from elmokit.serve.metrics import Metrics
from elmokit.serve.problems import Problem


class Model:
    """Doubles numbers, records its batches, and can be made to wait."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_compute = threading.Event()
        self.may_compute.set()
        self.is_computing = threading.Event()

    def compute(self, numbers: list[int]) -> list[int]:
        self.is_computing.set()
        assert self.may_compute.wait(10)
        self.batches.append(numbers)
        if -1 in numbers:
            raise ValueError("a bad number")
        return [2 * number for number in numbers]


class Queue:
    """A batcher that runs as long as a scenario does, and the changes of its queue."""

    def __init__(self, **settings: Any) -> None:
        limits = {"batch_tokens": 300, "wait_seconds": 0.0, "max_requests": 100, "max_tokens": 100_000, **settings}
        self.metrics = Metrics()
        self.batcher = Batcher(metrics=self.metrics, **limits)

    def run(self, scenario: Callable[[Batcher, Model], Coroutine[Any, Any, Any]]) -> tuple[Any, list[list[int]]]:
        """Run a scenario, and return its result and the batches that were computed."""
        model = Model()

        async def run() -> Any:
            running = asyncio.create_task(self.batcher.run())
            try:
                return await scenario(self.batcher, model)
            finally:
                model.may_compute.set()
                running.cancel()

        result = asyncio.run(run())
        assert b"elmokit_queue_requests 0.0" in self.metrics.text()  # nothing waits any more
        assert b"elmokit_queue_tokens 0.0" in self.metrics.text()
        return result, model.batches


def submit(batcher: Batcher, model: Model, numbers: list[int], size: int, key: str = "double") -> asyncio.Task[Any]:
    return asyncio.create_task(batcher.submit(key, model.compute, numbers, [size] * len(numbers)))


async def busy(batcher: Batcher, model: Model) -> asyncio.Task[Any]:
    """Start a computation that does not end before ``model.may_compute`` is set."""
    model.may_compute.clear()
    first = submit(batcher, model, [0], 1)
    while not model.is_computing.is_set():
        await asyncio.sleep(0.001)
    return first


def test_requests_that_wait_together_are_computed_together() -> None:
    async def scenario(batcher: Batcher, model: Model) -> Any:
        first = await busy(batcher, model)
        others = [submit(batcher, model, [n, n + 1], 3) for n in (10, 20, 30)]
        await asyncio.sleep(0)
        model.may_compute.set()
        return await asyncio.gather(first, *others)

    assert Queue().run(scenario) == ([[0], [20, 22], [40, 42], [60, 62]], [[0], [10, 11, 20, 21, 30, 31]])


def test_a_full_batch_does_not_wait_for_others() -> None:
    async def scenario(batcher: Batcher, model: Model) -> Any:
        first = submit(batcher, model, [1, 2], 100)
        await asyncio.sleep(0.01)
        assert not model.batches
        return await asyncio.wait_for(asyncio.gather(first, submit(batcher, model, [3], 100)), 10)

    result, batches = Queue(batch_tokens=306, wait_seconds=1000.0).run(scenario)  # each with two boundaries
    assert (result, batches) == ([[2, 4], [6]], [[1, 2, 3]])


def test_a_large_request_does_not_hold_up_a_small_one() -> None:
    numbers = list(range(1000))

    async def scenario(batcher: Batcher, model: Model) -> None:
        first = await busy(batcher, model)
        large, small = submit(batcher, model, numbers, 1), submit(batcher, model, [5000], 1)
        await asyncio.sleep(0)
        model.may_compute.set()
        assert await small == [10_000]
        assert not large.done()
        assert await large == [2 * number for number in numbers]
        await first

    _, batches = Queue().run(scenario)
    assert batches[1][: TURN_SENTENCES + 1] == [*range(TURN_SENTENCES), 5000]
    assert all(3 * len(batch) <= 300 for batch in batches)


def test_a_long_sentence_is_computed_although_short_ones_keep_coming() -> None:
    async def scenario(batcher: Batcher, model: Model) -> None:
        waiting = [await busy(batcher, model), submit(batcher, model, [1], 1)]
        long = submit(batcher, model, [7], 1000)
        waiting += [submit(batcher, model, [number], 1) for number in range(20)]
        await asyncio.sleep(0)
        model.may_compute.set()
        assert await long == [14]
        await asyncio.gather(*waiting)

    _, batches = Queue().run(scenario)
    assert [7] in batches[:3]


def test_an_error_reaches_only_the_request_that_caused_it() -> None:
    async def scenario(batcher: Batcher, model: Model) -> Any:
        first = await busy(batcher, model)
        others = [submit(batcher, model, [number], 1) for number in (1, -1, 3)]
        await asyncio.sleep(0)
        model.may_compute.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    (first, one, bad, three), _ = Queue().run(scenario)
    assert (first, one, three) == ([0], [2], [6])
    assert isinstance(bad, ValueError)


@pytest.mark.parametrize("limits", [{"max_requests": 2}, {"max_tokens": 10}])
def test_a_full_queue_says_when_to_try_again(limits: dict[str, int]) -> None:
    async def scenario(batcher: Batcher, model: Model) -> Any:
        waiting = [await busy(batcher, model), submit(batcher, model, [1], 4)]
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="queue is full") as full:
            await submit(batcher, model, [2], 4)
        assert (full.value.status, int(full.value.headers["Retry-After"]) >= 1) == (429, True)
        model.may_compute.set()
        await asyncio.gather(*waiting)
        return await submit(batcher, model, [2], 1)

    assert Queue(**limits).run(scenario)[0] == [4]


def test_what_waits_of_a_cancelled_request_is_dropped() -> None:
    async def scenario(batcher: Batcher, model: Model) -> Any:
        first = await busy(batcher, model)
        left, other = submit(batcher, model, [1, 2], 1), submit(batcher, model, [3], 1)
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait([left])
        model.may_compute.set()
        return await asyncio.gather(first, other)

    assert Queue().run(scenario) == ([[0], [6]], [[0], [3]])
