"""Pre-training a biLM: windows in, one loss per direction, truncated BPTT with carried state."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from elmokit.bilm import PRESETS, BiLM, BiLMConfig, stack_states
from elmokit.errors import ConfigError, TrainingError
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.batches import TokenEncoder
from elmokit.text.stream import Window, WindowStream
from elmokit.text.vocabulary import Vocabulary
from elmokit.train.perplexity import Perplexity, perplexity
from elmokit.train.state import TrainingState, checkpoints, load_checkpoint, save_checkpoint
from elmokit.weights.folder import save_folder

N_HELD_OUT_ROWS = 64


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
    encode: TokenEncoder,
    run: Path,
    card: dict[str, Any],
    report: Callable[[Progress], None],
    report_every: int = 50,
) -> Perplexity:
    """Train a biLM, or go on with the run that stands in the folder.

    Args:
        shards: the training text, one tokenised sentence per line.
        held_out: sentences to judge by; the best model so far is kept in ``run/model``.
        encode: distinct tokens to what the token layer reads.
        run: the folder for checkpoints, the log (``metrics.jsonl``) and the model.
        card: what the model card says beside the results.

    Returns:
        the held-out perplexity at the end.

    Raises:
        TrainingError: the loss is no longer a number; the last good checkpoint stays.
    """
    state = _fresh_state(config, shards, vocabulary, encode)
    if earlier := checkpoints(run / "checkpoints"):
        load_checkpoint(state, earlier[-1])
    losses = torch.zeros(config.model.n_directions)
    started, last_report = time.monotonic() - state.seconds, (state.n_steps, time.monotonic())
    result = None
    while state.n_predictions < config.n_predictions:
        learning_rate = _scheduled(config, state.n_predictions / config.n_predictions)
        step_losses, gradient_norm = train_step(state, next(state.stream), learning_rate, config.clip_norm)
        losses += step_losses
        state.n_steps += 1
        state.n_predictions += config.batch_size * config.n_steps
        state.seconds = time.monotonic() - started
        is_last = state.n_predictions >= config.n_predictions
        evaluated = is_last or state.n_steps % config.evaluate_every == 0
        if evaluated:
            result = _evaluate(state, encode, held_out)
            if result.mean < state.best_perplexity:
                state.best_perplexity = result.mean
                results = {"n_steps": state.n_steps, "n_predictions": state.n_predictions, "held_out": asdict(result)}
                save_folder(state.stored({**card, **results}), run / "model", "float32", overwrite=True)
        if evaluated or state.n_steps % report_every == 0:
            n_new, now = state.n_steps - last_report[0], time.monotonic()
            rate = n_new * config.batch_size * config.n_steps / max(now - last_report[1], 1e-9)
            progress = Progress(
                state.n_steps,
                min(1.0, state.n_predictions / config.n_predictions),
                state.stream.n_passes,
                rate,
                max(0, config.n_predictions - state.n_predictions) / rate,
                learning_rate,
                gradient_norm,
                tuple((losses / n_new).tolist()),
                result.per_direction if result is not None and evaluated else None,
            )
            with (run / "metrics.jsonl").open("a", encoding="utf-8") as log:
                log.write(json.dumps(asdict(progress)) + "\n")
            report(progress)
            losses.zero_()
            last_report = (state.n_steps, time.monotonic())
        if is_last or state.n_steps % config.checkpoint_every == 0:
            save_checkpoint(state, run / "checkpoints")
    return result if result is not None else _evaluate(state, encode, held_out)


def train_step(
    state: TrainingState, window: Window, learning_rate: float, clip_norm: float
) -> tuple[torch.Tensor, float]:
    """One window: the mean loss of each direction in nats, and the gradient's global norm before clipping."""
    bilm, softmax = state.bilm.train(), state.softmax
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


def _fresh_state(
    config: TrainConfig, shards: Sequence[Path], vocabulary: Vocabulary, encode: TokenEncoder
) -> TrainingState:
    torch.manual_seed(config.seed)
    bilm = BiLM(config.model)
    bilm.reset_parameters()
    softmax = FullSoftmax(len(vocabulary), config.model.projection_dim)
    softmax.reset_parameters()
    return TrainingState(
        bilm,
        softmax,
        torch.optim.Adam([*bilm.parameters(), *softmax.parameters()], lr=config.learning_rate, fused=True),
        bilm.zero_state(config.batch_size),
        WindowStream(
            shards, vocabulary, encode, config.batch_size, config.n_steps, config.model.n_directions, config.seed
        ),
        vocabulary,
    )


def _evaluate(state: TrainingState, encode: TokenEncoder, held_out: Sequence[Sequence[str]]) -> Perplexity:
    n_rows = min(N_HELD_OUT_ROWS, len(held_out))
    return perplexity(state.bilm.eval(), state.softmax, state.vocabulary, encode, held_out, n_carried_rows=n_rows)


def _scheduled(config: TrainConfig, share: float) -> float:
    """The learning rate after a share of the training: linear warm-up, then a cosine down to a twentieth."""
    if share < config.warmup_share:
        return config.learning_rate * max(share / config.warmup_share, 1e-2)
    fall = (share - config.warmup_share) / (1 - config.warmup_share)
    return config.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * fall)))
