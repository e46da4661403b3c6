"""How surprising each token of a text is to a model: full softmax, each direction apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmokit.bilm import BiLMState, stack_states
from elmokit.errors import ModelNotFoundError
from elmokit.text.batching import map_in_batches
from elmokit.text.vocabulary import Vocabulary
from elmokit.weights.model import PretrainedBiLM

BATCH_TOKENS = 2048


@dataclass(frozen=True)
class Surprisal:
    """One sentence's surprisal."""

    tokens: list[str]
    """The sentence with its boundaries, ``(n + 2,)``."""
    nats: NDArray[np.float32]
    """``(directions, n + 2)``, -ln p(token | the tokens before it), or after it for the backward direction.

    NaN where a direction predicts nothing: forward at ``<S>``, backward at ``</S>``.
    """
    is_unknown: NDArray[np.bool_]
    """``(n + 2,)``: the token is not in the vocabulary, and the nats are those of ``<UNK>``."""


class WordScorer(Protocol):
    """The softmax of a model, of whatever kind."""

    def nats(self, hidden: Tensor, word_ids: Tensor) -> Tensor:
        """Surprisal of each position's word, ``(positions,)``, over all words."""


def surprisals(
    model: PretrainedBiLM,
    sentences: Iterable[Sequence[str]],
    start: BiLMState | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Iterator[Surprisal]:
    """The surprisal of each token of each sentence, in their order, dropout off.

    No sentence depends on another, and the numbers do not depend on the batches. Some batches' worth of sentences are
    held in memory at a time.

    Args:
        start: the state of one row that every sentence starts from (``warm_start(model)``);
            None for zero.
        batch_tokens: positions computed at a time, padding counted.

    Raises:
        ModelNotFoundError: the model came without its softmax or vocabulary.
        TextError: a sentence is a string, or a token is none.
    """
    predicting(model)
    state = model.bilm.zero_state(1) if start is None else start

    def compute(batch: list[Sequence[str]]) -> list[Surprisal]:
        return score(model, batch, state.repeat_row(len(batch)))[0]

    yield from map_in_batches(sentences, compute, batch_tokens=batch_tokens)


def predicting(model: PretrainedBiLM) -> tuple[WordScorer, Vocabulary]:
    """The softmax and the vocabulary of a model that predicts words.

    Raises:
        ModelNotFoundError: it came without one of them.
    """
    if model.softmax is None or model.vocabulary is None:
        reason = model.card.get("softmax", "most exported models dropped them")
        raise ModelNotFoundError(f"{model.source} has no softmax and vocabulary, so it cannot predict words: {reason}.")
    return model.softmax, model.vocabulary


@torch.no_grad()
def score(
    model: PretrainedBiLM, sentences: Sequence[Sequence[str]], state: BiLMState
) -> tuple[list[Surprisal], BiLMState]:
    """One batch of sentences, each row read from its state; and the state after the batch."""
    softmax, vocabulary = predicting(model)
    bilm = model.bilm.eval()
    vectors, batch = model.token_vectors(sentences)
    word_ids = vocabulary.word_ids(batch.words)[batch.index]
    words = torch.from_numpy(word_ids).to(vectors.device)
    # Position t predicts position t + 1 (forward), position t + 1 predicts position t (backward): one mask for both.
    mask = torch.from_numpy(batch.mask[:, 1:]).to(vectors.device)
    nats = np.full((bilm.config.n_directions, *word_ids.shape), np.nan, dtype=np.float32)
    states = []
    for direction in range(bilm.config.n_directions):
        forward = direction == 0
        inputs, targets = (vectors[:, :-1], words[:, 1:]) if forward else (vectors[:, 1:], words[:, :-1])
        outputs, new_state = bilm.read(direction, inputs, state.of_direction(direction), mask, reverse=not forward)
        here = nats[direction, :, 1:] if forward else nats[direction, :, :-1]
        here[batch.mask[:, 1:]] = softmax.nats(outputs[-1][mask], targets[mask]).float().cpu().numpy()
        states.append(new_state)
    is_unknown = word_ids == vocabulary.unknown_id
    scored = [
        Surprisal([batch.words[place] for place in index], nats[:, row, : len(index)], is_unknown[row, : len(index)])
        for row, index in enumerate(index[real] for index, real in zip(batch.index, batch.mask, strict=True))
    ]
    return scored, stack_states(states)
