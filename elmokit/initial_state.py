"""The warm state: one constant state from which every sentence can be read, without a cold start."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from elmokit.bilm import BiLMState
from elmokit.errors import TextError
from elmokit.weights.model import PretrainedBiLM

N_ROWS = 32


@torch.no_grad()
def boundary_state(model: PretrainedBiLM) -> BiLMState:
    """The state after one empty sentence, ``<S> </S>``: it needs no text.

    One only: no text holds many of them in a row, and a trained biLM that reads sixteen can end far from any state that
    text leaves it in.
    """
    return _states_after([[]], model, n_rows=1)[0]


@torch.no_grad()
def calibrated_state(model: PretrainedBiLM, sentences: Sequence[Sequence[str]]) -> BiLMState:
    """The mean state after a sentence of a calibration text, state carried from sentence to sentence.

    Raises:
        TextError: there is no sentence.
    """
    if not sentences:
        raise TextError("There is no sentence to calibrate the warm state on.")
    states = _states_after(sentences, model, n_rows=min(N_ROWS, len(sentences)))
    states = states[len(states) // 5 :]  # the first batches still feel the cold start
    hidden, cell = (torch.cat(parts, dim=2).mean(dim=2, keepdim=True) for parts in zip(*states, strict=True))
    return BiLMState(hidden, cell)


def store_warm_state(model: PretrainedBiLM, sentences: Sequence[Sequence[str]], text: str) -> None:
    """Give a model the state of ``calibrated_state``, and say in its card of which text, by name.

    Raises:
        TextError: there is no sentence.
    """
    model.warm_state = calibrated_state(model, sentences)
    model.card["warm_state"] = f"mean state after a sentence, over {len(sentences):,} sentences of {text}"


def warm_start(model: PretrainedBiLM) -> BiLMState:
    """The constant state that sentences start from: the model's own, or, without one, that after an empty sentence."""
    return model.warm_state or boundary_state(model)


def _states_after(sentences: Sequence[Sequence[str]], model: PretrainedBiLM, n_rows: int) -> list[BiLMState]:
    """The state after each batch of ``n_rows`` sentences, read in order; an incomplete last batch is left out."""
    state = model.bilm.eval().zero_state(n_rows)
    states: list[BiLMState] = []
    for start in range(0, len(sentences) - n_rows + 1, n_rows):
        (_, state), _ = model.contextualize(sentences[start : start + n_rows], state)
        states.append(state)
    return states
