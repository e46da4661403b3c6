"""How to train: every number that a run depends on, from a file, from flags, or from Python."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from elmokit.bilm import PRESETS, BiLMConfig
from elmokit.config import setting
from elmokit.errors import ConfigError
from elmokit.weights.softmaxes import SoftmaxConfig

LAST_RATE = 0.05  # a schedule that falls ends at this share of the learning rate
LARGEST_SEED = 2**32 - 1  # each process makes a larger one of it, of 64 bits
MAY_CHANGE = frozenset(
    {"epochs", "tokens", "hours", "log_every", "eval_every", "save_every", "patience", "tensorboard"}
)
"""Settings that may differ between a run and its resumption."""


@dataclass(frozen=True)
class TrainingConfig:
    """How to train ``model``. The defaults are the recipe ``modern``."""

    model: BiLMConfig = field(default_factory=lambda: PRESETS["mini"])
    softmax: SoftmaxConfig = field(default_factory=SoftmaxConfig)
    epochs: float | None = setting(None, "Passes over the text to train for.")
    tokens: int | None = setting(
        None, "Instead: predictions per direction to train for; a sentence of n tokens holds n + 1."
    )
    hours: float | None = setting(None, "Instead: time to train for, at the speed measured before the start.")
    batch_size: int = setting(48, "Rows read side by side, in each process.")
    n_steps: int = setting(20, "Positions per row and window; gradients are cut there (TBPTT).")
    n_samples: int = setting(0, "Words sampled for the training loss of each window; 0 for the full softmax.")
    optimizer: Literal["adam", "adamw", "adagrad"] = setting("adam", "Adagrad as in bilm-tf, or the newer ones.")
    learning_rate: float = setting(5e-3, "At its peak.")
    weight_decay: float = setting(0.0, "Of AdamW.")
    schedule: Literal["cosine", "trapezoid", "constant"] = setting(
        "cosine", "Course of the learning rate after the warm-up; a trapezoid falls at the end only."
    )
    warmup_ratio: float = setting(0.02, "Share of the training over which the learning rate rises.")
    decay_ratio: float = setting(0.2, "Share of the training over which a trapezoid falls.")
    max_grad_norm: float = setting(1.0, "Bound on the global norm of the gradient.")
    scale_loss_by_steps: bool = setting(False, "Multiply the gradient by n_steps before it is clipped, as in bilm-tf.")
    accumulate: int = setting(1, "Windows whose gradients are averaged for one step of the optimizer.")
    same_text: bool = setting(True, "Both directions read the same text; else each in its own order, as in bilm-tf.")
    shuffle: bool = setting(True, "Shuffle shards and sentences.")
    precision: Literal["float32", "bfloat16"] = setting("float32", "Number type of the matrix products.")
    frozen_layers: tuple[int, ...] = setting((), "Layers that keep their weights: 0 the token layer, then the LSTMs.")
    freeze_softmax: bool = setting(False, "The softmax keeps its weights.")
    seed: int = setting(0, "Of the initial weights, the order of the text, dropout and sampling.")
    log_every: int = setting(50, "Steps between lines of the log.")
    eval_every: int = setting(1000, "Steps between looks at the held-out text.")
    save_every: int = setting(500, "Steps between checkpoints.")
    patience: int = setting(0, "Stop after so many looks without a better held-out perplexity; 0 for never.")
    tensorboard: bool = setting(False, "Write the log for TensorBoard too.")

    def __post_init__(self) -> None:
        if sum(budget is not None for budget in (self.epochs, self.tokens, self.hours)) > 1:
            raise ConfigError("Training ends after epochs, tokens or hours: give one of them.")
        for name in ("batch_size", "n_steps", "accumulate", "log_every", "eval_every", "save_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("n_samples", "patience", "weight_decay", "seed"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 0.")
        if self.seed > LARGEST_SEED:
            raise ConfigError(f"seed is {self.seed}; it must be at most {LARGEST_SEED}.")
        for name in ("learning_rate", "max_grad_norm", "epochs", "tokens", "hours"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value}; it must be above 0.")
        if not (0 <= self.warmup_ratio < 1 and 0 <= self.decay_ratio < 1 and self.warmup_ratio + self.decay_ratio <= 1):
            raise ConfigError(
                f"warmup_ratio is {self.warmup_ratio} and decay_ratio {self.decay_ratio}; they are shares from 0 to "
                "below 1, at most 1 together."
            )
        for name, known in (
            ("optimizer", ("adam", "adamw", "adagrad")),
            ("schedule", ("cosine", "trapezoid", "constant")),
            ("precision", ("float32", "bfloat16")),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(known)}.")
        if self.weight_decay and self.optimizer != "adamw":
            raise ConfigError(f"weight_decay belongs to adamw, and the optimizer is {self.optimizer}.")
        if self.n_samples and self.softmax.kind == "adaptive":
            raise ConfigError("An adaptive softmax is trained whole: set n_samples to 0, or choose another softmax.")
        n_layers = self.model.n_layers
        if wrong := [layer for layer in self.frozen_layers if not 0 <= layer <= n_layers]:
            raise ConfigError(f"frozen_layers holds {wrong[0]}; the model has layers 0 to {n_layers}.")
        if self.freeze_softmax and self.softmax.kind == "tied" and 0 not in self.frozen_layers:
            raise ConfigError("A tied softmax is layer 0's table of words: freeze them together (frozen_layers 0).")
        if self.freeze_softmax and set(self.frozen_layers) >= set(range(n_layers + 1)):
            raise ConfigError("Every layer and the softmax are frozen: there is nothing to train.")

    @property
    def n_positions(self) -> int:
        """Predictions per direction of one optimizer step in one process."""
        return self.batch_size * self.n_steps * self.accumulate

    def rate(self, share: float) -> float:
        """The learning rate after a share of the training, from 0 to 1: a linear warm-up, then as ``schedule``."""
        if share < self.warmup_ratio:
            return self.learning_rate * max(share / self.warmup_ratio, 1e-2)
        if self.schedule == "constant":
            return self.learning_rate
        if self.schedule == "cosine":
            fall = (share - self.warmup_ratio) / (1 - self.warmup_ratio)
            left = 0.5 * (1 + math.cos(math.pi * min(1.0, fall)))
        else:
            left = 1.0 if share < 1 - self.decay_ratio else max(0.0, 1 - share) / self.decay_ratio
        return self.learning_rate * (LAST_RATE + (1 - LAST_RATE) * left)


RECIPES: dict[str, TrainingConfig] = {
    "modern": TrainingConfig(),
    "bilm-tf": TrainingConfig(
        model=PRESETS["original"],
        epochs=10,
        batch_size=128,
        n_samples=8192,
        optimizer="adagrad",
        learning_rate=0.2,
        schedule="constant",
        warmup_ratio=0.0,
        max_grad_norm=10.0,
        scale_loss_by_steps=True,
        same_text=False,
    ),
}
"""``modern``, the one of this package; ``bilm-tf``, the one of the original models."""
