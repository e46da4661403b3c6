"""The call of ELMoForManyLangs under its old name."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from elmokit.compat.many_langs import Embedder
from tests.helpers.many_langs_files import SENTENCES, toy_model


def test_each_output_layer_is_that_of_the_old_class(tmp_path: Path) -> None:
    toy = toy_model()
    embedder = Embedder(str(toy.write(tmp_path / "toy")), batch_size=2)
    expected = [toy.layers(sentence) for sentence in SENTENCES]
    assert [array.shape for array in embedder.sents2elmo(SENTENCES)] == [(len(s), 8) for s in SENTENCES]
    for output_layer, pick in (
        (-2, lambda layers: layers),
        (-1, lambda layers: layers.mean(axis=0)),
        (0, lambda layers: layers[0]),
        (2, lambda layers: layers[2]),
    ):
        found = embedder.sents2elmo(SENTENCES, output_layer=output_layer)
        for array, layers in zip(found, expected, strict=True):
            assert array.dtype == np.float32
            np.testing.assert_allclose(array, pick(layers), rtol=0, atol=1e-5)


def test_two_calls_agree_whatever_the_batches_and_the_order(tmp_path: Path) -> None:
    folder = toy_model().write(tmp_path / "toy")
    first = Embedder(folder, 64).sents2elmo(SENTENCES)
    embedder = Embedder(folder, 1)
    embedder.sents2elmo([["Haus"] * 5])
    again = embedder.sents2elmo(reversed(SENTENCES))
    for one, other in zip(first, reversed(again), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_state_can_be_carried(tmp_path: Path) -> None:
    embedder = Embedder(toy_model().write(tmp_path / "toy"), 1, start="stateful")
    first, second = embedder.sents2elmo([["das", "Haus"], ["das", "Haus"]], 2)
    assert np.abs(first - second).max() > 1e-3


def test_empty_lists_and_empty_sentences_work(tmp_path: Path) -> None:
    embedder = Embedder(toy_model().write(tmp_path / "toy"))
    assert embedder.sents2elmo([]) == []
    empty, full = embedder.sents2elmo([[], ["das"]], -2)
    assert (empty.shape, full.shape) == ((3, 0, 8), (3, 1, 8))
