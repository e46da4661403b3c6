"""Documents: each sentence starts from the state after the previous one, the first from the start state.

Both directions read the sentences of a document in order, as in training: ``</S>`` is never read forward, and ``<S>``
never backward. So a sentence's vectors depend on the sentence and on the previous ones in its document, and a document
with one sentence is read like that sentence.

Documents are read in parallel, with some sentences of each in one call of the network, and their states are passed on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from elmokit.config import check_at_least
from elmokit.embedding.computer import Computer
from elmokit.engine.interface import Network, NetworkInput
from elmokit.engine.state import Floats, State
from elmokit.engine.token_cache import TokenCache
from elmokit.text.batching import (
    NumberedBatch,
    check_sentences,
    is_long,
    map_in_batches,
    number_tokens,
    read_ahead,
    restore_order,
)

PIECE_TOKENS = 128
"""Positions of a document in one call, unless a sentence has more: few enough that many documents fit into a batch, and
enough that pieces of whole sentences have similar lengths."""
WINDOW_TOKENS = 4096
"""Positions per window of a long sentence: few enough for memory, and enough for fast matrix products."""
POOL_BATCHES = 32
"""Number of batches of a stream to read before returning results, so a pool has enough documents for all rows."""

Sentence = Sequence[str]
Result = TypeVar("Result")
Compute = Callable[[Sequence[Sequence[Sentence]], State], tuple[list[Result], State]]
"""Reads the next sentences of some documents, starting from a state with one row per document. Returns one result per
sentence, starting with those of the first document, and the state after them."""


class Reading(NamedTuple):
    """The results of a model for the next sentences of some documents."""

    batch: NumberedBatch
    """All sentences, starting with those of the first document."""
    layers: list[list[Floats]]
    """For each direction and sentence, ``(wanted layers, tokens + 1, projection_dim)``: all positions except ``</S>``
    (forward) or ``<S>`` (backward)."""
    after: State
    """The state after the sentences of each document."""


def read_on(
    computer: Computer,
    rows: Sequence[Sequence[Sentence]],  # the next sentences of each document, at least one
    state: State,  # with a row for each document, or one for all
    wanted: Sequence[int],  # the layers to return
    cache: TokenCache | None = None,
) -> Reading:
    """Read the next sentences of some documents as one sequence of positions per direction."""
    model, network = computer.model, computer.network
    batch = number_tokens([sentence for row in rows for sentence in row], model.read.in_case)
    vectors = computer.word_vectors(batch.words, cache)
    after, layers = State.zero(model.config, len(rows)), []
    for direction, backward in enumerate(model.config.read_backward):
        words, lengths = batch.inputs(backward)
        words_of = np.split(words, np.cumsum(lengths)[:-1])
        first, orders = 0, []
        for row in rows:
            order = range(first, first + len(row))
            # A backward LSTM reads from the end of an array, so the first sentence comes last.
            orders.append(order[::-1] if backward else order)
            first = order.stop
        in_order = np.concatenate([words_of[number] for order in orders for number in order])
        row_lengths = np.array([lengths[list(order)].sum() for order in orders])
        inputs = NetworkInput(vectors, in_order, row_lengths, state)
        computed, end = _read_in_windows(network, direction, inputs, wanted)
        by_number: dict[int, Floats] = {}
        for array, order in zip(computed, orders, strict=True):
            by_number |= zip(order, np.split(array, np.cumsum(lengths[list(order)])[:-1], axis=1), strict=True)
        layers.append([by_number[number] for number in range(first)])
        after = after.with_direction(direction, end)
    return Reading(batch, layers, after)


def _read_in_windows(
    network: Network, number: int, inputs: NetworkInput, wanted: Sequence[int]
) -> tuple[list[Floats], State]:
    """Compute one direction, like ``Network.direction``, but read a single long row in windows to save memory."""
    vectors, words, lengths, state = inputs
    if len(lengths) > 1 or not is_long(len(words)):
        return network.direction(number, inputs, wanted)
    # The backward direction starts at the end of the text.
    order = slice(None, None, -1) if network.config.read_backward[number] else slice(None)
    layers: list[Floats] = []
    for window in np.split(words, range(WINDOW_TOKENS, len(words), WINDOW_TOKENS))[order]:
        row = NetworkInput(vectors, window, np.array([len(window)]), state)
        (computed,), state = network.direction(number, row, wanted)
        layers.append(computed)
    return [np.concatenate(layers[order], axis=1)], state


@dataclass
class _Row:
    """A document, or part of one, that is being read."""

    sentences: deque[tuple[int, Sentence]]
    """The remaining sentences, with their numbers."""
    state: State

    def take(self) -> list[tuple[int, Sentence]]:
        """Take the next sentences to read. The choice only depends on the document."""
        taken = [self.sentences.popleft()]
        n_positions = len(taken[0][1]) + 1
        while self.sentences and (n_positions := n_positions + len(self.sentences[0][1]) + 1) <= PIECE_TOKENS:
            taken.append(self.sentences.popleft())
        return taken


class DocumentReader(Generic[Result]):
    """Reads documents in pools of any size, which do not affect the results."""

    def __init__(self, start: State, compute: Compute[Result], batch_tokens: int) -> None:
        self.start, self.compute = start, compute
        self.state = start
        """The state, for one row, before the next sentence unless it begins a document."""
        self.n_rows = max(1, batch_tokens // PIECE_TOKENS)

    def read(self, pool: Sequence[tuple[bool, Sentence]]) -> Iterator[tuple[list[int], list[Result]]]:
        """Yield the results of sentences as they are computed, with the positions of the sentences in the pool.

        Args:
            pool: For each sentence, whether it begins a document, and its tokens.
        """
        documents = self._documents_of(pool)
        # Longest first, so all rows end at about the same time.
        waiting = sorted(documents, key=_n_positions)
        rows: list[_Row] = []
        while waiting or rows:
            while waiting and len(rows) < self.n_rows:
                rows.append(waiting.pop())
            turn = _rows_of_next_call(rows)
            numbers: list[int] = []
            sentences: list[list[Sentence]] = []  # of each row
            for row in turn:
                taken = row.take()
                numbers += [number for number, _ in taken]
                sentences.append([sentence for _, sentence in taken])
            results, after = self.compute(sentences, _joined([row.state for row in turn]))
            yield numbers, results
            for index, row in enumerate(turn):
                row.state = _row_of(after, index)
            rows = [row for row in rows if row.sentences]
        self.state = documents[-1].state

    def _documents_of(self, pool: Sequence[tuple[bool, Sentence]]) -> list[_Row]:
        """Split a pool into documents, the first of which may have begun earlier."""
        documents: list[_Row] = []
        for number, (begins, sentence) in enumerate(pool):
            if begins:
                documents.append(_Row(deque(), self.start))
            elif not documents:
                documents.append(_Row(deque(), self.state))
            documents[-1].sentences.append((number, sentence))
        return documents


def _n_positions(row: _Row) -> int:
    return sum(len(tokens) + 1 for _, tokens in row.sentences)


def _rows_of_next_call(rows: list[_Row]) -> list[_Row]:
    """Return the rows to read next: all, except that long sentences are read alone."""
    for row in rows:
        _, first = row.sentences[0]
        if is_long(len(first)):
            return [row]
    return rows


def _row_of(state: State, index: int) -> State:
    return State(*(part[:, :, index : index + 1] for part in state))


def _joined(states: Sequence[State]) -> State:
    """Stack the states of several documents as rows of one state."""
    return State(*(np.concatenate(parts, axis=2) for parts in zip(*states, strict=True)))


def read_documents(
    documents: Iterable[Iterable[Sentence]], reader: DocumentReader[Result], n_tokens: int | None
) -> Iterator[Result]:
    """Yield the result of each sentence, in order. Documents can have any length.

    Args:
        documents: The sentences of each document. Each document is read to its end before the next one.
        reader: Computes the results.
        n_tokens: Number of tokens to read before returning results; None for all.
    """
    sentences = (
        (number == 0, sentence) for document in documents for number, sentence in enumerate(check_sentences(document))
    )
    for pool in read_ahead(sentences, max_tokens=n_tokens, length=lambda item: len(item[1])):
        numbers, results = zip(*reader.read(pool), strict=True)
        yield from restore_order(numbers, results)


def read_texts(
    texts: Iterable[Any], compute: Compute[Result], start: State, batch_tokens: int, *, documents: bool
) -> Iterator[Result]:
    """Yield the result of each sentence, in order, for sentences or (with ``documents``) documents."""
    check_at_least("batch_tokens", batch_tokens, 1)
    if documents:
        return read_documents(texts, DocumentReader(start, compute, batch_tokens), POOL_BATCHES * batch_tokens)

    def compute_batch(sentences: list[Sentence]) -> list[Result]:
        return compute([[sentence] for sentence in sentences], start)[0]

    return map_in_batches(check_sentences(texts), compute_batch, batch_tokens=batch_tokens)


def by_document(
    documents: Iterable[Sequence[Sentence]], read: Callable[[Iterator[Sequence[Sentence]]], Iterator[Result]]
) -> Iterator[list[Result]]:
    """Yield the results of ``read`` as one list per document."""
    sizes: deque[int] = deque()  # of documents that were read but still have results to come

    def counted() -> Iterator[Sequence[Sentence]]:
        for document in documents:
            sizes.append(len(document))
            yield document

    results = read(counted())  # called now, so its arguments are checked before the first result is requested

    def listed() -> Iterator[list[Result]]:
        for result in results:
            while not sizes[0]:
                sizes.popleft()
                yield []
            yield [result, *islice(results, sizes.popleft() - 1)]
        yield from ([] for _ in sizes)

    return listed()
