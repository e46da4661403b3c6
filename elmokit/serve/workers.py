"""Several processes that serve one model from one listening socket.

The model is opened before the processes are forked. They share its memory, because nothing writes to the weights, and
each has an event loop and a thread that computes.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from types import FrameType

MIN_UPTIME_SECONDS = 5.0
"""A process that ends sooner is started again only after this time, so that a broken one does not use up the CPU."""
POLL_SECONDS = 0.1
"""How often a process checks the others, and for signals."""


def run_workers(
    n_workers: int,
    # What each of them does. It calls what it is given once it handles signals, and returns after SIGTERM.
    work: Callable[[Callable[[], object]], None],
    # Closes the listening socket of this process when it is to stop. Otherwise clients could still connect, and nobody
    # would answer.
    close: Callable[[], None],
    ended: Callable[[int], object],  # called with the id of each process that has ended
    stop_timeout_seconds: float,
) -> None:
    """Run a function in several processes until SIGTERM or SIGINT, and replace those that end before."""
    # The signal is passed on to the processes. Those that still run after the time limit are killed. If this process is
    # killed itself, the others stop too.
    gc.freeze()  # a collection in a process would write to the objects that it shares, and so copy their memory
    started: dict[int, float] = {}
    not_before = 0.0
    is_stopping = False

    def stop(signum: int, frame: FrameType | None) -> None:
        # Only notes the signal: it may come between the end of a process and its removal from `started`.
        nonlocal is_stopping
        is_stopping = True

    # Blocked while processes are started, because a new one would lose a signal before it has its own handlers.
    signals = {signal.SIGTERM, signal.SIGINT}
    previous = {number: signal.signal(number, stop) for number in signals}
    # Only this process can write to the pipe, so its end, however it comes, ends the pipe.
    parent_ended, parent_runs = os.pipe()
    try:
        while not is_stopping:
            signal.pthread_sigmask(signal.SIG_BLOCK, signals)
            while len(started) < n_workers and time.monotonic() > not_before:
                pid = os.fork()
                if not pid:
                    os.close(parent_runs)
                    _run_worker(work, signals, parent_ended, stop_timeout_seconds)
                started[pid] = time.monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            time.sleep(POLL_SECONDS)
            for pid, uptime in _remove_ended(started):
                ended(pid)
                not_before = max(not_before, time.monotonic() + MIN_UPTIME_SECONDS - uptime)
    finally:
        close()
        _end(started, stop_timeout_seconds)
        for descriptor in (parent_ended, parent_runs):
            os.close(descriptor)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end(started: dict[int, float], timeout_seconds: float) -> None:
    """Ask processes to stop, wait until they have, and kill those that need longer than a time limit."""
    for pid in started:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_seconds
    while started:
        time.sleep(POLL_SECONDS)
        _remove_ended(started)
        if time.monotonic() > deadline:
            for pid in started:
                os.kill(pid, signal.SIGKILL)


def _run_worker(
    work: Callable[[Callable[[], object]], None],
    signals: set[signal.Signals],
    parent_ended: int,
    stop_timeout_seconds: float,
) -> None:
    """Do a process's work and end it, without the clean-up that is its parent's."""
    code = 1
    try:
        for number in signals:
            signal.signal(number, signal.default_int_handler)
        threading.Thread(target=_stop_with_parent, args=(parent_ended, stop_timeout_seconds), daemon=True).start()
        # Signals stay blocked until then: an exception in the middle of the start would leave parts of it behind.
        work(partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, signals))
        code = 0
    except KeyboardInterrupt:  # a second signal, after its own handlers were removed
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Not sys.exit: that would run the exit handlers of the parent, such as the removal of its temporary files.
        os._exit(code)


def _stop_with_parent(parent_ended: int, timeout_seconds: float) -> None:
    """Wait until the parent has ended, and then stop this process, as the parent would have done."""
    # A pipe and not Linux's PR_SET_PDEATHSIG: it works on every system, and cannot miss a parent that has just ended.
    os.read(parent_ended, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(timeout_seconds)
    os._exit(1)


def _remove_ended(started: dict[int, float]) -> list[tuple[int, float]]:
    """Remove the processes that have ended, and return their ids and uptimes."""
    ended = [pid for pid in started if os.waitpid(pid, os.WNOHANG)[0]]
    return [(pid, time.monotonic() - started.pop(pid)) for pid in ended]
