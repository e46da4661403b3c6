"""ELMo in ONNX, run by ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import Elmo, PretrainedBiLM
from elmokit.engine.architecture import PRESETS, BiLMConfig, WordFeaturesConfig
from elmokit.errors import ConfigError, OutputError
from elmokit.text.vocabulary import SPECIALS, Vocabulary
from tests.conftest import aligned_model, random_model
from tests.helpers.hosts import need_host

need_host("onnx")

import onnx  # noqa: E402
import onnxruntime  # noqa: E402

from elmokit.integrations.onnx import export_onnx  # noqa: E402

SENTENCES = [["the", "cat", "sat", "on", "the", "mat", "."], ["a" * 60, "Zürich"], []]
WORDS = [*SPECIALS, "the", "cat", "mat"]
TINY = PRESETS["tiny"]
assert TINY.char_cnn is not None


def run(path: Path, elmo: Elmo, sentences: list[list[str]]) -> np.ndarray:
    session = onnxruntime.InferenceSession(path)
    (layers,) = session.run(["layers"], {"char_ids": elmo.ids(sentences)})
    result: np.ndarray = layers
    return result


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        replace(TINY, bidirectional=False),
        replace(TINY, n_layers=3, skip_connections=False, cell_clip=0.3, projection_clip=0.1),
        replace(TINY, cell_clip=None, projection_clip=None),
        replace(TINY, projection_dim=TINY.hidden_dim),
        replace(TINY, char_cnn=replace(TINY.char_cnn, activation="tanh", n_highway=0)),
        replace(TINY, word_features=WordFeaturesConfig(len(WORDS), TINY.projection_dim)),
    ],
    ids=["default", "forward", "clips", "no clips", "no projection", "tanh", "words"],
)
@pytest.mark.parametrize("start", ["warm", "zero"])
def test_graph_computes_the_vectors_of_elmo(config: BiLMConfig, start: str, tmp_path: Path) -> None:
    model = random_model(config)
    if config.word_features is not None:
        model = model.replace(vocabulary=Vocabulary(WORDS))
    path = export_onnx(model, tmp_path / "model.onnx", start=start)  # type: ignore[arg-type]
    elmo = Elmo(model, start=start)  # type: ignore[arg-type]
    layers = run(path, elmo, SENTENCES)
    for row, expected in zip(layers.swapaxes(0, 1), elmo.embed(SENTENCES), strict=True):
        n_tokens = expected.shape[1]
        np.testing.assert_allclose(row[:, 1 : 1 + n_tokens], expected, atol=1e-4)
        assert not row[:, n_tokens + 2 :].any()


def test_shapes_can_be_inferred(model: PretrainedBiLM, tmp_path: Path) -> None:
    # As quantization does. Names of a step that the graph around it also has would be mistaken for each other.
    onnx.checker.check_model(str(export_onnx(model, tmp_path / "model.onnx")), full_check=True)


def test_batches_of_any_size_can_be_run(model: PretrainedBiLM, tmp_path: Path) -> None:
    path, elmo = export_onnx(model, tmp_path / "model.onnx"), Elmo(model)
    for sentences in ([SENTENCES[0]], [["the"] * 30] * 5):
        expected = np.stack(elmo.embed(sentences), axis=1)
        np.testing.assert_allclose(run(path, elmo, sentences)[:, :, 1:-1], expected, atol=1e-4)


WORD_MODEL = random_model(replace(TINY, char_cnn=None, n_words=11))
REFUSED = [
    (random_model(), "model.bin", "warm", OutputError, "model.bin"),
    (random_model(), "there.onnx", "warm", OutputError, "there.onnx"),
    (random_model(), "model.onnx", "stateful", ConfigError, "stateful"),
    (WORD_MODEL, "model.onnx", "warm", ConfigError, "characters"),
    (aligned_model(), "model.onnx", "warm", ConfigError, "alignment"),
]


@pytest.mark.parametrize(("model", "name", "start", "error", "mentioned"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_exported_is_refused(
    model: PretrainedBiLM, name: str, start: Any, error: type[Exception], mentioned: str, tmp_path: Path
) -> None:
    (tmp_path / "there.onnx").touch()
    with pytest.raises(error, match=mentioned):
        export_onnx(model, tmp_path / name, start=start)
    assert [path.name for path in tmp_path.iterdir()] == ["there.onnx"]
