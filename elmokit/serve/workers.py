"""Several processes that serve one model from one listening socket.

The model is opened before the processes are forked. They share its memory, because nothing writes to the weights, and
each has an event loop and a thread that computes.
"""

from __future__ import annotations

import gc
import os
import signal
import time
import traceback
from collections.abc import Callable
from types import FrameType

MIN_UPTIME_SECONDS = 5.0
"""A process that ends sooner is started again only after this time, so that a broken one does not use up the CPU."""


def run_workers(
    n_workers: int, work: Callable[[], None], close: Callable[[], None], stop_timeout_seconds: float
) -> None:
    """Run a function in several processes until SIGTERM or SIGINT, and replace those that end before.

    The signal is passed on to the processes. Those that still run after the time limit are killed.

    Args:
        n_workers: Number of processes.
        work: What each of them does. It returns after SIGTERM.
        close: Closes the listening socket of this process when it is to stop. Otherwise clients could still connect,
            and nobody would answer.
        stop_timeout_seconds: The time limit.
    """
    gc.freeze()  # a collection in a process would write to the objects that it shares, and so copy their memory
    started: dict[int, float] = {}
    deadline: float | None = None

    def stop(signum: int, frame: FrameType | None) -> None:
        nonlocal deadline
        deadline = deadline or time.monotonic() + stop_timeout_seconds
        close()
        for pid in started:
            os.kill(pid, signal.SIGTERM)

    # Blocked while processes are started, because a signal in between would miss the new one.
    signals = {signal.SIGTERM, signal.SIGINT}
    previous = {number: signal.signal(number, stop) for number in signals}
    try:
        while deadline is None or started:
            signal.pthread_sigmask(signal.SIG_BLOCK, signals)
            while deadline is None and len(started) < n_workers:
                pid = os.fork()
                if not pid:
                    _run_worker(work, signals)
                started[pid] = time.monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            time.sleep(0.1)
            for pid, uptime in _ended(started):
                del started[pid]
                if deadline is None and uptime < MIN_UPTIME_SECONDS:
                    time.sleep(MIN_UPTIME_SECONDS - uptime)
            if deadline is not None and time.monotonic() > deadline:
                for pid in started:
                    os.kill(pid, signal.SIGKILL)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _run_worker(work: Callable[[], None], signals: set[signal.Signals]) -> None:
    """Do a process's work and end it, without the clean-up that is its parent's."""
    code = 1
    try:
        for number in signals:
            signal.signal(number, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Not sys.exit: that would run the exit handlers of the parent, such as the removal of its temporary files.
        os._exit(code)


def _ended(started: dict[int, float]) -> list[tuple[int, float]]:
    """Return the processes that have ended, with their uptimes."""
    now = time.monotonic()
    return [(pid, now - since) for pid, since in started.items() if os.waitpid(pid, os.WNOHANG)[0]]
