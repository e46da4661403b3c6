"""Requests that wait together are computed together, and none holds up or breaks another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elmokit.serve.batching import TURN_SENTENCES, Batcher, QueueFull


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


MakeBatcher = Callable[..., Batcher]


@pytest.fixture
def make_batcher() -> Iterator[MakeBatcher]:
    made: list[Batcher] = []

    def make(**settings: Any) -> Batcher:
        limits = {"batch_tokens": 300, "wait_seconds": 0.0, "max_requests": 100, "max_tokens": 100_000, **settings}
        made.append(Batcher(**limits))
        made[-1].start()
        return made[-1]

    yield make
    for batcher in made:
        batcher.stop()


async def busy(batcher: Batcher, model: Model) -> asyncio.Future[list[Any]]:
    """Start a computation that does not end before ``model.may_compute`` is set."""
    model.may_compute.clear()
    first = batcher.submit("double", model.compute, [0], [1])
    while not model.is_computing.is_set():
        await asyncio.sleep(0.001)
    return first


def test_requests_that_wait_together_are_computed_together(make_batcher: MakeBatcher) -> None:
    model, batcher = Model(), make_batcher()

    async def scenario() -> list[list[int]]:
        first = await busy(batcher, model)
        others = [batcher.submit("double", model.compute, [n, n + 1], [3, 3]) for n in (10, 20, 30)]
        model.may_compute.set()
        return await asyncio.gather(first, *others)

    assert asyncio.run(scenario()) == [[0], [20, 22], [40, 42], [60, 62]]
    assert model.batches == [[0], [10, 11, 20, 21, 30, 31]]


def test_the_first_request_waits_for_others(make_batcher: MakeBatcher) -> None:
    model, batcher = Model(), make_batcher(wait_seconds=30, batch_tokens=12)

    async def scenario() -> list[list[int]]:
        first = batcher.submit("double", model.compute, [1], [4])
        await asyncio.sleep(0.05)
        # Together they fill a batch, so that the time is not waited for.
        return await asyncio.gather(first, batcher.submit("double", model.compute, [2], [4]))

    assert asyncio.run(scenario()) == [[2], [4]]
    assert model.batches == [[1, 2]]


def test_a_large_request_does_not_hold_up_a_small_one(make_batcher: MakeBatcher) -> None:
    model, batcher = Model(), make_batcher()
    numbers = list(range(1000))

    async def scenario() -> None:
        first = await busy(batcher, model)
        large = batcher.submit("double", model.compute, numbers, [1] * 1000)
        small = batcher.submit("double", model.compute, [5000], [1])
        model.may_compute.set()
        assert await small == [10_000]
        assert await large == [2 * number for number in numbers]
        await first

    asyncio.run(scenario())
    assert model.batches[1][: TURN_SENTENCES + 1] == [*range(TURN_SENTENCES), 5000]
    assert all(3 * len(batch) <= 300 for batch in model.batches)


def test_a_long_sentence_is_computed_although_short_ones_keep_coming(make_batcher: MakeBatcher) -> None:
    model, batcher = Model(), make_batcher()

    async def scenario() -> None:
        waiting = [await busy(batcher, model), batcher.submit("double", model.compute, [1], [1])]
        long = batcher.submit("double", model.compute, [7], [1000])
        waiting += [batcher.submit("double", model.compute, [number], [1]) for number in range(20)]
        model.may_compute.set()
        assert await long == [14]
        await asyncio.gather(*waiting)

    asyncio.run(scenario())
    assert [7] in model.batches[:3]


def test_different_computations_take_turns(make_batcher: MakeBatcher) -> None:
    model, batcher = Model(), make_batcher()

    async def scenario() -> None:
        waiting = [await busy(batcher, model)]
        waiting += [batcher.submit("double", model.compute, list(range(200)), [1] * 200)]
        waiting += [batcher.submit("other", model.compute, [-2], [1])]
        model.may_compute.set()
        await asyncio.gather(*waiting)

    asyncio.run(scenario())
    assert model.batches[2] == [-2]


def test_a_cancelled_request_is_dropped(make_batcher: MakeBatcher) -> None:
    changes: list[tuple[int, int]] = []
    model, batcher = Model(), make_batcher(queue_changed=lambda *change: changes.append(change))

    async def scenario() -> None:
        first = await busy(batcher, model)
        cancelled = batcher.submit("double", model.compute, [1], [1])
        other = batcher.submit("double", model.compute, [2], [1])
        cancelled.cancel()
        await asyncio.sleep(0)
        model.may_compute.set()
        assert await asyncio.gather(first, other) == [[0], [4]]

    asyncio.run(scenario())
    assert model.batches == [[0], [2]]
    assert [sum(column) for column in zip(*changes, strict=True)] == [0, 0]  # nothing waits


def test_an_error_reaches_only_the_request_that_caused_it(make_batcher: MakeBatcher) -> None:
    changes: list[tuple[int, int]] = []
    model, batcher = Model(), make_batcher(queue_changed=lambda *change: changes.append(change))

    async def scenario() -> list[Any]:
        first = await busy(batcher, model)
        others = [batcher.submit("double", model.compute, [number], [1]) for number in (1, -1, 3)]
        model.may_compute.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    first, one, bad, three = asyncio.run(scenario())
    assert (first, one, three) == ([0], [2], [6])
    assert isinstance(bad, ValueError)
    assert [sum(column) for column in zip(*changes, strict=True)] == [0, 0]  # nothing waits


@pytest.mark.parametrize("limits", [{"max_requests": 2}, {"max_tokens": 10}])
def test_a_full_queue_says_when_to_try_again(make_batcher: MakeBatcher, limits: dict[str, int]) -> None:
    model, batcher = Model(), make_batcher(**limits)

    async def scenario() -> None:
        first = await busy(batcher, model)
        second = batcher.submit("double", model.compute, [1], [4])
        with pytest.raises(QueueFull) as full:
            batcher.submit("double", model.compute, [2], [4])
        assert full.value.retry_after >= 1
        model.may_compute.set()
        await asyncio.gather(first, second)
        assert await batcher.submit("double", model.compute, [2], [1]) == [4]

    asyncio.run(scenario())


def test_a_request_larger_than_the_queue_is_computed_if_nothing_waits(make_batcher: MakeBatcher) -> None:
    model, batcher = Model(), make_batcher(max_tokens=10)

    async def scenario() -> list[int]:
        return await batcher.submit("double", model.compute, [1, 2, 3], [9, 9, 9])

    assert asyncio.run(scenario()) == [2, 4, 6]


def test_stopping_computes_what_waits_and_accepts_no_more(make_batcher: MakeBatcher) -> None:
    model, batcher = Model(), make_batcher(wait_seconds=30)

    async def scenario() -> None:
        waiting = batcher.submit("double", model.compute, [1], [1])
        await asyncio.to_thread(batcher.stop)
        assert await waiting == [2]
        assert not batcher.is_running
        with pytest.raises(QueueFull):
            batcher.submit("double", model.compute, [1], [1])

    asyncio.run(scenario())
