"""The guide to adding a precision works, and three files are all that it changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from elmokit.engine import compiler
from tests.helpers.paths import ROOT
from tests.helpers.worked_example import follow, run_in

PAGE = ROOT / "docs" / "how-to" / "develop" / "add-a-precision.md"
# Run with the changed package.
USE = """
import numpy as np
from elmokit import Elmo
from elmokit.cli.main import elmokit
from elmokit.engine.compiler import load_library
from elmokit.engine.softmax import Matrix
from elmokit.engine.library import choose_kernels

embed = elmokit.get_command(None, "embed")
assert any("int6" in getattr(option.type, "choices", ()) for option in embed.params if option.name == "precision")
library = load_library()
generator = np.random.default_rng(0)
weight = generator.normal(size=(50, 70)).astype(np.float32)
inputs = generator.integers(-127, 128, (5, 70)).astype(np.float32)
inputs[:, 0] = 127  # inputs that are rounded keep their values
scales = np.abs(weight).max(1, keepdims=True) / 31
product = Matrix(weight, "int6", library)(inputs)
np.testing.assert_allclose(product, inputs @ (np.rint(weight / scales) * scales).T, atol=2e-3, rtol=1e-5)

sentences = [["The", "cat", "sat", "on", "the", "mat", "."], ["A", "bank", "lends", "money", "."]]
exact, rounded = (Elmo.from_pretrained(precision=precision) for precision in ("float32", "int6"))
kernels = choose_kernels(library, "int6", 1)
assert rounded.model.network.computation().precision == kernels.lstm
for ours, theirs in zip(rounded.embed(sentences), exact.embed(sentences), strict=True):
    cosines = (ours * theirs).sum(-1) / np.linalg.norm(ours, axis=-1) / np.linalg.norm(theirs, axis=-1)
    assert cosines.min() > 0.97, cosines
    # Six bits are used where bytes are multiplied; otherwise, more precise weights are.
    assert (cosines.mean() < 0.9995) == (kernels.lstm == "int6"), cosines
"""


@pytest.mark.slow
def test_a_precision_is_added_in_three_files_as_the_page_says(tmp_path: Path) -> None:
    if compiler.load_library() is None or not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    assert len(follow(PAGE, tmp_path)) == 3
    run_in(tmp_path, USE, ELMOKIT_CACHE=str(tmp_path / "cache"))
