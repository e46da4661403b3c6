"""Training a biLM: windows in, one loss per direction, truncated BPTT with carried state."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elmokit.bilm import BiLM, BiLMState
from elmokit.errors import LockedError, TrainingError
from elmokit.io.atomic import recover_interrupted
from elmokit.nn.kernels.backends import is_available
from elmokit.scoring.perplexity import Perplexity, perplexity
from elmokit.text.shards import Part
from elmokit.text.windows import Window, WindowStream
from elmokit.training.config import TrainingConfig
from elmokit.training.corpus import TrainingCorpus
from elmokit.training.distributed import World
from elmokit.training.losses import WindowLosses
from elmokit.training.optimizers import clip_gradients, set_learning_rate
from elmokit.training.plan import Plan, Sizes, make_plan, optimizer_of, seconds_per_step, sizes_of
from elmokit.training.run import LOG, SETTINGS, RunSettings
from elmokit.training.run_folder import MetricsLog, run_lock
from elmokit.training.state import (
    CHECKPOINTS,
    TrainingState,
    checkpoints,
    open_checkpoint,
    restart_advice,
    restore_checkpoint,
    save_checkpoint,
)
from elmokit.training.throughput import ThroughputMeter
from elmokit.weights.folder import save_folder
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.softmaxes import build_softmax, softmax_config

N_HELD_OUT_ROWS = 64
LEAST_ADAGRAD_RATE = 0.05


@dataclass(frozen=True)
class Progress:
    """One line of the training log."""

    n_steps: int
    n_predictions: int
    """Per direction, of all processes, since the start of the run."""
    share: float
    """Of the whole training, from 0 to 1."""
    n_passes: float
    """Over the text."""
    tokens_per_second: float
    seconds_left: float
    learning_rate: float
    gradient_norm: float
    """Before clipping."""
    losses: tuple[float, ...]
    """Mean training loss in nats since the last line (sampled, where the training samples): forward, then backward."""
    held_out: tuple[float, ...] | None = None
    """Held-out perplexity, full softmax, state carried: forward, then backward; where it was measured."""


def train(
    config: TrainingConfig,
    corpus: TrainingCorpus,
    run: Path,
    card: dict[str, Any],
    report: Callable[[Progress], None],
    tell: Callable[[str], None] = lambda _: None,
    show_plan: Callable[[Sizes | Plan], None] = lambda _: None,
    initial: PretrainedBiLM | None = None,
    world: World = World(),  # noqa: B008 (frozen)
    device: torch.device | str = "cpu",
    hours_from_now: bool = False,
) -> Perplexity:
    """Train a biLM, or go on with the run that stands in the folder.

    Args:
        run: the folder for checkpoints, settings, the log (``metrics.jsonl``) and the best model (``model``).
        card: what the model card says beside the results.
        report: is given each line of the log.
        tell: is told what differs from what was asked for.
        show_plan: is given the sizes, then the estimated time, before a new run or one with another budget starts.
        initial: the model to start from; None for fresh weights. It must have a softmax and the corpus's vocabulary.
            It is scored first, and stays the best model until training betters it.
        world: the processes that train together; each calls this function.
        hours_from_now: ``config.hours`` begin anew; else a run that goes on ends where it would have.

    Returns:
        the held-out perplexity at the end, in the leading process; in others that of the leading one too.

    Raises:
        TextError: there is no sentence to train on, or to judge by; or too few.
        TrainingError: the folder's run has other settings, or another process is at it; the loss is no longer a
            number, or the memory is too small (the last good checkpoint stays).
    """
    corpus.check(config, world.size)
    with contextlib.ExitStack() as stack:
        locked: LockedError | None = None
        if world.is_main_process:
            try:
                stack.enter_context(run_lock(run))
            except LockedError as error:
                locked = error
        if (locked := world.broadcast(locked)) is not None:
            raise locked
        if world.is_main_process:
            recover_interrupted(run)
            recover_interrupted(run / CHECKPOINTS)
        found = world.broadcast(checkpoints(run))
        if found and not (run / SETTINGS).exists():
            raise TrainingError(f"{run} holds checkpoints and no settings ({SETTINGS}). Start a new run elsewhere.")
        try:
            with contextlib.closing(
                _Training(config, corpus, run, initial, found, world, torch.device(device))
            ) as training:
                if training.notice:
                    tell(training.notice)
                training.agree_on_settings(tell, show_plan, hours_from_now)
                return training.loop(card, report)
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(error):
                raise
            raise TrainingError(
                f"Out of memory with windows of {config.batch_size} x {config.n_steps}. Lower batch_size (accumulate "
                f"keeps the step as large), n_samples or the model's sizes. {restart_advice(run)}"
            ) from error


class _Training:
    """One process's part of a training."""

    def __init__(
        self,
        config: TrainingConfig,
        corpus: TrainingCorpus,
        run: Path,
        initial: PretrainedBiLM | None,
        found: list[Path],
        world: World,
        device: torch.device,
    ) -> None:
        self.config, self.corpus, self.run, self.world = config, corpus, run, world
        torch.manual_seed(config.seed)
        model = open_checkpoint(found[-1]) if found else initial or _fresh_model(config, corpus)
        self.state = _build_state(config, corpus, model, world, device)
        if world.rank:  # the weights are drawn alike in all processes, dropout and samples are not
            torch.manual_seed(config.seed * 100_003 + world.rank)
        self.notice = restore_checkpoint(self.state, found[-1], world) if found else None
        self.step_losses: nn.Module = self.state.losses
        if world.size > 1:
            self.step_losses = DistributedDataParallel(
                self.state.losses,
                device_ids=[device.index or world.local_rank] if device.type == "cuda" else None,
                # A window may hold no word of an adaptive softmax's tail, which then gets no gradient.
                find_unused_parameters=config.softmax.kind == "adaptive",
            )
        self.is_given = initial is not None and not found
        self.log = MetricsLog(run / LOG)
        self.total = 0

    def close(self) -> None:
        self.state.stream.close()

    def agree_on_settings(
        self, tell: Callable[[str], None], show_plan: Callable[[Sizes | Plan], None], hours_from_now: bool
    ) -> None:
        """Note a new run's settings in its folder, or refuse to go on with a run of others; and set the budget."""
        config, corpus, world = self.config, self.corpus, self.world
        there_are = world.is_main_process and (self.run / SETTINGS).exists()
        earlier = world.broadcast(RunSettings.open(self.run) if there_are else None)
        now = RunSettings.of(config, corpus, 0)
        if earlier is not None:
            now.check_resumes(self.run, earlier)
        n_words = len(corpus.vocabulary)
        on_cpu = self.state.model.bilm.device.type == "cpu"
        if config.precision == "bfloat16" and on_cpu and not is_available("torch-onednn-bfloat16"):
            tell("This processor has no products of bfloat16: float32 is faster here, and exact.")
        if config.optimizer == "adagrad" and config.learning_rate < LEAST_ADAGRAD_RATE:
            tell(f"learning_rate is {config.learning_rate:g}, little for Adagrad as here: bilm-tf trained at 0.2.")
        if config.n_samples > n_words:
            tell(f"n_samples is {config.n_samples:,} and the vocabulary holds {n_words:,} words: all are drawn.")
        is_set = earlier is not None and earlier.n_predictions and _budget(earlier.config) == _budget(config)
        if is_set and not (hours_from_now and config.hours is not None):
            assert earlier is not None
            self.total = earlier.n_predictions
        else:
            show_plan(sizes_of(config, self.state.losses))
            seconds = world.broadcast(self._seconds_per_step())
            self.total = self._predictions_for(seconds)
            done = self.state.counters.n_predictions
            if earlier is not None and earlier.n_predictions and done < self.total:
                before, after = (config.rate(done / total) for total in (earlier.n_predictions, self.total))
                if before != after:
                    tell(
                        f"The schedule follows the new length: the learning rate is {after:.3g} now, not {before:.3g}."
                    )
            show_plan(make_plan(config, max(0, self.total - done), world.size, seconds))
        if self._has_stopped():
            tell(f"No look of the last {config.patience} was better: a larger --patience, or 0, trains on.")
        elif self.state.counters.n_predictions >= self.total:
            tell(f"The run has its {self.total:,} predictions already: give it more --epochs, --tokens or --hours.")
        if world.is_main_process:
            dataclasses.replace(now, n_predictions=self.total).save(self.run)
            self.log.truncate(self.state.counters.n_steps)

    def _seconds_per_step(self) -> float:
        with contextlib.closing(_stream(self.config, self.corpus, self.state.model, self.world)) as stream:
            is_fresh = not self.state.optimizer.state
            return seconds_per_step(self.config, self.state.losses, next(stream), self.state.lstm_state, is_fresh)

    def _predictions_for(self, seconds: float) -> int:
        config = self.config
        if config.tokens is not None:
            return config.tokens
        if config.hours is not None:
            per_step = config.n_positions * self.world.size
            done = self.state.counters.n_predictions
            return done + max(1, int(config.hours * 3600 / seconds)) * per_step
        return max(1, round((config.epochs or 1.0) * self.corpus.n_predictions))

    def loop(self, card: dict[str, Any], report: Callable[[Progress], None]) -> Perplexity:
        """Step after step until the budget is spent, or the held-out text says stop."""
        config, state, world = self.config, self.state, self.world
        counters = state.counters
        result: Perplexity | None = self._look(card) if self.is_given else None
        meter = ThroughputMeter(counters.n_predictions)
        while counters.n_predictions < self.total and not self._has_stopped():
            learning_rate = config.rate(counters.n_predictions / self.total)
            gradient_norm = self._step(learning_rate)
            is_last = counters.n_predictions >= self.total
            evaluated = is_last or counters.n_steps % config.eval_every == 0
            if evaluated:
                with meter.paused():
                    result = self._look(card)
            if evaluated or counters.n_steps % config.log_every == 0:
                sums = torch.tensor(counters.loss_sums, dtype=torch.float64, device=state.lstm_state.hidden.device)
                losses = world.mean(sums / counters.n_summed).tolist()
                progress = Progress(
                    counters.n_steps,
                    counters.n_predictions,
                    min(1.0, counters.n_predictions / self.total),
                    counters.n_predictions / self.corpus.n_predictions,
                    meter.rate(counters.n_predictions),
                    meter.seconds_left(counters.n_predictions, self.total),
                    learning_rate,
                    gradient_norm,
                    tuple(losses),
                    result.per_direction if evaluated and result is not None else None,
                )
                counters.loss_sums, counters.n_summed = [], 0
                if world.is_main_process:
                    self.log.append(asdict(progress))
                    report(progress)
            if is_last or self._has_stopped() or counters.n_steps % config.save_every == 0:
                with meter.paused():
                    save_checkpoint(state, self.run, world)
        return result if result is not None else self._evaluate()

    def _has_stopped(self) -> bool:
        return 0 < self.config.patience <= self.state.counters.n_worse

    def _step(self, learning_rate: float) -> float:
        """One step of the optimizer: the gradient's global norm before clipping."""
        config, state = self.config, self.state
        counters = state.counters
        state.losses.train()
        for index in range(config.accumulate):
            is_last = index == config.accumulate - 1
            apart = contextlib.nullcontext() if is_last else _unshared(self.step_losses)
            with apart:
                losses = self._window(next(state.stream))
            counters.loss_sums = [a + b for a, b in zip(counters.loss_sums or [0.0] * len(losses), losses, strict=True)]
            counters.n_summed += 1
        parameters = list(state.trained_parameters().values())
        norm = clip_gradients(parameters, config.max_grad_norm)
        assert norm is not None
        if not torch.isfinite(torch.tensor([norm, *losses])).all():
            shown = " / ".join(f"{loss:.4g}" for loss in losses)
            raise TrainingError(
                f"At step {counters.n_steps + 1} the loss is {shown} and the gradient's norm {norm:.4g}. Take a lower "
                f"learning rate or a lower max_grad_norm. {restart_advice(self.run)}"
            )
        set_learning_rate(state.optimizer, learning_rate)
        state.optimizer.step()
        state.optimizer.zero_grad()
        counters.n_steps += 1
        counters.n_predictions += config.n_positions * self.world.size
        return norm

    def _window(self, window: Window) -> list[float]:
        """Forward and backward over one window: the loss of each direction in nats."""
        config, state = self.config, self.state
        device = state.lstm_state.hidden.device
        parts = [torch.from_numpy(part).to(device) for part in (window.tokens, window.inputs, window.targets)]
        with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
            losses, hidden, cell = self.step_losses(*parts, *state.lstm_state)
        scale = (config.n_steps if config.scale_loss_by_steps else 1) / config.accumulate
        (losses.mean() * scale).backward()
        state.lstm_state = BiLMState(hidden, cell)
        values: list[float] = losses.tolist()
        return values

    def _look(self, card: dict[str, Any]) -> Perplexity:
        """Score the held-out text, and keep the model if it is the best so far."""
        state, counters = self.state, self.state.counters
        result = self._evaluate()
        counters.n_worse += 1
        if result.mean < counters.best_perplexity:
            counters.best_perplexity, counters.n_worse = result.mean, 0
            if self.world.is_main_process:
                results = {
                    "n_steps": counters.n_steps,
                    "n_predictions": counters.n_predictions,
                    "held_out": asdict(result),
                    "held_out_perplexity": list(result.per_direction),
                }
                best = dataclasses.replace(state.model, card={**card, **results})
                save_folder(best, self.run / "model", overwrite=True)
        return result

    def _evaluate(self) -> Perplexity:
        result = None
        if self.world.is_main_process:
            held_out = self.corpus.held_out
            result = perplexity(self.state.model, held_out, "stateful", n_rows=min(N_HELD_OUT_ROWS, len(held_out)))
        told: Perplexity = self.world.broadcast(result)
        return told


def _fresh_model(config: TrainingConfig, corpus: TrainingCorpus) -> PretrainedBiLM:
    bilm = BiLM(config.model)
    bilm.reset_parameters()
    softmax = build_softmax(config.softmax, len(corpus.vocabulary), bilm)
    softmax.reset_parameters()
    return PretrainedBiLM(bilm, "elmokit", softmax=softmax, vocabulary=corpus.vocabulary)


def _build_state(
    config: TrainingConfig, corpus: TrainingCorpus, model: PretrainedBiLM, world: World, device: torch.device
) -> TrainingState:
    softmax, vocabulary = model.softmax, model.vocabulary
    if softmax is None or vocabulary is None or vocabulary.words != corpus.vocabulary.words:
        raise TrainingError("The model to start from needs a softmax over the words of the corpus's vocabulary.")
    if (model.bilm.config, softmax_config(softmax)) != (config.model, config.softmax):
        raise TrainingError("The model to start from has other sizes than the settings. Resume with the run's own.")
    model.bilm.to(device)
    softmax.to(device)
    losses = WindowLosses(model.bilm, softmax, min(config.n_samples, len(vocabulary)))
    _freeze(config, losses)
    optimizer = optimizer_of(config, [value for value in losses.parameters() if value.requires_grad])
    lstm_state = model.bilm.zero_state(config.batch_size)
    return TrainingState(model, losses, optimizer, lstm_state, _stream(config, corpus, model, world))


def _stream(config: TrainingConfig, corpus: TrainingCorpus, model: PretrainedBiLM, world: World) -> WindowStream:
    return WindowStream(
        corpus.shards,
        corpus.vocabulary,
        model.encode,
        config.batch_size,
        config.n_steps,
        config.model.n_directions,
        config.seed,
        config.shuffle,
        config.same_text,
        Part(world.rank, world.size),
    )


def _freeze(config: TrainingConfig, losses: WindowLosses) -> None:
    losses.requires_grad_(True)
    for layer in config.frozen_layers:
        if layer == 0:
            losses.bilm.token_layer.requires_grad_(False)
            continue
        for direction in losses.bilm.directions:
            direction.get_submodule(f"layers.{layer - 1}").requires_grad_(False)
    if config.freeze_softmax:
        losses.softmax.requires_grad_(False)


def _unshared(module: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Where gradients of several windows are added up, only the last one's are averaged over processes."""
    if isinstance(module, DistributedDataParallel):
        held_back: contextlib.AbstractContextManager[None] = module.no_sync()
        return held_back
    return contextlib.nullcontext()


def _budget(config: TrainingConfig) -> tuple[float | None, int | None, float | None]:
    return config.epochs, config.tokens, config.hours
