"""The first six steps of bilm-tf's own training, to the digits (bilm-tf.md, appendix B)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from elmokit.engine.architecture import BiLMConfig
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.formats.folder import load_folder
from elmokit.formats.open import open_model
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.training.bilm_run import TrainingSetup
from elmokit.training.training_config import RECIPES
from elmokit.training.training_text import TrainingCorpus
from elmokit.training.transfer import with_softmax_over
from tests.helpers.tiny_training import Reports, newest_checkpoint, train_in
from tests.helpers.trace_b import CHARS, FORWARD_WORDS, LINES, TIED_WORDS, write_checkpoint
from tests.helpers.weights import softmax_of

# Losses of the directions, and the global norm of the gradient times n_steps before clipping.
TRACES = {
    "characters": [
        ((2.622447, 2.553160), 3.392632),
        ((2.906319, 2.414276), 6.185790),
        ((2.475187, 2.504671), 2.583618),
        ((2.426880, 2.264503), 3.775451),
        ((2.431463, 2.394853), 1.678412),
        ((2.280420, 2.242439), 2.997483),
    ],
    "tied words": [
        ((2.533889, 2.491282), 2.257958),
        ((2.687611, 2.374966), 4.991360),
        ((2.466717, 2.486641), 2.363138),
        ((2.376950, 2.267755), 3.568392),
        ((2.421889, 2.395918), 1.620088),
        ((2.266056, 2.238963), 2.936591),
    ],
    "forward words": [
        ((2.419538,), 1.184778),
        ((2.500556,), 3.998564),
        ((2.357711,), 1.249561),
        ((2.313657,), 3.451434),
        ((2.358430,), 1.431397),
        ((2.243244,), 3.368095),
    ],
}
CONFIGS = {"characters": CHARS, "tied words": TIED_WORDS, "forward words": FORWARD_WORDS}
# (sum, sum of squares) after the sixth step.
SUMS = {
    "characters": {
        "token_layer.char_embedding.weight": (-0.004616, 83.519726),
        "token_layer.convolutions.0.weight": (-0.022599, 1.203521),
        "token_layer.convolutions.2.bias": (-0.547914, 0.579460),
        "token_layer.highways.0.gate.weight": (-0.040017, 25.903079),
        "token_layer.highways.0.gate.bias": (-0.290099, 1.468828),
        "token_layer.projection.weight": (1.633054, 8.668404),
        "directions.0.layers.0.weight": (0.091132, 46.168840),
        "directions.0.layers.0.bias": (-0.035742, 3.829835),
        "directions.0.layers.0.projection": (0.122034, 5.689731),
        "directions.1.layers.1.weight": (0.243966, 46.178288),
        "softmax.weight": (-0.497323, 4.486531),
        "softmax.bias": (0.021561, 0.828139),
    },
    "tied words": {
        "token_layer.embedding.weight": (-0.216659, 4.502574),
        "softmax.bias": (0.022363, 0.887300),
    },
    "forward words": {
        "token_layer.embedding.weight": (-0.416866, 5.229091),
        "softmax.weight": (-0.498544, 5.312192),
    },
}


def start_of(name: str, folder: Path) -> tuple[PretrainedBiLM, BiLMConfig]:
    tied = name == "tied words"
    model = open_model(write_checkpoint(folder, CONFIGS[name], tied) / "model.ckpt-0")
    assert model.vocabulary is not None
    if tied:
        bias = softmax_of(model).bias
        model = with_softmax_over(model, model.vocabulary, {}, 0, SoftmaxConfig("tied"))
        with torch.no_grad():
            softmax = softmax_of(model)
            softmax.bias.copy_(bias)
        model = model.replace(softmax=softmax)
    return model, model.config


@pytest.mark.parametrize("name", TRACES)
def test_six_steps_of_bilm_tf_to_its_digits(name: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    model, sizes = start_of(name, tmp_path / "checkpoint")
    assert model.vocabulary is not None
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    sentences = [line.split() for line in LINES]
    corpus = TrainingCorpus([text], sentences, model.vocabulary, len(LINES), sum(map(len, sentences)))
    config = dataclasses.replace(
        RECIPES["bilm-tf"],
        model=sizes,
        softmax=model.softmax.config,
        epochs=None,
        tokens=6 * 2 * 5,
        batch_size=2,
        window_length=5,
        n_samples=0,
        max_grad_norm=1.0,
        shuffle=False,
        log_every=1,
    )
    reports = Reports()
    train_in(tmp_path / "run", TrainingSetup(config, corpus, initial=model), reports)
    assert len(reports.lines) == 6
    for line, (losses, norm) in zip(reports.lines, TRACES[name], strict=True):
        assert line.losses == pytest.approx(losses, abs=1e-5)
        assert line.gradient_norm == pytest.approx(norm, abs=1e-5)
    newest = newest_checkpoint(tmp_path / "run").path
    trained = load_folder(newest / "model")
    softmax = {f"softmax.{name}": array for name, array in trained.softmax.arrays.items()}
    tensors = {name: torch.from_numpy(array.copy()) for name, array in {**trained.arrays, **softmax}.items()}
    for key, (total, squares) in SUMS[name].items():
        assert float(tensors[key].double().sum()) == pytest.approx(total, abs=1e-5), key
        assert float(tensors[key].double().square().sum()) == pytest.approx(squares, abs=1e-5), key
    if name == "characters":
        cell = load_file(newest / "state.safetensors")["cell"][0, 0, 0, :3]
        assert cell.tolist() == pytest.approx([-0.067504, -3.0, -2.221574], abs=1e-5)
