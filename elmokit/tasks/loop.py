"""The one training loop of all tasks: one seed, from its first batch to its best model."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from elmokit.errors import TrainingError
from elmokit.io.atomic import atomic_write, recover_interrupted, truncate_log
from elmokit.tasks.batches import epoch_batches, sorted_batches
from elmokit.tasks.checkpoint import LoopState, Position, load_checkpoint, save_checkpoint
from elmokit.tasks.config import TaskTrainingConfig
from elmokit.tasks.inputs import Inputs, move_to
from elmokit.tasks.task import Batch, Config, Example, Labels, Prediction, Task, TaskModel
from elmokit.weights.folder import save_tensors

CHECKPOINT_SECONDS = 60.0  # how much a kill can cost


@dataclass(frozen=True)
class Progress:
    """What a run is doing."""

    phase: Literal["layers", "train", "dev"]
    seed: int | None
    epoch: int
    n_epochs: int
    done: int
    """Tokens of the layers, steps of the whole training, or examples of dev."""
    total: int
    """If no epoch is saved by patience."""
    seconds_left: float
    """Of the phase; for "train" of this seed, evaluations not counted."""
    loss: float | None = None
    """Mean over the batches since the last evaluation."""
    scores: dict[str, float] | None = None
    """On dev, where they were just measured."""
    is_best: bool = False


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Job(Generic[Config, Example, Batch, Prediction]):
    """What one seed's training reads and never changes."""

    task: Task[Config, Example, Batch, Prediction]
    config: Config
    settings: TaskTrainingConfig
    """The config's ``train``."""
    train: Sequence[Example]
    dev: Sequence[Example]
    inputs: Inputs
    labels: Labels
    device: torch.device


def fit(
    job: Job[Config, Example, Batch, Prediction],
    build: Callable[[], TaskModel[Batch, Prediction]],
    seed: int,
    folder: Path,
    report: Report,
) -> dict[str, Any]:
    """Train one seed, or go on where its checkpoint left off; the result is the same, on the CPU to the last bit.

    The best model so far is kept as ``best.safetensors``, each evaluation is a line of ``metrics.jsonl``.

    Args:
        build: a fresh model, drawn from torch's global generator, which is seeded here.
        folder: of the seed; no other process may write to it.

    Returns:
        the content of ``result.json``: the best scores, when, and the mixes' weights.

    Raises:
        TrainingError: the loss is no number any more, or the checkpoint is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recover_interrupted(folder)
    result_path = folder / "result.json"
    if result_path.exists():
        earlier: dict[str, Any] = json.loads(result_path.read_text(encoding="utf-8"))
        return earlier
    settings = job.settings
    torch.manual_seed(seed)
    model = build().to(job.device)
    averaged = None
    if settings.average is not None:
        averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(settings.average))  # type: ignore[no-untyped-call]
    state = LoopState(model, make_optimizer(model, settings), averaged, job.device, Position())
    torch.manual_seed(seed)  # dropout does not depend on how the weights were drawn
    if (folder / "checkpoint").exists():
        load_checkpoint(state, folder / "checkpoint")
    truncate_log(folder / "metrics.jsonl", state.position.n_steps)
    keep_best(state, folder)
    _Loop(job, state, seed, folder, report).run()
    best = state.position
    result = {
        "seed": seed,
        "dev": best.best,
        "best_epoch": best.best_epoch,
        "n_epochs": best.epoch,
        "n_steps": best.n_steps,
        "mixes": _mixes(build, folder),
    }
    with atomic_write(result_path, overwrite=True) as beside:
        beside.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


class _Loop(Generic[Config, Example, Batch, Prediction]):
    """The steps, evaluations and checkpoints of one seed."""

    def __init__(
        self,
        job: Job[Config, Example, Batch, Prediction],
        state: LoopState,
        seed: int,
        folder: Path,
        report: Report,
    ) -> None:
        self.job, self.state, self.seed, self.folder, self.report = job, state, seed, folder, report
        self.lengths = [job.task.lengths(example) for example in job.train]
        per_epoch = math.ceil(len(job.train) / job.settings.batch_size)
        self.total_steps = per_epoch * job.settings.epochs
        self.first_step, self.started = state.position.n_steps, time.monotonic()
        self.saved = self.started
        self.evaluation_seconds = 0.0

    def run(self) -> None:
        settings, position = self.job.settings, self.state.position
        while not position.is_over:
            batches = epoch_batches(self.lengths, settings.batch_size, settings.bucketed, self.seed, position.epoch)
            while position.step < len(batches) and not position.is_over:
                self._step(batches[position.step])
                position.step += 1
                position.n_steps += 1
                is_due = settings.eval_every is not None and position.n_steps % settings.eval_every == 0
                if is_due and not (position.step == len(batches) and position.epoch + 1 == settings.epochs):
                    self._evaluate()
                    self._save()
                elif time.monotonic() - self.saved > CHECKPOINT_SECONDS:
                    self._save()
            if not position.is_over:
                position.epoch, position.step = position.epoch + 1, 0
                is_last = position.epoch == settings.epochs
                if settings.eval_every is None or is_last:
                    self._evaluate()
                position.is_over = position.is_over or is_last
            self._save()

    def _save(self) -> None:
        save_checkpoint(self.state, self.folder / "checkpoint")
        keep_best(self.state, self.folder)
        self.saved = time.monotonic()

    def _step(self, places: Sequence[int]) -> None:
        job, state, position = self.job, self.state, self.state.position
        examples = [job.train[place] for place in places]
        examples = [
            job.task.vary(example, job.config, random.Random(f"{self.seed} {position.epoch} {place}"))
            for place, example in zip(places, examples, strict=True)
        ]
        batch = move_to(job.task.collate(examples, job.inputs, job.labels, job.config), job.device)
        model = state.model.train()
        loss = model.loss(batch)
        if not loss.isfinite():
            raise TrainingError(
                f"The loss is {loss.item()} at step {position.n_steps + 1} of seed {self.seed}. Train with a lower "
                "train.optimizer.learning_rate or train.max_grad_norm."
            )
        for group in state.optimizer.param_groups:
            group["lr"] = self._learning_rate()
        if loss.requires_grad:
            (loss + model.inputs.penalty() + l2_penalty(model, job.settings)).backward()  # type: ignore[no-untyped-call]
            clip(model, job.settings)
            state.optimizer.step()
            state.optimizer.zero_grad()
        if state.averaged is not None:
            state.averaged.update_parameters(model)
        position.loss_sum += loss.item()
        position.loss_steps += 1
        done = position.n_steps + 1
        rate = (time.monotonic() - self.started - self.evaluation_seconds) / (done - self.first_step)
        self.report(
            Progress(
                "train",
                self.seed,
                position.epoch + 1,
                job.settings.epochs,
                done,
                self.total_steps,
                rate * (self.total_steps - done),
                position.loss_sum / position.loss_steps,
            )
        )

    def _learning_rate(self) -> float:
        settings, position = self.job.settings, self.state.position
        rate = settings.optimizer.learning_rate
        if settings.plateau is not None:
            rate *= settings.plateau.factor**position.n_drops
        if settings.step_decay is not None:
            rate *= settings.step_decay.rate ** (position.n_steps // settings.step_decay.every)
        return rate

    def _evaluate(self) -> None:
        job, state, position, settings = self.job, self.state, self.state.position, self.job.settings
        started = time.monotonic()
        predictions = predict_all(
            job.task, state.judged, job.dev, job.inputs, job.labels, job.config, job.device, settings.batch_size,
            lambda done, total: self._report_dev(done, total, started),
        )  # fmt: skip
        scores = job.task.score(job.dev, predictions, job.config)
        loss = position.loss_sum / max(position.loss_steps, 1)
        learning_rate = self._learning_rate()
        metric = job.task.metric
        is_best = not position.best or scores[metric] > position.best[metric]
        position.loss_sum, position.loss_steps = 0.0, 0
        position.n_evaluations += 1
        epoch = position.epoch + (position.step > 0)
        if is_best:
            position.best, position.best_epoch, position.best_n_steps = scores, epoch, position.n_steps
            position.since_best = position.since_drop = 0
        else:
            position.since_best += 1
            position.since_drop += 1
            if settings.plateau is not None and position.since_drop > settings.plateau.patience:
                position.n_drops += 1
                position.since_drop = 0
        position.is_over = settings.patience is not None and position.since_best >= settings.patience
        line = {
            "epoch": epoch,
            "n_steps": position.n_steps,
            "loss": loss,
            "learning_rate": learning_rate,
            "dev": scores,
            "is_best": is_best,
            "seconds": round(time.monotonic() - self.started, 1),
        }
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        self.evaluation_seconds += time.monotonic() - started
        self.report(
            Progress("dev", self.seed, epoch, settings.epochs, len(job.dev), len(job.dev), 0.0, loss, scores, is_best)
        )

    def _report_dev(self, done: int, total: int, started: float) -> None:
        epoch, n_epochs = self.state.position.epoch, self.job.settings.epochs
        left = (time.monotonic() - started) / done * (total - done)
        self.report(Progress("dev", self.seed, epoch, n_epochs, done, total, left))


def keep_best(state: LoopState, folder: Path) -> None:
    """Write ``best.safetensors`` if the state is that of the best evaluation.

    Called after the checkpoint of that state is on disk, and when training goes on from it: so a kill between the two
    files leaves no weights that the checkpoint knows nothing of, and no scores whose weights are lost.
    """
    if state.position.best and state.position.best_n_steps == state.position.n_steps:
        with atomic_write(folder / "best.safetensors", overwrite=True) as beside:
            save_tensors(state.judged.state_dict(), beside)


def predict_all(
    task: Task[Config, Example, Batch, Prediction],
    model: TaskModel[Batch, Prediction],
    examples: Sequence[Example],
    inputs: Inputs,
    labels: Labels,
    config: Config,
    device: torch.device,
    batch_size: int,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Prediction]:
    """One prediction for each example, in their order; in batches of similar length."""
    found: dict[int, Prediction] = {}
    model.eval()
    with torch.no_grad():
        for places in sorted_batches([task.lengths(example) for example in examples], batch_size):
            batch = task.collate([examples[place] for place in places], inputs, labels, config)
            found.update(zip(places, model.predict(move_to(batch, device)), strict=True))
            report(len(found), len(examples))
    return [found[place] for place in range(len(examples))]


def make_optimizer(model: nn.Module, settings: TaskTrainingConfig) -> torch.optim.Optimizer:
    """The optimiser of all that learns."""
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    config = settings.optimizer
    rate = config.learning_rate
    if config.name == "adam":
        return torch.optim.Adam(learnt, lr=rate, betas=config.betas, eps=config.epsilon)
    if config.name == "adadelta":
        return torch.optim.Adadelta(learnt, lr=rate, rho=config.rho, eps=config.epsilon)
    return torch.optim.SGD(learnt, lr=rate, momentum=config.momentum)


def l2_penalty(model: nn.Module, settings: TaskTrainingConfig) -> Tensor | float:
    """``l2`` times the sum of squares of the matrices that learn, word and character tables left out."""
    if not settings.l2:
        return 0.0
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    learnt = (parameter for parameter in model.parameters() if parameter.requires_grad and parameter.ndim >= 2)
    squares = [(parameter**2).sum() for parameter in learnt if id(parameter) not in tables]
    return settings.l2 * torch.stack(squares).sum() if squares else 0.0


def clip(model: nn.Module, settings: TaskTrainingConfig) -> None:
    """Bound the gradient: its entries, then its norm, where the settings say so."""
    if settings.clip_value is not None:
        nn.utils.clip_grad_value_(model.parameters(), settings.clip_value)
    if settings.max_grad_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)


def _mixes(build: Callable[[], TaskModel[Any, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    """The weights of the best model's mixes."""
    from safetensors.torch import load_file

    model = build()
    model.load_state_dict(load_file(folder / "best.safetensors"))
    return model.inputs.mix_weights()
