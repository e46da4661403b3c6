from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elmokit.embedding.computer import Computer
from elmokit.embedding.documents import read_on
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.embedding.start_state import (
    StartName,
    boundary_state,
    calibrated,
    mean_state,
    with_start_state,
)
from elmokit.engine.state import State
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.lm.perplexity import perplexity
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.progress import set_quiet


def test_boundary_state_is_the_carried_state_after_an_empty_sentence(model: PretrainedBiLM) -> None:
    elmo = Elmo(model, start="stateful")
    _, state = elmo.embed_batch([[]], elmo.zero_state(1))
    for ours, theirs in zip(boundary_state(Computer(model)), state, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("is_stored", [False, True])
def test_the_mean_state_is_the_mean_of_the_states_in_which_sentences_start_in_training(
    is_stored: bool, model: PretrainedBiLM
) -> None:
    sentences = [["the", "cat"], ["sat"]] * 2
    state = State.zero(model.config, 4)
    if is_stored:
        model = model.replace(start_state=State(*(np.full_like(part[:, :, :1], 0.3) for part in state)))
        state = model.start_state.repeat_row(4)
    # It reads as training does: without the last boundary.
    state = read_on(Computer(model), [[sentence] for sentence in sentences], state, ()).after
    mean = mean_state(Computer(model), sentences)
    np.testing.assert_allclose(mean.hidden[:, :, 0], state.hidden.mean(axis=2), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mean.cell[:, :, 0], state.cell.mean(axis=2), rtol=1e-5, atol=1e-6)


def test_a_calibrated_model_reads_a_sentence_as_training_does_after_another_one(model: PretrainedBiLM) -> None:
    model = calibrated(Computer(model), [["the", "cat", "sat"]], "a sentence")
    carried = perplexity(model, [[["the", "cat", "sat"], ["the", "dog"]]], "zero", documents=True)
    first = perplexity(model, [["the", "cat", "sat"]], "zero")
    second = perplexity(model, [["the", "dog"]])
    for both, one, other in zip(carried.mean_nats, first.mean_nats, second.mean_nats, strict=True):
        assert both * 7 == pytest.approx(one * 4 + other * 3, rel=1e-5)


def notes(open_it: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        open_it()
    return [str(one.message) for one in caught]


def test_a_foreign_model_without_a_start_state_says_how_to_get_the_old_numbers(
    model: PretrainedBiLM, tmp_path: Path
) -> None:
    save_model(model, tmp_path / "weights.hdf5")
    path = tmp_path / "weights.hdf5"
    for opener in (Elmo.from_pretrained, ElmoModule.from_pretrained):
        (note,) = notes(lambda opener=opener: opener(path))
        assert note.startswith("weights.hdf5 has no stored start state")
        assert "AllenNLP and bilm-tf, choose the start 'stateful'; for those of TF-Hub, 'zero'" in note
    assert not notes(lambda: Elmo.from_pretrained(path, start="zero"))
    assert not notes(lambda: Elmo.from_pretrained(path, start="stateful"))
    set_quiet(True)
    try:
        assert not notes(lambda: Elmo.from_pretrained(path))
    finally:
        set_quiet(False)


@pytest.mark.parametrize("start", ["warm", "zero"])
def test_a_stored_start_state_gives_its_numbers_by_default(
    start: StartName, model: PretrainedBiLM, tmp_path: Path
) -> None:
    save_model(model, tmp_path / "weights.hdf5")
    foreign = open_model(tmp_path / "weights.hdf5")
    (expected,) = Elmo(foreign, start=start).embed([["the", "cat"]])
    foreign = with_start_state(foreign, start)
    save_model(foreign, tmp_path / "ours")
    assert not notes(lambda: Elmo.from_pretrained(tmp_path / "ours"))
    np.testing.assert_array_equal(Elmo.from_pretrained(tmp_path / "ours").embed([["the", "cat"]])[0], expected)


def test_a_calibrated_start_state_stays_the_warm_one(model: PretrainedBiLM) -> None:
    model = calibrated(Computer(model), [["the", "cat", "sat"]], "a sentence")
    before, fact = model.start_state, model.card["warm_state"]
    model = with_start_state(model, "warm")
    assert model.start_state is before
    assert model.card["warm_state"] == fact
