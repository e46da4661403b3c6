"""AllenNLP 0.9's embedder for several languages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.compat.allennlp import Elmo, ElmoTokenEmbedderMultiLang, Params, batch_to_ids
from tests.helpers.allennlp_files import DIM, Files, write_files

IDS = batch_to_ids([["le", "chat"], ["non"]])


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_files(tmp_path / "model")


def table(files: Files, **more: object) -> dict[str, object]:
    options, weights = dict.fromkeys(("en", "fr"), files.options), dict.fromkeys(("en", "fr"), files.weights)
    return {"options_files": options, "weight_files": weights, "dropout": 0.0, **more}


@torch.no_grad()
def test_each_language_has_its_own_elmo_and_alignment(files: Files, tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).normal(size=(DIM, DIM))
    torch.save(matrix, tmp_path / "array.pth")  # as the published matrices were saved
    torch.save(torch.zeros(DIM, DIM), tmp_path / "zero.pth")
    aligning = {"en": tmp_path / "array.pth", "fr": str(tmp_path / "zero.pth")}
    embedder = ElmoTokenEmbedderMultiLang.from_params(Params(table(files, aligning_files=aligning)))
    expected = Elmo(files.options, files.weights, 1, dropout=0.0)(IDS)["elmo_representations"][0]
    torch.testing.assert_close(
        embedder(IDS, lang="en"), expected @ torch.tensor(matrix.T, dtype=torch.float32), atol=1e-5, rtol=1e-5
    )
    assert not embedder(IDS, lang="fr").any()
    names = [name for name, _ in embedder.named_children()]
    assert [name for name in names if name != "_projection"] == ["elmo_en", "elmo_fr", "aligning_en", "aligning_fr"]


@torch.no_grad()
def test_without_a_matrix_vectors_are_not_aligned_and_can_be_projected(files: Files) -> None:
    embedder = ElmoTokenEmbedderMultiLang.from_params(table(files))
    expected = Elmo(files.options, files.weights, 1, dropout=0.0)(IDS)["elmo_representations"][0]
    torch.testing.assert_close(embedder(IDS, "fr"), expected)
    assert ElmoTokenEmbedderMultiLang.from_params(table(files, projection_dim=5))(IDS, "en").shape == (2, 2, 5)
