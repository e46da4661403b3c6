"""What every request passes before its endpoint: host, token, size and time of the body, headers, metrics."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, NoReturn

from elmokit.serve.config import ServeConfig
from elmokit.serve.lifecycle import Lifecycle
from elmokit.serve.metrics import Metrics
from elmokit.serve.problems import MAX_SHOWN, Problem
from elmokit.storage.bounded import MIB, whole_number

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("elmokit.serve")
DISCARDED_BODIES = 8
"""Of a body that is too large, this many times the limit is read before the answer."""
HEADERS = (
    # Nothing from another host, no inline scripts or styles, and no other site may show the page in a frame.
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
CLOSE = (b"connection", b"close")
HOST_HEADER = re.compile(r"(\[[^]]*\]|[^:]*?)\.?(:\d*)?")
HEALTH_PATHS = ("/healthz", "/readyz")
"""Load balancers ask for these by the address of the machine, whatever the name of the service is."""


class Guard:
    """An ASGI middleware that refuses other hosts, requests without the token, and too large or too slow bodies."""

    def __init__(
        self,
        app: App,
        *,
        config: ServeConfig,
        metrics: Metrics,
        lifecycle: Lifecycle,
        token: str | None,
        paths: Collection[str],  # others are counted together, so that a scan does not fill memory with names
        open_paths: Collection[str],  # need no token
    ) -> None:
        self.app, self.config, self.metrics, self.lifecycle = app, config, metrics, lifecycle
        self.expected = None if token is None else token.encode()
        self.hosts = config.accepted_hosts
        self.paths, self.open_paths = frozenset(paths), frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self.paths else "other"
        started = time.monotonic()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # While the server stops, a client that keeps its connection open would lose its next request.
                last = [CLOSE] if self.lifecycle.is_stopping and CLOSE not in message["headers"] else []
                message = {**message, "headers": [*message["headers"], *HEADERS, *last]}
            await send(message)

        problem: Problem | None = None
        try:
            self._check_host(scope)
            self._check_token(scope)
            await self._check_length(scope, receive)
            await self.app(scope, self._bounded(receive), send_with_headers)
        except Problem as raised:
            problem = raised
        except asyncio.CancelledError:
            if not self.lifecycle.is_stopping:
                raise
            # uvicorn cancels what is not answered within --stop-timeout-seconds, and logs what is cancelled.
            problem = Problem.stopping()
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            problem = Problem.unexpected()
        if problem is not None and not status:
            await problem.response()(scope, receive, send_with_headers)
        self.metrics.requests.labels(path, str(status)).inc()
        self.metrics.seconds.labels(path).observe(time.monotonic() - started)

    def _check_host(self, scope: Scope) -> None:
        if self.hosts is None or scope["path"] in HEALTH_PATHS:
            return
        given = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        match = HOST_HEADER.fullmatch(given.lower())
        if match is None or match[1] not in self.hosts:
            raise Problem(
                421,
                f"This server does not answer for the host {given[:MAX_SHOWN]!r}. Use the address that it printed, or "
                "start it with --allowed-hosts and the name.",
                code="host_not_allowed",
            )

    def _check_token(self, scope: Scope) -> None:
        if self.expected is None or scope["path"] in self.open_paths:
            return
        scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        # The comparison takes the same time wherever they differ.
        if not hmac.compare_digest(given, self.expected) or scheme.lower() != b"bearer":
            raise Problem(
                401,
                "The token is missing or wrong. Send the header Authorization: Bearer TOKEN.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _check_length(self, scope: Scope, receive: Receive) -> None:
        """Refuse a body by the length that its header says, before it is in memory."""
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        n_bytes = whole_number(length.decode("latin-1"))  # None, too, for a number of thousands of digits
        if length.isdigit() and (n_bytes is None or n_bytes > self.config.max_body_mib * MIB):
            # A client that waits for "100 Continue" has not sent it yet.
            await self._refuse_body(None if headers.get(b"expect", b"").lower() == b"100-continue" else receive)

    async def _discard(self, receive: Receive) -> None:
        """Read a body that is too large, within limits."""
        # A client that is still sending when the connection closes often sees a broken connection and not the answer.
        n_bytes = 0
        try:
            async with asyncio.timeout(self.config.body_timeout_seconds):
                while n_bytes < DISCARDED_BODIES * self.config.max_body_mib * MIB:
                    message = await receive()
                    n_bytes += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return
        except TimeoutError:
            return

    async def _refuse_body(self, receive: Receive | None) -> NoReturn:
        """Refuse a body that is too large; what is still on its way is read first."""
        if receive is not None:
            await self._discard(receive)
        raise Problem(
            413,
            f"The body is larger than {self.config.max_body_mib} MiB. Send fewer texts at once, or start the server "
            "with a larger --max-body-mib.",
            code="body_too_large",
            headers={"Connection": "close"},
        )

    def _bounded(self, receive: Receive) -> Receive:
        """Return a function that receives a request and refuses a body that is too large or too slow."""
        n_bytes, is_complete = 0, False
        deadline = asyncio.get_running_loop().time() + self.config.body_timeout_seconds

        async def bounded() -> Message:
            nonlocal n_bytes, is_complete
            if is_complete:
                return await receive()  # waits for the client to leave
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise Problem(
                    408,
                    f"The body did not arrive within {self.config.body_timeout_seconds:g} seconds.",
                    code="body_timeout",
                    headers={"Connection": "close"},
                ) from None
            n_bytes += len(message.get("body", b""))
            if n_bytes > self.config.max_body_mib * MIB:
                await self._refuse_body(receive)
            is_complete = not message.get("more_body", False)
            return message

        return bounded
