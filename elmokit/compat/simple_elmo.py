"""simple_elmo's ``ElmoModel``, written from its published description alone.

What differs, on purpose:

- State never goes from one sentence to the next: a sentence has the same vectors wherever it stands. There, the
  first batch was run once before the real pass ("warm-up") and state was carried, so that results depended on
  what else was in the list. ``warmup=True`` here starts each sentence from the model's one constant warm
  state, ``warmup=False`` from zero.
- A sentence's average is the plain mean over its real tokens, each layer by itself. There, padding was counted in, the
  layers of ``layers="all"`` were mixed up with tokens, and the result was scaled to length 1 (for that, divide by
  ``numpy.linalg.norm(vectors, axis=-1, keepdims=True)``).
- Arrays are float32 (there float64); substitutes come for any number of sentences; there is no TensorFlow session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypedDict, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmokit.bilm import BiLMState
from elmokit.embedder import Elmo
from elmokit.errors import ConfigError, ModelNotFoundError, TextError
from elmokit.io.text_files import expand_user, split_tokens
from elmokit.nn.softmax import ROWS_AT_ONCE
from elmokit.text.batching import check_sentence
from elmokit.weights.open import open_model

Layers = Literal["average", "top", "all"]


class Predictions(TypedDict):
    """The most probable words at one place, the best first."""

    ids: list[int]
    """Their places in the vocabulary."""
    words: list[str]
    logits: list[float]
    """Their scores before the softmax."""


class Substitutes(TypedDict):
    """What could stand in place of one token."""

    word: str
    forward: Predictions
    """By what stands before the token."""
    backward: Predictions | None
    """By what stands after it; None where the model reads in one direction."""


class ElmoModel:
    """A model that ``load`` opens and the other methods ask."""

    def __init__(self) -> None:
        self._elmo: Elmo | None = None
        self._max_batch_size = 0

    def load(self, directory: str | Path, max_batch_size: int = 32, limit: int = 100, full: bool = False) -> None:
        """Open a model.

        Args:
            directory: a folder with ``options.json`` and ``model.hdf5`` (else the first ``*.hdf5``); or whatever
                ``Elmo.from_pretrained`` opens.
            max_batch_size: sentences in a batch; results do not depend on it.
            limit: without effect; each distinct token of a batch is encoded once, whatever the vocabulary.
            full: the softmax is wanted too, for ``get_elmo_substitutes``. In a folder with a TensorFlow ``checkpoint``
                that is opened instead of the HDF5 file, which has none.

        Raises:
            ModelError: the model cannot be opened, or, with ``full``, has no softmax.
            ConfigError: ``max_batch_size`` is below 1.
        """
        if max_batch_size < 1:
            raise ConfigError(f"max_batch_size is {max_batch_size}; a batch holds at least 1 sentence.")
        model = open_model(_wanted_file(directory, full))
        if full and (model.softmax is None or model.vocabulary is None):
            raise ModelNotFoundError(
                f"{directory} has no softmax with its vocabulary, which full=True asks for. Load a TensorFlow "
                "checkpoint with its vocab.txt, or an elmokit folder with softmax.safetensors. Vectors do without full."
            )
        self._elmo = Elmo(model, n_mixes=0)
        self._max_batch_size = max_batch_size

    def get_elmo_vectors(
        self, texts: Sequence[Sequence[str]], warmup: bool = True, layers: Layers = "average", session: None = None
    ) -> NDArray[np.float32]:
        """Vectors of every token.

        Args:
            texts: sentences, each a list of tokens.
            warmup: start each sentence from the model's warm state, else from zero.
            layers: "average", their plain mean; "top", the last; "all".
            session: there is none; refused.

        Returns:
            ``(sentences, longest, dim)``, for "all" ``(sentences, layers, longest, dim)``; zero after a sentence's end.

        Raises:
            ModelNotFoundError: nothing was loaded.
            TextError: a sentence is no list of strings.
            ConfigError: there are no such layers, or a session was given.
        """
        elmo = self._loaded(layers, session)
        longest = max((len(check_sentence(text)) for text in texts), default=0)
        depth = (elmo.n_layers,) if layers == "all" else ()
        vectors = np.zeros((len(texts), *depth, longest, elmo.output_dim), dtype=np.float32)
        for place, array in self._each(texts, warmup, layers):
            vectors[place, ..., : array.shape[-2], :] = array
        return vectors

    def get_elmo_vector_average(
        self, texts: Sequence[Sequence[str]], warmup: bool = True, layers: Layers = "average", session: None = None
    ) -> NDArray[np.float32]:
        """The mean vector of every sentence's tokens; zero for a sentence without any. Arguments as for the vectors.

        Returns:
            ``(sentences, dim)``, for "all" ``(sentences, layers, dim)``.
        """
        elmo = self._loaded(layers, session)
        depth = (elmo.n_layers,) if layers == "all" else ()
        means = np.zeros((len(texts), *depth, elmo.output_dim), dtype=np.float32)
        for place, array in self._each(texts, warmup, layers):
            if array.shape[-2]:
                means[place] = array.mean(axis=-2)
        return means

    @torch.no_grad()
    def get_elmo_substitutes(
        self, raw_sentences: Sequence[str | Sequence[str]], topn: int = 3
    ) -> list[list[Substitutes]]:
        """The words that the language model expects in place of each token, the token itself unseen.

        Each direction stands alone: the forward predictions know only what comes before the token, the backward
        ones only what comes after. Any word of the vocabulary may be among them, ``<UNK>`` and boundaries too.

        Args:
            raw_sentences: strings, cut at blanks and tabs; lists of tokens will do.
            topn: predictions a direction, at most the whole vocabulary.

        Returns:
            one list per sentence, with one entry per token.

        Raises:
            ModelNotFoundError: nothing was loaded, or nothing with a softmax.
            TextError: a sentence is neither a string nor a list of strings.
            ConfigError: ``topn`` is below 1.
        """
        elmo = self._loaded("top", None)
        if topn < 1:
            raise ConfigError(f"topn is {topn}; ask for at least 1 word.")
        if elmo.model.softmax is None or elmo.model.vocabulary is None:
            raise ModelNotFoundError("Substitutes need the softmax and its vocabulary: load the model with full=True.")
        if isinstance(raw_sentences, str):
            raise TextError("raw_sentences is a list of sentences; put the one sentence into a list.")
        texts = [split_tokens(text.strip("\r\n")) if isinstance(text, str) else list(text) for text in raw_sentences]
        found: dict[int, list[Substitutes]] = {}
        n_directions = elmo.bilm.config.n_directions
        for places in self._batches(texts):
            sentences = [texts[place] for place in places]
            output, _ = elmo.model.contextualize(sentences, elmo.start_state(len(places)))
            top = output.layers[-1]  # (batch, time, dim)
            # With <S> at 0, token i stands at i + 1: the forward LSTM predicts it from i, the backward one from i + 2.
            sides = [half[:, start:] for start, half in zip((0, 2), top.chunk(n_directions, dim=-1), strict=False)]
            for row, (place, sentence) in enumerate(zip(places, sentences, strict=True)):
                best = [self._best(side[row, : len(sentence)], topn) for side in sides]
                backward = best[1] if n_directions == 2 else [None] * len(sentence)
                entries = zip(sentence, best[0], backward, strict=True)
                found[place] = [Substitutes(word=word, forward=f, backward=b) for word, f, b in entries]
        return [found[place] for place in range(len(texts))]

    def _loaded(self, layers: str, session: object) -> Elmo:
        if session is not None:
            raise ConfigError(
                "There is no TensorFlow session here: leave session out, a model is set up once, by load."
            )
        if layers not in get_args(Layers):
            raise ConfigError(f"layers is {layers!r}; choose 'average', 'top' or 'all'.")
        if self._elmo is None:
            raise ModelNotFoundError("No model is loaded yet: call load(directory) first.")
        return self._elmo

    def _each(
        self, texts: Sequence[Sequence[str]], warmup: bool, layers: Layers
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Each sentence's place and its vectors ``([layers,] tokens, dim)``, in the order of their lengths."""
        elmo = self._loaded(layers, None)
        for places in self._batches(texts):
            n_rows = len(places)
            start: BiLMState = elmo.start_state(n_rows) if warmup else elmo.bilm.zero_state(n_rows)
            vectors, _ = elmo.embed_batch([texts[place] for place in places], start, layers)
            yield from zip(places, vectors, strict=True)

    def _batches(self, texts: Sequence[Sequence[str]]) -> Iterator[list[int]]:
        """Places of sentences that go together: similar lengths, at most ``max_batch_size``."""
        places = sorted(range(len(texts)), key=lambda place: len(check_sentence(texts[place])))
        for start in range(0, len(places), self._max_batch_size):
            yield places[start : start + self._max_batch_size]

    def _best(self, hidden: Tensor, topn: int) -> list[Predictions]:
        """For each of ``(tokens, projection_dim)`` the words of the highest scores."""
        assert self._elmo is not None
        softmax, vocabulary = self._elmo.model.softmax, self._elmo.model.vocabulary
        assert softmax is not None
        assert vocabulary is not None
        found: list[Predictions] = []
        for start in range(0, len(hidden), ROWS_AT_ONCE):
            scores = softmax.scores(hidden[start : start + ROWS_AT_ONCE])
            logits, ids = scores.topk(min(topn, len(vocabulary)))
            for row_logits, row_ids in zip(logits.tolist(), ids.tolist(), strict=True):
                words = [vocabulary.words[index] for index in row_ids]
                found.append(Predictions(ids=row_ids, words=words, logits=row_logits))
        return found


def _wanted_file(directory: str | Path, full: bool) -> str | Path:
    """Of a folder with published files: the checkpoint for ``full``, else ``model.hdf5`` or the first HDF5 file."""
    folder = expand_user(directory, ModelNotFoundError)
    if not (folder / "options.json").exists():
        return directory
    if full and (folder / "checkpoint").exists():
        return folder / "checkpoint"
    files = [folder / "model.hdf5", *sorted(folder.glob("*.hdf5"))]
    return next((file for file in files if file.exists()), folder)
