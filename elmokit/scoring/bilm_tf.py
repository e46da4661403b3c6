"""The perplexity that bilm-tf's ``run_test`` reports, to the digit: its rows, its lost tails, its batch size.

It reads a text in B rows side by side, one position a batch. Rows take sentences from one shared order, on demand;
state starts at zero and is carried; the first row that finds no sentence left ends the test, and what the other rows
still hold is lost. So the number depends on B, and is nan for B above the number of sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from elmokit.bilm import stack_states
from elmokit.errors import ConfigError, TextError
from elmokit.io.text_files import read_lines
from elmokit.scoring.perplexity import exp_of
from elmokit.scoring.surprisal import predicting
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE
from elmokit.weights.model import PretrainedBiLM

STEPS_AT_ONCE = 64  # positions per row computed together; state is carried, so the number stays the same


@dataclass(frozen=True)
class BilmTfPerplexity:
    """What bilm-tf says of a text, and how much of it that covers."""

    mean_nats: tuple[float, ...]
    """Per counted prediction: forward, then backward where there is one."""
    n_predictions: int
    """Counted, per direction."""
    n_lost: int
    """Predictions of the text that were not counted, per direction."""

    @property
    def per_direction(self) -> tuple[float, ...]:
        """exp of the mean nats: forward, then backward."""
        return tuple(exp_of(nats) for nats in self.mean_nats)

    @property
    def mean(self) -> float:
        """bilm-tf's number: exp of the mean over directions."""
        return exp_of(sum(self.mean_nats) / len(self.mean_nats))


def read_as_bilm_tf(paths: Sequence[Path]) -> Iterator[list[str]]:
    """The sentences that bilm-tf would read: the last file first, blank lines as empty sentences, tokens split at any
    Unicode white space.

    Raises:
        TextError, MissingExtraError: as in ``read_lines``; or a file is empty, at which bilm-tf stops.
    """
    for path in reversed(paths):
        is_empty = True
        for line in read_lines(path):
            is_empty = False
            yield line.split()
        if is_empty:
            raise TextError(f"{path} is empty, at which bilm-tf stops. Leave it out.")


def perplexity_as_bilm_tf(model: PretrainedBiLM, sentences: Iterable[Sequence[str]], n_rows: int) -> BilmTfPerplexity:
    """bilm-tf's test perplexity with a batch size of ``n_rows``.

    Raises:
        ModelNotFoundError: the model came without its softmax or vocabulary.
        ConfigError: there is no row.
        TextError: there are fewer sentences than rows, of which bilm-tf makes nan.
    """
    if n_rows < 1:
        raise ConfigError(f"bilm-tf's batch size is {n_rows}; it must be at least 1.")
    predicting(model)
    n_text = n_sentences = 0

    def counted() -> Iterator[Sequence[str]]:
        nonlocal n_text, n_sentences
        for sentence in sentences:
            n_text += len(sentence) + 1
            n_sentences += 1
            yield sentence

    source = counted()
    total, n_steps = _summed_nats(model, source, n_rows)
    for _ in source:
        pass
    if not n_steps:
        raise TextError(
            f"{n_sentences} sentences do not fill {n_rows} rows: bilm-tf says nan. "
            f"Give it a batch size of at most {n_sentences}, or leave --as-bilm-tf out, which counts every token."
        )
    n_predictions = n_steps * n_rows
    return BilmTfPerplexity(tuple((total / n_predictions).tolist()), n_predictions, n_text - n_predictions)


@torch.no_grad()
def _summed_nats(
    model: PretrainedBiLM, sentences: Iterator[Sequence[str]], n_rows: int
) -> tuple[NDArray[np.float64], int]:
    """Summed nats of each direction, and the steps that they are summed over."""
    softmax, vocabulary = predicting(model)
    bilm = model.bilm.eval()
    state = bilm.zero_state(n_rows)
    total, n_steps = np.zeros(bilm.config.n_directions), 0
    for window in _windows(sentences, n_rows):
        n_steps += len(window)
        places: dict[str, int] = {}
        states = []
        # (directions, input and target, rows, steps): the backward direction reads each sentence from its end
        pairs = [[[step[row][direction] for step in window] for row in range(n_rows)] for direction in range(2)]
        for pair in (pair for direction in pairs for row in direction for pair in row):
            for token in pair:
                places.setdefault(token, len(places))
        vectors = bilm.token_layer(torch.from_numpy(model.encode(list(places))).to(bilm.device))
        word_ids = torch.from_numpy(vocabulary.word_ids(places)).to(bilm.device)
        for direction in range(bilm.config.n_directions):
            index = torch.tensor([[[places[token] for token in pair] for pair in row] for row in pairs[direction]])
            inputs, targets = index.to(bilm.device).unbind(2)
            outputs, after = bilm.read(direction, vectors[inputs], state.of_direction(direction))
            nats = softmax.nats(outputs[-1].flatten(0, 1), word_ids[targets.flatten()])
            total[direction] += nats.double().sum().item()
            states.append(after)
        state = stack_states(states)
    return total, n_steps


Pair = tuple[str, str]  # what is read, and what is predicted from it
Step = list[tuple[Pair, Pair]]  # of each row: forward, backward


def _windows(sentences: Iterator[Sequence[str]], n_rows: int) -> Iterator[list[Step]]:
    """All steps up to the first that some row cannot fill, some at a time."""
    rows: list[tuple[list[str], int]] = [([], 1)] * n_rows  # tokens with boundaries, and how many were predicted
    window: list[Step] = []
    while True:
        step: Step = []
        for row in range(n_rows):
            tokens, n_done = rows[row]
            if n_done >= len(tokens):
                sentence = next(sentences, None)
                if sentence is None:
                    if window:
                        yield window
                    return
                tokens, n_done = [BEGIN_SENTENCE, *sentence, END_SENTENCE], 1
            step.append(((tokens[n_done - 1], tokens[n_done]), (tokens[-n_done], tokens[-n_done - 1])))
            rows[row] = tokens, n_done + 1
        window.append(step)
        if len(window) == STEPS_AT_ONCE:
            yield window
            window = []
