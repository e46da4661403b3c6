"""Held-out perplexity: full softmax, every token counted once, each direction apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from elmokit.bilm import BiLMState, stack_states
from elmokit.errors import ModelNotFoundError, TextError
from elmokit.nn.softmax import Softmax
from elmokit.text.batches import plan_batches
from elmokit.text.vocabulary import Vocabulary
from elmokit.weights.model import StoredModel

BATCH_TOKENS = 2048
POOL_SENTENCES = 2000  # read ahead, so that sentences of similar length can be scored together


@dataclass(frozen=True)
class Perplexity:
    """Surprisal of a text, each direction apart.

    A sentence of n tokens holds n + 1 predictions a direction: the forward LSTM predicts its tokens and
    ``</S>``, the backward LSTM its tokens and ``<S>``.
    """

    mean_nats: tuple[float, ...]
    """Per predicted token: forward, then backward where there is one."""
    n_predictions: int
    """Per direction."""
    unknown_share: float
    """Share of tokens (boundaries apart) that are not in the vocabulary and count as ``<UNK>``."""

    @property
    def per_direction(self) -> tuple[float, ...]:
        """exp of the mean nats: forward, then backward."""
        return tuple(math.exp(nats) for nats in self.mean_nats)

    @property
    def mean(self) -> float:
        """The geometric mean over directions, as bilm-tf reports."""
        return math.exp(sum(self.mean_nats) / len(self.mean_nats))


@torch.no_grad()
def perplexity(
    model: StoredModel,
    sentences: Iterable[Sequence[str]],
    start: BiLMState | None = None,
    n_carried_rows: int | None = None,
) -> Perplexity:
    """Score a text with a model, dropout off.

    Args:
        start: the state of one row that every sentence starts from; None for zero.
        n_carried_rows: instead, cut the text into so many rows and carry each row's state from sentence to
            sentence, as in training; the sentences are then held in memory.

    Raises:
        ModelNotFoundError: the model came without its softmax or vocabulary.
        TextError: there is no sentence.
    """
    if model.softmax is None or model.vocabulary is None:
        raise ModelNotFoundError(
            f"{model.source} has no softmax and vocabulary, so it predicts no words: old exports threw them away."
        )
    bilm = model.bilm.eval()
    total = torch.zeros(bilm.config.n_directions, dtype=torch.float64)
    n_predictions = n_tokens = n_unknown = 0
    state = bilm.zero_state(1) if start is None else start
    carried = state if n_carried_rows is None else state.repeat_row(n_carried_rows)
    batches = _bucketed(sentences) if n_carried_rows is None else _in_rows(sentences, n_carried_rows)
    for batch in batches:
        rows = carried.repeat_row(len(batch)) if n_carried_rows is None else carried.first_rows(len(batch))
        nats, after = _score(model, model.softmax, model.vocabulary, batch, rows)
        total += nats
        n_predictions += sum(len(sentence) + 1 for sentence in batch)
        n_tokens += sum(map(len, batch))
        n_unknown += sum(token not in model.vocabulary.ids for sentence in batch for token in sentence)
        if n_carried_rows is not None:
            carried = carried.with_first_rows(after)
    if not n_predictions:
        raise TextError("No sentence to score. Give a text of one tokenised sentence per line.")
    return Perplexity(tuple((total / n_predictions).tolist()), n_predictions, n_unknown / max(1, n_tokens))


def _score(
    model: StoredModel,
    softmax: Softmax,
    vocabulary: Vocabulary,
    sentences: Sequence[Sequence[str]],
    state: BiLMState,
) -> tuple[Tensor, BiLMState]:
    """Summed nats of each direction, and the state after the batch."""
    vectors, batch = model.token_vectors(sentences)
    words = torch.from_numpy(vocabulary.word_ids(batch.words)[batch.index]).to(vectors.device)
    # Position t predicts position t + 1 (forward), position t + 1 predicts position t (backward): one mask for both.
    mask = torch.from_numpy(batch.mask[:, 1:]).to(vectors.device)
    nats: list[Tensor] = []
    states = []
    for direction in range(model.bilm.config.n_directions):
        forward = direction == 0
        inputs, targets = (vectors[:, :-1], words[:, 1:]) if forward else (vectors[:, 1:], words[:, :-1])
        outputs, new_state = model.bilm.read(
            direction, inputs, state.of_direction(direction), mask, reverse=not forward
        )
        nats.append(softmax.nats(outputs[-1][mask], targets[mask]).double().sum().cpu())
        states.append(new_state)
    return torch.stack(nats), stack_states(states)


def _bucketed(sentences: Iterable[Sequence[str]]) -> Iterator[list[Sequence[str]]]:
    pool: list[Sequence[str]] = []
    for sentence in sentences:
        pool.append(sentence)
        if len(pool) == POOL_SENTENCES:
            yield from _planned(pool)
            pool = []
    yield from _planned(pool)


def _planned(pool: list[Sequence[str]]) -> Iterator[list[Sequence[str]]]:
    for places in plan_batches([len(sentence) for sentence in pool], BATCH_TOKENS):
        yield [pool[place] for place in places]


def _in_rows(sentences: Iterable[Sequence[str]], n_rows: int) -> Iterator[list[Sequence[str]]]:
    """Row r reads the r-th part of the text; longer parts first, so that rows end from the last one on."""
    text = list(sentences)
    size, n_longer = divmod(len(text), n_rows)
    starts = [row * size + min(row, n_longer) for row in range(n_rows + 1)]
    for place in range(size + bool(n_longer)):
        yield [text[start + place] for start, stop in pairwise(starts) if start + place < stop]
