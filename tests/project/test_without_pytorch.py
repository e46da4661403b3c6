"""What works where PyTorch is not installed: nearly all that does not learn, with the same results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elmokit import Elmo, LanguageModel, open_model
from tests.helpers import without_pytorch
from tests.helpers.paths import ROOT
from tests.helpers.without_pytorch import SENTENCES, WORK


class Finished:
    """A run of all the work in a process where importing PyTorch fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(
            [sys.executable, "-m", without_pytorch.__name__],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        self.failures: dict[str, str | None] = json.loads(ran.stdout)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return Finished(tmp_path_factory.mktemp("work"))


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK)
def test_it_works_without_pytorch(finished: Finished, name: str) -> None:
    failure = finished.failures[name]
    if failure is not None and failure.startswith("missing "):
        pytest.skip(failure)
    assert failure is None, failure


@pytest.mark.slow
def test_vectors_are_the_same_bits_as_those_of_the_pytorch_module(finished: Finished) -> None:
    model = open_model()
    assert model.bilm.config == model.config  # from here on, the module owns the weights
    with np.load(finished.folder / "vectors.npz") as archive:
        for name, expected in zip(archive, Elmo(model).embed(SENTENCES), strict=True):
            np.testing.assert_array_equal(archive[name], expected)
    model.precision = "float32"
    np.testing.assert_array_equal(np.load(finished.folder / "float32.npy"), Elmo(model).embed(SENTENCES[:1])[0])


@pytest.mark.slow
def test_predictions_are_those_of_the_pytorch_modules(finished: Finished) -> None:
    model = open_model()
    assert model.softmax_module is not None  # from here on, the modules own the weights
    model.precision = "float32"
    lm = LanguageModel(model)
    with np.load(finished.folder / "surprisal.npz") as archive:
        for name, expected in zip(archive, lm.surprisal(SENTENCES), strict=True):
            np.testing.assert_allclose(archive[name], expected.nats, atol=1e-6)
    found = json.loads((finished.folder / "substitutes.json").read_text())
    for (word, *numbers), expected in zip(found, lm.substitutes(SENTENCES[0], 1, n=5), strict=True):
        assert word == expected.word
        np.testing.assert_allclose(numbers, expected[1:], rtol=1e-5)


def test_importing_the_package_and_embedding_load_no_pytorch() -> None:
    code = "import sys, elmokit\nelmokit.Elmo.from_pretrained().embed([['a']])\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
