"""The endpoints: check a request, compute it together with others, and write the answer."""

from __future__ import annotations

import asyncio
import functools
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from itertools import accumulate, chain, islice
from typing import Any, TypeVar

import msgspec
from anyio import CapacityLimiter, to_thread
from fastapi import Request
from fastapi.responses import Response

from elmokit.evaluation.neighbors import Neighbors
from elmokit.lm.substitutes import Query
from elmokit.pretrained.sentence_pooling import Whitening
from elmokit.serve.batcher import Batcher, Compute
from elmokit.serve.bodies import (
    ARROW,
    EmbeddingsRequest,
    NeighborsRequest,
    SubstitutesRequest,
    SurprisalRequest,
    Text,
    TokensRequest,
    arrow_stream,
    data_json,
    embeddings_data,
    is_split,
    json_response,
    neighbors_json,
    surprisal_data,
    tokens_data,
    word_rows,
    words_by_direction,
)
from elmokit.serve.examples import LISTED
from elmokit.serve.metrics import CONTENT_TYPE, Metrics
from elmokit.serve.problems import JSON, MAX_SHOWN, Problem
from elmokit.serve.serve_config import ServeConfig
from elmokit.serve.served_model import ServedModel, SplitText
from elmokit.text.batching import N_BOUNDARIES
from elmokit.text.tokenize import TextSplitter

MAX_NUMBERS = 1 << 22
"""Maximum count of numbers in an answer: 16 MiB as float32, and about 200 MiB during conversion to JSON."""
MAX_EXPECTED_TOKENS = 4096
"""Maximum number of tokens in a request for expected words, which need probabilities of the whole vocabulary."""
EXPECTED_COST = 8
"""Approximate cost of expected words relative to the vectors of a token. A batch has correspondingly fewer of them."""
N_THREADS = 4
"""Number of threads that split texts into tokens and write answers. More would use more memory without being faster."""
SHORT_TEXT, SHORT_ANSWER = 1000, 8192
"""The numbers of characters and of values that take less time than switching to a thread."""
Result = TypeVar("Result")
Endpoint = Callable[["Endpoints", Any, Request], Awaitable[Response]]


def _limited(endpoint: Endpoint) -> Endpoint:
    """Stop an endpoint when it times out or its client disconnects, whatever it is waiting for."""
    # Its queued work is dropped. Work already running in a thread is finished first, so endpoints divide their work
    # into short parts.

    @functools.wraps(endpoint)
    async def limited(self: Endpoints, body: Any, request: Request) -> Response:
        self._check_model(body.model)
        work = asyncio.ensure_future(endpoint(self, body, request))
        left = asyncio.ensure_future(_disconnected(request))
        try:
            either: set[asyncio.Future[Any]] = {work, left}
            await asyncio.wait(either, timeout=self.config.timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if left.done():
                self.metrics.dropped.labels(request.scope["path"]).inc()
                raise Problem(499, "The client disconnected.", code="client_left")
            raise Problem(
                503,
                f"The answer took longer than {self.config.timeout_seconds:g} seconds. Send fewer texts at once, or "
                "try again later.",
                code="timeout",
                headers={"Retry-After": "5"},
            )
        finally:
            left.cancel()
            work.cancel()
            # Nobody waits for an error that occurs while a thread finishes its part, so it is not logged.
            work.add_done_callback(lambda work: work.cancelled() or work.exception())

    return limited


class Endpoints:
    """The endpoints, with the model and queue that they share."""

    def __init__(self, model: ServedModel, config: ServeConfig, metrics: Metrics) -> None:
        self.model, self.config, self.metrics = model, config, metrics
        self.threads = CapacityLimiter(N_THREADS)
        # A separate thread, because searching a large index takes seconds, during which other requests should not wait.
        self.search_thread = CapacityLimiter(1)
        self.batcher = Batcher(
            batch_tokens=config.batch_tokens,
            wait_seconds=config.batch_wait_ms / 1000,
            max_requests=config.queue_requests,
            max_tokens=config.queue_tokens,
            metrics=metrics,
        )

    @_limited
    async def embeddings(self, body: EmbeddingsRequest, request: Request) -> Response:
        """Compute one vector of length 1 per text, as in the OpenAI API."""
        embedder = self.model.embedder
        is_whitened = isinstance(embedder.linear_map, Whitening)
        if body.dimensions is not None and not is_whitened:
            raise Problem(
                422,
                "dimensions only works with whitened vectors, because only their first dimensions are the most "
                f"important ones. The vectors of {self.model.name} are not whitened.",
                param="dimensions",
            )
        if body.dimensions is not None and body.dimensions > embedder.dim:
            raise Problem(
                422,
                f"dimensions is {body.dimensions}, but the vectors of {self.model.name} have {embedder.dim}.",
                param="dimensions",
            )
        texts = await self._texts(body.input)
        vectors = await self._compute("embeddings", self.model.sentence_vectors, texts)

        def content() -> bytes:
            data = embeddings_data(vectors, body.dimensions, body.encoding_format == "base64")
            return data_json(self.model.name, data, _n_tokens(texts))

        return await self._answer(request, content, texts, len(texts) * embedder.dim)

    @_limited
    async def tokens(self, body: TokensRequest, request: Request) -> Response:
        """Compute the vectors of each token, by layer.

        With `Accept: application/vnd.apache.arrow.stream`, the answer is an Arrow stream with a row per text.
        """
        compute = self.model.token_vectors(body.layers, body.documents)
        texts = await self._texts(body.input)
        n_numbers = _n_tokens(texts) * self.model.n_selected(body.layers) * self.model.elmo.output_dim
        advice = "Send fewer texts, or request fewer layers."
        _check_limit("input", f"The answer would have {n_numbers:,} numbers", n_numbers, MAX_NUMBERS, advice)
        vectors = await self._compute(("tokens", str(body.layers), body.documents), compute, texts)
        accepted = request.headers.get("accept", "").split(",")
        if any(media_type.partition(";")[0].strip() == ARROW for media_type in accepted):
            write = partial(arrow_stream, list(map(_tokens, texts)), vectors)
            return await self._answer(request, write, texts, n_numbers, media_type=ARROW)

        def content() -> bytes:
            data = tokens_data(texts, vectors, body.encoding_format == "base64")
            return data_json(self.model.name, data, _n_tokens(texts), layers=body.layers)

        return await self._answer(request, content, texts, n_numbers)

    @_limited
    async def surprisal(self, body: SurprisalRequest, request: Request) -> Response:
        """Compute the surprisal of each token in nats, and the words that were expected in its place."""
        self._check_predicts()
        texts = await self._texts(body.input)
        total, n = _n_tokens(texts), body.n_expected
        if n:
            advice = "Send several requests, or omit n_expected."
            _check_limit("input", f"input has {total:,} tokens with n_expected", total, MAX_EXPECTED_TOKENS, advice)
        if body.words and not all(isinstance(text, str) for text in body.input):
            raise Problem(422, "words needs raw texts. Send strings, or omit words.", param="words")
        _check_cache(body)
        surprisals = partial(self.model.surprisals, documents=body.documents, cache=body.cache)
        scored = await self._compute(("surprisal", body.documents, body.cache), surprisals, texts)
        expected: list[Any] = [None] * len(texts)
        if n:
            queries = [[(sentence, range(len(sentence))) for sentence in text] for text in texts]
            expected = await self._expected(queries, n, body.documents, body.cache)

        def content() -> bytes:
            data = surprisal_data(scored, expected, self.model.directions)
            if body.words:
                for result, text, sentences in zip(data, body.input, scored, strict=True):
                    result["words"] = word_rows(str(text), sentences)
            return data_json(self.model.name, data, total)

        return await self._answer(request, content, texts, total * (1 + n) * len(self.model.expectations))

    @_limited
    async def substitutes(self, body: SubstitutesRequest, request: Request) -> Response:
        """Find the words that each direction, and both together, expect at a position of a text."""
        self._check_predicts()
        (text,) = texts = await self._texts([body.sentence], "sentence")
        tokens, number, position = _token_at(text, body.position)
        queries = [*((sentence, []) for sentence in text[:number]), (text[number], [position])]
        _check_cache(body)
        read = queries if body.documents else queries[-1:]
        ((words,),) = await self._expected([read], body.n, body.documents, body.cache)

        def content() -> bytes:
            head = {"object": "substitutes", "model": self.model.name, "tokens": tokens}
            token = {"position": body.position, "token": tokens[body.position]}
            return msgspec.json.encode({**head, **token, **words_by_direction(words)})

        return await self._answer(request, content, texts, body.n)

    @_limited
    async def neighbors(self, body: NeighborsRequest, request: Request) -> Response:
        """Find the indexed occurrences most similar to a token, by layer."""
        (text,) = texts = await self._texts([body.sentence], "sentence")
        tokens, number, position = _token_at(text, body.position)
        sentence = text[number]
        compute = self.model.token_vectors("all", body.documents)
        read = text[: number + 1] if body.documents else [sentence]
        (vectors,) = await self._compute(("tokens", "all", body.documents), compute, [read])
        searches = self.model.index.searches(
            vectors[:, -len(sentence) :], sentence, position, body.layers, body.n, body.among, body.min_count
        )
        of_layers = {
            layer: await to_thread.run_sync(search, limiter=self.search_thread) for layer, search in searches.items()
        }
        neighbors = Neighbors.from_layers(tokens, body.position, of_layers)
        content = partial(neighbors_json, self.model.name, self.model.index_name, neighbors)
        return await self._answer(request, content, texts, SHORT_ANSWER + 1)

    async def models(self) -> Response:
        """List the server's model, with its layers, directions, mix, pooling and index."""
        return json_response({"object": "list", "data": [self.model.facts()]})

    async def one_model(self, name: str) -> Response:
        """Describe the model."""
        self._check_model(name)
        return json_response(self.model.facts())

    async def examples(self) -> Response:
        """List example texts and sentences, each with a position to look at, and words with sentences per sense."""
        return json_response(LISTED)

    async def healthz(self) -> Response:
        """Report whether requests are answered: 200, or 503 if a computation takes longer than the request timeout."""
        seconds = self.batcher.batch_seconds
        if seconds > self.config.timeout_seconds:
            return Response(f"no answer for {seconds:.0f} seconds\n", 503, media_type="text/plain")
        return Response("ok\n", media_type="text/plain")

    async def readyz(self) -> Response:
        """Report that the server accepts requests. While starting and stopping, it accepts no connections."""
        return Response("ok\n", media_type="text/plain")

    async def read_metrics(self) -> Response:
        """Return the metrics for Prometheus."""
        return Response(await self._in_thread(self.metrics.text), media_type=CONTENT_TYPE)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.model.name:
            raise Problem(
                404,
                f"There is no model {name[:MAX_SHOWN]!r}. This server has {self.model.name!r}.",
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

    async def _texts(self, texts: Sequence[Text], param: str = "input") -> list[SplitText]:
        """Split the texts of a request into sentences and tokens, and check its limits."""
        config = self.config
        if not texts:
            raise Problem(422, f"{param} is an empty list. Send at least one text.", param=param)
        advice = "Send several requests, or start the server with a larger --max-texts."
        _check_limit(param, f"{param} has {len(texts):,} texts", len(texts), config.max_texts, advice)
        n_characters = 0
        advice = "Split it, or start the server with a larger --max-text-characters."
        for number, text in enumerate(texts):
            # Each token counts as one additional character, so empty tokens count, too.
            length = len(text) if isinstance(text, str) else sum(len(token) + 1 for token in _tokens(_sentences(text)))
            n_characters += length
            what = f"Text {number} of {param} has {length:,} characters"
            _check_limit(param, what, length, config.max_text_characters, advice)
        split = partial(_split_all, texts, self.model.split)
        split_texts = split() if n_characters < SHORT_TEXT else await self._in_thread(split)
        for number, split_text in enumerate(split_texts):
            if not split_text or not all(split_text):
                raise Problem(
                    422, f"Text {number} of {param} is empty or has an empty sentence. Remove it.", param=param
                )
        total = _n_tokens(split_texts)
        advice = "Send several requests, or start the server with a larger --max-request-tokens."
        _check_limit(param, f"{param} has {total:,} tokens", total, config.max_request_tokens, advice)
        return split_texts

    async def _expected(
        self, texts: Sequence[Sequence[Query]], n: int, documents: bool, cache: bool
    ) -> list[list[Any]]:
        """Find the words expected at positions in each text's sentences."""
        items = texts if documents else [[query] for text in texts for query in text]
        compute = partial(self.model.expected, n=n, documents=documents, cache=cache)
        costs = list(map(_expected_cost, items))
        found = iter(await self._compute(("expected", n, documents, cache), compute, items, costs))
        results = []
        for text in texts:
            n_items = 1 if documents else len(text)
            results.append(list(chain.from_iterable(islice(found, n_items))))
        return results

    async def _compute(
        self, key: Hashable, compute: Compute, items: Sequence[Any], costs: Sequence[int] | None = None
    ) -> list[Any]:
        """Compute texts or other items with the model, batched with those of other requests with the same key."""
        return await self.batcher.submit(key, compute, items, costs or list(map(_cost, items)))

    async def _answer(
        self,
        request: Request,
        content: Callable[[], bytes],
        texts: Sequence[SplitText],
        n_numbers: int,
        media_type: str = JSON,
    ) -> Response:
        """Write an answer, using a thread unless it is short."""
        written = content() if n_numbers <= SHORT_ANSWER else await self._in_thread(content)
        self.metrics.tokens.labels(request.scope["path"]).inc(_n_tokens(texts))
        return Response(written, media_type=media_type)

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        """Call a function that takes long enough to delay other requests."""
        result: Result = await to_thread.run_sync(function, limiter=self.threads)
        return result


def _check_cache(body: SurprisalRequest | SubstitutesRequest) -> None:
    """Reject a cache without documents."""
    if body.cache and not body.documents:
        raise Problem(422, "cache only works with documents. Also send documents: true.", param="cache")


async def _disconnected(request: Request) -> None:
    """Return once the client has disconnected. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _split_all(texts: Sequence[Text], split: TextSplitter) -> list[SplitText]:
    return [split(text) if isinstance(text, str) else _sentences(text) for text in texts]


def _sentences(text: Any) -> SplitText:
    """Return the sentences of an already split text: the tokens of one or several sentences."""
    return text if is_split(text) else [text]


def _tokens(text: SplitText) -> list[str]:
    return list(chain.from_iterable(text))


def _n_tokens(texts: Sequence[SplitText]) -> int:
    """Count the tokens of texts."""
    return sum(len(sentence) for text in texts for sentence in text)


def _cost(text: SplitText) -> int:
    """Count the positions to compute for a text, excluding the boundaries of one sentence."""
    return _n_tokens([text]) + N_BOUNDARIES * (len(text) - 1)


def _expected_cost(queries: Sequence[Query]) -> int:
    """Estimate the cost of expected words, in computed positions."""
    return sum(len(sentence) + EXPECTED_COST * len(positions) for sentence, positions in queries)


def _check_limit(param: str, what: str, n: int, allowed: int, advice: str) -> None:
    """Reject a request that exceeds a limit."""
    if n > allowed:
        raise Problem(422, f"{what}, but {allowed:,} are allowed. {advice}", param=param)


def _token_at(text: SplitText, position: int) -> tuple[list[str], int, int]:
    """Return all tokens of a text, and the sentence index and position within it of the token at a position."""
    tokens = _tokens(text)
    if not 0 <= position < len(tokens):
        raise Problem(
            422,
            f"position is {position}, but the text has {len(tokens)} tokens. Choose 0 to {len(tokens) - 1}.",
            param="position",
        )
    ends = list(accumulate(map(len, text)))
    number = bisect_right(ends, position)
    return tokens, number, position - ends[number] + len(text[number])
