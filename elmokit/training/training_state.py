"""The state of a biLM training: building it, saving it to a checkpoint, and restoring it.

Besides the usual contents (``training_run.py``), a biLM's checkpoint has the LSTM states in ``state.safetensors``. With
several processes, these are the rows of all of them, in order of rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from elmokit.config import from_dict
from elmokit.embedding.computer import Computer
from elmokit.embedding.start_state import stored_or_zero_state
from elmokit.errors import TrainingError
from elmokit.network.average import moving_average
from elmokit.network.bilm import BiLM, BiLMState
from elmokit.network.softmax_module import SoftmaxModule, build_softmax, softmax_config
from elmokit.network.torch_network import ModuleArrays
from elmokit.pretrained.model import PretrainedBiLM, Weights
from elmokit.storage.workspace import Committed
from elmokit.training.bilm_run import TrainingSetup
from elmokit.training.distillation import DistillationLosses, Teacher, window_encoder
from elmokit.training.distributed import World
from elmokit.training.losses import WindowLosses
from elmokit.training.optimizers import Muon, build_optimizer, matrix_blocks, optimizer_tensors, restore_optimizer
from elmokit.training.shards import ReadingOrder, SentenceBlocks
from elmokit.training.training_config import TrainingConfig
from elmokit.training.training_run import Run, RunCheckpoint, last_checkpoint, random_states, restore_random_states
from elmokit.training.windows import WindowStream


@dataclass
class TrainingCounters:
    """Training progress counters, and sums for the next log line."""

    n_steps: int = 0
    n_predictions: int = 0
    """Per direction, of all processes, since the start of the run."""
    best_perplexity: float | None = None
    n_worse: int = 0
    """Evaluations since the best one."""
    loss_sums: list[float] = field(default_factory=list)
    """This process's training loss of each direction since the last log line, summed over windows."""
    n_summed: int = 0
    """Windows in ``loss_sums``."""

    def add(self, losses: Sequence[float]) -> None:
        """Add the losses of one window to the sums."""
        if self.n_summed == 0:
            self.loss_sums = [0.0] * len(losses)
        self.loss_sums = [total + loss for total, loss in zip(self.loss_sums, losses, strict=True)]
        self.n_summed += 1


@dataclass
class TrainingState:
    """Everything that affects the next step, in one process."""

    model: PretrainedBiLM
    """The initial vocabulary, start state and card, and the current weights of ``losses``."""
    losses: WindowLosses
    """The module that computes the loss, over the biLM and the softmax."""
    optimizer: torch.optim.Optimizer
    lstm_state: BiLMState
    stream: WindowStream
    average: AveragedModel | None = None
    """The moving average of the weights of biLM and softmax, if requested."""
    teacher_state: BiLMState | None = None
    """In a distillation, the LSTM state of the teacher."""
    counters: TrainingCounters = field(default_factory=TrainingCounters)

    def computer(self) -> Computer:
        """Return the trained model, with its current weights."""
        return Computer(self.model, bilm=self.losses.bilm, softmax=self.losses.softmax)

    def evaluated(self) -> Computer:
        """Return the model to evaluate and save: with averaged weights, if there is an average."""
        if self.average is None:
            return self.computer()
        bilm, softmax = self.average.module.children()
        assert isinstance(bilm, BiLM)
        assert isinstance(softmax, SoftmaxModule)
        return Computer(self.model.view_of(bilm, softmax), bilm=bilm, softmax=softmax)

    @property
    def lstm_states(self) -> dict[str, BiLMState]:
        """The LSTM states, by the prefix of their names in a checkpoint: the model's first."""
        states = {"": self.lstm_state}
        return states if self.teacher_state is None else states | {"teacher.": self.teacher_state}

    @property
    def device(self) -> torch.device:
        """Where the training runs."""
        return self.lstm_state.hidden.device

    def trained_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that the optimizer changes, by name."""
        return {name: value for name, value in self.losses.named_parameters() if value.requires_grad}

    def update_average(self) -> None:
        """Move the average towards the weights, after each step."""
        if self.average is not None:
            self.average.update_parameters(_joined(self.losses))

    def save(self, run: Run, world: World, calibrated: Callable[[Computer], Computer]) -> None:
        """Write a checkpoint, with ``calibrated`` models that open like any other. All processes must call this."""
        own_states = {prefix: state.to("cpu") for prefix, state in self.lstm_states.items()}
        gathered = world.gather(
            (own_states, random_states(self.device), self.stream.position(), self.counters.loss_sums)
        )
        if gathered is None:  # only the main process writes
            return
        lstm_states, random_of_ranks, positions, loss_sums = zip(*gathered, strict=True)
        tensors = {f"loss.{name}": value.detach() for name, value in self.losses.own_parameters().items()}
        for prefix in self.lstm_states:
            # (directions, layers, rows, dim): rows of all processes, in the order of ranks.
            tensors[f"{prefix}hidden"] = torch.cat([states[prefix].hidden for states in lstm_states], dim=2)
            tensors[f"{prefix}cell"] = torch.cat([states[prefix].cell for states in lstm_states], dim=2)
        for rank, states in enumerate(random_of_ranks):
            for name, value in states.items():
                tensors[f"random.{rank}.{name}"] = value
        models = {"model": calibrated(self.computer()).model}
        if self.average is not None:
            models["average"] = calibrated(self.evaluated()).model
        run.save_checkpoint(
            self.counters.n_steps,
            # The counters are those of the main process; values that differ between processes are listed by rank.
            {"counters": vars(self.counters), "loss_sums": loss_sums, "positions": positions},
            {"optimizer": optimizer_tensors(self.optimizer, self.trained_parameters()), "state": tensors},
            models,
        )

    def restore(self, checkpoint: RunCheckpoint, progress: Mapping[str, Any], world: World) -> str | None:
        """Restore a newly built state from a commit; report changes due to a different number of processes."""
        positions = progress["positions"]  # by rank
        with checkpoint.errors():
            restore_optimizer(self.optimizer, self.trained_parameters(), checkpoint.tensors("optimizer"))
            if self.average is not None:
                _restore_average(self.average, checkpoint)
            counters = progress["counters"]
            if len(positions) == world.size:
                counters = {**counters, "loss_sums": progress["loss_sums"][world.rank]}
            self.counters = from_dict(TrainingCounters, counters, str(checkpoint.path))
            tensors = checkpoint.tensors("state")
            with torch.no_grad():
                for name, value in self.losses.own_parameters().items():
                    value.copy_(tensors[f"loss.{name}"])
            self.lstm_state = self._own_rows(tensors, "", world.rank)
            if self.teacher_state is not None:
                self.teacher_state = self._own_rows(tensors, "teacher.", world.rank)
            if world.rank < len(positions):  # a new process keeps the state from its seed
                prefix = f"random.{world.rank}."
                states = {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}
                restore_random_states(states, self.device)
            return self._restore_position(positions, world, n_rows_before=tensors["hidden"].shape[2])

    def _own_rows(self, tensors: Mapping[str, Tensor], prefix: str, rank: int) -> BiLMState:
        """Return this process's rows of an LSTM state in a checkpoint."""
        batch_size = self.lstm_state.n_rows
        first = rank * batch_size
        rows = (tensors[f"{prefix}{name}"][:, :, first : first + batch_size] for name in BiLMState._fields)
        # With more processes than before, the last ones have no rows; `first_rows` fills them with zeros.
        return BiLMState(*rows).first_rows(batch_size).to(self.device)

    def _restore_position(self, positions: Sequence[Any], world: World, n_rows_before: int) -> str | None:
        """Continue the text at each process's position, or start an epoch, with a notice, if their number changed."""
        if len(positions) == world.size:
            self.stream.restore(positions[world.rank])
            return None
        # Each process reads every N-th sentence, so positions do not carry over to another N.
        epoch = min(reader["block"][0] for position in positions for reader in position)
        self.stream.start_epoch(epoch)
        return (
            f"This run used {len(positions)} processes and is now resumed with {world.size}, so each step reads "
            f"{world.size * self.lstm_state.n_rows} rows instead of {n_rows_before}, and the text is split again "
            f"and read from the start of epoch {epoch + 1}. Weights, optimizer and schedule are kept."
        )


def _restore_average(average: AveragedModel, checkpoint: RunCheckpoint) -> None:
    bilm, softmax = checkpoint.model("average").build_modules()
    assert softmax is not None
    average.module.load_state_dict(nn.ModuleList([bilm, softmax]).state_dict())
    average.n_averaged.fill_(checkpoint.n_steps + 1)


def new_or_restored_state(
    setup: TrainingSetup, committed: Committed, world: World, device: torch.device
) -> tuple[TrainingState, str | None]:
    """Build the state of the first step, or restore that of the last commit; seed the random numbers.

    Returns:
        The state, and a line about what changes, if anything, with another number of processes than before.
    """
    config, corpus, checkpoint = setup.config, setup.corpus, last_checkpoint(committed)
    torch.manual_seed(config.seed)
    if checkpoint is not None:
        with checkpoint.errors():
            model = checkpoint.model()
            modules = model.build_modules()
    elif setup.initial is not None:
        model = setup.initial
        modules = model.build_modules()
    else:
        bilm = BiLM(config.model)
        bilm.reset_parameters()
        softmax = build_softmax(config.softmax, len(corpus.vocabulary), bilm.config.projection_dim, bilm.token_layer)
        softmax.reset_parameters()
        exact = config.bilm_tf_lines  # then all text is read as bilm-tf reads it
        weights = Weights(bilm.config, ModuleArrays(bilm))
        model = PretrainedBiLM(weights, "elmokit", vocabulary=corpus.vocabulary, exact_marks=exact)
        modules = bilm, softmax
    state = _build_state(setup, model, modules, world, device)
    if checkpoint is None and setup.initial_optimizer is not None:
        restore_optimizer(state.optimizer, state.trained_parameters(), setup.initial_optimizer)
    if world.rank:  # all processes draw the same initial weights, but different dropout and samples
        torch.manual_seed(config.seed * 100_003 + world.rank)
    # After the seeds, which it overwrites with the random states of the checkpoint.
    return state, None if checkpoint is None else state.restore(checkpoint, committed.progress, world)


def _build_state(
    setup: TrainingSetup,
    model: PretrainedBiLM,
    modules: tuple[BiLM, SoftmaxModule | None],  # with its weights
    world: World,
    device: torch.device,
) -> TrainingState:
    config, corpus, teacher = setup.config, setup.corpus, setup.teacher
    bilm, softmax = modules
    has_words = model.vocabulary is not None and model.vocabulary.words == corpus.vocabulary.words
    if softmax is None or not has_words or model.config != config.model or softmax_config(softmax) != config.softmax:
        raise TrainingError(f"The sizes or words of the model {model.source} differ from the run's settings.")
    bilm.to(device)
    softmax.to(device)
    n_samples, teacher_state = min(config.n_samples, len(corpus.vocabulary)), None
    if config.distillation is None or teacher is None:
        losses = WindowLosses(bilm, softmax, n_samples)
    else:
        reader = Teacher(teacher, model, device)
        losses = DistillationLosses(bilm, softmax, n_samples, reader, config.distillation).to(device)
        teacher_state = _lstm_state(teacher, config, device)
    # First enable all gradients, because those of the initial model may be disabled.
    losses.requires_grad_(True)
    for layer in config.frozen_layers:
        for module in losses.bilm.modules_of_layer(layer):
            module.requires_grad_(False)
    if config.freeze_softmax:
        losses.softmax.requires_grad_(False)
    optimizer = config_optimizer(config, losses, world)
    lstm_state = _lstm_state(model, config, device)
    average = None
    if config.ema_decay:
        average = moving_average(_joined(losses), config.ema_decay)
        average.module.requires_grad_(False)
    stream = window_stream(setup, model, world)
    model = model.view_of(bilm, softmax)  # the files that it was read from can be closed
    return TrainingState(model, losses, optimizer, lstm_state, stream, average=average, teacher_state=teacher_state)


def window_stream(setup: TrainingSetup, model: PretrainedBiLM, world: World) -> WindowStream:
    """Return the windows of one process, from the start of the text."""
    config, corpus = setup.config, setup.corpus
    order = ReadingOrder(
        seed=config.seed,
        shuffle=config.shuffle,
        passage_length=config.passage_length,
        lower_case=config.lower_case,
        rank=world.rank,
        n_ranks=world.size,
    )
    n_readers = 1 if config.same_order else len(config.model.read_backward)
    return WindowStream(
        [SentenceBlocks(corpus.text, order, reader) for reader in range(n_readers)],
        corpus.vocabulary,
        model.encode if setup.teacher is None else window_encoder(model, setup.teacher),
        config.batch_size,
        config.window_length,
        read_backward=config.model.read_backward,
        read=model.read,
    )


def _joined(losses: WindowLosses) -> nn.ModuleList:
    """Return biLM and softmax as one module, so a copy keeps the shared weights of a tied softmax."""
    return nn.ModuleList([losses.bilm, losses.softmax])


def config_optimizer(config: TrainingConfig, losses: WindowLosses, world: World) -> torch.optim.Optimizer:
    """Build a config's optimizer for the trained parameters, in one or several processes."""
    parameters = [parameter for parameter in losses.parameters() if parameter.requires_grad]
    if config.is_modern:
        blocks = matrix_blocks(losses.bilm) | matrix_blocks(losses.softmax)
        return Muon(parameters, blocks, config.learning_rate, config.matrix_learning_rate, fused=True, world=world)
    return build_optimizer(config.optimizer, parameters, config.learning_rate)


def _lstm_state(model: PretrainedBiLM, config: TrainingConfig, device: torch.device) -> BiLMState:
    return BiLMState.from_numpy(stored_or_zero_state(model, config.batch_size)).to(device)
