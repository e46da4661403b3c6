"""Write in a second thread while the calling thread computes.

The queue is bounded, so that a slow disk does not fill the memory. Neither side may wait for the other without end:
whoever waits checks every 0.1 s whether the other side has stopped, because an exception there would otherwise leave a
thread that blocks the exit of the process.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Short enough not to be noticed at the end of a run, long enough to cost nothing while waiting.
_WAIT_SECONDS = 0.1


class BackgroundWriter(Generic[Item]):
    """A context manager that passes items in order to a function in a thread; up to ``n`` items may wait.

    An exception of the function is raised by the next :meth:`put`, or at the end of the block; later items are dropped.
    If the block ends without an exception, all items have been handled. However it ends, also by another Ctrl-C, no
    item is being handled any more, so that the files it is written to can be closed.
    """

    def __init__(self, handle: Callable[[Item], None], n: int) -> None:
        self._queue: queue.Queue[Item | None] = queue.Queue(n)
        self._handle = handle
        self._error: BaseException | None = None
        self._stopped = threading.Event()
        # `Thread.join` cannot be called again after Ctrl-C: it then takes a running thread for one that has ended.
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> BackgroundWriter[Item]:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            # After an error in the block, what was queued belongs to a result that will be discarded or resumed.
            if kind is not None:
                self._stopped.set()  # drop the items that are still waiting
            _put(self._queue, None, self._stopped)
            self._ended.wait()
        finally:
            self._stopped.set()
            while not self._ended.is_set():
                with contextlib.suppress(KeyboardInterrupt):  # one is being raised already, or the block's error is
                    self._ended.wait()
        if kind is None:
            self._raise_error()

    def put(self, item: Item) -> None:
        """Pass an item on. Blocks while ``n`` items are waiting."""
        # The thread stops at its first error, so that no later write follows a failed one: a journal must not count
        # them.
        if not _put(self._queue, item, self._stopped):
            self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while (item := _get(self._queue, self._stopped)) is not None:
                self._handle(item)
        except BaseException as error:
            self._error = error
            self._stopped.set()
        finally:
            self._ended.set()


def _put(items: queue.Queue[Item | None], item: Item | None, stopped: threading.Event) -> bool:
    """Put the item in the queue unless the other side has stopped; return whether it was put."""
    while not stopped.is_set():
        try:
            items.put(item, timeout=_WAIT_SECONDS)
        except queue.Full:
            continue
        return True
    return False


def _get(items: queue.Queue[Item | None], stopped: threading.Event) -> Item | None:
    """Return the next item, or None if there will be none."""
    while not stopped.is_set():
        try:
            return items.get(timeout=_WAIT_SECONDS)
        except queue.Empty:
            continue
    return None
