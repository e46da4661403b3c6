"""Stop a training on Ctrl-C or SIGTERM at a point from which it can be resumed without loss."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

NOTICE = b"\nStopping after this step, with a checkpoint. Press Ctrl-C again to stop at once.\n"


class TrainingInterrupted(KeyboardInterrupt):
    """A training that the user stopped. Its last step is in a checkpoint, and the message says which step it was."""


class StopRequest:
    """Whether the process was asked to stop. Get it from :func:`stop_requests`, and check it after each step."""

    is_made = False


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn the first SIGINT (Ctrl-C) or SIGTERM during the block into a request; a second one acts as usual.

    Nothing changes where Python cannot handle signals (in other threads than the main one), and for a signal that the
    process ignores, such as SIGINT in a background job of a shell.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    earlier = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # None is a handler that was not installed from Python, and that Python could not install again.
    handled = {number: handler for number, handler in earlier.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in handled.items():
            signal.signal(number, handler)

    def handle(number: int, frame: object) -> None:
        request.is_made = True
        restore()
        # Not `print`: the signal may have come in the middle of one, and a stream cannot be entered twice.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.write(sys.stderr.fileno(), NOTICE)

    for number in handled:
        signal.signal(number, handle)
    try:
        yield request
    finally:
        restore()
