from __future__ import annotations

import pytest
import torch

from elmokit.embedder import Elmo
from elmokit.initial_state import boundary_state, mean_state
from elmokit.weights.model import PretrainedBiLM


def test_boundary_state_is_the_carried_state_after_an_empty_sentence(model: PretrainedBiLM) -> None:
    _, state = Elmo(model, start="stateful").embed_batch([[]], model.bilm.zero_state(1))
    torch.testing.assert_close(boundary_state(model), state)


@pytest.mark.slow
def test_the_mean_state_is_the_mean_of_carried_states(model: PretrainedBiLM) -> None:
    sentences = [["the", "cat"], ["sat"]] * 2
    elmo = Elmo(model, start="stateful")
    state = model.bilm.zero_state(4)
    _, state = elmo.embed_batch(sentences, state)
    calibrated = mean_state(model, sentences)
    torch.testing.assert_close(calibrated.hidden[:, :, 0], state.hidden.mean(dim=2))
    torch.testing.assert_close(calibrated.cell[:, :, 0], state.cell.mean(dim=2))
