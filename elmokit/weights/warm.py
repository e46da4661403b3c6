"""The warm state: one constant state from which every sentence can be read, without a cold start."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from elmokit.bilm import BiLMState
from elmokit.errors import TextError
from elmokit.weights.model import StoredModel

N_BOUNDARY_ROUNDS = 16  # reading empty sentences converges: a further round changes less than 5e-3
N_ROWS = 32


@torch.no_grad()
def boundary_state(model: StoredModel) -> BiLMState:
    """The state after empty sentences, ``<S> </S>``, read again and again: it needs no text."""
    return _states_after([[]] * N_BOUNDARY_ROUNDS, model, n_rows=1)[-1]


@torch.no_grad()
def calibrated_state(model: StoredModel, sentences: Sequence[Sequence[str]]) -> BiLMState:
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


def _states_after(sentences: Sequence[Sequence[str]], model: StoredModel, n_rows: int) -> list[BiLMState]:
    """The state after each batch of ``n_rows`` sentences, read in order; an incomplete last batch is left out."""
    state = model.bilm.eval().zero_state(n_rows)
    states: list[BiLMState] = []
    for start in range(0, len(sentences) - n_rows + 1, n_rows):
        (_, state), _ = model.contextualize(sentences[start : start + n_rows], state)
        states.append(state)
    return states
