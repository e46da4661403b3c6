"""The web application: which path leads to which function, page or file, and what every request passes before it."""

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
    404: {"description": "Unknown model."},
    408: {"description": "The body arrived too slowly."},
    413: {"description": "The body is too large."},
    421: {"description": "The server does not accept requests for the host in the Host header."},
    422: {"description": "A field is invalid; the message says what to change."},
    429: {"description": "The queue is full. Try again after the number of seconds in Retry-After."},
    501: {"description": "The model cannot predict words."},
    503: {"description": "The answer took too long."},
}
logger = logging.getLogger("elmokit.serve")
MODEL_VARIABLE = "ELMOKIT_SERVE_MODEL"
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


def create_app(elmo: Elmo | None = None, config: ServeConfig | None = None) -> ASGIApp:
    """Create the application that ``elmokit serve`` serves, for servers that start several processes of it.

    Such a server (Granian, uvicorn, gunicorn) can call it without arguments:
    ``granian --interface asgi --factory --workers 4 elmokit.serve.app:create_app``. Each process opens the model. Set
    ``OMP_NUM_THREADS`` to the cores of each. Metrics of all processes are added up if ``PROMETHEUS_MULTIPROC_DIR``
    names an empty directory.

    Args:
        elmo: The model. By default, the one that the environment variable ``ELMOKIT_SERVE_MODEL`` names (as
            ``Elmo.from_pretrained`` takes it), or else the included one.
        config: Its settings. Address and time limits of connections are those of the server that calls this. By
            default, only requests to localhost are answered: name others in ``allowed_hosts``.

    Returns:
        The ASGI application. Requests need the token of ``config.token_file`` or ``ELMOKIT_SERVE_TOKEN``, if there is
        one.

    Raises:
        elmokit.errors.ElmoError: If the model cannot be opened, or the token has the wrong form.
    """
    config = config or ServeConfig()
    token = read_token(config)
    elmo = elmo or Elmo.from_pretrained(os.environ.get(MODEL_VARIABLE) or None)
    return application(ServedModel(elmo, config), config, token)


def application(model: ServedModel, config: ServeConfig, token: str | None = None) -> ASGIApp:
    """Create the ASGI application of a model. Requests need the bearer token if there is one."""
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
        redirect_slashes=False,  # a redirect would name neither the scheme nor the path of a reverse proxy
        lifespan=lifespan,
    )
    routes: list[tuple[str, str, Any, str]] = [
        ("POST", "/v1/embeddings", endpoints.embeddings, "Vectors of texts"),
        ("POST", "/v1/tokens", endpoints.tokens, "Vectors of tokens"),
        ("POST", "/v1/surprisal", endpoints.surprisal, "Surprisal"),
        ("POST", "/v1/substitutes", endpoints.substitutes, "Substitutes"),
        ("POST", "/v1/neighbors", endpoints.neighbors, "Neighbors in context"),
        ("GET", "/v1/models", endpoints.models, "Models"),
        ("GET", "/v1/models/{name:path}", endpoints.one_model, "One model"),
        ("GET", "/v1/examples", endpoints.examples, "Example sentences"),
        ("GET", "/healthz", endpoints.healthz, "Are requests answered?"),
        ("GET", "/readyz", endpoints.readyz, "Are requests accepted?"),
        ("GET", "/metrics", endpoints.read_metrics, "Metrics"),
    ]
    for method, path, function, summary in routes:
        app.add_api_route(
            path, function, methods=[method], summary=summary, responses=ERRORS if "POST" in method else {}
        )

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
    # Outside of the guard: a browser asks without the token whether it may send a request.
    allowed: ASGIApp = CORSMiddleware(
        guarded,
        allow_origins=list(config.cors_origins),
        allow_methods=["GET", "HEAD", "POST"],
        allow_headers=["*"],  # the openai client sends a dozen of its own
        expose_headers=["Retry-After"],  # which that client reads
    )
    return allowed


def _allow_head(app: FastAPI) -> None:
    """Answer HEAD wherever GET is answered. The server sends the headers of that answer and leaves out its body."""
    app.openapi()  # is kept, and does not list each path twice
    for route in app.routes:
        if isinstance(route, Route) and route.methods and "GET" in route.methods:
            route.methods.add("HEAD")


def _file(path: Path, media_type: str) -> Any:
    content = path.read_bytes()

    async def read() -> Response:
        return Response(content, headers={"Content-Type": media_type})

    return read


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
                f"This server does not accept requests for the host {given[:MAX_SHOWN]!r}. Use the address that it "
                "printed, or start it with --allowed-hosts and this name (allowed_hosts of ServeConfig).",
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
