"""The bodies of requests and answers: JSON, base64 or an Arrow stream."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from fastapi.responses import Response
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StrictInt,
    WithJsonSchema,
    model_validator,
)

from elmokit.engine.state import unit_vectors
from elmokit.errors import MissingExtraError
from elmokit.evaluation.neighbors import Neighbors
from elmokit.lm.substitutes import Direction, Substitute
from elmokit.lm.surprisal import Surprisal, sum_by_word
from elmokit.serve.problems import JSON, Problem
from elmokit.text.batching import N_BOUNDARIES

ARROW = "application/vnd.apache.arrow.stream"
Sentences = Sequence[Sequence[str]]
Vectors = NDArray[np.float32]
Expected = Mapping[Direction, Sequence[Substitute]]
"""The words that each direction expects at a position."""
Text = str | list[str] | list[list[str]]
"""A text, the tokens of a sentence, or the tokens of several sentences."""

MAX_LAYERS = 1000
MAX_FIELDS = 100
"""Maximum number of fields in a body. pydantic would report each unknown one."""

HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, as JavaScript's ``slice`` can produce. UTF-8 cannot represent it."""
_TOKENS = {"type": "array", "items": {"type": "string"}}
_TEXT = {"anyOf": [{"type": "string"}, _TOKENS, {"type": "array", "items": _TOKENS}]}
_SENTENCE_SCHEMA = {**_TEXT, "description": "A text, the tokens of a sentence, or a list of such lists."}
_TEXTS_SCHEMA = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT}],
    "description": "A text, or a list of texts: strings, token lists, or lists of token lists.",
}


def is_split(text: Any) -> bool:
    """Check whether a text is a list of tokenized sentences."""
    return isinstance(text, list) and bool(text) and all(isinstance(sentence, list) for sentence in text)


def check_text(value: Any, what: str = "the text") -> Any:
    """Check that a JSON value is a text or the tokens of sentences, and that UTF-8 can represent it."""
    if is_split(value):
        strings = list(chain.from_iterable(value))
    elif isinstance(value, list):
        strings = value
    else:
        strings = [value]
    if not all(isinstance(string, str) for string in strings):
        raise ValueError(f"{what} must be a string or a list of strings: words, not ids.")
    for string in strings:
        half = HALF_A_CHARACTER.search(string)
        if half is not None:
            place = f"character {half.start()} of {what}"
            raise ValueError(
                f"{place} is half of a surrogate pair (\\u{ord(half[0]):04x}). Was the text cut inside an emoji? Cut "
                "between characters: in JavaScript, [...text].slice(0, 100).join('')."
            )
    return value


def _check_texts(value: Any) -> list[Text]:
    if not isinstance(value, list):
        return [check_text(value)]
    return [check_text(text, f"text {number}") for number, text in enumerate(value)]


def _each_once(layers: list[int]) -> list[int]:
    return list(dict.fromkeys(layers))


Texts = Annotated[list[Text], PlainValidator(_check_texts), WithJsonSchema(_TEXTS_SCHEMA)]
Sentence = Annotated[Text, PlainValidator(check_text), WithJsonSchema(_SENTENCE_SCHEMA)]
Layers = Annotated[list[StrictInt], Field(min_length=1, max_length=MAX_LAYERS), AfterValidator(_each_once)]
Selection = Literal["all", "top", "average", "mix"] | StrictInt | Layers
Encoding = Annotated[
    Literal["float", "base64"] | None,
    Field(
        description="float, or null: numbers. base64: the bytes of little-endian float32 numbers in row-major order."
    ),
]

Documents = Annotated[
    bool,
    Field(
        strict=True,
        description="Read each text as a document, in which a sentence starts from the state after the previous one.",
    ),
]
Cache = Annotated[
    bool,
    Field(
        strict=True,
        description="With documents, words that have occurred in the document become more probable, and unknown words "
        "among them can be expected.",
    ),
]


class _ServeRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: Annotated[str | None, Field(description="The name of the model, from GET /v1/models.")] = None

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise ValueError(f"the body has {len(value):,} fields. /openapi.json lists the fields of each request.")
        return value


class EmbeddingsRequest(_ServeRequest):
    """A request for one vector per text, as in the OpenAI API."""

    input: Texts
    encoding_format: Encoding = "float"
    dimensions: Annotated[
        int | None, Field(strict=True, ge=1, description="Keep only the first dimensions of whitened vectors.")
    ] = None
    user: Annotated[str | None, Field(description="Accepted and ignored.")] = None


class TokensRequest(_ServeRequest):
    """A request for token vectors."""

    input: Texts
    layers: Annotated[
        Selection,
        Field(
            description="All layers, the top one, their plain mean, the model's own weighted sum (mix), one layer, or "
            "a list of layers. Layer 0 is context-free. In a list, a repeated layer counts once."
        ),
    ] = "all"
    documents: Documents = False
    encoding_format: Encoding = "float"


class SurprisalRequest(_ServeRequest):
    """A request for the surprisal of each token, in nats."""

    input: Texts
    documents: Documents = False
    cache: Cache = False
    words: Annotated[
        bool,
        Field(strict=True, description="For raw texts, also list the words as written, with sums over their tokens."),
    ] = False
    n_expected: Annotated[
        int, Field(strict=True, ge=0, le=50, description="Number of most expected words to list per token.")
    ] = 0


class _PositionRequest(_ServeRequest):
    sentence: Sentence
    position: Annotated[int, Field(strict=True, description="Index of the token in the text, from 0.")]
    documents: Documents = False


class SubstitutesRequest(_PositionRequest):
    """A request for the words expected at a position."""

    n: Annotated[int, Field(strict=True, ge=1, le=1000, description="Number of words.")] = 10
    cache: Cache = False


class NeighborsRequest(_PositionRequest):
    """A request for the indexed occurrences most similar to a token."""

    layers: Annotated[
        Layers | None, Field(description="Layers from 1. By default, all. A repeated layer counts once.")
    ] = None
    n: Annotated[int, Field(strict=True, ge=1, le=100, description="Number of neighbors per layer.")] = 5
    among: Annotated[
        Literal["any", "same", "other"],
        Field(description="Search occurrences of any word, of the same word, or of other words."),
    ] = "any"
    min_count: Annotated[int, Field(strict=True, ge=1, description="Minimum count of context-free neighbors.")] = 1


def json_response(value: Any) -> Response:
    """Return plain values as a JSON response."""
    return Response(msgspec.json.encode(value), media_type=JSON)


def data_json(model: str, data: list[dict[str, Any]], n_tokens: int, **more: Any) -> bytes:
    """Write a list of results with the number of tokens used, as in the OpenAI API."""
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return msgspec.json.encode({"object": "list", "model": model, **more, "data": data, "usage": usage})


def embeddings_data(vectors: Sequence[Vectors], dimensions: int | None, as_base64: bool) -> list[dict[str, Any]]:
    """Return one result per text, with a vector of length 1."""
    data = []
    for index, vector in enumerate(unit_vectors(np.stack(vectors)[:, :dimensions])):
        embedding = _base64(vector) if as_base64 else vector.tolist()
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    return data


def tokens_data(texts: Sequence[Sentences], vectors: Sequence[Vectors], as_base64: bool) -> list[dict[str, Any]]:
    """Return one result per text, with the vectors of its tokens."""
    data = []
    for index, (text, array) in enumerate(zip(texts, vectors, strict=True)):
        data.append(
            {
                "index": index,
                "tokens": list(chain.from_iterable(text)),
                "sentence_lengths": list(map(len, text)),
                "shape": array.shape,
                "vectors": _base64(array) if as_base64 else array.tolist(),
            }
        )
    return data


def arrow_stream(sentences: Sentences, vectors: Sequence[Vectors]) -> bytes:
    """Write a row per text: its tokens, its vectors as numbers in row-major order, and their shape."""
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


def surprisal_data(
    scored: Sequence[Sequence[Surprisal]],
    expected: Sequence[Sequence[Expected] | None],
    directions: Sequence[Direction],
) -> list[dict[str, Any]]:
    """Return one result per text: nats per token and direction, their mean, and expected words, if requested."""
    data = []
    for index, (sentences, positions) in enumerate(zip(scored, expected, strict=True)):
        result = {"index": index, **_tokens_of(sentences), **_nats_of(sentences, directions)}
        if positions is not None:
            by_position = [words_by_direction(words) for words in positions]
            result["expected"] = {name: [words[name] for words in by_position] for name in by_position[0]}
        data.append(result)
    return data


def _tokens_of(sentences: Sequence[Surprisal]) -> dict[str, list[Any]]:
    """Return the per-token fields of a text, without sentence boundaries."""
    tokens: list[str] = []
    is_unknown: list[bool] = []
    spelling_nats: list[float] = []
    for sentence in sentences:
        tokens += sentence.tokens[1:-1]
        is_unknown += sentence.is_unknown[1:-1].tolist()
        if sentence.spelling_nats is not None:
            spelling_nats += sentence.spelling_nats[1:-1].tolist()
    return {
        "tokens": tokens,
        "sentence_lengths": [len(sentence.tokens) - N_BOUNDARIES for sentence in sentences],
        "is_unknown": is_unknown,
        "spelling_nats": spelling_nats,
    }


def _nats_of(sentences: Sequence[Surprisal], directions: Sequence[Direction]) -> dict[str, Any]:
    """Return the nats of a text's tokens by direction, and their total, including boundaries."""
    nats = np.concatenate([sentence.nats[:, 1:-1] for sentence in sentences], axis=1)
    result: dict[str, Any] = dict(zip(directions, nats.tolist(), strict=True))
    if len(directions) > 1:
        result["both"] = nats.mean(axis=0).tolist()
    totals = zip(*(sentence.total_nats for sentence in sentences), strict=True)
    result["total"] = dict(zip(directions, map(sum, totals), strict=True))
    return result


def word_rows(text: str, scored: Sequence[Surprisal]) -> list[dict[str, Any]]:
    """Return the surprisal of each word of a raw text as written (the sum over its tokens), as plain values."""
    rows = [row._asdict() for row in sum_by_word(text, scored)]
    for row in rows:
        del row["text_index"]  # there is only one text
    return rows


def words_by_direction(expected: Expected) -> dict[str, list[dict[str, Any]]]:
    """Return expected words and their probabilities as plain values."""
    return {
        direction: [{"word": word.word, "probability": word.probability} for word in words]
        for direction, words in expected.items()
    }


def neighbors_json(model: str, index: str, neighbors: Neighbors) -> bytes:
    """Write the neighbors of a token."""
    answer = neighbors.to_dict()
    tokens, position = answer.pop("words"), answer.pop("token")
    head = {"object": "neighbors", "model": model, "index": index, "tokens": tokens, "position": position}
    return msgspec.json.encode({**head, **answer})


def _base64(array: Vectors) -> str:
    return base64.b64encode(array.astype("<f4").tobytes()).decode("ascii")
