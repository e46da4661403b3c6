from __future__ import annotations

from pathlib import Path

import torch

from elmokit.embedder import Elmo
from elmokit.files import read_lines, split_tokens
from elmokit.train.perplexity import perplexity
from elmokit.weights.model import StoredModel
from elmokit.weights.pretrained import open_pretrained
from elmokit.weights.warm import boundary_state, calibrated_state

SENTENCES = [split_tokens(line) for line in read_lines(Path(__file__).parents[1] / "examples" / "sentences.txt")]


def test_boundary_state_is_the_carried_state_after_an_empty_sentence(model: StoredModel) -> None:
    _, state = Elmo(model, start="carry").embed_batch([[]], model.bilm.zero_state(1))
    torch.testing.assert_close(boundary_state(model), state)


def test_a_trained_model_predicts_from_the_boundary_state_nearly_as_well_as_from_its_own() -> None:
    model = open_pretrained()
    own, boundary = (perplexity(model, SENTENCES, start=start) for start in (model.warm_state, boundary_state(model)))
    for ours, other in zip(own.per_direction, boundary.per_direction, strict=True):
        assert other < 1.1 * ours  # after sixteen empty sentences the backward one is at 1.7 times its own


def test_calibrated_state_is_the_mean_of_carried_states(model: StoredModel) -> None:
    sentences = [["the", "cat"], ["sat"]] * 2
    elmo = Elmo(model, start="carry")
    state = model.bilm.zero_state(4)
    _, state = elmo.embed_batch(sentences, state)
    calibrated = calibrated_state(model, sentences)
    torch.testing.assert_close(calibrated.hidden[:, :, 0], state.hidden.mean(dim=2))
    torch.testing.assert_close(calibrated.cell[:, :, 0], state.cell.mean(dim=2))
