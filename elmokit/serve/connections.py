"""HTTP connections with limits that uvicorn does not have: the time for headers and for reading, and their number."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from elmokit.serve.guard import Receive, Scope, Send
from elmokit.serve.problems import Problem

logger = logging.getLogger("elmokit.serve")
LOG_SECONDS = 60.0
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def refusal(problem: Problem) -> bytes:
    """Return the answer to a request that was not read, after which the connection is closed."""
    problem.headers["Connection"] = "close"
    response, connection = problem.response(), h11.Connection(h11.SERVER)
    head = h11.Response(status_code=problem.status, headers=response.raw_headers)
    events = (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage())
    return b"".join(connection.send(event) or b"" for event in events)


class Connection(H11Protocol):
    """A connection that waits only for a limited time for the headers of a request, and for the client to read."""

    # Always uvicorn's protocol with h11, which limits the size of headers; that with httptools does not.

    def __init__(self, *, header_seconds: float, max_connections: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.header_seconds, self.max_connections = header_seconds, max_connections
        self.timer: asyncio.TimerHandle | None = None
        self.read_timer: asyncio.TimerHandle | None = None
        self.last_used = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being read or answered, apart from headers that are not complete."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Start to wait for a request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # pauses writing whenever something is not sent yet
        self._update_timer()
        if len(self.connections) <= self.max_connections:
            return
        others: list[Any] = [other for other in self.connections if other is not self]
        others = [other for other in others if not other.transport.is_closing()]
        if len(others) >= self.max_connections:
            # The one that has waited longest for a request makes room, so that clients that send half of a request, or
            # none, cannot keep others out.
            waiting = [other for other in others if other.is_waiting]
            if waiting:
                min(waiting, key=lambda other: other.last_used).transport.abort()
            else:
                self.app = _refuse

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._update_timer()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.last_used = time.monotonic()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn keeps it if the connection was broken
        for timer in (self.timer, self.read_timer):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        """Limit the time in which the client reads nothing of an answer."""
        super().pause_writing()
        self._check_read(math.inf)

    def resume_writing(self) -> None:
        """Go on, as all was sent."""
        super().resume_writing()
        if self.read_timer is not None:
            self.read_timer.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not a request, unless it comes after the answer to the request that it belongs to."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(refusal(Problem(400, "The request is not valid HTTP/1.1.", code="invalid_http")))
        self.transport.close()

    def shutdown(self) -> None:
        """Close the connection when the server stops, or after the answer if there is a request."""
        if self.is_waiting:
            self._refuse_headers(Problem.stopping())
        else:
            super().shutdown()

    def _get_upgrade(self) -> None:
        """Answer a request for another protocol as one that asks for none, without uvicorn's advice to install it."""

    def _check_read(self, n_before: float) -> None:
        """Close the connection if the client has read nothing: it may never do, and its answer would stay in memory."""
        n_unsent = self.transport.get_write_buffer_size()
        if n_unsent < n_before:
            self.read_timer = self.loop.call_later(self.timeout_keep_alive, self._check_read, n_unsent)
        else:
            self.transport.abort()

    def _update_timer(self) -> None:
        """Limit the time until a request begins, from the first time when it does not."""
        self.last_used = time.monotonic()
        if not self.is_waiting and self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.is_waiting and self.timer is None:
            late = Problem(
                408, f"The headers did not arrive within {self.header_seconds:g} seconds.", code="header_timeout"
            )
            self.timer = self.loop.call_later(self.header_seconds, self._close_late, late)

    def _close_late(self, problem: Problem) -> None:
        if self.transport.get_write_buffer_size():  # the client does not read the last answer, and may never do
            self.transport.abort()
        else:
            self._refuse_headers(problem)

    def _refuse_headers(self, problem: Problem) -> None:
        """Answer a request whose headers are not complete, if there is one, and close the connection."""
        if self.conn.states == {h11.CLIENT: h11.IDLE, h11.SERVER: h11.IDLE} and self.conn.trailing_data[0]:
            self.transport.write(refusal(problem))
        self.transport.close()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request on a connection for which there is no room."""
    headers = {"Connection": "close", "Retry-After": "1"}
    problem = Problem(503, "The server has too many connections.", code="too_many_connections", headers=headers)
    await problem.response()(scope, receive, send)


class QuietAccept:
    """Handles errors of an event loop; the lack of open files with one line a minute, and the rest as usual."""

    # asyncio stops accepting connections for a second then, which is right, but logs a stack trace for each attempt.

    def __init__(self) -> None:
        self.next_line = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in OUT_OF_FILES:
            loop.default_exception_handler(context)
        elif time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + LOG_SECONDS
            logger.warning("Connections wait, because the system refuses to open more (%s).", error.strerror)
