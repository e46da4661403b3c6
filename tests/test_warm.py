from __future__ import annotations

import torch

from elmokit.embedder import Elmo
from elmokit.weights.model import StoredModel
from elmokit.weights.warm import N_BOUNDARY_ROUNDS, boundary_state, calibrated_state
from tests.conftest import random_model


def test_boundary_state_is_the_carried_state_after_empty_sentences(model: StoredModel) -> None:
    state = model.bilm.zero_state(1)
    elmo = Elmo(model, start="carry")
    for _ in range(N_BOUNDARY_ROUNDS):
        _, state = elmo.embed_batch([[]], state)
    torch.testing.assert_close(boundary_state(model), state)


def test_boundary_state_has_settled() -> None:
    model = random_model(scale=1.0)
    state = boundary_state(model)
    _, after = Elmo(model, start="carry").embed_batch([[]], state)
    torch.testing.assert_close(after, state, atol=5e-3, rtol=0)


def test_calibrated_state_is_the_mean_of_carried_states(model: StoredModel) -> None:
    sentences = [["the", "cat"], ["sat"]] * 2
    elmo = Elmo(model, start="carry")
    state = model.bilm.zero_state(4)
    _, state = elmo.embed_batch(sentences, state)
    calibrated = calibrated_state(model, sentences)
    torch.testing.assert_close(calibrated.hidden[:, :, 0], state.hidden.mean(dim=2))
    torch.testing.assert_close(calibrated.cell[:, :, 0], state.cell.mean(dim=2))
