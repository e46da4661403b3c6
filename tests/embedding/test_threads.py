from __future__ import annotations

import signal
import threading
import time

import pytest

from elmokit.embedding.threads import BackgroundWriter


def test_all_items_are_handled_when_the_block_ends() -> None:
    handled: list[int] = []

    def slowly(item: int) -> None:
        time.sleep(0.01)
        handled.append(item)

    with BackgroundWriter(slowly, 2) as behind:
        for item in range(10):
            behind.put(item)
    assert handled == list(range(10))


def test_an_error_while_writing_is_raised_by_the_next_put_or_at_the_end() -> None:
    def broken(item: int) -> None:
        raise OSError(f"disk full at {item}")

    with pytest.raises(OSError, match="disk full at 0"), BackgroundWriter(broken, 1) as behind:
        list(map(behind.put, range(1000)))
    with pytest.raises(OSError, match="disk full at 7"), BackgroundWriter(broken, 1) as behind:
        behind.put(7)


def test_the_thread_ends_with_the_block_even_if_interrupted_repeatedly() -> None:
    handled: list[int] = []
    n_interrupts = 0

    def interrupt(*_: object) -> None:
        nonlocal n_interrupts
        n_interrupts += 1
        raise KeyboardInterrupt

    def slowly(item: int) -> None:
        # On a busy machine, the next Ctrl-C could come before Python has noticed the one before, and both would be one.
        for number in range(3):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            while n_interrupts <= number:
                time.sleep(0.01)
        handled.append(item)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        # The first Ctrl-C comes while the block ends by itself and waits for its last item.
        with pytest.raises(KeyboardInterrupt), BackgroundWriter(slowly, 1) as behind:
            behind.put(1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert handled == [1]
