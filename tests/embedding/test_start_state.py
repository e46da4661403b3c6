from __future__ import annotations

import numpy as np
import pytest

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.start_state import boundary_state, calibrate_start_state, mean_state
from elmokit.engine.state import State
from elmokit.formats.model import PretrainedBiLM
from elmokit.lm.perplexity import perplexity
from elmokit.lm.surprisal import score_batch


def test_boundary_state_is_the_carried_state_after_an_empty_sentence(model: PretrainedBiLM) -> None:
    elmo = Elmo(model, start="stateful")
    _, state = elmo.embed_batch([[]], elmo.zero_state(1))
    for ours, theirs in zip(boundary_state(model), state, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("is_stored", [False, True])
def test_the_mean_state_is_the_mean_of_the_states_in_which_sentences_start_in_training(
    is_stored: bool, model: PretrainedBiLM
) -> None:
    sentences = [["the", "cat"], ["sat"]] * 2
    state = State.zero(model.config, 4)
    if is_stored:
        model.start_state = State(*(np.full_like(part[:, :, :1], 0.3) for part in state))
        state = model.start_state.repeat_row(4)
    _, state = score_batch(model, sentences, state)  # which reads as training does: without the last boundary
    calibrated = mean_state(model, sentences)
    np.testing.assert_allclose(calibrated.hidden[:, :, 0], state.hidden.mean(axis=2), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(calibrated.cell[:, :, 0], state.cell.mean(axis=2), rtol=1e-5, atol=1e-6)


def test_a_calibrated_model_reads_a_sentence_as_training_does_after_another_one(model: PretrainedBiLM) -> None:
    calibrate_start_state(model, [["the", "cat", "sat"]], "a sentence")
    carried = perplexity(model, [["the", "cat", "sat"], ["the", "dog"]], "stateful")
    first = perplexity(model, [["the", "cat", "sat"]], "zero")
    second = perplexity(model, [["the", "dog"]])
    for both, one, other in zip(carried.mean_nats, first.mean_nats, second.mean_nats, strict=True):
        assert both * 7 == pytest.approx(one * 4 + other * 3, rel=1e-5)
