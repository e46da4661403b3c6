from __future__ import annotations

import pytest
import torch

from elmokit.bilm import BiLMState
from elmokit.embedder import Elmo
from elmokit.initial_state import boundary_state, calibrate_initial_state, mean_state
from elmokit.scoring.perplexity import perplexity
from elmokit.scoring.surprisal import score_batch
from elmokit.weights.model import PretrainedBiLM


def test_boundary_state_is_the_carried_state_after_an_empty_sentence(model: PretrainedBiLM) -> None:
    _, state = Elmo(model, start="stateful").embed_batch([[]], model.bilm.zero_state(1))
    torch.testing.assert_close(boundary_state(model), state)


@pytest.mark.parametrize("is_stored", [False, True])
def test_the_mean_state_is_the_mean_of_the_states_in_which_sentences_start_in_training(
    is_stored: bool, model: PretrainedBiLM
) -> None:
    sentences = [["the", "cat"], ["sat"]] * 2
    state = model.bilm.zero_state(4)
    if is_stored:
        model.initial_state = BiLMState(*(torch.full_like(part[:, :, :1], 0.3) for part in state))
        state = model.initial_state.repeat_row(4)
    _, state = score_batch(model, sentences, state)  # which reads as training does: without the last boundary
    calibrated = mean_state(model, sentences)
    torch.testing.assert_close(calibrated.hidden[:, :, 0], state.hidden.mean(dim=2))
    torch.testing.assert_close(calibrated.cell[:, :, 0], state.cell.mean(dim=2))


def test_a_calibrated_model_reads_a_sentence_as_training_does_after_another_one(model: PretrainedBiLM) -> None:
    calibrate_initial_state(model, [["the", "cat", "sat"]], "a sentence")
    carried = perplexity(model, [["the", "cat", "sat"], ["the", "dog"]], "stateful")
    first = perplexity(model, [["the", "cat", "sat"]], "zero")
    second = perplexity(model, [["the", "dog"]])
    for both, one, other in zip(carried.mean_nats, first.mean_nats, second.mean_nats, strict=True):
        assert both * 7 == pytest.approx(one * 4 + other * 3, rel=1e-5)
