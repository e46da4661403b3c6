"""The endpoints of the server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import math
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import Response
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool
from starlette.middleware.cors import CORSMiddleware

from elmokit.errors import MissingExtraError
from elmokit.scoring.substitutes import Substitute
from elmokit.scoring.surprisal import Surprisal
from elmokit.serve.batching import Batcher, QueueFull
from elmokit.serve.config import ServeConfig
from elmokit.serve.examples import SENSES, SENTENCES
from elmokit.serve.guard import Guard
from elmokit.serve.metrics import CONTENT_TYPE, Metrics
from elmokit.serve.openapi_page import openapi_page
from elmokit.serve.problems import JSON, Problem, add_handlers
from elmokit.serve.schemas import (
    EmbeddingsRequest,
    NeighboursRequest,
    SubstitutesRequest,
    SurprisalRequest,
    Text,
    TokensRequest,
)
from elmokit.serve.served_model import BOTH, ServedModel

ARROW = "application/vnd.apache.arrow.stream"
MAX_NUMBERS = 1 << 23
"""Most numbers in an answer: 32 MiB of float32."""
PAGE = Path(__file__).parent / "page"
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/explorer.js": ("explorer.js", "text/javascript; charset=utf-8"),
}
ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"description": "The token is missing or wrong."},
    413: {"description": "The body is too large."},
    422: {"description": "A field is wrong; the message says what to change."},
    429: {"description": "The queue is full. Try again after the seconds in Retry-After."},
    503: {"description": "The request took too long, or the server is stopping."},
}


class _Endpoints:
    """The functions behind the paths, with the model and queue that they share."""

    def __init__(self, model: ServedModel, config: ServeConfig, metrics: Metrics) -> None:
        self.model, self.config, self.metrics = model, config, metrics
        self.batcher = Batcher(
            batch_tokens=config.batch_tokens,
            wait_seconds=config.batch_wait_ms / 1000,
            max_requests=config.queue_requests,
            max_tokens=config.queue_tokens,
            observer=metrics,
        )
        metrics.watch_queue(lambda: self.batcher.n_waiting_requests, lambda: self.batcher.n_waiting_tokens)
        self.is_stopping = False

    async def embeddings(self, body: EmbeddingsRequest, request: Request) -> Response:
        """Compute one vector of length 1 per text, as the OpenAI API does."""
        self._check_model(body.model)
        dim = self.model.embedder.dim
        if body.dimensions is not None and body.dimensions > dim:
            raise Problem(422, f"dimensions is {body.dimensions}, but vectors have {dim}.", param="dimensions")
        sentences = await self._sentences(body.input)
        vectors = await self._compute(request, "embeddings", self.model.sentence_vectors, sentences)

        def content() -> bytes:
            rows = _unit(np.stack(vectors)[:, : body.dimensions])
            shown = [_base64(row) for row in rows] if body.encoding_format == "base64" else rows.tolist()
            data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(shown)]
            return self._list(data, sentences)

        return await self._json(request, content, sentences)

    async def tokens(self, body: TokensRequest, request: Request) -> Response:
        """Compute the vectors of each token, by layer.

        With `Accept: application/vnd.apache.arrow.stream`, the answer is an Arrow stream with a row per text.
        """
        self._check_model(body.model)
        compute = self.model.token_vectors(body.layers)
        sentences = await self._sentences(body.input)
        n_layers = self.model.elmo.n_layers if body.layers == "all" else len(_as_list(body.layers))
        n_numbers = sum(map(len, sentences)) * n_layers * self.model.elmo.output_dim
        if n_numbers > MAX_NUMBERS:
            raise Problem(
                422,
                f"The answer would have {n_numbers:,} numbers, and {MAX_NUMBERS:,} are allowed. Send fewer texts, or "
                "ask for fewer layers.",
                param="input",
            )
        key = ("tokens", str(body.layers))
        vectors: list[NDArray[np.float32]] = await self._compute(request, key, compute, sentences)
        if _accepts_arrow(request):
            stream = await run_in_threadpool(_arrow_stream, sentences, vectors)
            return self._response(request, stream, ARROW, sentences)

        def content() -> bytes:
            data = [
                {
                    "index": index,
                    "tokens": tokens,
                    "shape": array.shape,
                    "vectors": _base64(array) if body.encoding_format == "base64" else array.tolist(),
                }
                for index, (tokens, array) in enumerate(zip(sentences, vectors, strict=True))
            ]
            return self._list(data, sentences, layers=body.layers)

        return await self._json(request, content, sentences)

    async def surprisal(self, body: SurprisalRequest, request: Request) -> Response:
        """Compute the surprisal of each token in nats, and the words that were expected in its place."""
        self._check_model(body.model)
        self._check_predicts()
        sentences = await self._sentences(body.input)
        n = body.n_expected
        self._check_numbers(sum(map(len, sentences)) * (1 + n) * 3)
        found = await self._compute(request, "surprisal", self.model.surprisals, sentences)
        expected: list[Any] = [None] * len(sentences)
        if n:
            expected = await self._compute(request, ("expected", n), partial(self.model.expected, n=n), sentences)

        def content() -> bytes:
            data = [
                {"index": index, **_surprisal(one, self.model.directions, words)}
                for index, (one, words) in enumerate(zip(found, expected, strict=True))
            ]
            return self._list(data, sentences)

        return await self._json(request, content, sentences)

    async def substitutes(self, body: SubstitutesRequest, request: Request) -> Response:
        """Find the words that each direction, and both together, expect at a position."""
        self._check_model(body.model)
        self._check_predicts()
        (sentence,) = sentences = await self._sentences([body.sentence], "sentence")
        _check_position(body.position, sentence)
        compute = partial(self.model.expected, n=body.n)
        self._check_numbers(len(sentence) * body.n * 3)
        (found,) = await self._compute(request, ("expected", body.n), compute, sentences)

        def content() -> bytes:
            words = {name: _words(places[body.position]) for name, places in found.items()}
            answer = {"tokens": sentence, "position": body.position, "token": sentence[body.position], **words}
            return msgspec.json.encode({"object": "substitutes", "model": self.model.name, **answer})

        return await self._json(request, content, sentences)

    async def neighbours(self, body: NeighboursRequest, request: Request) -> Response:
        """Find the occurrences in the index that are most similar to a token, by each layer."""
        self._check_model(body.model)
        (sentence,) = sentences = await self._sentences([body.sentence], "sentence")
        _check_position(body.position, sentence)
        key = ("tokens", "all")
        (vectors,) = await self._compute(request, key, self.model.token_vectors("all"), sentences)

        def content() -> bytes:
            found = self.model.index.search(
                vectors, sentence, body.position, body.layers, body.n, body.among, body.min_count
            )
            answer = found.to_dict()
            tokens, position = answer.pop("words"), answer.pop("token")
            head = {"object": "neighbours", "model": self.model.name, "index": self.model.index_name}
            return msgspec.json.encode({**head, "tokens": tokens, "position": position, **answer})

        return await self._json(request, content, sentences)

    async def models(self) -> Response:
        """List the model, with its layers, directions, mix, pooling and index."""
        return Response(msgspec.json.encode({"object": "list", "data": [self.model.facts()]}), media_type=JSON)

    async def one_model(self, name: str) -> Response:
        """Describe the model."""
        self._check_model(name)
        return Response(msgspec.json.encode(self.model.facts()), media_type=JSON)

    async def examples(self) -> Response:
        """List the example sentences, and words with sentences that show their senses."""
        return Response(msgspec.json.encode({"sentences": SENTENCES, "senses": SENSES}), media_type=JSON)

    async def healthz(self) -> Response:
        """Say that the process runs."""
        return Response("ok\n", media_type="text/plain")

    async def readyz(self) -> Response:
        """Say whether the server accepts requests: 200, or 503 while it stops."""
        if self.is_stopping or not self.batcher.is_running:
            return Response("stopping\n", 503, media_type="text/plain")
        return Response("ok\n", media_type="text/plain")

    async def read_metrics(self) -> Response:
        """Return the metrics for Prometheus."""
        return Response(await run_in_threadpool(self.metrics.text), media_type=CONTENT_TYPE)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.model.name:
            raise Problem(
                404,
                f"There is no model {name[:100]!r}. This server has {self.model.name!r}.",
                param="model",
                code="model_not_found",
            )

    def _check_predicts(self) -> None:
        if not self.model.can_predict:
            raise Problem(
                501,
                f"{self.model.name} has no softmax and vocabulary, so it cannot predict words. Start the server with a "
                "model that has them, such as en-mini.",
                code="model_cannot_predict",
            )

    @staticmethod
    def _check_numbers(n_numbers: int) -> None:
        if n_numbers > MAX_NUMBERS:
            raise Problem(422, "The answer would be too large. Send fewer texts, or ask for fewer words.")

    async def _sentences(self, texts: Sequence[Text], param: str = "input") -> list[list[str]]:
        """Tokenize the texts of a request and check its limits."""
        config = self.config
        if not texts:
            raise Problem(422, f"{param} is an empty list. Send at least one text.", param=param)
        if len(texts) > config.max_texts:
            raise Problem(
                422,
                f"{param} has {len(texts):,} texts, and {config.max_texts:,} are allowed. Send several requests, or "
                "start the server with a larger --max-texts.",
                param=param,
            )
        n_characters = 0
        for number, text in enumerate(texts):
            # A token counts as one character more, so that empty tokens count too.
            length = len(text) if isinstance(text, str) else sum(len(token) + 1 for token in text)
            n_characters += length
            if length > config.max_text_characters:
                raise Problem(
                    422,
                    f"Text {number} of {param} has {length:,} characters, and {config.max_text_characters:,} are "
                    "allowed. Split it, or start the server with a larger --max-text-characters.",
                    param=param,
                )
        tokenize = partial(_tokenize, texts, self.model.tokenize)
        # A thread costs more than a short text.
        sentences = tokenize() if n_characters < 1000 else await run_in_threadpool(tokenize)
        for number, sentence in enumerate(sentences):
            if not sentence:
                raise Problem(422, f"Text {number} of {param} is empty. Leave it out.", param=param)
        n_tokens = sum(map(len, sentences))
        if n_tokens > config.max_request_tokens:
            raise Problem(
                422,
                f"{param} has {n_tokens:,} tokens, and {config.max_request_tokens:,} are allowed. Send several "
                "requests, or start the server with a larger --max-request-tokens.",
                param=param,
            )
        return sentences

    async def _compute(
        self, request: Request, key: Any, compute: Callable[[Any], Any], sentences: list[list[str]]
    ) -> list[Any]:
        """Queue sentences, and wait for their results, the client's leaving, or the time limit."""
        work = asyncio.ensure_future(self.batcher.run(key, compute, sentences, list(map(len, sentences))))
        left = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({work, left}, timeout=self.config.timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                try:
                    return work.result()
                except QueueFull as full:
                    seconds = math.ceil(full.retry_after)
                    raise Problem(
                        429,
                        f"The queue is full. Try again in {seconds} seconds.",
                        code="queue_full",
                        headers={"Retry-After": str(seconds)},
                    ) from None
            if left.done():
                self.metrics.dropped.labels(request.url.path).inc()
                raise Problem(499, "The client left.", code="client_left")
            raise Problem(
                503,
                f"The answer took longer than {self.config.timeout_seconds:g} seconds. Send fewer texts at once, or "
                "try again later.",
                code="timeout",
                headers={"Retry-After": "5"},
            )
        finally:
            work.cancel()
            left.cancel()

    async def _json(
        self, request: Request, content: Callable[[], bytes], sentences: Sequence[Sequence[str]]
    ) -> Response:
        return self._response(request, await run_in_threadpool(content), JSON, sentences)

    def _response(
        self, request: Request, content: bytes, media_type: str, sentences: Sequence[Sequence[str]]
    ) -> Response:
        self.metrics.tokens.labels(request.url.path).inc(sum(map(len, sentences)))
        return Response(content, media_type=media_type)

    def _list(self, data: list[dict[str, Any]], sentences: Sequence[Sequence[str]], **more: Any) -> bytes:
        n_tokens = sum(map(len, sentences))
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return msgspec.json.encode({"object": "list", "model": self.model.name, **more, "data": data, "usage": usage})


def create_app(model: ServedModel, config: ServeConfig, token: str | None = None) -> Any:
    """Create the ASGI app of the server.

    Args:
        model: The model.
        config: The settings.
        token: The bearer token that requests must have; None if they need none.
    """
    metrics = Metrics()
    endpoints = _Endpoints(model, config, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        endpoints.batcher.start()
        yield
        endpoints.is_stopping = True
        await run_in_threadpool(endpoints.batcher.stop)

    app = FastAPI(
        title="elmokit",
        version=version("elmokit"),
        description="ELMo vectors, surprisal, substitutes and neighbors of words in context.",
        # FastAPI's own pages load scripts from another host.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    routes: list[tuple[str, str, Any, str]] = [
        ("POST", "/v1/embeddings", endpoints.embeddings, "Vectors of texts"),
        ("POST", "/v1/tokens", endpoints.tokens, "Vectors of tokens"),
        ("POST", "/v1/surprisal", endpoints.surprisal, "Surprisal"),
        ("POST", "/v1/substitutes", endpoints.substitutes, "Substitutes"),
        ("POST", "/v1/neighbours", endpoints.neighbours, "Neighbors in context"),
        ("GET", "/v1/models", endpoints.models, "Models"),
        ("GET", "/v1/models/{name}", endpoints.one_model, "One model"),
        ("GET", "/v1/examples", endpoints.examples, "Example sentences"),
        ("GET", "/healthz", endpoints.healthz, "Is the process alive?"),
        ("GET", "/readyz", endpoints.readyz, "Are requests accepted?"),
        ("GET", "/metrics", endpoints.read_metrics, "Metrics"),
    ]
    for method, path, function, summary in routes:
        errors = ERRORS if method == "POST" else None
        app.add_api_route(path, function, methods=[method], summary=summary, responses=errors)
    app.add_api_route("/docs", _openapi_page(app), methods=["GET"], include_in_schema=False)
    for path, (name, media_type) in PAGE_FILES.items():
        app.add_api_route(path, _file(PAGE / name, media_type), methods=["GET"], include_in_schema=False)
    add_handlers(app)
    paths = [path for _, path, *_ in routes] + [*PAGE_FILES, "/docs", "/openapi.json"]
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_middleware(Guard, config=config, metrics=metrics, token=token, paths=paths)
    return app


def _openapi_page(app: FastAPI) -> Any:
    async def read() -> Response:
        return Response(openapi_page(app.openapi()), media_type="text/html")

    return read


def _file(path: Path, media_type: str) -> Any:
    content = path.read_bytes()

    async def read() -> Response:
        return Response(content, headers={"Content-Type": media_type})

    return read


async def _disconnected(request: Request) -> None:
    """Return once the client has left. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _tokenize(texts: Sequence[Text], tokenize: Callable[[str], list[str]]) -> list[list[str]]:
    return [tokenize(text) if isinstance(text, str) else text for text in texts]


def _check_position(position: int, sentence: Sequence[str]) -> None:
    if not 0 <= position < len(sentence):
        raise Problem(
            422,
            f"position is {position}, but the sentence has {len(sentence)} tokens: choose 0 to {len(sentence) - 1}.",
            param="position",
        )


def _as_list(layers: Any) -> list[Any]:
    return layers if isinstance(layers, list) else [layers]


def _accepts_arrow(request: Request) -> bool:
    accepted = request.headers.get("accept", "")
    return any(part.partition(";")[0].strip() == ARROW for part in accepted.split(","))


def _arrow_stream(sentences: Sequence[Sequence[str]], vectors: Sequence[NDArray[np.float32]]) -> bytes:
    """Write a row per text: its tokens, the numbers of its vectors row by row, and their shape."""
    try:
        import pyarrow as pa
    except ImportError:
        raise Problem(406, str(MissingExtraError("An Arrow answer", "arrow"))) from None
    table = pa.table(
        {
            "tokens": pa.array(sentences, pa.list_(pa.string())),
            "vectors": pa.array([array.reshape(-1) for array in vectors], pa.large_list(pa.float32())),
            "shape": pa.array([array.shape for array in vectors], pa.list_(pa.int32())),
        }
    )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _surprisal(found: Surprisal, directions: Sequence[str], words: Any) -> dict[str, Any]:
    """Return the surprisal of one sentence as plain values."""
    answer: dict[str, Any] = {"tokens": found.tokens[1:-1], "is_unknown": found.is_unknown[1:-1].tolist()}
    for name, nats in zip(directions, found.nats, strict=True):
        answer[name] = nats[1:-1].tolist()
    if len(directions) > 1:
        answer[BOTH] = found.nats[:, 1:-1].mean(axis=0).tolist()
    answer["total"] = dict(zip(directions, found.total_nats, strict=True))
    if words is not None:
        answer["expected"] = {name: [_words(place) for place in places] for name, places in words.items()}
    return answer


def _words(found: Sequence[Substitute]) -> list[dict[str, Any]]:
    return [{"word": one.word, "probability": one.probability} for one in found]


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    norms: NDArray[np.float32] = np.linalg.norm(rows, axis=1, keepdims=True)
    norms[norms == 0] = 1
    return rows / norms


def _base64(array: NDArray[np.float32]) -> str:
    return base64.b64encode(array.astype("<f4").tobytes()).decode("ascii")
