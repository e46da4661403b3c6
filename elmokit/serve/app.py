"""The web application: routes to endpoints and the explorer's files, and the checks that every request must pass."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elmokit.embedding.elmo import Elmo
from elmokit.serve.endpoints import Endpoints
from elmokit.serve.metrics import Metrics
from elmokit.serve.problems import MAX_SHOWN, Problem, add_handlers
from elmokit.serve.serve_config import ServeConfig
from elmokit.serve.served_model import ServedModel
from elmokit.serve.token import read_token
from elmokit.version import __version__

PAGE = Path(__file__).parent / "page"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
PAGE_FILES = {
    "/" if path.name == "index.html" else f"/{path.name}": (path.name, f"{MEDIA_TYPES[path.suffix]}; charset=utf-8")
    for path in sorted(PAGE.iterdir())
}
"""The file and media type of each path of the explorer."""
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The body is not JSON in UTF-8."},
    401: {"description": "The token is missing or wrong."},
    404: {"description": "The model does not exist."},
    406: {"description": "The request asks for Arrow, but pyarrow is not installed on the server."},
    408: {"description": "The body arrived too slowly."},
    413: {"description": "The body is too large."},
    421: {"description": "The server does not accept requests for the host in the Host header."},
    422: {"description": "A field is invalid, or there is too much text. The message explains what to change."},
    429: {"description": "The queue is full. Retry-After says when to try again, in seconds."},
    500: {"description": "An unexpected error. See the server's log for details."},
    501: {"description": "The model has no softmax and vocabulary, so it cannot predict words."},
    503: {"description": "The answer took too long."},
}
"""The errors of a request with a body."""
logger = logging.getLogger("elmokit.serve")
MODEL_VARIABLE = "ELMOKIT_SERVE_MODEL"
DISCARDED_BODIES = 8
"""If a body is too large, up to this many times the limit is read before answering."""
HEADERS = (
    # Nothing is loaded from other hosts, no inline scripts or styles, and no other site may embed the page in a frame.
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"server", b"elmokit"),  # replaces Granian's name
)
HOST_HEADER = re.compile(r"(\[[^]]*\]|[^:]*?)\.?(:\d*)?")
HEALTH_PATHS = ("/healthz", "/readyz")
"""Load balancers request these by the machine's address instead of the service's name."""


def create_app(elmo: Elmo | None = None, config: ServeConfig | None = None) -> ASGIApp:
    """Create the application of ``elmokit serve``, for ASGI servers that start several processes.

    Such a server (Granian, uvicorn, gunicorn) can call it without arguments:
    ``granian --interface asgi --factory --workers 4 elmokit.serve.app:create_app``. Each process opens the model. Set
    ``OMP_NUM_THREADS`` to the number of cores per process. If ``PROMETHEUS_MULTIPROC_DIR`` names an empty directory,
    the metrics of all processes are added up.

    Args:
        elmo: The model. By default, the model in the environment variable ``ELMOKIT_SERVE_MODEL`` (a name or path, as
            in ``Elmo.from_pretrained``), or the included model.
        config: The settings. The address and the time limits of connections are those of the ASGI server. By default,
            only requests to localhost are accepted; list other host names in ``allowed_hosts``.

    Returns:
        The ASGI application. If ``config.token_file`` or ``ELMOKIT_SERVE_TOKEN`` is set, requests need that token.

    Raises:
        elmokit.errors.ElmoError: If the model cannot be opened, or the token has the wrong form.
    """
    config = config or ServeConfig()
    token = read_token(config)
    elmo = elmo or Elmo.from_pretrained(os.environ.get(MODEL_VARIABLE) or None)
    return application(ServedModel(elmo, config), config, token)


def application(model: ServedModel, config: ServeConfig, token: str | None = None) -> ASGIApp:
    """Create the ASGI application for a model. Requests need the bearer token, if there is one."""
    metrics = Metrics()
    endpoints = Endpoints(model, config, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        computing = asyncio.create_task(endpoints.batcher.run())
        yield
        computing.cancel()

    app = FastAPI(
        title="elmokit",
        version=__version__,
        description="ELMo vectors, surprisal, substitutes and neighbors of words in context.",
        # FastAPI's own pages load scripts from another host.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would not know a reverse proxy's scheme and path
        lifespan=lifespan,
    )
    routes: list[tuple[str, str, Any, str]] = [
        ("POST", "/v1/embeddings", endpoints.embeddings, "Text vectors"),
        ("POST", "/v1/tokens", endpoints.tokens, "Token vectors"),
        ("POST", "/v1/surprisal", endpoints.surprisal, "Surprisal"),
        ("POST", "/v1/substitutes", endpoints.substitutes, "Substitutes"),
        ("POST", "/v1/neighbors", endpoints.neighbors, "Neighbors in context"),
        ("GET", "/v1/models", endpoints.models, "Models"),
        ("GET", "/v1/models/{name:path}", endpoints.one_model, "Model"),
        ("GET", "/v1/examples", endpoints.examples, "Examples"),
        ("GET", "/healthz", endpoints.healthz, "Liveness"),
        ("GET", "/readyz", endpoints.readyz, "Readiness"),
        ("GET", "/metrics", endpoints.read_metrics, "Metrics"),
    ]
    for method, path, function, summary in routes:
        responses: dict[int | str, dict[str, Any]] = {}
        if method == "POST":
            responses = ERRORS
        elif "{name" in path:
            responses = {404: ERRORS[404]}
        app.add_api_route(path, function, methods=[method], summary=summary, responses=responses)

    for path, (name, media_type) in PAGE_FILES.items():
        app.add_api_route(path, _file(PAGE / name, media_type), methods=["GET"], include_in_schema=False)
    _allow_head(app)
    add_handlers(app)
    pages = ["/openapi.json", *PAGE_FILES]
    guarded: ASGIApp = Guard(
        app,
        config=config,
        metrics=metrics,
        token=token,
        paths=[*pages, *(path for _, path, *_ in routes)],
        open_paths=[*pages, "/healthz", "/readyz"],
    )
    if not config.cors_origins:
        return guarded
    # Outside the guard, because browsers send preflight requests without the token.
    allowed: ASGIApp = CORSMiddleware(
        guarded,
        allow_origins=list(config.cors_origins),
        allow_methods=["GET", "HEAD", "POST"],
        allow_headers=["*"],  # the openai client sends a dozen of its own headers
        expose_headers=["Retry-After"],  # read by the openai client
    )
    return allowed


def _allow_head(app: FastAPI) -> None:
    """Accept HEAD wherever GET is accepted. The server sends the same headers, without the body."""
    app.openapi()  # cached before HEAD is added, so no path is listed twice
    for route in app.routes:
        if isinstance(route, Route) and route.methods and "GET" in route.methods:
            route.methods.add("HEAD")


def _file(path: Path, media_type: str) -> Any:
    content = path.read_bytes()

    async def read() -> Response:
        return Response(content, headers={"Content-Type": media_type})

    return read


class Guard:
    """An ASGI middleware that rejects other hosts, requests without the token, and too large or slow bodies."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        config: ServeConfig,
        metrics: Metrics,
        token: str | None,
        paths: Collection[str],  # others are counted together, so a scan cannot fill memory with paths
        open_paths: Collection[str],  # do not need the token
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
                f"This server does not accept requests for the host {given[:MAX_SHOWN]!r}. Use the address that it "
                "printed, or start it with --allowed-hosts and this name (allowed_hosts of ServeConfig).",
                code="host_not_allowed",
            )

    def _check_token(self, scope: Scope) -> None:
        if self.expected is None or scope["path"] in self.open_paths:
            return
        scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        # A constant-time comparison.
        if not hmac.compare_digest(given, self.expected) or scheme.lower() != b"bearer":
            raise Problem(
                401,
                "The token is missing or wrong. Send the header Authorization: Bearer TOKEN.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _bounded(self, receive: Receive) -> Receive:
        """Return a receive function that rejects bodies that are too large or too slow."""
        limit, n_bytes, is_complete = self.config.max_body_mib << 20, 0, False
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
                    # A client that is still sending when the connection closes often never reads the answer.
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
