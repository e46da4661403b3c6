"""One vector per sentence, for similarity, clustering and retrieval: :class:`SentenceEmbedder`."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from elmokit.config import check_at_least, check_choice
from elmokit.embedding.elmo import Elmo, Vectors, check_elmo, embed_joined, split_raw
from elmokit.engine.state import unit_vectors
from elmokit.engine.token_cache import TokenCache
from elmokit.errors import ConfigError, TextError
from elmokit.formats.opening import ElmoKeywords
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.pretrained.pooling_names import POOLING_NAMES, PoolingName, WeightingName
from elmokit.pretrained.sentence_pooling import SentenceHead, SentenceMap, SentencePooling, Whitening
from elmokit.text.batching import check_sentence, check_sentences
from elmokit.text.marks import EXACT, MARKS, MarkReader, read_capitals
from elmokit.text.vocabulary import Vocabulary

FIT_SENTENCES = 1024
"""Number of sentence vectors in memory at once while a whitening is fitted."""
RANK_TOLERANCE = 1e-6
"""Directions with less than this fraction of the largest variance are rounding errors. Layer 0 has them, because its
two halves are equal."""
N_CACHED_WORDS = 65536
"""Number of words whose probabilities are cached."""
PLAIN_QUOTES = {"``": '"', "''": '"'}
"""The quotes of the Penn Treebank, which are separate tokens."""
PLAIN_CHARACTERS = {**MARKS, ord("`"): "'"}
"""Typographic marks, and their plain forms."""


class SentenceEmbedder:
    """Sentence vectors: a weighted mean of token vectors, whitened if the model stores a whitening.

    The plain mean of all layers, which many programs use, is a poor measure of similarity. Three things help: layer 0,
    which has no context and reads the first word of a sentence in lower case; less weight for frequent words and none
    for punctuation ("sif"); and whitened token vectors of equal length. Together they raise the rank correlation of
    ``en-mini`` with human judgments on the STS benchmark (dev) from 0.60 to 0.75 (docs/how-to/compare-sentences.md). If
    you train a classifier on the vectors, include the other layers; the classifier picks what it needs.

    Args:
        elmo: The model.
        pooling: The layers and weights. If None, the whitening stored with the model is applied, with its layers and
            weights. Without one, the default is layer 0 with "sif", or with "mean" and a warning if there are no word
            frequencies.
        word_counts: How often each word occurs in a large text, for "sif". If None, probabilities follow Zipf's law,
            using each word's rank in the model's vocabulary, which is sorted by frequency.
        linear_map: Instead of ``pooling``: a map to apply, such as ``elmo.model.sentence_head``, with its own pooling.

    Attributes:
        linear_map: Applied to the token vectors, which then have length 1: a whitening, or a head that was trained on
            pairs of sentences; None if there is none. :meth:`fit` sets it.

    Raises:
        ConfigError: A layer does not exist; ``linear_map`` is for other vectors; or the weighting is "sif" and there is
            neither a vocabulary nor word counts.

    Example:
        >>> embedder = SentenceEmbedder.from_pretrained()
        >>> texts = ["A man plays the guitar.", "Someone is playing a guitar.", "Oil prices fell sharply."]
        >>> vectors = embedder.embed(texts, tokenize=True)
        >>> vectors.shape
        (3, 192)
        >>> embedder.similarity(vectors)[0].round(2)
        array([ 1.  ,  0.65, -0.07], dtype=float32)
    """

    def __init__(
        self,
        elmo: Elmo,
        pooling: SentencePooling | None = None,
        word_counts: Mapping[str, int] | None = None,
        *,
        linear_map: SentenceMap | None = None,
    ) -> None:
        check_elmo(elmo)
        self.elmo, self._word_counts = elmo, _plain_counts(word_counts)
        if pooling is None and linear_map is None:
            linear_map = elmo.model.whitening
        if pooling is not None:
            self.pooling = pooling
        elif linear_map is not None:
            self.pooling = linear_map.pooling
        else:
            self.pooling = SentencePooling(default_weighting(elmo.model, word_counts))
        self.linear_map = linear_map
        elmo.embed([], layers=self.pooling.layers)  # checks the layers
        self._mapped_words = TokenCache()
        self._mean_dim = self.pooling.dim(elmo.n_layers, elmo.output_dim)
        self._probability = word_probability(elmo.model, self._word_counts) if self.pooling.needs_frequencies else None

    def __reduce__(self) -> tuple[Any, ...]:
        # Recreated from its arguments; everything computed since is a cache.
        make = functools.partial(type(self), linear_map=self.linear_map)
        return make, (self.elmo, self.pooling, self._word_counts)

    @classmethod
    def by_name(
        cls,
        elmo: Elmo,
        pooling: PoolingName,
        layers: Literal["all", "top", "average"] | int | tuple[int, ...] | None = None,
        word_counts: Mapping[str, int] | None = None,
    ) -> SentenceEmbedder:
        """Create an embedder by the name of its pooling.

        Args:
            elmo: The model.
            pooling: "auto" for the default of :class:`SentenceEmbedder`; "mean" or "sif" for that weighting, without
                whitening; "whitened" for the whitening stored with the model; "trained" for the stored head, which was
                trained on pairs of sentences.
            layers: As in :class:`SentencePooling`; None for layer 0. "whitened" and "trained" have their own, so "auto"
                with layers does not use the whitening.
            word_counts: See :class:`SentenceEmbedder`.

        Raises:
            ConfigError: The name is unknown; "whitened" or "trained" is given with ``layers``, or the model has none;
                or as in :class:`SentenceEmbedder`.
        """
        check_elmo(elmo)
        check_choice("pooling", pooling, POOLING_NAMES)
        if pooling == "auto":
            if layers is None:
                return cls(elmo, word_counts=word_counts)
            pooling = default_weighting(elmo.model, word_counts)
        if pooling == "whitened":
            linear_map: SentenceMap | None = elmo.model.whitening
            name, remedy = "whitening", "Fit one with: elmokit convert MODEL OUT --whiten TEXT"
        elif pooling == "trained":
            linear_map = elmo.model.sentence_head
            name, remedy = "head", "Train one with recipes/sentence_head.py"
        else:
            chosen = SentencePooling(pooling) if layers is None else SentencePooling(pooling, layers)
            return cls(elmo, chosen, word_counts)
        if layers is not None:
            raise ConfigError(f"layers is {layers!r}, but the stored {name} has its own.")
        if linear_map is None:
            raise ConfigError(f"The model has no {name}. {remedy}. Or choose 'sif'.")
        return cls(elmo, word_counts=word_counts, linear_map=linear_map)

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | Path | None = None,
        pooling: SentencePooling | PoolingName | None = None,
        word_counts: Mapping[str, int] | None = None,
        **opening: Unpack[ElmoKeywords],
    ) -> SentenceEmbedder:
        """Open a model by its path or name.

        Args:
            path_or_name: As in :meth:`Elmo.from_pretrained`.
            pooling, word_counts: See :class:`SentenceEmbedder`; ``pooling`` can also be a name, as in :meth:`by_name`.
            **opening: Further arguments of :meth:`Elmo.from_pretrained`, such as ``device`` and ``precision``.

        Raises:
            ModelError: No model was found, or it cannot be opened.
            ConfigError: An argument is invalid.
        """
        elmo = Elmo.from_pretrained(path_or_name, **opening)
        if isinstance(pooling, str):
            return cls.by_name(elmo, pooling, word_counts=word_counts)
        return cls(elmo, pooling, word_counts)

    @overload
    def embed(self, sentences: Sequence[Sequence[str]], *, tokenize: bool | str = ...) -> NDArray[np.float32]: ...

    @overload
    def embed(
        self, sentences: Iterator[Sequence[str]], *, tokenize: bool | str = ...
    ) -> Iterator[NDArray[np.float32]]: ...

    def embed(
        self, sentences: Iterable[Sequence[str]], *, tokenize: bool | str = False
    ) -> NDArray[np.float32] | Iterator[NDArray[np.float32]]:
        """Compute one vector per tokenized sentence, or per raw text.

        Args:
            sentences: Lists of tokens. Given an iterator, the method returns an iterator of vectors, so a corpus of any
                size can be embedded. With ``tokenize``: raw texts, of any number of sentences.
            tokenize: Split raw texts, as :func:`elmokit.tokenize` does: True for English, or the code of a language.

        Returns:
            ``(sentences, dim)``; or one array ``(dim,)`` at a time. The vector of an empty sentence is zero.

        Raises:
            TextError: A sentence is not a list of strings.
            MissingExtraError: As in :meth:`Elmo.embed`.
        """
        if tokenize is False:
            vectors = self._embed_texts([sentence] for sentence in check_sentences(sentences))
        else:
            vectors = self._embed_texts(split_raw(sentences, tokenize))
        return vectors if isinstance(sentences, Iterator) else self._stacked(vectors)

    def embed_texts(self, texts: Iterable[Sequence[Sequence[str]]]) -> NDArray[np.float32]:
        """Compute one vector per text of several sentences: the weighted mean over the tokens of all its sentences.

        Args:
            texts: The tokenized sentences of each text, as :func:`elmokit.tokenize` returns them.

        Returns:
            ``(texts, dim)``. The vector of an empty text is zero.

        Raises:
            TextError: A sentence is not a list of strings.
        """
        return self._stacked(self._embed_texts(texts))

    def similarity(
        self, vectors: NDArray[np.float32], others: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Compute the cosine similarity of sentence vectors.

        Args:
            vectors: ``(n, dim)``, from :meth:`embed`.
            others: ``(m, dim)``; None: ``vectors`` are compared with each other.

        Returns:
            ``(n, m)``. The similarity to an empty sentence is 0.
        """
        unit = unit_vectors(vectors)
        return unit @ (unit if others is None else unit_vectors(others)).T

    def _embed_texts(self, texts: Iterable[Sequence[Sequence[str]]]) -> Iterator[NDArray[np.float32]]:
        # The tokens are needed twice: to compute their vectors, and to weight them.
        folded = ([self.fold(sentence) for sentence in check_sentences(text)] for text in texts)
        for_elmo, for_weights = itertools.tee(folded)
        embed = functools.partial(self.elmo.embed, layers=self.pooling.layers)
        tokens = (list(itertools.chain(*text)) for text in for_weights)
        return map(self.pool, tokens, embed_joined(for_elmo, embed))

    def _stacked(self, vectors: Iterable[NDArray[np.float32]]) -> NDArray[np.float32]:
        return np.array(list(vectors), np.float32).reshape(-1, self.dim)

    @property
    def dim(self) -> int:
        """Number of dimensions of a sentence vector."""
        return self._mean_dim if self.linear_map is None else self.linear_map.projection.shape[1]

    @property
    def pooling_name(self) -> PoolingName:
        """The name of the pooling, as in :meth:`by_name`."""
        if isinstance(self.linear_map, SentenceHead):
            return "trained"
        return self.pooling.weighting if self.linear_map is None else "whitened"

    def fold(self, tokens: Sequence[str]) -> Sequence[str]:
        """Return a sentence as :meth:`embed` reads it; see :func:`fold_tokens`. Case is only folded for layer 0."""
        model = self.elmo.model
        return fold_tokens(tokens, model.vocabulary, fold_case=self.pooling.is_context_free, read=model.read)

    def pool(self, tokens: Sequence[str], vectors: Vectors) -> NDArray[np.float32]:
        """Combine the vectors of a sentence's tokens into one.

        Args:
            tokens: The sentence, as :meth:`fold` returns it.
            vectors: Those of these tokens, ``(tokens, dim)`` or ``(layers, tokens, dim)``, with the layers of
                ``pooling``.

        Returns:
            ``(dim,)``.
        """
        if not len(tokens):
            return np.zeros(self.dim, np.float32)
        if self.linear_map is None:
            return self._weighted_mean(tokens, vectors)
        if vectors.ndim == 3:
            # Several layers are concatenated, as in a mean.
            vectors = vectors.swapaxes(0, 1).reshape(vectors.shape[1], -1)
        map_vectors = self._mapped_words_of if self.pooling.is_context_free else self._mapped
        return self._weighted_mean(tokens, map_vectors(tokens, vectors, self.linear_map))

    def word_rows(self, words: Sequence[str]) -> NDArray[np.float32]:
        """Return the contribution of each word to the sum in a sentence vector, ``(words, dim)``.

        Only for layer 0, in which a word has the same vector in all sentences. The sum over the words of a sentence is
        the sentence vector times the sum of their weights.
        """
        rows = np.empty((len(words), self.dim), np.float32)
        for first in range(0, len(words), FIT_SENTENCES):
            some = words[first : first + FIT_SENTENCES]
            weights = np.array([self.weight(word) for word in some], np.float32)
            vectors = self.embed([[word] for word in some])
            rows[first : first + len(some)] = vectors * weights[:, None]
        return rows

    def fingerprint(self) -> str:
        """Return a hash of everything except the model's layers that affects sentence vectors."""
        parts = [repr(self.pooling).encode(), b"words only, folded, capitals, unit, by word"]  # the second: these rules
        if self._probability is not None:
            frequencies: Any = self._word_counts
            if not frequencies:
                vocabulary = self.elmo.model.vocabulary
                frequencies = [] if vocabulary is None else vocabulary.words
            parts.append(json.dumps(frequencies, sort_keys=True).encode("utf-8", "surrogatepass"))
        if self.linear_map is not None:
            parts += [array.tobytes() for array in self.linear_map.tensors().values()]
        return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()

    def _mapped(self, tokens: Sequence[str], vectors: Vectors, linear_map: SentenceMap) -> Vectors:
        if len(linear_map.mean) > vectors.shape[1]:
            vectors = np.concatenate([vectors, self.elmo.computer.table_rows(tokens)], axis=1)
        mapped = linear_map.apply(vectors)
        self.elmo.computer.check_finite(mapped)  # like a network's weights, its numbers may be finite but too large
        return mapped

    def _mapped_words_of(self, tokens: Sequence[str], vectors: Vectors, linear_map: SentenceMap) -> Vectors:
        """Apply the map to context-free vectors once per word; otherwise, this takes half of the time."""
        positions = dict(zip(tokens, range(len(tokens)), strict=True))
        rows = {word: row for row, word in enumerate(positions)}

        def compute(missing: Sequence[str]) -> Vectors:
            # One row at a time: in products of several rows, the last bits can depend on the number of rows.
            mapped = []
            for word in missing:
                row = vectors[[positions[word]]]
                mapped.append(self._mapped([word], row, linear_map))
            return np.concatenate(mapped)

        version = (self.elmo.computer.word_vector_version, self.elmo.model.alignment, linear_map)
        mapped = self._mapped_words.vectors(list(positions), compute, version)
        return mapped[[rows[token] for token in tokens]]

    def fit(self, sentences: Iterable[Sequence[str]], n_components: int | None = None) -> SentenceEmbedder:
        """Estimate a whitening from text similar to what you will compare.

        It is then used by this object. ``save_model(embedder.elmo.model, directory)`` stores it with the model.

        Args:
            sentences: Lists of tokens; a few thousand are enough. Empty sentences are ignored.
            n_components: Number of dimensions of the whitened vectors. None keeps all directions that vary.

        Returns:
            This object.

        Raises:
            TextError: There are fewer than two sentences, or all have the same vector.
            ConfigError: There are fewer directions than ``n_components``.
        """
        if self.linear_map is not None and not isinstance(self.linear_map, Whitening):
            # The head's word weights would affect the whitening, which is used without them.
            self.linear_map = None
        self.linear_map = fit_whitening(self._mean_vectors(sentences), self.pooling, n_components)
        model = self.elmo.model.replace(whitening=self.linear_map)
        self.elmo.computer = self.elmo.computer.with_model(model)
        return self

    def _mean_vectors(self, sentences: Iterable[Sequence[str]]) -> Iterator[NDArray[np.float32]]:
        """Yield the weighted means of sentences in batches, because summing one sentence at a time would be slow."""
        folded = (self.fold(tokens) for tokens in sentences if len(tokens))
        while batch := list(itertools.islice(folded, FIT_SENTENCES)):
            vectors = self.elmo.embed(iter(batch), layers=self.pooling.layers)
            means = [self._weighted_mean(tokens, array) for tokens, array in zip(batch, vectors, strict=True)]
            yield np.stack(means)

    def weight(self, token: str) -> float:
        """Return the weight of a word in a sentence's mean. :func:`words_only` determines which tokens are words."""
        weight = 1.0 if self._probability is None else self.pooling.word_weight(self._probability(token))
        if isinstance(self.linear_map, SentenceHead):
            weight *= self.linear_map.word_weight(token, self.elmo.model.vocabulary)
        return weight

    def _shares(self, tokens: Sequence[str]) -> NDArray[np.float32]:
        """Return the weights of a sentence's tokens, which sum to 1."""
        weights = np.array([self.weight(token) for token in tokens])
        if self._probability is not None:
            weights *= words_only(tokens)
        rounded = weights.astype(np.float32)
        if not len(tokens):
            return rounded
        total = rounded.sum()
        if not 0 < total < np.inf:
            raise ConfigError("The word weights in a sentence must be finite and above 0. Choose a larger smoothing.")
        return np.asarray(rounded / total)

    def _weighted_mean(self, tokens: Sequence[str], vectors: Vectors) -> NDArray[np.float32]:
        # (layers, dim) for several layers, which are concatenated.
        return np.asarray(self._shares(tokens) @ vectors).reshape(-1)


def words_only(tokens: Sequence[str]) -> list[bool]:
    """Mark the tokens that have a letter or digit. If none has, all are marked, because a sentence needs a vector."""
    with_letters = [any(map(str.isalnum, token)) for token in tokens]
    return with_letters if any(with_letters) else [True] * len(tokens)


def fold_tokens(
    tokens: Sequence[str], vocabulary: Vocabulary | None, *, fold_case: bool, read: MarkReader = EXACT
) -> Sequence[str]:
    """Return the form of a sentence that its vector is computed from, with quotes and case that the model knows best.

    A token with typographic marks or Penn Treebank quotes is replaced by the token with plain ones if only that is in
    the vocabulary.

    Args:
        tokens: The sentence.
        vocabulary: The model's vocabulary. Without one, nothing is replaced.
        fold_case: Lower-case capitalized words that are more frequent in lower case: *The*, but not *Paris*. For
            context-free vectors, in which the first word of a sentence would otherwise differ from the same word later.
            The vocabulary is assumed to be sorted by frequency, and other words to be rare. A sentence in capitals is
            read as in :func:`~elmokit.text.marks.read_capitals`, for any model.
        read: How the model reads a token. Unknown tokens are replaced by the result.

    Raises:
        TextError: The sentence is not a list of strings.
    """
    if vocabulary is None:
        return tokens
    check_sentence(tokens)
    if not fold_case:
        return [_with_plain_marks(token, vocabulary, read) for token in read.in_case(tokens)]
    folded = []
    for token in read_capitals(tokens, vocabulary.ids):
        folded.append(_in_usual_case(_with_plain_marks(token, vocabulary, read), vocabulary))
    return folded


def _with_plain_marks(token: str, vocabulary: Vocabulary, read: MarkReader) -> str:
    """Return a token unchanged if it is in the vocabulary, else with plain marks, or as the model reads it."""
    if (token.isascii() and token.isalnum()) or token in vocabulary.ids:
        return token
    plain = PLAIN_QUOTES.get(token) or token.translate(PLAIN_CHARACTERS)
    return plain if plain in vocabulary.ids else read(token)


def _in_usual_case(token: str, vocabulary: Vocabulary) -> str:
    """Lower-case a capitalized word if that form is more frequent."""
    lower = token.lower()
    if lower == token or token[1:] != lower[1:]:  # *US* and *IT* are not capitalized
        return token
    ids, n_words = vocabulary.ids, len(vocabulary)
    return lower if ids.get(lower, n_words) < ids.get(token, n_words) else token


def _plain_counts(word_counts: Mapping[str, int] | None) -> dict[str, int] | None:
    """Return a copy with Python numbers, which JSON can store."""
    if word_counts is None:
        return None
    counts = {}
    for word, count in word_counts.items():
        counts[word] = count.item() if isinstance(count, np.generic) else count
    return counts


def default_weighting(model: PretrainedBiLM, word_counts: Mapping[str, int] | None = None) -> WeightingName:
    """Return the default weighting of sentence vectors: "sif" if there are word frequencies, else "mean".

    Warns about "mean", which is a worse measure of similarity.
    """
    if word_counts is not None or model.vocabulary is not None:
        return "sif"
    warnings.warn(
        f"{model.source_name or 'The model'} has no vocabulary to estimate word frequencies from, so its sentence "
        "vectors are plain means. With the model's word list (vocabulary) or word_counts, frequent words get less "
        "weight.",
        stacklevel=1,  # the same location for all callers, so a model is reported once
    )
    return "mean"


def word_probability(model: PretrainedBiLM, word_counts: Mapping[str, int] | None = None) -> Callable[[str], float]:
    """Return a function that estimates a word's probability in running text: from counts, or else by Zipf's law."""
    if word_counts is not None:
        total = sum(word_counts.values())
        if not 0 < total < math.inf or min(word_counts.values()) < 0:
            raise ConfigError("word_counts must be finite and at least 0, with at least one above 0.")
        probabilities = {word: count / total for word, count in word_counts.items()}
    elif model.vocabulary is not None:
        probabilities = model.vocabulary.zipf_probabilities
    else:
        raise ConfigError(
            "The weighting 'sif' needs word frequencies, but this model has no vocabulary: pass word_counts, or choose "
            "'mean'."
        )
    rarest = min(probabilities.values(), default=1.0)  # also for words that are not listed

    @functools.lru_cache(N_CACHED_WORDS)
    def probability(word: str) -> float:
        # At least as frequent as its lower-case form, so the first word of a sentence is weighted like the others.
        return max(probabilities.get(word, rarest), probabilities.get(word.lower(), rarest))

    return probability


def fit_whitening(
    batches: Iterable[NDArray[np.float32]], pooling: SentencePooling, n_components: int | None = None
) -> Whitening:
    """Estimate a whitening from mean vectors of sentences, in one pass.

    Args:
        batches: Arrays ``(n, dim)``. Only sums over them are kept.
        pooling: How the vectors were pooled.
        n_components: Keep this many directions, those with the largest variance. None keeps all that vary.

    Raises:
        TextError: There are fewer than two vectors, or they are all equal.
        ConfigError: ``n_components`` is not a whole number above 0, or the vectors vary in fewer directions.
    """
    check_at_least("n_components", n_components, 1, optional=True)
    n, total, products = 0, np.zeros(()), np.zeros(())
    for batch in batches:
        # float64, because the sums grow with the corpus, and a covariance is a difference of large sums.
        rows = batch.astype(np.float64)
        n += len(rows)
        total = total + rows.sum(axis=0)
        products = products + rows.T @ rows
    mean = total / max(n, 1)
    covariance = products / max(n, 1) - np.outer(mean, mean)
    variances, directions = np.linalg.eigh(np.atleast_2d(covariance))
    variances, directions = variances[::-1], directions[:, ::-1]  # largest first
    n_varying = 0
    if variances[0] > 0:
        n_varying = int((variances > RANK_TOLERANCE * variances[0]).sum())
    if not n_varying:
        raise TextError(
            f"The vectors of all {n:,} sentences are equal, but whitening needs at least 2 sentences that differ."
        )
    n_components = n_varying if n_components is None else n_components
    if n_components > n_varying:
        raise ConfigError(
            f"n_components is {n_components}, but the vectors of {n:,} sentences only vary in {n_varying} directions."
        )
    # The sign of an eigenvector is arbitrary and differs between libraries: make its largest entry positive.
    kept = directions[:, :n_components]
    largest = kept[np.abs(kept).argmax(axis=0), np.arange(n_components)]
    projection = kept * np.sign(largest) / np.sqrt(variances[:n_components])
    return Whitening(pooling, mean.astype(np.float32), projection.astype(np.float32))
