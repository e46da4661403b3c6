from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from elmokit.embedding.elmo import Elmo
from elmokit.errors import ConfigError, TextError
from elmokit.evaluation import pos
from elmokit.evaluation.pos import LinearSettings, PosRow, predict_linear, probe_pos, train_linear
from elmokit.evaluation.tagged import TaggedSentence
from elmokit.pretrained.model import PretrainedBiLM

pytestmark = pytest.mark.usefixtures("short_probes")

TRAIN = [
    TaggedSentence(["the", "cat", "sat", "."], ["DET", "NOUN", "VERB", "PUNCT"]),
    TaggedSentence(["the", "dog", "ran", "on"], ["DET", "NOUN", "VERB", None]),
    TaggedSentence(["the", "run"], ["DET", "NOUN"]),
]
TEST = [TaggedSentence(["the", "run", "sat", "on", "!"], ["DET", "VERB", "VERB", None, "SYM"])]
SHORT = LinearSettings(epochs=1)


@pytest.fixture
def elmo(model: PretrainedBiLM) -> Elmo:
    return Elmo(model)


@pytest.mark.slow
def test_every_layer_their_mean_and_their_mix_are_scored(elmo: Elmo) -> None:
    result = probe_pos(elmo, TRAIN, TRAIN, layers=[2, 0], seeds=(0, 1), settings=SHORT)
    assert [row.name for row in result.rows] == ["0", "2", "average", "mix"]
    assert [row.accuracies for row in result.rows] == [[1.0, 1.0]] * 4  # ten words are learnt by heart
    assert result.rows[-1].weights == pytest.approx([1 / 2] * 2, abs=0.3)
    assert sum(result.rows[-1].weights or []) == pytest.approx(1)
    assert PosRow("0", [0.5, 0.7]).accuracy == pytest.approx(0.6)
    assert PosRow("0", [0.5, 0.7]).deviation == pytest.approx(np.sqrt(0.02))
    assert (result.n_train_tokens, result.n_test_tokens, result.n_tags) == (9, 9, 4)


def test_words_without_a_tag_are_ignored_and_unknown_tags_are_wrong(elmo: Elmo) -> None:
    result = probe_pos(elmo, TRAIN, TEST, layers=[0], settings=SHORT)
    assert (result.n_test_tokens, result.n_unknown_tags) == (4, 1)
    assert result.notes()[-1] == "The tags of 1 test word do not occur in the training text and count as wrong."
    assert result.rows[0].accuracy <= 0.75
    # the: DET, right; run: NOUN, wrong; sat: VERB, right; "!": the most frequent tag of all, wrong
    assert result.baseline == 0.5


@pytest.mark.slow
def test_the_control_task_gives_a_word_one_tag_everywhere(elmo: Elmo) -> None:
    result = probe_pos(elmo, TRAIN, TRAIN, layers=[0], control=True, settings=SHORT)
    (row,) = result.rows
    assert row.controls == [1.0]  # layer 0 tells words apart, so it learns any tag of them by heart
    assert row.selectivity == 0.0


UNTAGGED = [TaggedSentence(["Go"], [None])]
REFUSED: list[tuple[Callable[[Elmo], object], type[Exception], str]] = [
    (lambda elmo: probe_pos(elmo, [], TEST), TextError, "The probe's training text has no tagged word"),
    (lambda elmo: probe_pos(elmo, TRAIN, UNTAGGED), TextError, "The probe's test text has no tagged word"),
    (lambda elmo: probe_pos(elmo, TRAIN, TEST, layers=[3]), ConfigError, "Layer 3 does not exist"),
    (lambda elmo: probe_pos(elmo, TRAIN, TEST, layers=[]), ConfigError, "layers"),
    (lambda elmo: probe_pos(elmo, TRAIN, TEST, seeds=()), ConfigError, "seeds"),
    (lambda _: LinearSettings(epochs=0), ConfigError, "epochs .*0"),
    (lambda _: LinearSettings(learning_rate=0), ConfigError, "learning_rate .*0"),
]


@pytest.mark.parametrize(("call", "error", "mentioned"), REFUSED, ids=range(len(REFUSED)))
def test_invalid_probes_are_refused(
    elmo: Elmo, call: Callable[[Elmo], object], error: type[Exception], mentioned: str
) -> None:
    with pytest.raises(error, match=mentioned):
        call(elmo)


DRAW = np.random.default_rng(0)
N_TOKENS, DIM, N_CLASSES = 1200, 8, 3
NOISE = DRAW.normal(size=(N_TOKENS, DIM)).astype(np.float32)
SIGNAL = DRAW.normal(size=(N_TOKENS, DIM)).astype(np.float32)
LABELS = (SIGNAL @ DRAW.normal(size=(DIM, N_CLASSES))).argmax(axis=1)
FEW = LinearSettings(epochs=16, batch_size=64, learning_rate=0.03)


def accuracy(layers: list[np.ndarray], learn_mix: bool = False, n_train: int = 800) -> float:
    probe = train_linear([layer[:n_train] for layer in layers], LABELS[:n_train], N_CLASSES, learn_mix, settings=FEW)
    return float((predict_linear(probe, [layer[n_train:] for layer in layers]) == LABELS[n_train:]).mean())


@pytest.mark.slow
def test_a_linear_signal_of_any_scale_offset_and_dtype_is_learned_and_noise_is_not() -> None:
    for signal in (SIGNAL, SIGNAL.astype(np.float16), SIGNAL * np.geomspace(0.001, 1000, DIM, dtype=np.float32) + 5):
        assert accuracy([signal]) > 0.95
    assert accuracy([NOISE]) < 0.5


@pytest.mark.slow
def test_a_learned_mix_prefers_the_layer_with_the_signal() -> None:
    probe = train_linear([NOISE, SIGNAL], LABELS, N_CLASSES, learn_mix=True, settings=FEW)
    assert probe.mix.weight.softmax(0)[1] > 0.8
    assert accuracy([NOISE, SIGNAL], learn_mix=True) > accuracy([NOISE, SIGNAL]) + 0.05


@pytest.mark.slow
def test_the_classifier_depends_on_the_seed_only() -> None:
    weights = [
        train_linear([SIGNAL], LABELS, N_CLASSES, seed=seed, settings=FEW).out.weight.detach().numpy()
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert np.abs(weights[0] - weights[2]).max() > 1e-4


def test_an_epoch_reads_each_token_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[list[int]] = []

    def recorded(layers: pos.LayerRows, chosen: NDArray[np.int64]) -> Tensor:
        batches.append(chosen.tolist())
        return rows_of(layers, chosen)

    rows_of = pos._rows
    monkeypatch.setattr(pos, "_rows", recorded)
    train_linear([SIGNAL], LABELS, N_CLASSES, settings=replace(FEW, epochs=4))
    steps = batches[-76:]  # four epochs of 19 batches; the mean was computed before
    epochs = [steps[first : first + 19] for first in range(0, 76, 19)]
    assert [sorted(chain.from_iterable(epoch)) for epoch in epochs] == [list(range(N_TOKENS))] * 4
