"""Pre-training a biLM: windows in, one loss per direction, truncated BPTT with carried state."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.bilm import PRESETS, BiLM, BiLMConfig, stack_states
from elmokit.configs import config_to
from elmokit.errors import ConfigError, TextError, TrainingError
from elmokit.files import written_whole
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.stream import Window, WindowStream
from elmokit.text.vocabulary import Vocabulary
from elmokit.train.perplexity import Perplexity, perplexity
from elmokit.train.state import TrainingState, checkpoints, load_checkpoint, save_checkpoint
from elmokit.weights.folder import save_folder
from elmokit.weights.model import StoredModel

N_HELD_OUT_ROWS = 64
MAY_CHANGE = ("n_predictions", "evaluate_every", "checkpoint_every")  # between a run and its resumption


@dataclass(frozen=True)
class TrainConfig:
    """How to train; what to train is ``model``."""

    model: BiLMConfig = field(default_factory=lambda: PRESETS["mini"])
    n_predictions: int = 10_000_000
    """Predictions per direction to train on; a sentence of n tokens holds n + 1."""
    batch_size: int = 48
    """Rows read side by side."""
    n_steps: int = 20
    """Positions per row and window; gradients are cut there (TBPTT)."""
    learning_rate: float = 5e-3
    """Adam's, at its peak."""
    warmup_share: float = 0.02
    """Share of the training over which the learning rate rises; it then falls along a cosine to a twentieth."""
    clip_norm: float = 1.0
    """Bound on the global norm of the gradient."""
    seed: int = 0
    """Of the initial weights, the order of the text, and dropout."""
    evaluate_every: int = 1000
    """Steps between looks at the held-out text."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""

    def __post_init__(self) -> None:
        for name in ("n_predictions", "batch_size", "n_steps", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("learning_rate", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0.")
        if not 0 <= self.warmup_share < 1:
            raise ConfigError(f"warmup_share is {self.warmup_share}; it is a share from 0 to below 1.")


@dataclass(frozen=True)
class Progress:
    """One line of the training log."""

    n_steps: int
    share: float
    """Of the whole training, from 0 to 1."""
    n_passes: int
    tokens_per_second: float
    seconds_left: float
    learning_rate: float
    gradient_norm: float
    losses: tuple[float, ...]
    """Mean training loss in nats since the last line: forward, then backward."""
    held_out: tuple[float, ...] | None = None
    """Held-out perplexity, full softmax, state carried: forward, then backward; where it was measured."""


def train(
    config: TrainConfig,
    shards: Sequence[Path],
    held_out: Sequence[Sequence[str]],
    vocabulary: Vocabulary,
    run: Path,
    card: dict[str, Any],
    report: Callable[[Progress], None],
    report_every: int = 50,
) -> Perplexity:
    """Train a biLM, or go on with the run that stands in the folder.

    Args:
        shards: the training text, one tokenised sentence per line.
        held_out: sentences to judge by; the best model so far is kept in ``run/model``.
        run: the folder for checkpoints, settings, the log (``metrics.jsonl``) and the model.
        card: what the model card says beside the results.

    Returns:
        the held-out perplexity at the end.

    Raises:
        TextError: there is no sentence to train on, or to judge by.
        TrainingError: the folder's run has other settings; or the loss is no longer a number (the last good
            checkpoint stays).
    """
    if not held_out:
        raise TextError("There is no held-out sentence: nothing to judge by.")
    run.mkdir(parents=True, exist_ok=True)
    _agree_on_settings(config, shards, held_out, vocabulary, run)
    state = _fresh_state(config, shards, vocabulary)
    if earlier := checkpoints(run / "checkpoints"):
        load_checkpoint(state, earlier[-1])
    _forget_later_lines(run / "metrics.jsonl", state.n_steps)
    meter = _Meter(config, state)
    result = None
    while state.n_predictions < config.n_predictions:
        learning_rate = _scheduled(config, state.n_predictions / config.n_predictions)
        losses, gradient_norm = train_step(state, next(state.stream), learning_rate, config.clip_norm)
        state.n_steps += 1
        state.n_predictions += config.batch_size * config.n_steps
        meter.add(losses)
        is_last = state.n_predictions >= config.n_predictions
        evaluated = is_last or state.n_steps % config.evaluate_every == 0
        if evaluated:
            result = _evaluate(state, held_out)
            if result.mean < state.best_perplexity:
                state.best_perplexity = result.mean
                results = {"n_steps": state.n_steps, "n_predictions": state.n_predictions, "held_out": asdict(result)}
                best = dataclasses.replace(state.model, card={**card, **results})
                save_folder(best, run / "model", overwrite=True)
        if evaluated or state.n_steps % report_every == 0:
            held_out_now = result.per_direction if evaluated and result is not None else None
            progress = meter.progress(learning_rate, gradient_norm, held_out_now)
            with (run / "metrics.jsonl").open("a", encoding="utf-8") as log:
                log.write(json.dumps(asdict(progress)) + "\n")
            report(progress)
        if is_last or state.n_steps % config.checkpoint_every == 0:
            save_checkpoint(state, run / "checkpoints")
    return result if result is not None else _evaluate(state, held_out)


class _Meter:
    """What the steps since the last line of the log add up to."""

    def __init__(self, config: TrainConfig, state: TrainingState) -> None:
        self.config, self.state = config, state
        self._start()

    def _start(self) -> None:
        self.losses = torch.zeros(self.config.model.n_directions)
        self.n_steps, self.started = 0, time.monotonic()

    def add(self, losses: Tensor) -> None:
        self.losses += losses
        self.n_steps += 1

    def progress(self, learning_rate: float, gradient_norm: float, held_out: tuple[float, ...] | None) -> Progress:
        config, state = self.config, self.state
        n_predictions = self.n_steps * config.batch_size * config.n_steps
        rate = n_predictions / max(time.monotonic() - self.started, 1e-9)
        progress = Progress(
            state.n_steps,
            min(1.0, state.n_predictions / config.n_predictions),
            state.stream.n_passes,
            rate,
            max(0, config.n_predictions - state.n_predictions) / rate,
            learning_rate,
            gradient_norm,
            tuple((self.losses / self.n_steps).tolist()),
            held_out,
        )
        self._start()
        return progress


def train_step(state: TrainingState, window: Window, learning_rate: float, clip_norm: float) -> tuple[Tensor, float]:
    """One window: the mean loss of each direction in nats, and the gradient's global norm before clipping."""
    bilm, softmax = state.model.bilm.train(), state.softmax
    vectors = bilm.token_layer(torch.from_numpy(window.tokens).to(bilm.device))
    inputs, targets = (torch.from_numpy(part).to(bilm.device) for part in (window.inputs, window.targets))
    losses, states = [], []
    for direction in range(bilm.config.n_directions):
        outputs, new_state = bilm.read(direction, vectors[inputs[direction]], state.lstm_state.of_direction(direction))
        top = F.dropout(outputs[-1], bilm.config.dropout).flatten(0, 1)
        losses.append(softmax(top, targets[direction].flatten()))
        states.append(new_state)
    loss = torch.stack(losses)
    if not loss.isfinite().all():
        raise TrainingError(
            f"The loss is {loss.tolist()} at step {state.n_steps + 1}. The last checkpoint is good: start again from "
            "it with a lower learning rate or a lower clip norm."
        )
    loss.mean().backward()  # type: ignore[no-untyped-call]
    parameters = [parameter for _, parameter in state.named_parameters()]
    norm = torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.lstm_state = stack_states(states).detach()
    return loss.detach(), norm.item()


def _fresh_state(config: TrainConfig, shards: Sequence[Path], vocabulary: Vocabulary) -> TrainingState:
    torch.manual_seed(config.seed)
    bilm = BiLM(config.model)
    bilm.reset_parameters()
    softmax = FullSoftmax(len(vocabulary), config.model.projection_dim)
    softmax.reset_parameters()
    model = StoredModel(bilm, "elmokit", softmax=softmax, vocabulary=vocabulary)
    return TrainingState(
        model,
        softmax,
        torch.optim.Adam([*bilm.parameters(), *softmax.parameters()], lr=config.learning_rate, fused=True),
        bilm.zero_state(config.batch_size),
        WindowStream(
            shards, vocabulary, model.encode, config.batch_size, config.n_steps, config.model.n_directions, config.seed
        ),
    )


def _agree_on_settings(
    config: TrainConfig, shards: Sequence[Path], held_out: Sequence[Sequence[str]], vocabulary: Vocabulary, run: Path
) -> None:
    """Note a new run's settings in its folder; refuse to go on with a run of others."""
    settings = json.loads(
        json.dumps(
            {
                **config_to(config),
                "shards": [[shard.name, shard.stat().st_size] for shard in shards],
                "held_out": zlib.crc32(
                    "\n".join(" ".join(sentence) for sentence in held_out).encode("utf-8", "replace")
                ),
                "vocabulary": zlib.crc32(vocabulary.to_text().encode("utf-8", "replace")),
            }
        )
    )
    path = run / "settings.json"
    if not path.exists():
        with written_whole(path) as beside:
            beside.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        return
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TrainingError(f"{path} is damaged ({error}). Start a new run.") from None
    changed = [name for name in settings if name not in MAY_CHANGE and settings[name] != earlier.get(name)]
    if changed:
        was_and_is = ", ".join(f"{name} was {earlier.get(name)!r} and is {settings[name]!r}" for name in changed)
        raise TrainingError(
            f"{run} is a run with other settings: {was_and_is}. Resume with the same, or start a new run."
        )


def _forget_later_lines(log: Path, n_steps: int) -> None:
    """Take out of the log what was written after the checkpoint that training goes on from, or was cut short."""
    if not log.exists():
        return
    kept = []
    for line in log.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            if json.loads(line)["n_steps"] <= n_steps:
                kept.append(line + "\n")
    with written_whole(log, overwrite=True) as beside:
        beside.write_text("".join(kept), encoding="utf-8")


def _evaluate(state: TrainingState, held_out: Sequence[Sequence[str]]) -> Perplexity:
    return perplexity(state.model, held_out, n_carried_rows=min(N_HELD_OUT_ROWS, len(held_out)))


def _scheduled(config: TrainConfig, share: float) -> float:
    """The learning rate after a share of the training: linear warm-up, then a cosine down to a twentieth."""
    if share < config.warmup_share:
        return config.learning_rate * max(share / config.warmup_share, 1e-2)
    fall = (share - config.warmup_share) / (1 - config.warmup_share)
    return config.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * fall)))
