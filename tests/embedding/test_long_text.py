from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit import Elmo
from elmokit.embedding import elmo as embedder
from elmokit.engine.config import PRESETS
from elmokit.engine.layer_selection import Layers
from elmokit.formats.model import PretrainedBiLM
from elmokit.text import batching
from tests.conftest import WORDS, random_model


@settings(max_examples=12)
@given(n_tokens=st.integers(0, 40), chunk=st.integers(1, 45), bidirectional=st.booleans(), seed=st.integers(0, 99))
def test_chunks_add_up_to_the_whole_text(n_tokens: int, chunk: int, bidirectional: bool, seed: int) -> None:
    elmo = Elmo(random_model(replace(PRESETS["tiny"], bidirectional=bidirectional), seed))
    tokens = np.random.default_rng(seed).choice(WORDS[3:], n_tokens).tolist()
    whole = elmo.embed([tokens])[0]
    parts = list(elmo.embed_document(tokens, chunk_tokens=chunk))
    assert [part.shape[1] for part in parts[:-1]] == [chunk] * (len(parts) - 1)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=1e-5)


@pytest.mark.parametrize("layers", ["top", "average", 1, (0, 2)])
def test_layers_are_chosen_as_in_embed(layers: Layers, model: PretrainedBiLM) -> None:
    elmo, tokens = Elmo(model, start="zero"), WORDS[3:] * 3
    parts = list(elmo.embed_document(tokens, layers=layers, chunk_tokens=5))
    np.testing.assert_allclose(np.concatenate(parts, axis=-2), elmo.embed([tokens], layers=layers)[0], atol=1e-5)


def test_embed_computes_a_long_sentence_in_chunks(model: PretrainedBiLM, monkeypatch: pytest.MonkeyPatch) -> None:
    elmo, sentences = Elmo(model), [["the", "cat"], WORDS[3:] * 8, ["ran"]]
    at_once = elmo.embed(sentences)
    monkeypatch.setattr(batching, "LONG_SENTENCE_TOKENS", 10)
    monkeypatch.setattr(embedder, "CHUNK_TOKENS", 7)
    for ours, theirs in zip(elmo.embed(sentences), at_once, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
        assert ours.flags.owndata
