"""Models of sizes that no vector unit divides, of one layer or one direction: exact in every batch and format."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.embedding.elmo import Elmo
from elmokit.engine.architecture import BiLMConfig, CharCNNConfig
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from tests.conftest import random_model

FILTERS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 19)), min_size=1, max_size=4).map(tuple)
CHAR_CNNS = st.builds(
    CharCNNConfig, FILTERS, st.integers(1, 9), st.integers(0, 2), st.sampled_from(["relu", "tanh"]), st.integers(5, 50)
)


@st.composite
def configs(draw: st.DrawFn) -> BiLMConfig:
    """Draw a config whose sizes are anything but round."""
    projection_dim = draw(st.integers(1, 21))
    bidirectional = draw(st.booleans())
    return BiLMConfig(
        draw(CHAR_CNNS),
        projection_dim=projection_dim,
        hidden_dim=draw(st.one_of(st.just(projection_dim), st.integers(projection_dim, 45))),
        n_layers=draw(st.integers(1, 3)),
        cell_clip=draw(st.sampled_from([None, 0.5, 3.0])),
        skip_connections=draw(st.booleans()),
        bidirectional=bidirectional,
    )


SENTENCES = [["the", "cat"], ["a"], ["Überläufer", "x" * 60, "."] * 7, ["the", "dog", "ran"], ["漢", "the", "cat", "."]]


@pytest.mark.slow
@settings(max_examples=20)
@given(config=configs(), seed=st.integers(0, 9))
def test_odd_sizes_compute_the_same_in_every_batch_backend_and_format(config: BiLMConfig, seed: int) -> None:
    model = random_model(config, seed, scale=1.5)
    elmo = Elmo(model)
    together = elmo.embed(SENTENCES)
    for sentence, vectors in zip(SENTENCES, together, strict=True):
        np.testing.assert_array_equal(elmo.embed([sentence])[0], vectors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELMOKIT_BACKEND", "reference")
        for plain, vectors in zip(Elmo(random_model(config, seed, scale=1.5)).embed(SENTENCES), together, strict=True):
            np.testing.assert_allclose(vectors, plain, atol=2e-5, rtol=2e-5)
    with tempfile.TemporaryDirectory() as folder:
        # The published format has no start state.
        for name in ("own", "weights.hdf5"):
            save_model(model, Path(folder, name))
            opened = open_model(Path(folder, name))
            opened = opened.replace(start_state=model.start_state)
            for again, vectors in zip(Elmo(opened).embed(SENTENCES), together, strict=True):
                np.testing.assert_array_equal(again, vectors)
