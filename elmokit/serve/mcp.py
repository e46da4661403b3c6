"""``elmokit mcp``: a model as tools of the Model Context Protocol, for language models that call them."""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import signal
import tempfile
import textwrap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np

from elmokit.embedding.elmo import Elmo
from elmokit.engine.unit_vectors import unit_vectors
from elmokit.errors import INTERRUPTED, ConfigError, ElmoError, needs_extra
from elmokit.evaluation.neighbors import in_context
from elmokit.serve.config import ServeConfig
from elmokit.serve.served_model import ServedModel, SplitText, sentence_at
from elmokit.storage.progress import count_of
from elmokit.version import __version__

with needs_extra("elmokit mcp", "mcp"):
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations
    from pydantic import Field

MAX_SENTENCES, MAX_COMPARED = 100, 30
MAX_TEXT = 20_000
"""Characters of a sentence, and of a word."""
CONTEXT_CHARACTERS = 60
"""How much of a sentence is shown on each side of a word."""
MAX_SHOWN = 2000
"""Characters of a sentence, and of a word, that an error shows."""

Result = TypeVar("Result")
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
Sentence = Annotated[Text, Field(description="A sentence, or a text of several, which are read by themselves.")]
Word = Annotated[Text, Field(description="The word: a token of the sentence.")]
OccurrenceNumber = Annotated[
    int, Field(ge=1, description="Which one, if the word occurs more than once, counted from 1.")
]
NumberOfResults = Annotated[int, Field(ge=1, le=100, description="How many results.")]


@dataclass(frozen=True)
class TokenSurprisal:
    """The nats of a token; None for a direction that the model does not have."""

    token: str
    forward: float | None
    backward: float | None
    in_vocabulary: bool


@dataclass(frozen=True)
class SentenceSurprisal:
    """The nats of each token, and by direction of the whole sentence with its end (forward) or its start (backward)."""

    tokens: list[TokenSurprisal]
    total: dict[str, float]


@dataclass(frozen=True)
class Surprisals:
    """The result of the tool ``surprisal``."""

    sentences: list[SentenceSurprisal]


@dataclass(frozen=True)
class Substitutes:
    """The result of the tool ``substitutes``: by direction, words and their probabilities, the most probable first."""

    position: str
    expected: dict[str, dict[str, float]]


@dataclass(frozen=True)
class SimilarOccurrence:
    """A word in a sentence of the corpus, and its cosine with the word in question."""

    cosine: float
    occurrence: str


@dataclass(frozen=True)
class NeighborsByLayer:
    """The result of the tool ``neighbors``."""

    position: str
    corpus: str
    similar_words: list[SimilarOccurrence]
    layers: dict[str, list[SimilarOccurrence]]


@dataclass(frozen=True)
class SenseComparison:
    """The result of the tool ``compare_senses``: by layer, the cosines of each sentence with each."""

    occurrences: list[str]
    layers: dict[str, list[list[float]]]


class Tools:
    """The tools of a model. Their docstrings and signatures are what a client reads about them."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.lock = threading.Lock()  # the SDK calls each tool in a thread of its own

    def surprisal(
        self, sentences: Annotated[list[Sentence], Field(min_length=1, max_length=MAX_SENTENCES)]
    ) -> Surprisals:
        """Compute how surprising each word of sentences is, in nats: -ln p(word | all words before it) for `forward`,
        all words after it for `backward`. Higher is less expected. Words outside the vocabulary count as one unknown
        word. To see which of two sentences is more acceptable, compare their totals; use sentences of the same length.
        """
        results = []
        for text in self.model.surprisals(list(map(self._split, sentences))):
            tokens = []
            for scored in text:
                by_token = zip(scored.tokens, scored.nats.T.tolist(), scored.is_unknown.tolist(), strict=True)
                for token, nats, is_unknown in list(by_token)[1:-1]:  # without the boundaries
                    both = self._by_direction(nats)
                    tokens.append(TokenSurprisal(token, both.get("forward"), both.get("backward"), not is_unknown))
            totals = np.sum([scored.total_nats for scored in text], axis=0)
            results.append(SentenceSurprisal(tokens, self._by_direction(totals.tolist())))
        return Surprisals(results)

    def substitutes(
        self, sentence: Sentence, word: Word, occurrence: OccurrenceNumber = 1, n: NumberOfResults = 10
    ) -> Substitutes:
        """Find the words that the language model expects in place of a word, which it does not see: from the words
        before it (`forward`), after it (`backward`), and from both. To fill a gap, write any token there, such as ___.
        """
        tokens, position = self._found(sentence, word, occurrence)
        ((expected,),) = self.model.expected([(tokens, [position])], n)
        probabilities = {
            str(direction): {word.word: round(word.probability, 4) for word in words}
            for direction, words in expected.items()
        }
        return Substitutes(_shown(tokens, position), probabilities)

    def neighbors(
        self, sentence: Sentence, word: Word, occurrence: OccurrenceNumber = 1, n: NumberOfResults = 5
    ) -> NeighborsByLayer:
        """Find the occurrences in a corpus whose contextual vectors are most similar to a word in a sentence, by layer
        of the model. `similar_words` are those of layer 0, which sees the word and no context. Layer 1
        is closer to grammar, the top layer to meaning.
        """
        tokens, position = self._found(sentence, word, occurrence)
        neighbors = self.model.index.neighbors(self.model.elmo, tokens, position, n_neighbors=n)
        layers = {
            str(layer): [
                SimilarOccurrence(round(one.similarity, 3), _shown(one.words, one.token)) for one in occurrences
            ]
            for layer, occurrences in neighbors.layers.items()
        }
        similar_words = [SimilarOccurrence(round(one.similarity, 3), one.word) for one in neighbors.context_free]
        return NeighborsByLayer(_shown(tokens, position), self.model.index_name, similar_words, layers)

    def compare_senses(
        self, word: Word, sentences: Annotated[list[Sentence], Field(min_length=2, max_length=MAX_COMPARED)]
    ) -> SenseComparison:
        """Compare the uses of one word in several sentences: the cosine of its vectors in each two of them, by layer.
        Layer 0 sees no context, so it is 1 where the word is the same. In the layers above, uses in the same
        sense have higher cosines than uses in different senses; compare them with each other, not with a threshold.
        """
        found = [_find(text, word) for text in map(self._split, sentences)]
        positions = [position for _, position in found]
        vectors = self.model.token_vectors("all")([[tokens] for tokens, _ in found])  # (layers, tokens, dim) of each
        of_word = np.stack([array[:, position] for array, position in zip(vectors, positions, strict=True)], axis=1)
        unit = unit_vectors(of_word)  # (layers, sentences, dim)
        cosines = np.einsum("lsd,ltd->lst", unit, unit).astype(np.float64).round(3)
        return SenseComparison(
            [_shown(tokens, position) for tokens, position in found],
            {str(layer): matrix.tolist() for layer, matrix in enumerate(cosines)},
        )

    def for_client(self, tool: Callable[..., Result]) -> Callable[..., Result]:
        """Return a tool that computes alone, and whose errors tell the client what to do."""

        @functools.wraps(tool)
        def call(*args: Any, **kwargs: Any) -> Result:
            try:
                with self.lock:
                    return tool(*args, **kwargs)
            except ElmoError as error:
                raise ToolError(str(error)) from error

        return call

    def _split(self, sentence: str) -> SplitText:
        text = self.model.split(sentence)
        if not any(text):
            raise ConfigError(f"The sentence {sentence[:MAX_SHOWN]!r} has no words.")
        return text

    def _found(self, sentence: str, word: str, occurrence: int) -> tuple[Sequence[str], int]:
        return _find(self._split(sentence), word, occurrence)

    def _by_direction(self, nats: Sequence[float]) -> dict[str, float]:
        return {name: round(number, 3) for name, number in zip(self.model.directions, nats, strict=True)}


def create_server(model: ServedModel) -> MCPServer[Any]:
    """Create a server with the tools that the model has: without a softmax, no surprisal and substitutes."""
    tools = Tools(model)
    server: MCPServer[Any] = MCPServer(
        "elmokit",
        version=__version__,
        instructions=f"The ELMo model {model.name}: a bidirectional LSTM language model that reads whole words.",
        log_level="WARNING",
    )
    offered: list[Callable[..., Any]] = [tools.surprisal, tools.substitutes] if model.can_predict else []
    offered += [tools.neighbors, tools.compare_senses]
    for tool in offered:
        server.add_tool(
            tools.for_client(tool),
            description=inspect.getdoc(tool),
            annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
        )
    return server


def run_server(elmo: Elmo, config: ServeConfig) -> None:
    """Answer a client on standard input and output until it leaves."""
    with tempfile.TemporaryDirectory(prefix="elmokit-mcp-") as folder:

        def stop(*_: object) -> None:
            # A thread of the SDK is waiting for input, and Python would wait for the thread.
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(INTERRUPTED)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        try:
            create_server(ServedModel(elmo, config, Path(folder))).run("stdio")
        except BaseExceptionGroup as errors:
            _, others = errors.split(BrokenPipeError)
            if others is not None:
                raise
            raise BrokenPipeError("the client has closed the output") from None  # as other commands say it


def _find(text: SplitText, word: str, occurrence: int = 1) -> tuple[Sequence[str], int]:
    """Find the sentence and the position of a word: as it is written, or else in other case."""
    tokens = [token for sentence in text for token in sentence]
    positions = [position for position, token in enumerate(tokens) if token == word]
    positions = positions or [position for position, token in enumerate(tokens) if token.lower() == word.lower()]
    if occurrence > len(positions):
        shown = textwrap.shorten(" | ".join(tokens), MAX_SHOWN, placeholder=" ...")  # it fills a model's context
        raise ConfigError(
            f"{word[:MAX_SHOWN]!r} occurs {count_of(len(positions), 'time')} among the tokens {shown}, but occurrence "
            f"is {occurrence}. Give one of these tokens."
        )
    return sentence_at(text, positions[occurrence - 1])


def _shown(tokens: Sequence[str], position: int) -> str:
    return in_context(tokens, position, CONTEXT_CHARACTERS).strip()
