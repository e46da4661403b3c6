from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elmokit.evaluation import pos as linear_probe
from elmokit.evaluation.pos import predict_linear, train_linear

DRAW = np.random.default_rng(0)
N_TOKENS, DIM, N_CLASSES = 1200, 8, 3
NOISE = DRAW.normal(size=(N_TOKENS, DIM)).astype(np.float32)
SIGNAL = DRAW.normal(size=(N_TOKENS, DIM)).astype(np.float32)
LABELS = (SIGNAL @ DRAW.normal(size=(DIM, N_CLASSES))).argmax(axis=1)
FEW: dict[str, Any] = {"epochs": 5, "batch_size": 64, "learning_rate": 0.03}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_probe, "MIN_STEPS", 200)


def accuracy(layers: list[np.ndarray], learn_mix: bool = False, n_train: int = 800) -> float:
    probe = train_linear([layer[:n_train] for layer in layers], LABELS[:n_train], N_CLASSES, learn_mix, **FEW)
    return float((predict_linear(probe, [layer[n_train:] for layer in layers]) == LABELS[n_train:]).mean())


@pytest.mark.slow
def test_a_linear_signal_is_learned_and_noise_is_not() -> None:
    assert accuracy([SIGNAL]) > 0.95
    assert accuracy([NOISE]) < 0.5


@pytest.mark.slow
def test_the_scale_and_offset_of_features_do_not_matter() -> None:
    shifted = SIGNAL * np.geomspace(0.001, 1000, DIM, dtype=np.float32) + 5
    assert accuracy([shifted]) == pytest.approx(accuracy([SIGNAL]), abs=0.01)


@pytest.mark.slow
def test_a_mean_of_layers_is_one_layer_that_is_their_mean() -> None:
    given = train_linear([SIGNAL, NOISE], LABELS, N_CLASSES, **FEW)
    mean = train_linear([(SIGNAL + NOISE) / 2], LABELS, N_CLASSES, **FEW)
    np.testing.assert_allclose(given.out.weight.detach(), mean.out.weight.detach(), atol=1e-3)
    assert given.mix.weight.tolist() == [0, 0]


@pytest.mark.slow
def test_a_learned_mix_prefers_the_layer_with_the_signal() -> None:
    probe = train_linear([NOISE, SIGNAL], LABELS, N_CLASSES, learn_mix=True, **FEW)
    assert probe.mix.weight.softmax(0)[1] > 0.8
    assert accuracy([NOISE, SIGNAL], learn_mix=True) > accuracy([NOISE, SIGNAL]) + 0.05


@pytest.mark.slow
def test_tokens_without_a_label_are_ignored() -> None:
    labels = LABELS.copy()
    labels[:400] = -1
    strange = SIGNAL.copy()
    strange[:400] = 1e4
    some = train_linear([strange], labels, N_CLASSES, **FEW)
    rest = train_linear([SIGNAL[400:]], LABELS[400:], N_CLASSES, **FEW)
    np.testing.assert_allclose(some.out.weight.detach(), rest.out.weight.detach(), atol=1e-3)


@pytest.mark.slow
def test_the_classifier_depends_on_the_seed_only() -> None:
    weights = [
        train_linear([SIGNAL], LABELS, N_CLASSES, seed=seed, **FEW).out.weight.detach().numpy() for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert np.abs(weights[0] - weights[2]).max() > 1e-4


@pytest.mark.slow
def test_float16_vectors_are_as_good_as_float32() -> None:
    assert accuracy([SIGNAL.astype(np.float16)]) == pytest.approx(accuracy([SIGNAL]), abs=0.01)
