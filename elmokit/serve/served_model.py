"""The server's computations, without HTTP."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.elmo import Elmo, embed_joined
from elmokit.embedding.sentence_vectors import SentenceEmbedder
from elmokit.engine.layer_selection import FixedMix
from elmokit.evaluation.occurrences import OccurrenceIndex, build_index
from elmokit.formats.folder import DEFAULT_MODEL
from elmokit.formats.tf_hub import stored_mix
from elmokit.lm.perplexity import add_spelling
from elmokit.lm.spelling import Spelling, spelling_of
from elmokit.lm.substitutes import Direction, Query, Wanted, expected_words
from elmokit.lm.surprisal import Surprisal, surprisals
from elmokit.lm.word_cache import CacheSettings, DocumentCache, cached_surprisals
from elmokit.pretrained.model import describe
from elmokit.serve.examples import SENTENCES
from elmokit.serve.serve_config import ServeConfig
from elmokit.text.tokenize import split_lines, split_tokens, text_splitter

BOTH: Direction = "both"
SplitText = Sequence[Sequence[str]]
"""The tokenized sentences of a text."""


class ServedModel:
    """A model with everything its endpoints need: sentence embedder, language model, splitter and index."""

    # Methods that compute map a list of texts to one result each. Only one thread calls them at a time.

    def __init__(self, elmo: Elmo, config: ServeConfig) -> None:
        self.elmo = elmo
        self.name = _readable(config.name or elmo.model.source_name or DEFAULT_MODEL)
        self.split = partial(split_lines, split=text_splitter()) if config.tokenize else _split_at_spaces
        self.embedder = SentenceEmbedder.by_name(elmo, config.pooling)
        self.mix: dict[str, Any] | None = None
        if (stored := stored_mix(elmo.model)) is not None:
            elmo.mix = mix = FixedMix(*stored)
            self.mix = {"weights": mix.weights.tolist(), "gamma": float(mix.gamma)}
        if config.index is None:
            folder = tempfile.mkdtemp(prefix="elmokit-serve-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            sentences = [sentence.split() for sentence in SENTENCES]
            self.index = build_index(elmo, lambda: iter(sentences), Path(folder) / "index")
            self.index_name = "example sentences"
        else:
            self.index = OccurrenceIndex(config.index)
            self.index.check_model(elmo)
            self.index_name = _readable(Path(config.index).name)
        self.elmo.embed([["warm", "up"]])  # packs the weights, so the first request need not wait for it

    @property
    def directions(self) -> Sequence[Direction]:
        """The model's directions."""
        return self.elmo.model.config.direction_names

    @property
    def expectations(self) -> Sequence[Direction]:
        """The model's directions, and both together if there are two."""
        return [*self.directions, BOTH] if len(self.directions) > 1 else self.directions

    @property
    def can_predict(self) -> bool:
        """Whether the model has a softmax and vocabulary, for surprisal and substitutes."""
        return self.elmo.model.can_predict

    def facts(self) -> dict[str, Any]:
        """Describe the model for ``GET /v1/models``."""
        return {
            "id": self.name,
            "object": "model",
            "created": 0,
            "owned_by": "elmokit",
            "n_layers": self.elmo.n_layers,
            "dim": self.elmo.output_dim,
            "directions": self.directions,
            "can_predict": self.can_predict,
            "mix": self.mix,
            "embeddings": {"pooling": self.embedder.pooling_name, "dim": self.embedder.dim},
            "index": {
                "name": self.index_name,
                "n_sentences": self.index.n_sentences,
                "n_tokens": self.index.n_tokens,
            },
            "about": {key: value for key, value in describe(self.elmo.model).items() if key not in ("path", "card")},
        }

    def sentence_vectors(self, texts: Sequence[SplitText]) -> list[NDArray[np.float32]]:
        """Compute one vector per text."""
        return list(self.embedder.embed_texts(texts))

    def token_vectors(
        self, layers: Any, documents: bool = False
    ) -> Callable[[Sequence[SplitText]], list[NDArray[np.float32]]]:
        """Return a function that computes token vectors of the given layers, like ``Elmo.embed`` for raw texts."""
        self.elmo.embed([], layers=layers)  # checks the layers
        if documents:
            embed = partial(self.elmo.embed_documents, layers=layers)
            return lambda texts: [np.concatenate(sentences, axis=-2) for sentences in embed(texts)]
        return lambda texts: list(embed_joined(texts, partial(self.elmo.embed, layers=layers)))

    def n_selected(self, layers: Any) -> int:
        """Count the layers that a request for token vectors returns."""
        return self.elmo.n_layers if layers == "all" else len(layers) if isinstance(layers, list) else 1

    def surprisals(
        self, texts: Sequence[SplitText], documents: bool = False, cache: bool = False
    ) -> list[list[Surprisal]]:
        """Compute the surprisal of each token of each sentence, by text."""
        computer, start = self.elmo.computer, self.elmo.start_state
        if cache:
            scored = cached_surprisals(computer, texts, self._document_cache(), start)
        else:
            read = texts if documents else chain.from_iterable(texts)
            unpriced = surprisals(computer, read, start, documents=documents)
            scored = map(partial(add_spelling, self.elmo.model, self._spelling), unpriced)
        return [list(islice(scored, len(text))) for text in texts]

    def expected(
        self, texts: Sequence[Sequence[Query]], n: int, documents: bool = False, cache: bool = False
    ) -> list[list[Any]]:
        """Find the words that each direction, and both together, expect at positions in each text's sentences."""
        read = texts if documents else chain.from_iterable(texts)
        found = expected_words(
            self.elmo.computer,
            read,
            Wanted(self.expectations, n),
            self.elmo.start_state,
            documents=documents,
            cache=self._document_cache() if cache else None,
        )
        return [list(chain.from_iterable(islice(found, len(text)))) for text in texts]

    @cached_property
    def _spelling(self) -> Spelling:
        return spelling_of(self.elmo.model)

    def _document_cache(self) -> DocumentCache:
        return DocumentCache(self.elmo.model, CacheSettings(), self._spelling.nats)


def _split_at_spaces(text: str) -> list[list[str]]:
    """Split a text like a line of a file, which, unlike a request's text, contains no line breaks."""
    return [split_tokens(text.replace("\r", " ").replace("\n", " "))]


def _readable(name: str) -> str:
    """Return a name as valid text: file names and arguments can have any bytes, which JSON cannot represent."""
    return name.encode("utf-8", "replace").decode()
