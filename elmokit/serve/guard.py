"""What every request passes before it reaches its endpoint: token, size and time of the body, headers, metrics."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from elmokit.serve.config import ServeConfig
from elmokit.serve.metrics import Metrics
from elmokit.serve.problems import Problem

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MIB = 1 << 20
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


class Guard:
    """An ASGI middleware that refuses requests without the token and bodies that are too large or too slow.

    Args:
        app: The app behind it.
        config: The limits.
        metrics: Where requests are counted.
        token: The bearer token; None if there is none.
        paths: The paths of the app. Others are counted together, so that a scan does not fill memory with names.
    """

    def __init__(
        self, app: App, *, config: ServeConfig, metrics: Metrics, token: str | None, paths: Collection[str]
    ) -> None:
        self.app, self.config, self.metrics = app, config, metrics
        self.expected = None if token is None else f"Bearer {token}".encode()
        self.paths = frozenset(paths)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        known = path if path in self.paths else "other"
        started = time.monotonic()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        try:
            try:
                self._check(scope)
                await self.app(scope, self._bounded(scope, receive), send_with_headers)
            except Problem as problem:
                if status:
                    raise
                await problem.response()(scope, receive, send_with_headers)
        finally:
            self.metrics.requests.labels(known, str(status)).inc()
            self.metrics.seconds.labels(known).observe(time.monotonic() - started)

    def _check(self, scope: MutableMapping[str, Any]) -> None:
        """Refuse what can be refused by its headers."""
        headers = dict(scope["headers"])
        needs_token = scope["path"].startswith("/v1/") or scope["path"] == "/metrics"
        # A browser asks with OPTIONS, without the token, whether it may send a request (CORS).
        if self.expected is not None and needs_token and scope["method"] != "OPTIONS":
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self.expected):  # takes the same time wherever they differ
                raise Problem(
                    401,
                    "The token is missing or wrong. Send the header Authorization: Bearer TOKEN.",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.config.max_body_mib * MIB:
            raise self._too_large()

    def _too_large(self) -> Problem:
        return Problem(
            413,
            f"The body is larger than {self.config.max_body_mib} MiB. Send fewer texts at once, or start the server "
            "with a larger --max-body-mib.",
            code="body_too_large",
            headers={"Connection": "close"},
        )

    def _bounded(self, scope: MutableMapping[str, Any], receive: Receive) -> Receive:
        n_bytes, is_complete = 0, False
        deadline = time.monotonic() + self.config.body_timeout_seconds

        async def bounded() -> Message:
            nonlocal n_bytes, is_complete
            if is_complete:
                return await receive()  # waits for the client to leave
            try:
                message = await asyncio.wait_for(receive(), deadline - time.monotonic())
            except TimeoutError:
                raise Problem(
                    408,
                    f"The body did not arrive within {self.config.body_timeout_seconds:g} seconds.",
                    code="body_timeout",
                    headers={"Connection": "close"},
                ) from None
            n_bytes += len(message.get("body", b""))
            if n_bytes > self.config.max_body_mib * MIB:
                raise self._too_large()
            is_complete = not message.get("more_body", False)
            return message

        return bounded
