"""Surprisal: how unexpected each token of a text is to a language model."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.computer import Computer, computer_of
from elmokit.embedding.documents import read_on, read_texts
from elmokit.embedding.start_state import StartName, start_state
from elmokit.engine.architecture import DIRECTIONS
from elmokit.engine.softmax import Softmax
from elmokit.engine.state import Floats, Ids, State
from elmokit.engine.token_cache import TokenCache
from elmokit.errors import ModelNotFoundError, TextError
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE
from elmokit.text.text import Sentence as TextSentence
from elmokit.text.tokenize import group_words, locate_tokens
from elmokit.text.vocabulary import UnknownWords, Vocabulary

BATCH_TOKENS = 2048


@dataclass(frozen=True, eq=False)
class Surprisal:
    """The surprisal of one sentence."""

    tokens: list[str]
    """The sentence with its boundaries, ``(n + 2,)``."""
    nats: NDArray[np.float32]
    """``(directions, n + 2)``: -ln p(token | all tokens before it), and for the backward direction all tokens after it.

    NaN where a direction predicts nothing: forward at ``<S>``, backward at ``</S>``.
    """
    is_unknown: NDArray[np.bool_]
    """``(n + 2,)``: True if the token is outside the vocabulary; its nats are then those of ``<UNK>``."""
    spelling_nats: NDArray[np.float64] | None = None
    """``(n + 2,)``: the additional nats for the letters of an unknown token, by ``Spelling``; 0 for other tokens; None
    without a spelling model."""
    line: int | None = None
    """The line in the file, counted from 1; None if the sentence is not from a file."""
    file: str | None = None
    """The file, if there are several."""

    @property
    def total_nats(self) -> tuple[float, ...]:
        """The surprisal of the whole sentence for each direction: minus its log probability."""
        return tuple(float(np.nansum(nats, dtype=np.float64)) for nats in self.nats)

    def rows(self, index: int = 0) -> list[TokenSurprisal]:
        """Return one row per token, including boundaries; ``index`` is the number of the sentence."""
        n = len(self.tokens)
        nats: list[list[float | None]] = [
            [None if math.isnan(one) else one for one in own] for own in self.nats.tolist()
        ]
        nats += [[None] * n] * (len(DIRECTIONS) - len(nats))
        spelling = [None] * n if self.spelling_nats is None else self.spelling_nats.tolist()
        columns = (
            [index] * n,
            self.tokens,
            *nats,
            self.is_unknown.tolist(),
            spelling,
            [self.line] * n,
            [self.file] * n,
        )
        return [TokenSurprisal(*cells) for cells in zip(*columns, strict=True)]


class Predictions(NamedTuple):
    """The surprisal of a sentence, and the vectors from which each direction predicted its words."""

    surprisal: Surprisal
    word_ids: Ids
    """``(n + 2,)``, boundaries included."""
    hidden: Sequence[Floats]
    """For each direction ``(n + 1, projection_dim)``: the top layer, by position in the text."""


class TokenSurprisal(NamedTuple):
    """A token in a table of surprisals; the fields are those of :class:`Surprisal`."""

    sentence_index: int
    """The number of the sentence, from 0."""
    token: str
    forward_nats: float | None
    backward_nats: float | None
    unknown: bool
    spelling_nats: float | None
    line: int | None
    file: str | None


class WordSurprisal(NamedTuple):
    """The surprisal of a word as written: the sum over its tokens, including attached punctuation marks.

    Sentence boundaries, which the model also predicts, are not part of any word.
    """

    text_index: int
    """The number of the text, from 0."""
    sentence_index: int
    """The number of its sentence in the text, from 0."""
    word_index: int
    """Its number in the text, from 0."""
    word: str
    start: int
    """Its first character in the text, from 0."""
    stop: int
    """The character after its last one."""
    forward_nats: float
    """-ln p(word | all words before it)."""
    backward_nats: float | None
    """-ln p(word | all words after it); None if the model does not read backward."""
    n_tokens: int
    unknown: bool
    """Whether any of its tokens is outside the vocabulary; its nats are then those of ``<UNK>``."""
    spelling_nats: float
    """The additional nats for the letters of its unknown tokens."""


class RegionSurprisal(NamedTuple):
    """The surprisal of a region of a text: the sum over all tokens that it touches."""

    text_index: int
    """The number of the text, from 0."""
    region: str
    """The region as written in the text."""
    words: str
    """The words that it touches, with attached punctuation. If they differ from the region, its edge cuts a word, and
    only the touched tokens are summed: from "door.", the region "the door" does not include "."."""
    start: int
    """Its first character in the text, from 0."""
    stop: int
    """The character after its last one."""
    forward_nats: float
    """-ln p(region | all tokens before it)."""
    backward_nats: float | None
    """-ln p(region | all tokens after it); None if the model does not read backward."""
    n_tokens: int
    unknown: bool
    """Whether any of its tokens is outside the vocabulary; its nats are then those of ``<UNK>``."""
    spelling_nats: float
    """The additional nats for the letters of its unknown tokens."""

    @property
    def cuts_word(self) -> bool:
        """Whether one of its edges is inside a word."""
        return self.region.split() != self.words.split()


class _Sums(NamedTuple):
    """Sums over some tokens."""

    forward_nats: float
    backward_nats: float | None
    n_tokens: int
    unknown: bool
    spelling_nats: float


def _sum_tokens(scored: Sequence[Surprisal], places: Sequence[tuple[int, int]]) -> _Sums:
    """Sum over tokens, given by sentence and position in the sentence."""
    nats = []
    unknown = False
    spelling: float = 0
    for number, position in places:
        sentence = scored[number]
        column = position + 1  # at position 0 is <S>
        nats.append(sentence.nats[:, column])
        unknown = unknown or bool(sentence.is_unknown[column])
        if sentence.spelling_nats is not None:
            spelling += float(sentence.spelling_nats[column])
    forward, *backward = np.sum(nats, axis=0, dtype=float).tolist()
    return _Sums(forward, backward[0] if backward else None, len(places), unknown, spelling)


def find_region(text: str, region: str | tuple[int, int]) -> tuple[int, int]:
    """Find a region in a text: its start and end offset.

    Args:
        region: A part of the text, or the two offsets. If a part occurs several times, one at word boundaries is
            preferred: in "washed was", "was" is the second word.

    Raises:
        TextError: It is not in the text or, as a part of it, occurs several times.
    """
    if not isinstance(region, str):
        start, stop = region
        if not 0 <= start < stop <= len(text) or not text[start:stop].strip():
            raise TextError(f"the region {start}:{stop} has no word of {text!r}, which has {len(text)} characters.")
        return start, stop
    region = region.strip()
    found = _occurrences(text, region)
    if not region or not found:
        raise TextError(f"the region {region!r} is not in {text!r}.")
    if len(found) > 1:
        start, stop = found[0]
        raise TextError(
            f"the region {region!r} occurs {len(found)} times in {text!r}: pass offsets, such as {start}:{stop}."
        )
    return found[0]


def _occurrences(text: str, part: str) -> list[tuple[int, int]]:
    """Find the occurrences of a part in a text, preferably at word boundaries."""
    pattern = re.escape(part)
    before = r"(?<!\w)" if part[:1].isalnum() else ""
    after = r"(?!\w)" if part[-1:].isalnum() else ""
    at_edges = [match.span() for match in re.finditer(f"{before}{pattern}{after}", text)]
    return at_edges or [match.span() for match in re.finditer(pattern, text)]


def sum_region(
    text: str, scored: Sequence[Surprisal], offsets: tuple[int, int], text_index: int = 0
) -> RegionSurprisal:
    """Sum the surprisal of the tokens that a region of a raw text touches, given that of its sentences.

    By the chain rule, the sum is minus the log probability of the region, given everything before it.
    """
    start, stop = offsets
    sentences = locate_tokens(text, [sentence.tokens[1:-1] for sentence in scored])
    words = [word.text for word in group_words(text, sentences) if word.start < stop and word.stop > start]
    places = []
    for number, sentence in enumerate(sentences):
        for position, token in enumerate(sentence):
            if token.start < stop and token.stop > start:
                places.append((number, position))
    if not places:
        raise TextError(f"the region {text[start:stop]!r} has no tokens.")
    sums = _sum_tokens(scored, places)
    return RegionSurprisal(text_index, text[start:stop], " ".join(words), start, stop, *sums)


def sum_by_word(text: str, scored: Sequence[Surprisal], text_index: int = 0) -> list[WordSurprisal]:
    """Sum the surprisal of the tokens of each word in a raw text, given that of its sentences."""
    words = group_words(text, locate_tokens(text, [one.tokens[1:-1] for one in scored]))
    rows = []
    for number, word in enumerate(words):
        sums = _sum_tokens(scored, word.tokens)
        rows.append(
            WordSurprisal(
                text_index=text_index,
                sentence_index=word.tokens[0][0],
                word_index=number,
                word=word.text,
                start=word.start,
                stop=word.stop,
                **sums._asdict(),
            )
        )
    return rows


def surprisals(
    model: PretrainedBiLM | Computer,
    texts: Iterable[Any],
    start: StartName | State = "warm",
    batch_tokens: int = BATCH_TOKENS,
    *,
    documents: bool = False,
) -> Iterator[Surprisal]:
    """Yield the surprisal of each sentence, in order, with the full softmax and without dropout.

    A sentence's surprisal depends neither on the batches nor on other sentences, except the preceding ones in its
    document. Only a few batches of sentences are in memory at once.

    Args:
        model: An opened model, or its computer, such as ``Elmo.computer``.
        texts: Tokenized sentences, without boundaries; or, with ``documents``, the sentences of each document.
        start: Start state of each sentence or document: "warm", the model's own; "zero"; or a state of one batch row.
        batch_tokens: Positions per batch, including padding.
        documents: Read each sentence of a document from the state after the previous sentence.

    Raises:
        ModelNotFoundError: The model has no softmax or no vocabulary.
        TextError: A sentence is a string instead of a list, or a token is not a string.
        ConfigError: ``batch_tokens`` is not a whole number above 0.
    """
    computer = computer_of(model)
    softmax_vocabulary(computer.model)
    compute = partial(_score_rows, computer, TokenCache())
    return read_texts(texts, compute, start_state(computer, start), batch_tokens, documents=documents)


def softmax_and_vocabulary(computer: Computer) -> tuple[Softmax, Vocabulary]:
    """Return the softmax and vocabulary, or raise ``ModelNotFoundError`` if the model does not have both."""
    vocabulary, softmax = softmax_vocabulary(computer.model), computer.softmax
    assert softmax is not None
    return softmax, vocabulary


def softmax_vocabulary(model: PretrainedBiLM) -> Vocabulary:
    """Return the words of a model's softmax, or raise ``ModelNotFoundError`` if it has no softmax or vocabulary."""
    if model.softmax is None or model.vocabulary is None:
        reason = model.card.get("softmax", "most exported models dropped them")
        raise ModelNotFoundError(
            f"{model.source} has no softmax and vocabulary, so it cannot predict words: {reason}. Use en-mini, a "
            "training run, or a TensorFlow checkpoint of bilm-tf."
        )
    return model.vocabulary


def _score_rows(
    computer: Computer, cache: TokenCache, rows: Sequence[Sequence[Sequence[str]]], state: State
) -> tuple[list[Surprisal], State]:
    """Compute the surprisal of the next sentences in some documents, and the state after them; see ``read_on``."""
    predictions, after = predict_rows(computer, cache, rows, state)
    return [one.surprisal for one in predictions], after


def predict_rows(
    computer: Computer, cache: TokenCache, rows: Sequence[Sequence[Sequence[str]]], state: State
) -> tuple[list[Predictions], State]:
    """Compute the same, and the vectors from which the words were predicted."""
    softmax, vocabulary = softmax_and_vocabulary(computer)
    model = computer.model
    batch, layers, after = read_on(computer, rows, state, [model.config.n_layers], cache)
    word_ids = vocabulary.word_ids(map(model.read, batch.words))
    nats = np.full((model.config.n_directions, len(batch.index)), np.nan, np.float32)
    for direction, backward in enumerate(model.config.read_backward):
        # The forward LSTM predicts position t + 1 from position t, the backward LSTM position t from position t + 1.
        hidden = np.concatenate([top for (top,) in layers[direction]])
        predicted = softmax.nats(hidden, word_ids[batch.targets(backward)], model.precision)
        computer.check_finite(predicted)
        nats[direction, batch.is_target(backward)] = predicted
    edges = np.cumsum(batch.lengths)[:-1]
    sentences = [sentence for row in rows for sentence in row]
    predictions = []
    parts = zip(sentences, np.split(batch.index, edges), np.split(nats, edges, axis=1), strict=True)
    for number, (sentence, index, own) in enumerate(parts):
        ids = word_ids[index]
        found = Surprisal([BEGIN_SENTENCE, *sentence, END_SENTENCE], own, ids == vocabulary.unknown_id)
        if isinstance(sentence, TextSentence):
            found = replace(found, line=sentence.line, file=sentence.file)
        predictions.append(Predictions(found, ids, [tops[number][0] for tops in layers]))
    return predictions, after


def words_as_read(model: PretrainedBiLM, tokens: Sequence[str], is_unknown: NDArray[np.bool_]) -> list[str]:
    """Return a sentence's tokens, with unknown ones in the form that the model reads.

    Args:
        tokens: Including boundaries, ``(n + 2,)``.
        is_unknown: Which of them are outside the vocabulary.
    """
    words = list(tokens)
    if is_unknown.any():
        words[1:-1] = model.read.in_case(words[1:-1])
        for position in is_unknown.nonzero()[0].tolist():
            words[position] = model.read(words[position])
    return words


@dataclass(frozen=True)
class MinimalPairScores:
    """The surprisal of pairs of sentences."""

    nats: NDArray[np.float64]
    """``(pairs, 2, directions)``: the surprisal of each sentence, which is minus its log probability."""
    unknown_nats: NDArray[np.float64]
    """``(pairs, 2, directions)``: the part of it for unknown words."""
    unknown: NDArray[np.int64]
    """``(pairs, 2)``: number of unknown words, which are outside the vocabulary and count as ``<UNK>``."""
    unknown_price: float
    """The nats of the vocabulary's rarest word, with its frequency by Zipf's law."""
    n_tokens: int
    """Tokens of all sentences, without boundaries."""
    unknown_words: tuple[str, ...] = ()
    """The first ten unknown words, each once."""

    @property
    def n_unknown(self) -> int:
        """The number of unknown words in all sentences."""
        return int(self.unknown.sum())

    @property
    def paid_nats(self) -> NDArray[np.float64]:
        """``(pairs, 2, directions)``: surprisal in which each unknown word has the ``unknown_price``.

        ``<UNK>`` stands for many words, so it is more probable than any of them, and a sentence with more unknown words
        than its partner would have an advantage.
        """
        return self.nats - self.unknown_nats + self.unknown_price * self.unknown[:, :, None]

    @property
    def accuracy(self) -> float:
        """Fraction of pairs whose first sentence is more probable, by the sum over both directions."""
        total = self.nats.sum(axis=2)
        return float((total[:, 0] < total[:, 1]).mean())

    @property
    def accuracy_per_direction(self) -> tuple[float, ...]:
        """The same for each direction alone: forward, then backward."""
        return tuple((self.nats[:, 0] < self.nats[:, 1]).mean(axis=0).tolist())


def score_minimal_pairs(
    model: PretrainedBiLM | Computer,
    pairs: Iterable[tuple[Sequence[str], Sequence[str]]],
    start: StartName | State = "warm",
    on_sentence: Callable[[Surprisal], object] | None = None,
) -> MinimalPairScores:
    """Score pairs of sentences that differ in one point, the acceptable sentence first (Warstadt et al. 2020, BLiMP).

    Sentences are compared by total probability, which favors shorter ones: use pairs of equal length.
    """
    computer = computer_of(model)
    vocabulary = softmax_vocabulary(computer.model)
    sentences = (sentence for acceptable, other in pairs for sentence in (acceptable, other))
    nats, unknown_nats, n_unknown = [], [], []
    unknown = UnknownWords()
    for sentence in surprisals(computer, sentences, start):
        nats.append(sentence.total_nats)
        unknown_nats.append(np.nansum(sentence.nats[:, sentence.is_unknown], axis=1, dtype=np.float64))
        n_unknown.append(int(sentence.is_unknown.sum()))
        unknown.add(sentence.tokens[1:-1], sentence.is_unknown[1:-1])
        if on_sentence is not None:
            on_sentence(sentence)
    if not nats:
        raise TextError("There are no sentence pairs to score.")
    by_pair = (-1, 2, len(nats[0]))
    return MinimalPairScores(
        np.array(nats).reshape(by_pair),
        np.array(unknown_nats).reshape(by_pair),
        np.array(n_unknown).reshape(-1, 2),
        -math.log(min(vocabulary.zipf_probabilities.values(), default=1.0)),
        unknown.n_words,
        tuple(unknown.first),
    )
