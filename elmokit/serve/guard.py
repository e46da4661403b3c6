"""What every request passes before its endpoint: host, token, size and time of the body, headers, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import time
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elmokit.serve.config import ServeConfig
from elmokit.serve.metrics import Metrics
from elmokit.serve.problems import MAX_SHOWN, Problem
from elmokit.storage.bounded import MIB

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
    (b"server", b"elmokit"),  # otherwise Granian names itself
)
HOST_HEADER = re.compile(r"(\[[^]]*\]|[^:]*?)\.?(:\d*)?")
HEALTH_PATHS = ("/healthz", "/readyz")
"""Load balancers ask for these by the address of the machine, whatever the name of the service is."""


class Guard:
    """An ASGI middleware that refuses other hosts, requests without the token, and too large or too slow bodies."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        config: ServeConfig,
        metrics: Metrics,
        token: str | None,
        paths: Collection[str],  # others are counted together, so that a scan does not fill memory with names
        open_paths: Collection[str],  # need no token
    ) -> None:
        self.app, self.config, self.metrics = app, config, metrics
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
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        try:
            self._check_host(scope)
            self._check_token(scope)
            await self.app(scope, self._bounded(receive), send_with_headers)
        except Exception as error:
            if not isinstance(error, Problem):
                logger.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                problem = error if isinstance(error, Problem) else Problem.unexpected()
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

    def _bounded(self, receive: Receive) -> Receive:
        """Return a function that receives a request and refuses a body that is too large or too slow."""
        limit, n_bytes, is_complete = self.config.max_body_mib * MIB, 0, False
        deadline = asyncio.get_running_loop().time() + self.config.body_timeout_seconds

        async def bounded() -> Message:
            nonlocal n_bytes, is_complete
            if is_complete:
                return await receive()  # waits for the client to leave
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    message = await receive()
                    n_bytes += len(message.get("body", b""))
                    is_complete = not message.get("more_body", False)
                    if n_bytes <= limit:
                        return message
                    # A client that still sends when the connection closes often sees that, and not the answer.
                    while n_bytes < DISCARDED_BODIES * limit and message.get("more_body", False):
                        message = await receive()
                        n_bytes += len(message.get("body", b""))
            if n_bytes > limit:
                raise Problem(
                    413,
                    f"The body is larger than {self.config.max_body_mib} MiB. Send fewer texts at once, or start the "
                    "server with a larger --max-body-mib.",
                    code="body_too_large",
                    headers={"Connection": "close"},
                )
            raise Problem(
                408,
                f"The body did not arrive within {self.config.body_timeout_seconds:g} seconds.",
                code="body_timeout",
                headers={"Connection": "close"},
            )

        return bounded
