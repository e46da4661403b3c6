"""simple_elmo's ``ElmoModel`` under its old name, written only from its published description.

Intentional differences:

- A sentence's vectors do not depend on other sentences. The old class ran the first batch once before the real pass
  ("warm-up") and carried the LSTM state, so results depended on the rest of the list. Here ``warmup=True`` starts every
  sentence from the model's start state, and ``warmup=False`` from zero.
- A sentence's average is the plain mean over its tokens, for each layer. The old class included padding, confused
  layers and tokens for ``layers="all"``, and scaled the result to length 1. For the old scale, divide by
  ``numpy.linalg.norm(vectors, axis=-1, keepdims=True)``.
- Arrays are float32 instead of float64, substitutes work for any number of sentences, and there is no session.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from elmokit.compat.bilm_data import Batcher, UnicodeCharsVocabulary, Vocabulary
from elmokit.compat.token_lists import token_list, token_lists
from elmokit.config import check_at_least, check_choice
from elmokit.embedding.elmo import Elmo
from elmokit.errors import ModelNotFoundError
from elmokit.formats.open import open_model
from elmokit.formats.sidecars import visible_files
from elmokit.lm.substitutes import Substitute, all_substitutes
from elmokit.lm.surprisal import softmax_vocabulary
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.text_files import expand_user
from elmokit.text.batching import check_texts
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE
from elmokit.text.tokenize import split_tokens

LayerChoice = Literal["average", "top", "all"]
TOKENS_PER_SENTENCE = 32  # converts ``max_batch_size`` into tokens per batch


class Predictions(TypedDict):
    """The most probable words at a position, best first."""

    candidates: list[int]
    """Their positions in the vocabulary."""
    candidate_words: list[str]
    logp: list[float]
    """Their scores before the softmax: logits, despite the name."""


class Substitutes(TypedDict):
    """What the language model expects in place of one token."""

    word: str
    forward: Predictions
    """Predicted from the tokens before it."""
    backward: Predictions | None
    """Predicted from the tokens after it; None if the model has no backward direction."""


class ElmoModel:
    """A model, opened by ``load`` and used by the other methods. The attributes are None before.

    Attributes:
        batch_size: Sentences of typical length per batch.
        vector_size: Size of a vector, including both directions.
        max_chars: Characters per token; None for a model that reads words.
        n_layers: Number of layers, including the context-free layer.
        batcher: Encodes sentences as characters, if the model reads characters.
        vocab: With ``full``, the words of the softmax.
        model: With ``full``, the opened model.
        session, sentence_character_ids, elmo_sentence_input, sentence_embeddings_op, init_state_tensors,
            final_state_tensors, init_state_values: Always None; they were parts of a TensorFlow graph.
        logger: The logger with simple_elmo's name.
    """

    session = sentence_character_ids = elmo_sentence_input = sentence_embeddings_op = None
    init_state_tensors = final_state_tensors = init_state_values = None
    logger = logging.getLogger("simple_elmo.elmo_helpers")

    def __init__(self) -> None:
        self._warm: Elmo | None = None
        self._zero: Elmo | None = None
        self._layers: LayerChoice = "average"
        self._batch_tokens = 0
        self.batch_size: int | None = None
        self.vector_size: int | None = None
        self.max_chars: int | None = None
        self.n_layers: int | None = None
        self.batcher: Batcher | None = None
        self.vocab: Vocabulary | None = None
        self.model: PretrainedBiLM | None = None

    def load(
        self,
        directory: str | Path,
        max_batch_size: int = 32,
        limit: int = 100,
        full: bool = False,
        *,
        top: bool = False,
    ) -> str:
        """Open a model and return a message.

        Args:
            directory: A directory with ``options.json`` and ``model.hdf5`` (else the first ``*.hdf5``), or any model
                that ``Elmo.from_pretrained`` opens.
            max_batch_size: Sentences of typical length per batch; results do not depend on it.
            limit: Ignored; each distinct token of a batch is always encoded once.
            full: Require the softmax, for ``get_elmo_substitutes``. In a directory with a TensorFlow ``checkpoint``,
                open the checkpoint instead of the HDF5 file, which has no softmax.
            top: Make "top" the default for ``layers``, as in simple_elmo up to 0.5, where it was the second argument.

        Raises:
            ModelError: The model cannot be opened or, with ``full``, has no softmax.
            ConfigError: ``max_batch_size`` is below 1.
        """
        if isinstance(max_batch_size, bool):  # `top`, from a program that uses the old signature
            return self.load(directory, limit=limit, full=full, top=max_batch_size)
        check_at_least("max_batch_size", max_batch_size, 1)
        model = open_model(_preferred_file(directory, full), exact_marks=True)
        if full:
            softmax_vocabulary(model)
        self._zero = Elmo(model, start="zero")
        with warnings.catch_warnings():  # warmup determines the start state
            warnings.simplefilter("ignore")
            self._warm = Elmo(model, start="warm")
        self._layers = "top" if top else "average"
        self._batch_tokens = max_batch_size * TOKENS_PER_SENTENCE
        self.batch_size = max_batch_size
        self.vector_size, self.n_layers = self._warm.output_dim, self._warm.n_layers
        cnn = model.config.char_cnn
        self.max_chars = None if cnn is None else cnn.max_chars
        self.batcher = None if cnn is None else Batcher(None, cnn.max_chars)
        self.model = self.vocab = None
        if full:
            self.model, words = model, softmax_vocabulary(model).words
            if cnn is None:
                self.vocab = Vocabulary(words=words)
            else:
                self.vocab = UnicodeCharsVocabulary(None, cnn.max_chars, words=words)
        return "The model is now loaded."

    def warmup(self, sess: object, texts: object) -> None:
        """Do nothing: vectors do not depend on earlier batches."""

    def get_elmo_vectors(
        self,
        texts: Iterable[Iterable[str]],
        warmup: bool = True,
        layers: LayerChoice | None = None,
        session: object = None,
    ) -> NDArray[np.float32]:
        """Embed every token.

        Args:
            texts: Sentences, each a list of tokens.
            warmup: Start each sentence from the model's start state; otherwise, from zero.
            layers: "average", the plain mean of the layers; "top", the last layer; or "all". None means "average",
                unless the model was loaded with ``top``.
            session: Ignored; there are no sessions.

        Returns:
            ``(sentences, longest, dim)``, for "all" ``(sentences, layers, longest, dim)``; zero on padding.

        Raises:
            ModelNotFoundError: No model is loaded.
            TextError: A sentence is not a list of strings.
            ConfigError: ``layers`` is unknown.
        """
        layers = self._layers if layers is None else layers
        elmo = self._loaded(warmup, layers)
        sentences = token_lists(texts)
        longest = max(map(len, sentences), default=0)
        depth = (elmo.n_layers,) if layers == "all" else ()
        vectors = np.zeros((len(sentences), *depth, longest, elmo.output_dim), dtype=np.float32)
        for number, array in enumerate(self._embed(elmo, sentences, layers)):
            vectors[number, ..., : array.shape[-2], :] = array
        return vectors

    def get_elmo_vector_average(
        self,
        texts: Iterable[Iterable[str]],
        warmup: bool = True,
        layers: LayerChoice | None = None,
        session: object = None,
    ) -> NDArray[np.float32]:
        """Compute the mean vector of each sentence's tokens, zero without tokens. See ``get_elmo_vectors``.

        Returns:
            ``(sentences, dim)``, for "all" ``(sentences, layers, dim)``.
        """
        layers = self._layers if layers is None else layers
        elmo = self._loaded(warmup, layers)
        sentences = token_lists(texts)
        depth = (elmo.n_layers,) if layers == "all" else ()
        means = np.zeros((len(sentences), *depth, elmo.output_dim), dtype=np.float32)
        for number, array in enumerate(self._embed(elmo, sentences, layers)):
            if array.shape[-2]:
                means[number] = array.mean(axis=-2)
        return means

    def get_elmo_substitutes(
        self, data: Iterable[str | Iterable[str]], topn: int = 3, nodelimiters: bool = True
    ) -> list[list[Substitutes]]:
        """Predict each token from its context, without seeing the token itself.

        The forward predictions are based only on the preceding tokens, the backward predictions only on the following
        ones. They may include any word of the vocabulary, even ``<UNK>``.

        Args:
            data: Strings, which are split at spaces and tabs, or lists of tokens.
            topn: Number of predictions per direction, at most the size of the vocabulary.
            nodelimiters: Exclude the sentence boundaries ``<S>`` and ``</S>``. The old class set their scores to 0
                instead, which is higher than the score of many words.

        Returns:
            One list per sentence, with one entry per token.

        Raises:
            ModelNotFoundError: No model with a softmax is loaded.
            TextError: A sentence is neither a string nor a list of strings.
            ConfigError: ``topn`` is below 1.
        """
        computer = self._loaded(True, "top").computer
        check_at_least("topn", topn, 1)
        check_texts(data)  # type: ignore[arg-type]
        texts = [split_tokens(text.strip("\r\n")) if isinstance(text, str) else token_list(text) for text in data]
        left_out = {BEGIN_SENTENCE, END_SENTENCE} if nodelimiters else set()
        n = topn + len(left_out)  # the excluded words may be among the first ones
        how: dict[str, Any] = {"n": n, "batch_tokens": self._batch_tokens, "special_words": True}
        results: list[list[Substitutes]] = []
        for text, predicted in zip(texts, all_substitutes(computer, texts, "forward", **how), strict=True):
            entries = []
            for word, substitutes in zip(text, predicted, strict=True):
                forward = _predictions(substitutes, topn, left_out)
                entries.append(Substitutes(word=word, forward=forward, backward=None))
            results.append(entries)
        if computer.model.config.bidirectional:
            for entries, predicted in zip(results, all_substitutes(computer, texts, "backward", **how), strict=True):
                for entry, substitutes in zip(entries, predicted, strict=True):
                    entry["backward"] = _predictions(substitutes, topn, left_out)
        return results

    def _loaded(self, warmup: bool, layers: str) -> Elmo:
        check_choice("layers", layers, get_args(LayerChoice))
        elmo = self._warm if warmup else self._zero
        if elmo is None:
            raise ModelNotFoundError("No model is loaded yet: call load(directory) first.")
        return elmo

    def _embed(self, elmo: Elmo, texts: Sequence[Sequence[str]], layers: LayerChoice) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors ``([layers,] tokens, dim)`` of each sentence, computed a few batches ahead."""
        return elmo.embed(iter(texts), layers=layers, batch_tokens=self._batch_tokens)


def _predictions(substitutes: Sequence[Substitute], topn: int, left_out: Collection[str]) -> Predictions:
    """Return the first ``topn`` substitutes, excluding some words."""
    kept = [substitute for substitute in substitutes if substitute.word not in left_out][:topn]
    return Predictions(
        candidates=[substitute.word_id for substitute in kept],
        candidate_words=[substitute.word for substitute in kept],
        logp=[substitute.score for substitute in kept],
    )


def _preferred_file(directory: str | Path, full: bool) -> str | Path:
    """Choose the file that simple_elmo would open in a directory; leave anything else to ``open_model``."""
    folder = expand_user(directory, ModelNotFoundError)
    if not (folder / "options.json").exists():
        return directory
    if full and (folder / "checkpoint").exists():
        return folder / "checkpoint"
    files = [folder / "model.hdf5", *visible_files(folder, "*.hdf5")]
    return next((file for file in files if file.exists()), folder)
