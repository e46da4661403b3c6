"""bio_embeddings' ``SeqVecEmbedder``: its shapes and numbers, which are those of AllenNLP's ``ElmoEmbedder``."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from elmokit.compat.allennlp import ElmoEmbedder
from elmokit.compat.bio_embeddings import WARM_UP, SeqVecEmbedder
from elmokit.embedding.elmo import Elmo
from tests.helpers.allennlp_files import DIM, Files, write_files

PROTEINS = ["MKTAYIAK", "GG", "MKVLA"]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_files(tmp_path / "model")


def test_vectors_are_those_of_allennlp_after_the_warm_up(files: Files) -> None:
    allennlp = ElmoEmbedder(files.options, files.weights)
    for _ in range(4):
        allennlp.embed_sentence(list(WARM_UP))
    embedder = SeqVecEmbedder(weights_file=files.weights, options_file=files.options)
    for protein in PROTEINS:
        found = embedder.embed(protein)
        assert found.shape == (3, len(protein), DIM)
        np.testing.assert_allclose(found, allennlp.embed_sentence(list(protein)), atol=1e-6, rtol=0)
    for found, expected in zip(
        embedder.embed_batch(PROTEINS), allennlp.embed_batch([list(one) for one in PROTEINS]), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)


def test_without_a_state_vectors_do_not_depend_on_other_proteins(files: Files) -> None:
    expected = Elmo.from_pretrained(files.weights, start="zero").embed([list(one) for one in PROTEINS])
    embedder = SeqVecEmbedder(weights_file=files.weights, options_file=files.options, stateful=False)
    for batch_size in (None, 1, 10, 100):
        found = list(embedder.embed_many(iter(PROTEINS), batch_size))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    reduced = SeqVecEmbedder.reduce_per_protein(found[0])
    np.testing.assert_allclose(reduced, found[0].sum(axis=0).mean(axis=0))
    assert reduced.shape == (DIM,)
    assert (SeqVecEmbedder.name, SeqVecEmbedder.embedding_dimension, SeqVecEmbedder.number_of_layers) == (
        "seqvec",
        1024,
        3,
    )


def test_a_directory_of_bio_embeddings_or_of_a_model_opens(files: Files, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    shutil.copy(files.weights, old / "weights_file")
    shutil.copy(files.options, old / "options_file")
    found = [SeqVecEmbedder(0, model_directory=folder).embed("MK") for folder in (old, Path(files.weights).parent)]
    np.testing.assert_array_equal(*found)
