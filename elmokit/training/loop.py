"""The training loop of a biLM: truncated backpropagation through time (TBPTT) over a stream of windows.

Each step reads the next window of every row, starting from the LSTM state at the end of the previous window. The state
is passed on without its gradient, so gradients end at the window's edge while the context does not.

A resumed run ends with the same numbers as an uninterrupted one, on the CPU to the last bit. So everything that affects
a step is in the checkpoint, including the losses summed for the next log line, and no random numbers are drawn at times
that depend on the clock.

The model is evaluated as later by ``elmokit evaluate perplexity``: each sentence starts from the model's start state,
the mean state after a sentence. It depends on the weights, so it is calibrated before each evaluation and saved with
the model. The calibration continues from the LSTM state of the training instead of zero. Training passes its state on
indefinitely, and a model may learn to rely on cells that are always saturated. From a zero state, such cells can reach
another value and stay there: the perplexity of a small model was then 32,000 instead of 88, after any amount of text.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elmokit.embedding.computer import Computer
from elmokit.embedding.start_state import STATE_FACT, calibrated
from elmokit.errors import TrainingError, is_out_of_memory
from elmokit.formats.folder import RUN_MODEL, is_model_folder, read_card, save_folder
from elmokit.lm.perplexity import Perplexity, perplexity
from elmokit.network.bilm import BiLMState
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.text import Text
from elmokit.training.bilm_run import TrainingSetup
from elmokit.training.distributed import World
from elmokit.training.losses import step_autocast
from elmokit.training.optimizers import clip_gradients, set_learning_rate
from elmokit.training.reports import (
    ModelSizes,
    TrainingCallback,
    TrainingNotice,
    TrainingProgress,
    TrainingSpeed,
    format_perplexities,
    ignore,
)
from elmokit.training.results import LOWER_RATE
from elmokit.training.training_run import Run, StopRequest, TrainingInterrupted, checkpoints, stop_requests
from elmokit.training.training_state import TrainingState, new_or_restored_state
from elmokit.training.training_text import TrainingCorpus
from elmokit.training.windows import Window

EVALUATION, CHECKPOINT = "evaluation", "checkpoint"
"""Why training pauses."""


class ThroughputMeter:
    """Speed and remaining time of training, in any unit, such as predictions.

    The estimate ignores the first step once there is another one, because it allocates memory and compiles.
    """

    def __init__(self, n_done: int) -> None:
        self._started = self._last_time = time.monotonic()
        self._n_at_start = self._n_last = n_done
        self._is_warm = False
        self._pauses: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def paused(self, reason: str) -> Iterator[None]:
        """Exclude the time of the block, such as an evaluation, from the speed and from ``step_done``."""
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        self._last_time += seconds
        self._started += seconds
        self._pauses.setdefault(reason, []).append(seconds)

    def pauses_left(self, reason: str, n_left: int) -> float:
        """Estimate the seconds of ``n_left`` more pauses for a reason; 0 if there has been none yet."""
        past = self._pauses.get(reason)
        return 0.0 if past is None else n_left * sum(past) / len(past)

    def rate(self, n_done: int) -> float:
        """Return the units per second since the last call."""
        now = time.monotonic()
        rate = (n_done - self._n_last) / max(now - self._last_time, 1e-9)
        self._last_time, self._n_last = now, n_done
        return rate

    def step_done(self, n_done: int, total: int) -> float:
        """Note that a step is done, and estimate the seconds to ``total`` without pauses."""
        now = time.monotonic()
        seconds = max(0, total - n_done) * (now - self._started) / max(1, n_done - self._n_at_start)
        if not self._is_warm:
            self._is_warm, self._started, self._n_at_start = True, now, n_done
        return seconds


CALIBRATION_SENTENCES = 32  # more would change the perplexity by 0.01 %, and slow down each evaluation
CALIBRATION_POOL = 1000  # sentences at the start of the files, from which they are chosen at equal distances
CALIBRATION_TOKENS = 200  # maximum per sentence, because some texts have a document per line
CALIBRATION_SHARDS = 16


class HeldOutEvaluation:
    """Calibrates models on the training text of a corpus, and evaluates them on its held-out text."""

    def __init__(self, corpus: TrainingCorpus) -> None:
        self._corpus = corpus

    def calibrated(self, computer: Computer, lstm_state: BiLMState) -> Computer:
        """Return the model, not copied, with the start state for its weights; ``lstm_state`` can have any rows."""
        at_end = computer.model.replace(start_state=lstm_state.mean_row().numpy())
        model = calibrated(computer.with_model(at_end), self._calibration_sentences, "the training text")
        return computer.with_model(model)

    def perplexity(self, computer: Computer) -> Perplexity:
        """Compute the perplexity of a model with its start state on the held-out text."""
        return perplexity(computer, self._corpus.held_out)

    @cached_property
    def _calibration_sentences(self) -> list[list[str]]:
        return _calibration_sentences(self._corpus.text)


def _calibration_sentences(text: Text) -> list[list[str]]:
    """Choose sentences among the first ones of some files of the training text."""
    sampled = text.files[:: -(-len(text.files) // CALIBRATION_SHARDS)]
    n_each = -(-CALIBRATION_POOL // len(sampled))
    pool: list[list[str]] = []
    for file in sampled:
        first = islice(replace(text, paths=file).token_lists(), n_each)
        pool += [tokens[:CALIBRATION_TOKENS] for tokens in first]
    n_chosen = min(CALIBRATION_SENTENCES, len(pool))
    return [pool[number * len(pool) // n_chosen] for number in range(n_chosen)]


MIN_EVALUATIONS = 5
"""Minimum number of evaluations in a training run, so one that is stopped halfway has a model."""
ABOVE_UNIFORM, ABOVE_BEST = 1.5, 2.0
"""Training diverges if the perplexity is this many times the number of words, which is about that of an untrained
model, or this many times the best one."""
N_WARM_STEPS = 20
"""Number of steps in this process after which the speed is reported."""


def run_training(
    setup: TrainingSetup,
    run: Run,
    report: TrainingCallback = ignore,
    *,
    world: World = World(),  # noqa: B008 (immutable)
    device: torch.device | str = "cpu",
) -> Perplexity:
    """Train a biLM in a run directory, or resume an existing run; return the last held-out perplexity.

    Args:
        setup: What to start from. For a run that is resumed, the settings must be its own, apart from ``MAY_CHANGE``.
        run: The run, which the main process has entered. In others, it has been told what is committed: on a network
            file system, they may not see the newest checkpoint yet.
        report: Called in the main process with sizes, with each line of the log, and with notices.
        world: The processes that train together. Each calls this function.
        device: Where to train.

    Raises:
        TextError: There is too little text.
        TrainingError: The loss is not a number; or memory is too small. The last checkpoint stays.
        TrainingInterrupted: The user pressed Ctrl-C or sent SIGTERM. A checkpoint was saved.
    """
    config = setup.config
    setup.corpus.check(config, world.size)
    if not world.is_main_process:
        report = ignore
    try:
        state, change = new_or_restored_state(setup, run.committed, world, torch.device(device))
        with contextlib.closing(state.stream), stop_requests() as stop:
            loop = _TrainingLoop(setup, run, state, world, report)
            if change:
                report(TrainingNotice(change))
            loop.prepare()
            return loop.run_to_end(stop)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            f"Out of memory with windows of {config.batch_size} x {config.window_length}. Lower batch_size, "
            f"n_samples or the model's sizes. {_restart_advice(run)}"
        ) from error


class _TrainingLoop:
    """One process's share of a training."""

    def __init__(
        self, setup: TrainingSetup, run: Run, state: TrainingState, world: World, report: TrainingCallback
    ) -> None:
        self.setup, self.run, self.state, self.world, self.report = setup, run, state, world, report
        self.config, self.corpus = setup.config, setup.corpus
        self.step_losses: nn.Module = state.losses
        if world.size > 1:
            self.step_losses = DistributedDataParallel(
                state.losses,
                device_ids=[state.device.index or world.local_rank] if state.device.type == "cuda" else None,
                # The softmax of a student that only learns layers gets no gradient.
                find_unused_parameters=self.config.distillation is not None,
            )
        self.evaluation = HeldOutEvaluation(setup.corpus)
        self.evaluated: PretrainedBiLM | None = None
        """In the main process: the last evaluated model, with its start state."""
        self.is_diverging = False
        """Whether the last evaluation was far worse than that of an untrained model, or than the best."""
        self.evaluates_first = setup.initial is not None and not state.counters.n_steps
        self.before: tuple[float, ...] | None = None
        """The held-out perplexity before a fine-tuning: forward, backward."""
        if not self.evaluates_first and is_model_folder(run.folder / RUN_MODEL):
            # It was evaluated once, and the cards of all best models have it.
            self.before = read_card(run.folder / RUN_MODEL).get("held_out_perplexity_before")
        self.n_total = setup.corpus.length(self.config)
        """The length of the training in predictions per direction."""
        n_steps = -(-self.n_total // self.predictions_per_step)
        self.eval_every = max(1, min(self.config.eval_every, n_steps // MIN_EVALUATIONS))

    @property
    def predictions_per_step(self) -> int:
        """Predictions per direction of one optimizer step in all processes."""
        return self.config.predictions_per_step * self.world.size

    def prepare(self) -> None:
        """Report the model's size, and whether training is already complete."""
        losses = self.state.losses
        self.report(ModelSizes(_n_parameters(losses.bilm), _n_parameters(losses.softmax)))
        if self._stopped_early():
            self._notice(
                f"The run stopped after {self.config.patience} evaluations without improvement. To continue, increase "
                "patience or set it to 0."
            )
        elif self._is_complete():
            self._notice(
                f"Training is already complete ({self.state.counters.n_predictions:,} predictions). To continue, "
                "increase epochs or tokens."
            )

    def _notice(self, message: str) -> None:
        self.report(TrainingNotice(message))

    def _is_complete(self) -> bool:
        """Whether the training has reached its length."""
        return self.state.counters.n_predictions >= self.n_total

    def _stopped_early(self) -> bool:
        return 0 < self.config.patience <= self.state.counters.n_worse

    def _is_over(self) -> bool:
        return self._is_complete() or self._stopped_early()

    def _evaluates_now(self) -> bool:
        return self._is_complete() or self.state.counters.n_steps % self.eval_every == 0

    def _n_steps_left(self) -> int:
        n_predictions = max(0, self.n_total - self.state.counters.n_predictions)
        return -(-n_predictions // self.predictions_per_step)

    def run_to_end(self, stop: StopRequest) -> Perplexity:
        """Train until the length is reached or early stopping ends it, and return the last held-out perplexity."""
        counters = self.state.counters
        meter, n_first = ThroughputMeter(counters.n_predictions), counters.n_steps
        result = None
        if self.evaluates_first:
            with meter.paused(EVALUATION):
                result = self._evaluate_and_keep_best()
        while not self._is_over():
            # The schedule is in predictions instead of steps, so it does not depend on the batch size or the number of
            # processes.
            learning_rate = self.config.learning_rate_at(counters.n_predictions / self.n_total)
            gradient_norm = self._step(learning_rate)
            new_result = None
            if self._evaluates_now():
                with meter.paused(EVALUATION):
                    new_result = result = self._evaluate_and_keep_best()
            seconds_left = self._seconds_left(meter)
            if new_result is not None or counters.n_steps % self.config.log_every == 0:
                self._log(learning_rate, gradient_norm, meter, seconds_left, new_result)
            if counters.n_steps == n_first + N_WARM_STEPS and not self._is_complete():
                self.report(TrainingSpeed(self._n_steps_left(), self.predictions_per_step, seconds_left))
            # The log is written before the checkpoint, because it is part of the same commit. The processes agree on
            # whether to stop, because each may get its signal during another step, and all save together.
            stops = self.world.any(stop.is_made, self.state.device)
            if stops or self._is_over() or counters.n_steps % self.config.save_every == 0:
                with meter.paused(CHECKPOINT):
                    self.state.save(self.run, self.world, self._calibrated)
            if stops:
                raise TrainingInterrupted(f"Stopped after step {counters.n_steps:,}, and saved a checkpoint.")
        if result is None:  # a run that was complete when it was resumed takes no step
            result = self._evaluate()
        return result

    def _seconds_left(self, meter: ThroughputMeter) -> float:
        """Note that a step is done, and estimate the remaining time with its evaluations and checkpoints."""
        seconds = meter.step_done(self.state.counters.n_predictions, self.n_total)
        for reason, every in ((EVALUATION, self.eval_every), (CHECKPOINT, self.config.save_every)):
            seconds += meter.pauses_left(reason, self._n_times_left(every))
        return seconds

    def _n_times_left(self, every: int) -> int:
        """Count the steps left after which something is done that is done every so many steps and after the last."""
        n_steps, n_left = self.state.counters.n_steps, self._n_steps_left()
        last_step = n_steps + n_left
        n_times = last_step // every - n_steps // every
        if n_left and last_step % every:
            n_times += 1
        return n_times

    def _log(
        self,
        learning_rate: float,
        gradient_norm: float,
        meter: ThroughputMeter,
        seconds_left: float,
        result: Perplexity | None,
    ) -> None:
        """Write and report a log line, with the held-out perplexity if the step ended with an evaluation."""
        counters = self.state.counters
        held_out = unknown_ratio = None
        if result is not None:
            held_out, unknown_ratio = result.per_direction, result.unknown_ratio
        progress = TrainingProgress(
            n_steps=counters.n_steps,
            n_predictions=counters.n_predictions,
            fraction=min(1.0, counters.n_predictions / self.n_total),
            epoch=counters.n_predictions / self.corpus.n_predictions,
            tokens_per_second=meter.rate(counters.n_predictions),
            seconds_left=seconds_left,
            learning_rate=learning_rate,
            gradient_norm=gradient_norm,
            losses=self._mean_losses(),
            held_out=held_out,
            held_out_unknown_ratio=unknown_ratio,
        )
        if self.world.is_main_process:
            self.run.log(asdict(progress))
        self.report(progress)

    def _with_card(self, model: PretrainedBiLM, facts: Mapping[str, Any]) -> PretrainedBiLM:
        """Return the model with a card about the training, its start state, and more facts."""
        of_state = {name: fact for name, fact in model.card.items() if name == STATE_FACT}
        return model.replace(card={**self.setup.card, **of_state, **facts})

    def _step(self, learning_rate: float) -> float:
        """Take one optimizer step and return the global norm of the gradient before clipping."""
        config, state, counters = self.config, self.state, self.state.counters
        # In each step, because evaluation switches dropout off.
        state.losses.train()
        for index in range(config.gradient_accumulation_steps):
            is_last = index == config.gradient_accumulation_steps - 1
            with contextlib.nullcontext() if is_last else _without_sync(self.step_losses):
                losses = self._window(next(state.stream))
            counters.add(losses)
        norm = clip_gradients(state.trained_parameters().values(), config.max_grad_norm)
        assert norm is not None
        # Checked before the update, so weights and later checkpoints stay free of NaN.
        if not torch.isfinite(torch.tensor([norm, *losses])).all():
            formatted = " / ".join(f"{loss:.4g}" for loss in losses)
            raise TrainingError(
                f"At step {counters.n_steps + 1}, the loss is {formatted} and the gradient norm is {norm:.4g}. "
                f"{LOWER_RATE} {_restart_advice(self.run)}"
            )
        set_learning_rate(state.optimizer, learning_rate)
        state.optimizer.step()
        state.optimizer.zero_grad()
        counters.n_steps += 1
        state.update_average()
        counters.n_predictions += self.predictions_per_step
        return norm

    def _window(self, window: Window) -> list[float]:
        """Compute and back-propagate the loss of one window; return the loss of each direction in nats."""
        config, state = self.config, self.state
        arrays = (window.tokens, window.inputs, window.targets)
        tensors = [torch.from_numpy(array).to(state.device) for array in arrays]
        if config.resets_state:
            begins = torch.from_numpy(window.begins).to(state.device)
            state.lstm_state = state.lstm_state.with_zero_rows(begins)
        with step_autocast(config, state.device):
            losses, *ends = self.step_losses(*tensors, *chain.from_iterable(state.lstm_states.values()))
        # bilm-tf multiplies the loss by the window's length. Only clipping and Adagrad's initial sums are affected.
        scale = config.loss_scale / config.gradient_accumulation_steps
        # Outside autocast, as PyTorch recommends: the backward pass uses the dtypes of the forward pass.
        (losses.mean() * scale).backward()
        # Already without gradient (`WindowLosses.forward`): backpropagation is truncated here.
        state.lstm_state = BiLMState(*ends[:2])
        if state.teacher_state is not None:
            state.teacher_state = BiLMState(*ends[2:])
        values: list[float] = losses.tolist()
        return values

    def _mean_losses(self) -> tuple[float, ...]:
        """Return the mean loss of each direction since the last call, over all processes."""
        counters = self.state.counters
        sums = torch.tensor(counters.loss_sums, dtype=torch.float64, device=self.state.device)
        losses = self.world.mean(sums / counters.n_summed).tolist()
        counters.loss_sums, counters.n_summed = [], 0
        return tuple(losses)

    def _evaluate_and_keep_best(self) -> Perplexity:
        """Evaluate on the held-out text, and save the model if it is the best so far."""
        counters = self.state.counters
        result = self._evaluate()
        if self.evaluates_first and not counters.n_steps:
            self.before = result.per_direction
        best = math.inf if counters.best_perplexity is None else counters.best_perplexity
        # The perplexity of an untrained softmax is meaningless, so the last model is kept.
        if result.mean < best or not self._trains_softmax():
            counters.best_perplexity, counters.n_worse = result.mean, 0
            self._keep_evaluated(result)
        elif self.eval_every == self.config.eval_every:
            # Only then, because additional evaluations must not end training earlier.
            counters.n_worse += 1
        self._warn_if_diverging(result)
        return result

    def _trains_softmax(self) -> bool:
        distillation = self.config.distillation
        return distillation is None or distillation.trains_softmax

    def _keep_evaluated(self, result: Perplexity) -> None:
        """Save the evaluated model as the best one, in the process that has it."""
        if self.evaluated is None:
            return
        results = {
            "n_steps": self.state.counters.n_steps,
            "n_predictions": self.state.counters.n_predictions,
            "held_out": asdict(result),
            "held_out_perplexity": list(result.per_direction),
        }
        if self.before is not None:
            results["held_out_perplexity_before"] = list(self.before)
        # The whole directory is replaced atomically, so an interruption leaves the previous best model.
        save_folder(self._with_card(self.evaluated, results), self.run.folder / RUN_MODEL, overwrite=True)

    def _warn_if_diverging(self, result: Perplexity) -> None:
        """Warn, once and again at the end, that the held-out perplexity has grown, with a remedy."""
        if not self._trains_softmax():
            return
        counters = self.state.counters
        n_words, best = len(self.corpus.vocabulary), counters.best_perplexity
        reason = ""
        if not max(result.per_direction) <= ABOVE_UNIFORM * n_words:  # or NaN
            reason = f"a guess among the {n_words:,} words has {n_words:,}"
        elif best is not None and result.mean > ABOVE_BEST * best:
            reason = f"the best mean of both was {format_perplexities([best])}"
        if reason and (self._is_over() or not self.is_diverging):
            self._notice(
                f"Held-out perplexity {format_perplexities(result.per_direction)} at step "
                f"{counters.n_steps:,}: the training diverges ({reason}). {LOWER_RATE}"
            )
        self.is_diverging = bool(reason)

    def _evaluate(self) -> Perplexity:
        """Compute the held-out perplexity in the main process, for all processes."""
        return self.world.on_main_process(self._evaluate_here)

    def _evaluate_here(self) -> Perplexity:
        computer = self.state.evaluated()
        is_given = self.evaluates_first and not self.state.counters.n_steps
        if not is_given:  # before the first step of a fine-tuning, the model has its own start state
            computer = self._calibrated(computer)
        self.evaluated = computer.model
        return self.evaluation.perplexity(computer)

    def _calibrated(self, computer: Computer) -> Computer:
        return self.evaluation.calibrated(computer, self.state.lstm_state)


def _n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _restart_advice(run: Run) -> str:
    """Return advice, for the message of a failed run, on which model a new run can start from."""
    paths = [checkpoint.path for checkpoint in checkpoints(run.folder)]
    if not paths:
        return "There is no checkpoint yet: start a new run."
    before = f" (or of {paths[-2].name}, if that one is already bad)" if len(paths) > 1 else ""
    model = paths[-1] / "model"
    return f"Start a new run from the model of the last checkpoint{before}: elmokit finetune TEXT --model {model} ..."


def _without_sync(module: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Accumulate gradients without averaging them over processes, which is only needed for the last window."""
    if isinstance(module, DistributedDataParallel):
        no_sync: contextlib.AbstractContextManager[None] = module.no_sync()
        return no_sync
    return contextlib.nullcontext()
