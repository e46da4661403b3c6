"""The recipe that learns an alignment, on models that differ by a rotation."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from elmokit import Elmo, open_model, save_model
from elmokit.engine.layer_selection import LayerAlignment
from elmokit.pretrained.model import PretrainedBiLM
from recipes import align

WORDS = [f"{first}{second}{third}" for first in "abcdef" for second in "aeiou" for third in "lrst"]


def rotated(model: PretrainedBiLM) -> PretrainedBiLM:
    """A model whose vectors are those of another, rotated and shifted."""
    generator = np.random.default_rng(0)
    n_layers, dim = model.config.n_layers + 1, model.config.output_dim
    matrices = np.linalg.qr(generator.standard_normal((n_layers, dim, dim)))[0].astype(np.float32)
    return model.replace(alignment=LayerAlignment(matrices, generator.standard_normal((n_layers, dim), np.float32)))


def test_models_that_differ_by_a_rotation_are_aligned_on_unseen_sentences(
    model: PretrainedBiLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, one in (("source", model), ("target", rotated(model))):
        save_model(one, name, "float32")
    rng = np.random.default_rng(1)
    Path("text.txt").write_text("".join(" ".join(rng.choice(WORDS, rng.integers(3, 9))) + "\n" for _ in range(200)))
    Path("words.txt").write_text("".join(f"{word}\t{word}\n" for word in [*WORDS, "lacking"]))
    given = ["source", "target", "text.txt", "text.txt", "words.txt", "aligned", "--centered"]
    monkeypatch.setattr(sys, "argv", ["align.py", *given])
    align.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Learned from 108 pairs; 12 words tested among 120")
    before_and_after = [line.split() for line in lines[2:]]
    assert [row[2] for row in before_and_after] == [row[4] for row in before_and_after] == ["100.0"] * 3
    assert any(float(row[1]) < 50 for row in before_and_after)
    sentences = [["the", "cat", "sat"], ["zebra", "on", "the", "mat", "."]]
    found, expected = (Elmo(open_model(name)).embed(sentences) for name in ("aligned", "target"))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_csls_avoids_a_word_that_is_near_to_all_others() -> None:
    # Target 2 is between the others and is the nearest to both queries by cosine.
    source, target = np.float32([[1, 0.6], [0.6, 1]]), np.float32([[1, 0.1], [0.1, 1], [1, 1]])
    assert align.precision(source, target, source, [{0}, {1}], csls=False) == 0
    assert align.precision(source, target, source, [{0}, {1}], csls=True) == 1
