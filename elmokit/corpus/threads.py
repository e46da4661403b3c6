"""Work in a second thread, bounded: reading ahead of a consumer, and writing behind a producer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

_WAIT_SECONDS = 0.1  # between looks at whether the other side is still there


class Prefetcher(Generic[Item]):
    """Runs an iterator in a thread, at most ``n`` items ahead of whoever iterates over this; use it in a ``with``.

    What the iterator raises is raised where the item would have come. When the ``with`` ends, the thread has ended,
    or it waits for input and will end then.
    """

    def __init__(self, items: Iterator[Item], n: int) -> None:
        self._queue: queue.Queue[Item | None] = queue.Queue(n)
        self._items = items
        self._error: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Prefetcher[Item]:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=10 * _WAIT_SECONDS)

    def __iter__(self) -> Iterator[Item]:
        while (item := self._queue.get()) is not None:
            yield item
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            for item in self._items:
                if not _put(self._queue, item, self._stopped):
                    return
        except BaseException as error:
            self._error = error
        _put(self._queue, None, self._stopped)


class BackgroundWriter(Generic[Item]):
    """Gives items to a function in a thread, which is at most ``n`` items behind; use it in a ``with``.

    What the function raises is raised by the next ``put``, or where the ``with`` ends; later items are dropped. When
    the ``with`` ends well, all items were handled.
    """

    def __init__(self, handle: Callable[[Item], None], n: int) -> None:
        self._queue: queue.Queue[Item | None] = queue.Queue(n)
        self._handle = handle
        self._error: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> BackgroundWriter[Item]:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self._stopped.set()  # what waits in the queue is no longer wanted
        _put(self._queue, None, self._stopped)
        self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def put(self, item: Item) -> None:
        """Hand an item over; waits while ``n`` are waiting."""
        if not _put(self._queue, item, self._stopped) and self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (item := _get(self._queue, self._stopped)) is not None:
            try:
                self._handle(item)
            except BaseException as error:
                self._error = error
                self._stopped.set()


def _put(items: queue.Queue[Item | None], item: Item | None, stopped: threading.Event) -> bool:
    """Put the item unless the other side has stopped: whether it was put."""
    while not stopped.is_set():
        try:
            items.put(item, timeout=_WAIT_SECONDS)
        except queue.Full:
            continue
        return True
    return False


def _get(items: queue.Queue[Item | None], stopped: threading.Event) -> Item | None:
    """The next item; None if there will be none."""
    while not stopped.is_set():
        try:
            return items.get(timeout=_WAIT_SECONDS)
        except queue.Empty:
            continue
    return None
