"""The bodies of requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

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

Text = str | list[str]
"""A text, or the tokens of a sentence."""

MAX_LAYERS = 1000
MAX_FIELDS = 100
"""Most fields of a body. No request has nearly as many, and pydantic would list unknown ones one by one."""

_TOKENS = {"type": "array", "items": {"type": "string"}}
_SENTENCE_SCHEMA = {"anyOf": [{"type": "string"}, _TOKENS], "description": "A text, or the tokens of a sentence."}
_TEXTS_SCHEMA = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [{"type": "string"}, _TOKENS]}}],
    "description": "A text, a list of texts, or a list of lists of tokens, which are one sentence each.",
}


def check_text(value: Any, what: str = "the text") -> Any:
    """Check that a JSON value is a text or a list of tokens, which UTF-8 can represent."""
    strings = value if isinstance(value, list) else [value]
    if not all(isinstance(string, str) for string in strings):
        raise ValueError(f"{what} must be a string or a list of strings: words, not ids.")
    for string in strings:
        string.encode("utf-8")  # an error of its own for half of a surrogate pair
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
    Field(description="float, or null: JSON numbers. base64: the bytes of little-endian float32 numbers, row by row."),
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
        int | None, Field(strict=True, ge=1, description="Keep only the first dimensions of each vector.")
    ] = None
    user: Annotated[str | None, Field(description="Accepted and not used.")] = None


class TokensRequest(_ServeRequest):
    """A request for the vectors of each token."""

    input: Texts
    layers: Annotated[
        Selection,
        Field(
            description="Layer 0 is context-free. average is the plain mean, mix the model's own weighted sum. In a "
            "list, a repeated layer counts once."
        ),
    ] = "all"
    encoding_format: Encoding = "float"


class SurprisalRequest(_ServeRequest):
    """A request for the surprisal of each token, in nats."""

    input: Texts
    n_expected: Annotated[
        int, Field(strict=True, ge=0, le=50, description="How many of the most expected words to list per token.")
    ] = 0


class SubstitutesRequest(_ServeRequest):
    """A request for the words that the model expects at a position."""

    sentence: Sentence
    position: Annotated[int, Field(strict=True, description="Index of the token in the text, from 0.")]
    n: Annotated[int, Field(strict=True, ge=1, le=1000, description="How many words.")] = 10


class NeighborsRequest(_ServeRequest):
    """A request for the occurrences in the index that are most similar to a token."""

    sentence: Sentence
    position: Annotated[int, Field(strict=True, description="Index of the token in the text, from 0.")]
    layers: Annotated[
        Layers | None, Field(description="Layers from 1. By default, all. A repeated layer counts once.")
    ] = None
    n: Annotated[int, Field(strict=True, ge=1, le=100, description="How many neighbors per layer.")] = 5
    among: Annotated[
        Literal["any", "same", "other"],
        Field(description="Search occurrences of any word, of the same word only, or of other words only."),
    ] = "any"
    min_count: Annotated[int, Field(strict=True, ge=1, description="Least count of context-free neighbors.")] = 1
