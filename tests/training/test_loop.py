"""Training learns, logs and keeps checkpoints; an interrupted run resumes with the same result."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmokit.engine.architecture import PRESETS, BiLMConfig
from elmokit.errors import TrainingError
from elmokit.formats.folder import load_folder
from elmokit.lm.perplexity import Perplexity
from elmokit.network.bilm import BiLM, BiLMState
from elmokit.network.softmax_module import FullSoftmax
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.text import Text
from elmokit.text.vocabulary import SPECIALS, Vocabulary
from elmokit.training import loop
from elmokit.training.bilm_run import TrainingSetup
from elmokit.training.losses import WindowLosses
from elmokit.training.reports import TrainingCallback, TrainingSpeed
from elmokit.training.shards import ReadingOrder, SentenceBlocks
from elmokit.training.training_config import TrainingConfig
from elmokit.training.training_run import Run
from elmokit.training.training_state import TrainingState
from elmokit.training.training_text import TrainingCorpus
from elmokit.training.windows import WindowStream
from tests.conftest import random_model
from tests.helpers.killing import Killed
from tests.helpers.tiny_training import Reports, assert_same_weights, kill_after, newest_checkpoint, train_in, weights
from tests.helpers.weights import same_weights

TEXT = "the cat sat on the mat .\nthe dog ran .\n\na cat and a dog ran on .\nthe mat sat .\n" * 4
VOCABULARY = Vocabulary([*SPECIALS, *sorted({token for token in TEXT.split() if token != "mat"})])
PLAIN: dict[str, Any] = {
    "n_samples": 0,
    "precision": "float32",
    "ema_decay": 0.0,
    "passage_length": 1,
    "lower_case": 0.0,
}
"""What makes a training of a few steps comparable with one that is written out."""
CONFIG = TrainingConfig(
    model=dataclasses.replace(PRESETS["tiny"], dropout=0.2),
    tokens=6 * 4 * 5,
    batch_size=4,
    window_length=5,
    eval_every=3,
    save_every=2,
    learning_rate=1e-2,
    **PLAIN,
)
RECIPE = dataclasses.replace(CONFIG, n_samples=4, precision="bfloat16", ema_decay=0.9, passage_length=3, lower_case=0.2)
AS_BILM_TF = dataclasses.replace(CONFIG, recipe="bilm-tf", n_samples=4)


def corpus_of(folder: Path, held_out: list[list[str]] | None = None) -> TrainingCorpus:
    text = folder / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    sentences = [line.split() for line in TEXT.splitlines() if line]
    n_tokens = sum(map(len, sentences))
    return TrainingCorpus([text], sentences if held_out is None else held_out, VOCABULARY, len(sentences), n_tokens)


def run_training(
    folder: Path,
    config: TrainingConfig = CONFIG,
    report: TrainingCallback = lambda _: None,
    initial: PretrainedBiLM | None = None,
) -> Perplexity:
    """Train on a toy text, in the directory next to it."""
    folder.mkdir(exist_ok=True)
    setup = TrainingSetup(config, corpus_of(folder), {"corpus": "toy"}, initial=initial)
    return train_in(folder / "run", setup, report)


def trained(folder: Path) -> PretrainedBiLM:
    """The model of the last checkpoint."""
    return newest_checkpoint(folder / "run").model()


def notices_of(folder: Path, config: TrainingConfig = CONFIG) -> list[str]:
    """Train, and return what was said."""
    reports = Reports()
    run_training(folder, config, reports)
    return reports.notices


@pytest.mark.slow
def test_training_brings_perplexity_down_and_keeps_the_best_model(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, tokens=60 * 20, eval_every=60, save_every=60)
    result = run_training(tmp_path, config)
    assert result.mean < len(VOCABULARY) / 3
    stored = load_folder(tmp_path / "run/model")
    assert stored.card["corpus"] == "toy"
    assert stored.card["held_out"]["n_predictions"] == result.n_predictions
    assert stored.vocabulary.words == VOCABULARY.words


@pytest.mark.parametrize("kind", ["word input", "forward only", "one layer"])
def test_every_kind_of_model_trains(kind: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "word input": {"char_cnn": None, "n_words": len(VOCABULARY)},
        "forward only": {"bidirectional": False},
        "one layer": {"n_layers": 1},
    }[kind]
    model: BiLMConfig = dataclasses.replace(CONFIG.model, **changes)
    config = dataclasses.replace(CONFIG, model=model)
    result = run_training(tmp_path, config)
    assert len(result.mean_nats) == model.n_directions
    assert math.isfinite(result.mean)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_lines", "config"),
    [(4, CONFIG), (1, RECIPE), (3, RECIPE), (3, AS_BILM_TF)],
)
@pytest.mark.usefixtures("rare_evaluations")
def test_a_resumed_run_ends_with_the_numbers_of_an_uninterrupted_one(
    n_lines: int, config: TrainingConfig, tmp_path: Path
) -> None:
    config = dataclasses.replace(config, log_every=1)
    straight = run_training(tmp_path / "straight", config)

    with pytest.raises(Killed):
        run_training(tmp_path / "stopped", config, kill_after(n_lines))
    torch.manual_seed(999)  # a new process has another random state
    resumed = run_training(tmp_path / "stopped", config)
    steps = [json.loads(line)["n_steps"] for line in (tmp_path / "stopped/run/metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert resumed.mean_nats == straight.mean_nats
    assert_same_weights(trained(tmp_path / "stopped"), trained(tmp_path / "straight"))


@pytest.mark.usefixtures("rare_evaluations")
def test_the_time_left_includes_evaluations_and_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def lasts(owner: type, name: str, seconds: float) -> None:
        function = getattr(owner, name)

        def slowly(*args: object) -> object:
            now[0] += seconds
            return function(*args)

        monkeypatch.setattr(owner, name, slowly)

    lasts(loop._TrainingLoop, "_step", 1.0)
    lasts(loop._TrainingLoop, "_evaluate", 10.0)
    lasts(TrainingState, "save", 100.0)
    monkeypatch.setattr(loop, "N_WARM_STEPS", 4)
    config = dataclasses.replace(CONFIG, tokens=8 * 4 * 5, eval_every=3, save_every=5, log_every=1)
    reports = Reports()
    run_training(tmp_path, config, reports)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["n_steps"] for line in lines] == list(range(1, 9))
    # Evaluations after steps 3, 6 and 8, and checkpoints after 5 and 8. How long they take is not known at first.
    assert [line["seconds_left"] for line in lines] == [7.0, 6.0, 25.0, 24.0, 23.0, 112.0, 111.0, 0.0]
    assert [report for report in reports if isinstance(report, TrainingSpeed)] == [TrainingSpeed(4, 20, 24.0)]


def test_a_run_without_a_checkpoint_opens_with_the_model_and_optimizer_that_it_starts_from(tmp_path: Path) -> None:
    initial = random_model().replace(vocabulary=None, softmax=None)
    sums = {"sum/bilm.token_layer.char_embedding.weight": torch.ones(2)}
    for name, model, optimizer in (("both", initial, sums), ("model", initial, None), ("neither", None, None)):
        setup = TrainingSetup(CONFIG, corpus_of(tmp_path), initial=model, initial_optimizer=optimizer)
        with Run(tmp_path / name, {}) as run:
            setup.write(run)
        opened = TrainingSetup.open(tmp_path / name)
        assert (opened.initial is None) == (model is None)
        if opened.initial is not None:
            assert same_weights(opened.initial, initial)
        assert (opened.initial_optimizer is None) == (optimizer is None)
        for tensor, values in (opened.initial_optimizer or {}).items():
            assert torch.equal(values, sums[tensor])


@pytest.mark.usefixtures("rare_evaluations")
def test_every_line_of_the_log_is_json_with_both_losses(tmp_path: Path) -> None:
    reports = Reports()
    run_training(tmp_path, dataclasses.replace(CONFIG, log_every=2), reports)
    logged = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["n_steps"] for line in logged] == [2, 3, 4, 6] == [line.n_steps for line in reports.lines]
    assert all(len(line["losses"]) == 2 and line["losses"][0] > 0 for line in logged)
    assert [line["held_out"] is None for line in logged] == [True, False, True, False]
    assert logged[-1]["fraction"] == 1.0


@pytest.mark.parametrize(("n_steps", "eval_every", "expected"), [(11, 1000, [2, 4, 6, 8, 10, 11]), (3, 2, [1, 2, 3])])
def test_a_short_training_is_evaluated_five_times_and_not_stopped_early(
    n_steps: int, eval_every: int, expected: list[int], tmp_path: Path
) -> None:
    config = dataclasses.replace(CONFIG, tokens=n_steps * 20, eval_every=eval_every, log_every=1000, patience=1)
    reports = Reports()
    run_training(tmp_path, dataclasses.replace(config, learning_rate=1e-9), reports)
    assert [line.n_steps for line in reports.lines] == expected
    assert all(line.held_out for line in reports.lines)
    assert not reports.notices  # such as of a training that diverges


@pytest.mark.usefixtures("rare_evaluations")
def test_a_nan_loss_stops_and_says_what_to_change(tmp_path: Path) -> None:
    config = dataclasses.replace(AS_BILM_TF, learning_rate=1e30, max_grad_norm=1e30)
    for save_every, advice in ((1000, "There is no checkpoint yet"), (1, "step-00000001.model")):
        with pytest.raises(TrainingError, match=rf"step 2, .*learning_rate.*{advice}"):
            run_training(tmp_path / str(save_every), dataclasses.replace(config, save_every=save_every))


@pytest.mark.slow
def test_what_a_run_is_resumed_with_is_said(tmp_path: Path) -> None:
    done = "Training is already complete (120 predictions). To continue, increase epochs or tokens."
    assert not notices_of(tmp_path / "run")
    assert notices_of(tmp_path / "run") == [done]
    assert notices_of(tmp_path / "run", dataclasses.replace(CONFIG, tokens=60)) == [done]
    assert not notices_of(tmp_path / "run", dataclasses.replace(CONFIG, tokens=12 * 4 * 5))
    harmful = dataclasses.replace(AS_BILM_TF, learning_rate=9.0, patience=1, eval_every=1, tokens=2000)
    assert all("the training diverges" in notice for notice in notices_of(tmp_path / "worse", harmful))
    (said,) = notices_of(tmp_path / "worse", harmful)
    assert "stopped after 1 evaluations without improvement" in said


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_bfloat16_is_used_where_the_processor_has_it(
    has_bfloat16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.training.losses.multiplies_bfloat16", lambda: has_bfloat16)
    short = dataclasses.replace(CONFIG, tokens=CONFIG.predictions_per_step)
    rounded = run_training(tmp_path / "rounded", dataclasses.replace(short, precision="bfloat16"))
    exact = run_training(tmp_path / "exact", short)
    assert (rounded.mean_nats != exact.mean_nats) == has_bfloat16


@pytest.mark.slow
def test_bfloat16_learns_as_float32_does(tmp_path: Path) -> None:
    sizes = dataclasses.replace(PRESETS["tiny"], dropout=0.0)
    found = []
    for precision in ("float32", "bfloat16"):
        # Dropout draws other numbers in each precision.
        intervals = {"eval_every": 30, "save_every": 30}
        config = dataclasses.replace(CONFIG, tokens=30 * 20, precision=precision, model=sizes, **intervals)
        found.append(run_training(tmp_path / precision, config).mean_nats)
    assert found[1] == pytest.approx(found[0], rel=0.02)


def test_a_step_of_several_windows_takes_the_mean_of_their_gradients(tmp_path: Path) -> None:
    sizes = dataclasses.replace(CONFIG.model, dropout=0.0)
    alone: dict[str, Any] = {"recipe": "bilm-tf", "max_grad_norm": 1e9, "n_samples": 0}
    config = dataclasses.replace(CONFIG, model=sizes, gradient_accumulation_steps=3, tokens=3 * 4 * 5, **alone)
    run_training(tmp_path, config)
    torch.manual_seed(config.seed)
    bilm, softmax = BiLM(sizes), FullSoftmax(len(VOCABULARY), sizes.projection_dim)
    bilm.reset_parameters()
    softmax.reset_parameters()
    encode = PretrainedBiLM.from_modules(bilm, softmax, vocabulary=VOCABULARY).encode
    stream = WindowStream(
        [SentenceBlocks(corpus_of(tmp_path).text, ReadingOrder(), reader) for reader in range(2)],
        VOCABULARY,
        encode,
        4,
        5,
    )
    losses, state = WindowLosses(bilm, softmax, 0), bilm.zero_state(4)
    for _, window in zip(range(3), stream, strict=False):
        parts = [torch.from_numpy(part) for part in (window.tokens, window.inputs, window.targets)]
        both, hidden, cell = losses(*parts, *state)
        (both.mean() * 5 / 3).backward()  # times the window length, as in bilm-tf
        state = BiLMState(hidden, cell)
    stream.close()
    tensors = weights(trained(tmp_path))
    for name, parameter in losses.named_parameters():
        assert parameter.grad is not None
        stepped = parameter - config.learning_rate * parameter.grad / (1 + parameter.grad**2).sqrt()
        torch.testing.assert_close(tensors[name.split(".", 1)[1]], stepped.detach(), atol=1e-6, rtol=1e-5)


def test_fine_tuning_starts_from_the_start_state_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_training(tmp_path / "first")
    initial = load_folder(tmp_path / "first/run/model")
    expected = torch.from_numpy(initial.start_state.repeat_row(4).cell.copy())
    starts: list[torch.Tensor] = []
    forward = WindowLosses.forward

    def recorded(self: WindowLosses, *arguments: torch.Tensor) -> Any:
        starts.append(arguments[4].clone())
        return forward(self, *arguments)

    monkeypatch.setattr(WindowLosses, "forward", recorded)
    run_training(tmp_path / "second", AS_BILM_TF, initial=initial)  # ours starts sentences from zero
    assert torch.equal(starts[0], expected)


@pytest.mark.parametrize("config", [CONFIG, AS_BILM_TF])
def test_rows_restart_from_zero_at_sentences_but_for_bilm_tf(
    config: TrainingConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[torch.Tensor] = []
    forward = WindowLosses.forward

    def recorded(self: WindowLosses, *arguments: torch.Tensor) -> Any:
        hidden, cell = (part.abs().amax(dim=(1, 3)) for part in arguments[3:5])  # (directions, batch)
        starts.append(torch.stack([hidden, cell], dim=-1))
        return forward(self, *arguments)

    monkeypatch.setattr(WindowLosses, "forward", recorded)
    run_training(tmp_path, config)
    encode = load_folder(tmp_path / "run/model").encode
    text, n_readers = Text(tmp_path / "text.txt"), 1 if config.same_order else 2
    blocks = [SentenceBlocks(text, ReadingOrder(), reader) for reader in range(n_readers)]
    with contextlib.closing(WindowStream(blocks, VOCABULARY, encode, 4, 5)) as stream:
        begins = torch.from_numpy(np.stack([next(stream).begins for _ in range(6)]))
    states = torch.stack(starts[-6:])
    assert begins[0].all()
    assert not begins[1:].all(), "some rows are within a sentence"
    assert (states[1:][~begins[1:]] > 0).all()
    assert (states[begins] == 0).all() == config.is_modern


def test_frozen_layers_keep_their_weights_and_the_others_learn(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, frozen_layers=(0, 2), save_every=1, tokens=CONFIG.predictions_per_step)
    run_training(tmp_path, config)
    before = weights(trained(tmp_path))
    run_training(tmp_path, dataclasses.replace(config, tokens=100))
    after = weights(trained(tmp_path))
    for name, tensor in before.items():
        frozen = name.startswith("token_layer") or ".layers.1." in name
        assert torch.equal(tensor, after[name]) == frozen, name


def test_out_of_memory_says_what_to_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr("elmokit.training.losses.WindowLosses.forward", full)
    with pytest.raises(TrainingError, match=r"memory .* 4 x 5.*batch_size.* There is no checkpoint yet"):
        run_training(tmp_path)


@pytest.mark.usefixtures("rare_evaluations")
def test_the_best_model_has_the_averaged_weights(tmp_path: Path) -> None:
    run_training(tmp_path, dataclasses.replace(RECIPE, save_every=3))
    best = load_folder(tmp_path / "run/model")
    checkpoint = tmp_path / "run/checkpoints" / f"step-{best.card['n_steps']:08d}"
    averaged, trained = (load_folder(checkpoint / name).arrays for name in ("average", "model"))
    for name, array in best.arrays.items():
        assert np.array_equal(array, averaged[name]), name
    assert not np.array_equal(averaged["directions.0.layers.0.weight"], trained["directions.0.layers.0.weight"])
