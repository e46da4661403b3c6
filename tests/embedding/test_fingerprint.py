"""Fingerprints: the same for the same model, today and tomorrow, whatever holds its weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elmokit import open_model, save_model
from elmokit.embedding.computer import Computer
from elmokit.embedding.fingerprint import fingerprint, vector_settings
from elmokit.engine.layer_selection import LayerAlignment
from elmokit.engine.state import State
from elmokit.pretrained.model import PretrainedBiLM, TokenTable
from tests.conftest import aligned_model, random_model


def test_the_fingerprints_of_published_files_never_change(bilm_tf_run: Path) -> None:
    # Task models and vector files record them: with another one, they no longer recognize their model.
    included, trained = open_model(), open_model(bilm_tf_run)
    assert fingerprint(included, "warm") == "8ecd5cb0d744082b6670f40e3af119fb"
    assert fingerprint(included, "zero") == "a1a12cd7b559b1d34881f29091933a7c"
    assert fingerprint(trained, "warm") == "756fa884ef3240d52d10e7e322de2116"


@pytest.mark.parametrize("made", [random_model, aligned_model])
def test_a_model_has_one_fingerprint_in_its_file_and_as_pytorch_modules(made: type, tmp_path: Path) -> None:
    model: PretrainedBiLM = made()
    model = model.replace(start_state=State(*(part + np.float32(0.5) for part in State.zero(model.config, 1))))
    save_model(model, tmp_path / "model")
    stored = open_model(tmp_path / "model")
    computer = Computer(stored)
    before = vector_settings(computer, "warm")
    assert vector_settings(Computer(model), "warm") == before
    bilm, softmax = stored.build_modules()
    in_modules = Computer(stored.view_of(bilm, softmax), bilm=bilm, softmax=softmax)
    assert vector_settings(in_modules, "warm") == before


def test_everything_that_vectors_depend_on_is_part_of_it(model: PretrainedBiLM) -> None:
    n_layers, dim = model.config.n_layers + 1, model.config.output_dim
    state = State.zero(model.config, 1)
    rotation = np.stack([np.eye(dim, dtype=np.float32)] * n_layers)
    table = np.zeros((2, model.config.projection_dim), np.float32)
    models = [
        model,
        random_model(seed=1),
        model.replace(start_state=state),
        model.replace(start_state=State(state.hidden, state.cell + np.float32(1))),
        model.replace(alignment=LayerAlignment.of_matrices(rotation)),
        model.replace(alignment=LayerAlignment(rotation, np.ones((n_layers, dim), np.float32))),
        model.replace(token_table=TokenTable({"the": 0}, table)),
        model.replace(token_table=TokenTable({"the": 1}, table)),
        model.replace(token_table=TokenTable({"the": 1}, table + np.float32(1))),
    ]
    assert len({fingerprint(one, "warm") for one in models}) == len(models)
    assert vector_settings(Computer(model), "warm") != vector_settings(
        Computer(model.replace(exact_marks=True)), "warm"
    )
