"""Training the biLM with a task gives the losses and gradients of AllenNLP's Elmo with ``requires_grad=True``."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from elmokit import Elmo
from elmokit.network.scalar_mix import ScalarMix
from elmokit.tasks.trained_bilm import copy_for_training
from elmokit.training.optimizers import clip_gradients
from tests.helpers.paths import DATA
from tests.helpers.wave_model import CONFIG, wave, wave_model

TRACE = DATA / "allennlp-training/trace.json"


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_steps_on_a_padded_batch_equal_those_of_allennlp(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMOKIT_BACKEND", backend)
    trace = json.loads(TRACE.read_text(encoding="utf-8"))
    assert trace["largest_cell"] == 3.0  # cells reach the bound, so its gradient is tested too
    embedder = copy_for_training(Elmo(wave_model(), start="zero")).train()
    embedder.bilm.requires_grad_(True)
    mix, output = ScalarMix(embedder.n_layers), nn.Linear(CONFIG.output_dim, 3)
    with torch.no_grad():
        output.weight.copy_(wave(3, CONFIG.output_dim, scale=0.2))
        output.bias.zero_()
    parameters = [*embedder.parameters(), *mix.parameters(), *output.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=trace["learning_rate"])
    for step in trace["steps"]:
        layers, mask = embedder.padded_layers([sentence.split() for sentence in trace["sentences"]])
        pooled = mix(layers).sum(1) / mask.sum(1, keepdim=True)
        loss = nn.functional.cross_entropy(output(pooled), torch.tensor(trace["labels"]))
        optimizer.zero_grad()
        loss.backward()
        norm = clip_gradients(parameters, trace["max_grad_norm"])
        assert loss.item() == pytest.approx(step["loss"], rel=1e-5)
        assert norm == pytest.approx(step["gradient_norm"], rel=1e-4)
        optimizer.step()
