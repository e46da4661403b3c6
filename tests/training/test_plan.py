"""What a training says of itself before and while it runs: rates, sizes, time."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from elmokit.engine.config import PRESETS
from elmokit.formats.model import PretrainedBiLM
from elmokit.network.bilm import BiLM
from elmokit.network.softmax import FullSoftmax
from elmokit.text.vocabulary import SPECIALS, Vocabulary
from elmokit.text.windows import Window, WindowStream
from elmokit.training.config import TrainingConfig
from elmokit.training.losses import WindowLosses
from elmokit.training.plan import ThroughputMeter, count_evaluations, model_sizes, seconds_per_step, training_plan
from elmokit.training.reports import format_perplexities

CONFIG = TrainingConfig(model=PRESETS["tiny"], batch_size=3, window_length=4, learning_rate=0.5, warmup_ratio=0.1)


def losses_and_window(folder: Path, config: TrainingConfig = CONFIG) -> tuple[WindowLosses, Window]:
    torch.manual_seed(0)
    vocabulary = Vocabulary([*SPECIALS, "the", "cat"])
    bilm, softmax = BiLM(config.model), FullSoftmax(len(vocabulary), config.model.projection_dim)
    bilm.reset_parameters()
    softmax.reset_parameters()
    text = folder / "text.txt"
    text.write_text("the cat\nthe\ncat the the\n" * 9)
    encode = PretrainedBiLM(bilm, "elmokit", softmax=softmax, vocabulary=vocabulary).encode
    stream = WindowStream([text], vocabulary, encode, config.batch_size, config.window_length)
    window = next(stream)
    stream.close()
    return WindowLosses(bilm, softmax, config.n_samples), window


def test_the_rate_warms_up_then_falls_as_its_schedule_says() -> None:
    cosine, trapezoid, constant = (
        dataclasses.replace(CONFIG, schedule=schedule, decay_ratio=0.25)  # type: ignore[arg-type]
        for schedule in ("cosine", "trapezoid", "constant")
    )
    for config in (cosine, trapezoid, constant):
        assert config.learning_rate_at(0.0) == 0.5 * 1e-2
        assert config.learning_rate_at(0.05) == pytest.approx(0.25)
        assert config.learning_rate_at(0.1) == pytest.approx(0.5)
    assert cosine.learning_rate_at(0.55) == pytest.approx(0.5 * (CONFIG.final_ratio + (1 - CONFIG.final_ratio) / 2))
    assert [trapezoid.learning_rate_at(share) for share in (0.3, 0.7, 0.75)] == pytest.approx([0.5, 0.5, 0.5])
    assert trapezoid.learning_rate_at(0.875) == pytest.approx(0.5 * (CONFIG.final_ratio + (1 - CONFIG.final_ratio) / 2))
    assert [config.learning_rate_at(1.0) for config in (cosine, trapezoid)] == pytest.approx(
        [0.5 * CONFIG.final_ratio] * 2
    )
    assert constant.learning_rate_at(1.0) == 0.5
    assert dataclasses.replace(trapezoid, final_ratio=0.0).learning_rate_at(1.0) == 0.0
    # Without a decay, the rate stays, also beyond the end: the length that a resumed run had before.
    without_decay = dataclasses.replace(trapezoid, decay_ratio=0.0)
    assert [without_decay.learning_rate_at(share) for share in (0.5, 1.0, 1.5)] == [0.5] * 3
    shares = [share / 50 for share in range(5, 51)]
    assert all(cosine.learning_rate_at(one) >= cosine.learning_rate_at(other) for one, other in pairwise(shares))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "adagrad", "muon"])
def test_timing_a_step_changes_no_weight_and_no_random_state(optimizer: str, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, optimizer=optimizer, model=dataclasses.replace(CONFIG.model, dropout=0.5))  # type: ignore[arg-type]
    losses, window = losses_and_window(tmp_path, config)
    before = {name: tensor.clone() for name, tensor in losses.state_dict().items()}
    random = torch.get_rng_state()
    assert seconds_per_step(config, losses, window, [losses.bilm.zero_state(config.batch_size)]) > 0
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in losses.parameters())
    for name, tensor in losses.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_sizes_count_every_weight_and_what_the_optimizer_keeps_of_it(tmp_path: Path) -> None:
    losses, _ = losses_and_window(tmp_path)
    sizes = model_sizes(CONFIG, losses)
    assert sizes.n_parameters == sum(parameter.numel() for parameter in losses.bilm.parameters())
    assert sizes.n_softmax_parameters == 5 * (CONFIG.model.projection_dim + 1)
    adagrad = model_sizes(dataclasses.replace(CONFIG, optimizer="adagrad"), losses)
    n_weights = sizes.n_parameters + sizes.n_softmax_parameters
    assert (
        sizes.memory_bytes - adagrad.memory_bytes == 4 * n_weights
    )  # two numbers of Adam's for each, one of Adagrad's
    losses.softmax.requires_grad_(False)
    frozen = model_sizes(CONFIG, losses)
    assert sizes.memory_bytes - frozen.memory_bytes == 4 * 3 * sizes.n_softmax_parameters


def test_a_plan_counts_whole_steps_of_all_processes_and_the_time_of_evaluations() -> None:
    plan, remaining = training_plan(CONFIG, 1000, 2, 0.5), training_plan(CONFIG, 1000, 2, None, 7)
    assert (plan.n_steps, plan.seconds) == (42, 21.0)  # of 2 x 3 x 4 predictions
    assert str(plan) == "1,000 predictions per direction in 42 steps of 12 per process; about 21 s"
    assert str(remaining) == f"resuming after step 7; remaining: {str(plan).removesuffix('; about 21 s')}"
    config = dataclasses.replace(CONFIG, eval_every=20)
    assert training_plan(config, 1000, 2, 0.5, 0, 10.0).seconds == 21.0 + 3 * 10  # after 20, 40 and 42 steps
    assert training_plan(config, 1000, 2, 0.5, 7, 10.0, 3).seconds == 21.0 + (3 + 3) * 10  # after 20, 40 and 49
    assert count_evaluations(20, 40, 20) == 1


def test_a_first_step_or_an_early_evaluation_does_not_multiply_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    meter = ThroughputMeter(100, 3.0)
    now[0] = 2.0
    assert meter.step_done(140, 180, 2) == 2.0 + 2 * 3  # 20 per second, and two evaluations as estimated
    with meter.evaluating():
        now[0] = 10.0
    with meter.paused():
        now[0] = 11.0
    assert meter.rate(140) == 20.0
    now[0] = 13.0
    assert meter.rate(160) == 10.0
    assert meter.step_done(160, 210, 1) == 5.0 + 8.0  # 20 in 2 seconds; an evaluation took 8
    meter, now[0] = ThroughputMeter(0), 73.0  # the first step compiles
    assert meter.step_done(10, 100) == 9 * 60.0  # nothing better is known
    now[0] = 75.0
    assert meter.step_done(20, 100) == 16.0


def test_a_perplexity_of_many_digits_is_printed_short() -> None:
    assert format_perplexities((96.314, 1e9 - 1, 1.026e88, float("inf"))) == "96.31 / 999999999.00 / 1.03e+88 / inf"
