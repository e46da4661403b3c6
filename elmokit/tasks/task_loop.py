"""The training loop of all tasks: one seed, from its first batch to its best model."""

from __future__ import annotations

import math
import random
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from elmokit.config import from_dict, write_json
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.errors import TrainingError
from elmokit.network.average import moving_average
from elmokit.network.tensors import save_tensors
from elmokit.storage.atomic import atomic_write
from elmokit.storage.progress import ProgressCallback
from elmokit.tasks.run_folder import BEST_WEIGHTS, ELMO_WEIGHTS, RESULT, load_best_weights, read_result
from elmokit.tasks.task import AnyModel, TaskModel, TaskSetup
from elmokit.tasks.trained_bilm import (
    copy_for_training,
    parameter_groups,
    save_trained,
    trained_fingerprint,
    unfreeze,
)
from elmokit.training.optimizers import build_optimizer, clip_gradients, optimizer_tensors, restore_optimizer
from elmokit.training.training_run import (
    Run,
    StopRequest,
    TrainingInterrupted,
    last_checkpoint,
    random_states,
    restore_random_states,
    stop_requests,
)


@dataclass
class TaskCounters:
    """The position of a training run, and its results so far."""

    epoch: int = 0
    """Completed epochs."""
    step: int = 0
    """Completed batches of the current epoch."""
    n_steps: int = 0
    loss_sum: float = 0.0
    """Sum over the ``loss_steps`` steps since the last evaluation."""
    loss_steps: int = 0
    first_loss: float | None = None
    """Mean loss of the batches before the first evaluation."""
    n_drops: int = 0
    """How often the plateau schedule has lowered the learning rate."""
    since_drop: int = 0
    """Evaluations without improvement since the learning rate was lowered, or since the last improvement."""
    since_best: int = 0
    """Evaluations since the best one."""
    best_epoch: int = 0
    best: dict[str, float] = field(default_factory=dict)
    """Scores of the best evaluation; empty before the first one."""
    best_n_steps: int = 0
    """``n_steps`` at the best evaluation."""
    is_over: bool = False


@dataclass
class TaskTrainingState:
    """Everything that the next training step depends on."""

    model: AnyModel
    optimizer: torch.optim.Optimizer
    averaged: AveragedModel | None
    device: torch.device
    counters: TaskCounters

    @property
    def evaluated_model(self) -> AnyModel:
        """The model to evaluate and store: the one with averaged weights, if there is one."""
        if self.averaged is None:
            return self.model
        module = self.averaged.module
        assert isinstance(module, TaskModel)
        return module

    def save(self, run: Run) -> None:
        """Write a checkpoint."""
        tensors = {
            "model": self.model.state_dict(),
            "optimizer": optimizer_tensors(self.optimizer, dict(self.model.named_parameters())),
            "state": random_states(self.device),
        }
        if self.averaged is not None:
            tensors["average"] = self.averaged.state_dict()
        run.save_checkpoint(self.counters.n_steps, {"counters": asdict(self.counters)}, tensors)

    def restore(self, run: Run) -> None:
        """Restore the last checkpoint of a run, if any. The state must be newly built with the same settings."""
        checkpoint = last_checkpoint(run.committed)
        if checkpoint is None:
            return
        with checkpoint.errors():
            self.model.load_state_dict(checkpoint.tensors("model"))
            parameters = dict(self.model.named_parameters())
            restore_optimizer(self.optimizer, parameters, checkpoint.tensors("optimizer"))
            if self.averaged is not None:
                self.averaged.load_state_dict(checkpoint.tensors("average"))
            restore_random_states(checkpoint.tensors("state"), self.device)
            self.counters = from_dict(TaskCounters, run.progress["counters"], str(checkpoint.path))


def build_state(setup: TaskSetup, model: AnyModel) -> TaskTrainingState:
    """Build the initial training state of a model."""
    config = setup.config.train
    averaged = None
    if config.average is not None:
        averaged = moving_average(model, config.average)
    settings = config.optimizer
    optimizer = build_optimizer(
        settings.name,
        parameter_groups(model, setup.config.elmo, settings.learning_rate),
        settings.learning_rate,
        betas=settings.betas,
        epsilon=settings.epsilon,
        rho=settings.rho,
        momentum=settings.momentum,
    )
    return TaskTrainingState(model, optimizer, averaged, setup.device, TaskCounters())


GROWN = 1.5  # the factor from which on a larger mean loss counts as growth; less is noise
LENGTH_NOISE = 0.1  # lengths vary by up to this ratio, so that batches differ between epochs, as in AllenNLP
CHECKPOINT_SECONDS = 60.0  # an interrupted run loses at most this much work


@dataclass(frozen=True)
class TaskEvaluation:
    """The result of one evaluation on dev during training."""

    seed: int
    epoch: int
    n_epochs: int
    n_steps: int
    loss: float
    """Mean training loss since the last evaluation."""
    learning_rate: float
    scores: dict[str, float]
    is_best: bool
    trained_layers: tuple[int, ...] | None = None
    """The layers of a trainable biLM that are being trained; None for a frozen biLM."""


EvaluationCallback = Callable[[TaskEvaluation], None]


@dataclass(frozen=True)
class TaskTraining:
    """The input of a training run that all seeds share."""

    setup: TaskSetup
    train: Sequence[Any]
    """The training examples."""
    dev: Sequence[Any]
    """The validation examples."""
    initial_vectors: Mapping[str, Tensor] | None = None
    """The initial values of word tables with pretrained vectors, by table."""
    elmo: Elmo | None = None
    """The pretrained biLM, if a copy of it is trained with the model."""
    progress: ProgressCallback | None = None
    """Called with the stages ``"seed N"`` (steps) and ``"predict"`` (examples)."""
    on_evaluation: EvaluationCallback | None = None
    """Called after each evaluation."""


def train_seed(training: TaskTraining, seed: int, run: Run) -> dict[str, Any]:
    """Train one seed, or resume it from its checkpoint, and return the content of ``result.json``.

    The best model so far is stored as ``best.safetensors``, with a trained biLM in a model directory of its own. Each
    evaluation adds a line to the log.
    """
    setup, elmo, folder = training.setup, training.elmo, run.folder
    if (folder / RESULT).exists():
        return read_result(folder)
    bilm = None if elmo is None else copy_for_training(elmo)
    torch.manual_seed(seed)
    model = setup.build(training.initial_vectors, bilm)
    state = build_state(setup, model.to(setup.device))
    torch.manual_seed(seed)  # dropout must not depend on how many random numbers the initial weights needed
    state.restore(run)
    save_if_best(state, folder, setup.task.name)
    with stop_requests() as stop:
        _SeedLoop(training, seed, run, state).run_to_end(stop)
    counters = state.counters
    best = setup.build(training.initial_vectors)
    load_best_weights(best, folder)
    result = {
        "seed": seed,
        "dev": counters.best,
        "best_epoch": counters.best_epoch,
        "n_epochs": counters.epoch,
        "n_steps": counters.n_steps,
        "mixes": best.inputs.mix_weights(),
    }
    if elmo is not None:
        result["bilm"] = {"fingerprint": trained_fingerprint(folder, elmo.start)}
    write_json(folder / RESULT, result)
    return result


class _SeedLoop:
    """The steps, evaluations and checkpoints of one seed."""

    def __init__(self, training: TaskTraining, seed: int, run: Run, state: TaskTrainingState) -> None:
        self.setup = training.setup
        self.train = training.train
        self.dev = training.dev
        self.progress = training.progress
        self.on_evaluation = training.on_evaluation
        self.seed = seed
        self.run = run
        self.state = state
        self.config = self.setup.config.train
        self.lengths = [self.setup.task.lengths(example) for example in self.train]
        steps_per_epoch = math.ceil(len(self.train) / self.config.batch_size)
        self.total_steps = steps_per_epoch * self.config.epochs
        self.trained_layers: tuple[int, ...] | None = None  # of the biLM
        self.last_loss = 0.0
        self.started = self.saved = time.monotonic()

    def run_to_end(self, stop: StopRequest) -> None:
        """Train until the last epoch or early stopping."""
        counters = self.state.counters
        while not counters.is_over:
            self._train_epoch(stop)
            if not counters.is_over:
                counters.epoch += 1
                counters.step = 0
                is_last = counters.epoch == self.config.epochs
                if self.config.eval_every is None or is_last:
                    self._evaluate()
                if is_last:
                    counters.is_over = True
            self._save()
        self._warn_if_diverged()

    def _train_epoch(self, stop: StopRequest) -> None:
        """Take the remaining steps of an epoch, up to early stopping."""
        config, counters = self.config, self.state.counters
        inputs = self.state.model.inputs
        if inputs.elmo is not None:
            self.trained_layers = unfreeze(inputs, self.setup.config.elmo, counters.epoch)
        batches = epoch_batches(self.lengths, config.batch_size, config.bucketed, self.seed, counters.epoch)
        while counters.step < len(batches) and not counters.is_over:
            self._step(batches[counters.step])
            counters.step += 1
            counters.n_steps += 1
            # Training ends with an evaluation in any case, so the last step does not need another one.
            is_last = counters.step == len(batches) and counters.epoch + 1 == config.epochs
            if self._evaluation_is_due() and not is_last:
                self._evaluate()
                self._save()
            elif time.monotonic() - self.saved > CHECKPOINT_SECONDS:
                self._save()
            if stop.is_made:
                self._save()
                raise TrainingInterrupted(
                    f"Stopped after step {counters.n_steps:,} of seed {self.seed}, and saved a checkpoint."
                )

    def _evaluation_is_due(self) -> bool:
        """Check whether the steps so far call for an evaluation within the epoch."""
        every = self.config.eval_every
        return every is not None and self.state.counters.n_steps % every == 0

    def _save(self) -> None:
        self.state.save(self.run)
        save_if_best(self.state, self.run.folder, self.setup.task.name)
        self.saved = time.monotonic()

    def _step(self, indices: Sequence[int]) -> None:
        state, counters = self.state, self.state.counters
        model = state.model.train()
        batch = self.setup.batch(self._augmented(indices), model)
        loss = model.loss(batch)
        if not loss.isfinite():
            raise TrainingError(
                f"The loss is {loss.item()} at step {counters.n_steps + 1} of seed {self.seed}. Lower "
                "train.optimizer.learning_rate or train.max_grad_norm."
            )
        for group in state.optimizer.param_groups:
            group["lr"] = self._scheduled(group["initial_lr"])
        if loss.requires_grad:
            with_penalties = loss + model.inputs.penalty() + l2_penalty(model, self.config.l2)
            with_penalties.backward()  # type: ignore[no-untyped-call]
            clip_gradients(model.parameters(), self.config.max_grad_norm, self.config.clip_value)
            state.optimizer.step()
            state.optimizer.zero_grad()
        if state.averaged is not None:
            state.averaged.update_parameters(model)
        counters.loss_sum += loss.item()
        counters.loss_steps += 1
        if self.progress is not None:
            self.progress(f"seed {self.seed}", counters.n_steps + 1, self.total_steps)

    def _augmented(self, indices: Sequence[int]) -> list[Any]:
        """Return the parts of the examples to train on in this epoch."""
        task, config, epoch = self.setup.task, self.setup.config, self.state.counters.epoch
        examples = []
        for index in indices:
            # Random choices depend on the seed, epoch and example alone, so a resumed run makes the same ones.
            rng = random.Random(f"{self.seed} {epoch} {index}")
            examples.append(task.augment(self.train[index], config, rng))
        return examples

    def _scheduled(self, rate: float) -> float:
        """Return the learning rate of the next step, given the initial one."""
        config, counters = self.config, self.state.counters
        if config.plateau is not None:
            rate *= config.plateau.factor**counters.n_drops
        if config.step_decay is not None:
            rate *= config.step_decay.rate ** (counters.n_steps // config.step_decay.every)
        return rate

    def _evaluate(self) -> None:
        """Score the dev examples, and update the counters, the log and the caller."""
        setup, counters, config = self.setup, self.state.counters, self.config
        predictions = setup.predict_with(self.state.evaluated_model, self.dev, self.progress)
        scores = setup.task.score(self.dev, predictions, setup.config)
        metric = setup.task.metric
        epoch = counters.epoch
        if counters.step > 0:  # within the next epoch
            epoch += 1
        evaluation = TaskEvaluation(
            seed=self.seed,
            epoch=epoch,
            n_epochs=config.epochs,
            n_steps=counters.n_steps,
            loss=counters.loss_sum / max(counters.loss_steps, 1),
            learning_rate=self._scheduled(config.optimizer.learning_rate),
            scores=scores,
            is_best=not counters.best or scores[metric] > counters.best[metric],
            trained_layers=self.trained_layers,
        )
        self._count(evaluation)
        self._log(evaluation)
        if self.on_evaluation is not None:
            self.on_evaluation(evaluation)

    def _count(self, evaluation: TaskEvaluation) -> None:
        """Update the counters after an evaluation; these also decide on the learning rate and early stopping."""
        counters, config = self.state.counters, self.config
        counters.loss_sum = 0.0
        counters.loss_steps = 0
        self.last_loss = evaluation.loss
        if counters.first_loss is None:
            counters.first_loss = evaluation.loss
        if evaluation.is_best:
            counters.best = evaluation.scores
            counters.best_epoch = evaluation.epoch
            counters.best_n_steps = counters.n_steps
            counters.since_best = 0
            counters.since_drop = 0
        else:
            counters.since_best += 1
            counters.since_drop += 1
            if config.plateau is not None and counters.since_drop > config.plateau.patience:
                counters.n_drops += 1
                counters.since_drop = 0
        counters.is_over = config.patience is not None and counters.since_best >= config.patience

    def _log(self, evaluation: TaskEvaluation) -> None:
        line = {
            "epoch": evaluation.epoch,
            "n_steps": evaluation.n_steps,
            "loss": evaluation.loss,
            "learning_rate": evaluation.learning_rate,
            "dev": evaluation.scores,
            "is_best": evaluation.is_best,
            "seconds": round(time.monotonic() - self.started, 1),
        }
        if self.trained_layers is not None:
            line["trained_layers"] = self.trained_layers
        self.run.log(line)

    def _warn_if_diverged(self) -> None:
        """Warn at the end if the training loss has grown. Before the end, it may still fall again."""
        first = self.state.counters.first_loss
        if first is not None and self.last_loss > GROWN * first:
            warnings.warn(
                f"The training loss of seed {self.seed} grew from {first:.4g} to {self.last_loss:.4g}: the training "
                "diverges. Use a lower train.optimizer.learning_rate.",
                stacklevel=2,
            )


def save_if_best(state: TaskTrainingState, folder: Path, task: str) -> None:
    """Write ``best.safetensors``, and a trained biLM, if the best evaluation belongs to the current state.

    Called once the state's checkpoint is on disk, and again when training resumes from it. An interruption between
    these writes therefore leaves neither weights without a checkpoint nor scores without weights.
    """
    counters = state.counters
    if not counters.best or counters.best_n_steps != counters.n_steps:
        return
    model = state.evaluated_model
    # The biLM gets a model directory of its own, which every command that takes a model can open.
    weights = {}
    for name, value in model.state_dict().items():
        if not name.startswith(ELMO_WEIGHTS):
            weights[name] = value
    with atomic_write(folder / BEST_WEIGHTS, overwrite=True) as temporary:
        save_tensors(weights, temporary)
    if model.inputs.elmo is not None:
        save_trained(model.inputs.elmo, folder, task)


def epoch_batches(
    lengths: Sequence[tuple[int, ...]], batch_size: int, bucketed: bool, seed: int, epoch: int
) -> list[list[int]]:
    """Plan the batches of one training epoch. The result depends only on the arguments.

    Args:
        lengths: The sort key of each example.
        batch_size: Examples per batch.
        bucketed: Batch examples of similar length together. The order of batches is random in any case.
        seed: The random seed.
        epoch: The number of the epoch.

    Returns:
        The indices of each batch's examples in ``lengths``.
    """
    rng = random.Random(f"{seed} {epoch}")
    order = list(range(len(lengths)))
    rng.shuffle(order)
    if bucketed:
        noisy = []
        for of_example in lengths:
            noisy.append([length * rng.uniform(1 - LENGTH_NOISE, 1 + LENGTH_NOISE) for length in of_example])
        order.sort(key=noisy.__getitem__)
    batches = []
    for start in range(0, len(order), batch_size):
        batches.append(order[start : start + batch_size])
    rng.shuffle(batches)
    return batches


def l2_penalty(model: nn.Module, l2: float) -> Tensor | float:
    """Return ``l2`` times the sum of squares of all trained matrices except embedding tables and the biLM's matrices.

    The biLM is excluded because the penalty would pull its pretrained weights to zero.
    """
    if not l2:
        return 0.0
    excluded: set[int] = set()  # by id
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            excluded.add(id(module.weight))
        elif isinstance(module, ElmoModule):
            excluded.update(map(id, module.parameters()))
    squares = []
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.ndim >= 2 and id(parameter) not in excluded:
            squares.append((parameter**2).sum())
    if not squares:
        return 0.0
    return l2 * torch.stack(squares).sum()
