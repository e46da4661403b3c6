"""The web application: which path leads to which function, page or file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp

from elmokit.serve.config import ServeConfig
from elmokit.serve.endpoints import Endpoints
from elmokit.serve.guard import Guard
from elmokit.serve.metrics import Metrics
from elmokit.serve.problems import add_handlers
from elmokit.serve.served_model import ServedModel
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
    421: {"description": "The Host header names a host that the server does not answer for."},
    422: {"description": "A field is wrong; the message says what to change."},
    429: {"description": "The queue is full. Try again after the seconds in Retry-After."},
    501: {"description": "The model cannot predict words."},
    503: {"description": "The answer took too long."},
}


def create_app(model: ServedModel, config: ServeConfig, token: str | None = None) -> ASGIApp:
    """Create the ASGI app of the server. Requests need the bearer token if there is one."""
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
