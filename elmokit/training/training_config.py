"""The settings for training a biLM: what to start from, how to train, where the text is; and the recipes.

They are keys of a config file, keyword arguments and flags (``training/settings.py``). Each table of a config file is
a class; those of ``[model]`` and ``[softmax]`` are in ``engine/``. What a recipe always does is not a setting but a
property of its config.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from elmokit.config import (
    MAX_SEED,
    check_at_least,
    check_choice,
    check_fraction,
    check_not_negative,
    check_positive,
    setting,
)
from elmokit.engine.architecture import PRESETS, BiLMConfig
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.errors import ConfigError

MAX_WORDS, HELD_OUT_SENTENCES = 30_000, 2000
LENGTHS = ("epochs", "tokens")
"""The settings for the length of the training; at most one is given."""
MAY_CHANGE = frozenset({*LENGTHS, "log_every", "eval_every", "save_every", "patience", "tensorboard"})
"""Settings that may differ between a run and its resumption."""
WARMUP, FINAL = 0.02, 0.05
"""The fraction of the training with a rising learning rate, and the final rate as a fraction of the peak."""


@dataclass(frozen=True)
class DistillationConfig:
    """The loss of `elmokit distill`: a weighted sum of three losses."""

    layer_weight: float = setting(
        1.0,
        "Weight of the layer loss: the mean squared error between a learned projection of the student's layers and the "
        "teacher's layers, as a fraction of their variance. 0 disables it.",
    )
    prediction_weight: float | None = setting(
        None,
        "Weight of the prediction loss: the divergence from the teacher's predictions. By default, 1 if the teacher "
        "has a softmax for the same words, else 0.",
    )
    temperature: float = setting(
        1.0, "Divisor of the logits in the prediction loss. Larger values flatten the predictions."
    )
    text_weight: float = setting(1.0, "Weight of the language modeling loss on the text.")

    def __post_init__(self) -> None:
        for name in ("layer_weight", "text_weight", "prediction_weight"):
            check_not_negative(name, getattr(self, name) or 0.0)
        check_positive("temperature", self.temperature)
        if not (self.layer_weight or self.text_weight or self.prediction_weight is None or self.prediction_weight):
            raise ConfigError("layer_weight, prediction_weight and text_weight are all 0: there is nothing to learn.")

    @property
    def trains_softmax(self) -> bool:
        """Whether the student's softmax is trained, once ``prediction_weight`` is known."""
        return bool(self.text_weight or self.prediction_weight)


@dataclass(frozen=True)
class TrainingConfig:
    """How to train a biLM. The defaults are those of the recipe ``modern``."""

    recipe: Literal["modern", "bilm-tf"] = setting(
        "modern",
        "Default settings. The included model was trained with modern; bilm-tf trains like bilm-tf, and fine-tunes "
        "like its restart.py.",
    )
    model: BiLMConfig = field(default_factory=lambda: PRESETS["mini"])
    softmax: SoftmaxConfig = field(default_factory=SoftmaxConfig)
    distillation: DistillationConfig | None = None
    epochs: float | None = setting(None, "Number of epochs over the text.")
    tokens: int | None = setting(
        None,
        "Number of predictions per direction (alternative to epochs). A sentence of n tokens has n + 1 predictions.",
    )
    patience: int = setting(
        0,
        "Stop after N evaluations without improvement (early stopping), if the training has at least five times "
        "eval_every steps. 0 disables early stopping.",
    )
    batch_size: int = setting(48, "Number of rows of text read in parallel by each process.")
    window_length: int = setting(
        20, "Positions per row and training step. Gradients are truncated at the edges of this window (TBPTT)."
    )
    gradient_accumulation_steps: int = setting(
        1, "Number of windows whose gradients are averaged in each optimizer step."
    )
    passage_length: int = setting(
        35,
        "Mean number of consecutive sentences read in their original order; blank lines end such a passage. Half of "
        "the text (all of it if this is 1) is shuffled sentence by sentence.",
    )
    lower_case: float = setting(
        0.05,
        "Fraction of sentences to lower-case: half of them entirely, the other half only the first word.",
    )
    seed: int = setting(0, "Seed of the initial weights, the order of the text, dropout and sampling.")
    n_samples: int = setting(
        4096,
        "Number of words drawn by the sampled softmax for each window. 0 trains with the full softmax.",
    )
    learning_rate: float = setting(5e-3, "Peak learning rate.")
    matrix_learning_rate: float = setting(
        0.02,
        "Peak learning rate for the matrices of LSTM layers, highway layers and projections, which are trained with "
        "Muon (recipe modern). The rest is trained with Adam at learning_rate.",
    )
    max_grad_norm: float = setting(1.0, "Clip the global norm of the gradient to this value.")
    precision: Literal["float32", "bfloat16"] = setting(
        "bfloat16",
        "Data type of matrix products. Weights, LSTM state and sums are always float32. bfloat16 needs AMX, AVX-512 "
        "BF16 or a GPU; otherwise, float32 is used.",
    )
    ema_decay: float = setting(
        0.999,
        "Decay per step of an exponential moving average of the weights, which is evaluated and stored. 0 disables it.",
    )
    frozen_layers: tuple[int, ...] = setting(
        (), "Layers to freeze, such as 0,1. Layer 0 is the token layer; LSTM layers are numbered from 1."
    )
    freeze_softmax: bool = setting(False, "Freeze the weights of the softmax.")
    log_every: int = setting(50, "Optimizer steps between log lines.")
    eval_every: int = setting(
        1000, "Optimizer steps between evaluations on the held-out text, at most a fifth of the training."
    )
    save_every: int = setting(500, "Optimizer steps between checkpoints.")
    tensorboard: bool = setting(False, "Also write logs for TensorBoard.")
    shuffle: bool = True
    """Whether to shuffle files and sentences. Set by ``elmokit.compat.bilm``; not a flag."""
    bilm_tf_lines: bool = False
    """Whether to read text like bilm-tf (``Text(..., kind="bilm-tf")``). Not a flag either."""

    def __post_init__(self) -> None:
        check_choice("recipe", self.recipe, ("modern", "bilm-tf"))
        for name in (
            *("batch_size", "window_length", "gradient_accumulation_steps", "passage_length"),
            *("log_every", "eval_every", "save_every"),
        ):
            check_at_least(name, getattr(self, name), 1)
        for name in ("lower_case", "ema_decay"):
            check_fraction(name, getattr(self, name))
        for name in ("n_samples", "patience"):
            check_at_least(name, getattr(self, name), 0)
        check_at_least("seed", self.seed, 0, MAX_SEED)
        for name in ("learning_rate", "matrix_learning_rate", "max_grad_norm", *LENGTHS):
            check_positive(name, getattr(self, name))
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        for is_wrong, problem in self._conflicts():
            if is_wrong:
                raise ConfigError(problem)

    def _conflicts(self) -> Iterator[tuple[bool, str]]:
        """Yield each possible conflict between settings: whether it applies, and its message."""
        yield None not in (self.epochs, self.tokens), "Set only one of epochs and tokens."
        layers, frozen = set(range(self.model.n_layers + 1)), set(self.frozen_layers)
        outside = f"frozen_layers contains {', '.join(map(str, sorted(frozen - layers)))}"
        yield not frozen <= layers, f"{outside}; the model has layers 0 to {self.model.n_layers}."
        is_half_tied = self.freeze_softmax and self.softmax.kind == "tied" and 0 not in frozen
        yield is_half_tied, "A tied softmax shares its weights with layer 0: freeze both (frozen_layers 0)."
        yield (
            self.freeze_softmax and frozen == layers,
            "All layers and the softmax are frozen: there is nothing to train.",
        )

    @property
    def is_modern(self) -> bool:
        """Whether the recipe is ``modern``."""
        return self.recipe == "modern"

    @property
    def optimizer(self) -> str:
        """``muon`` (with Adam for everything but matrices), or ``adagrad`` as in TensorFlow."""
        return "muon" if self.is_modern else "adagrad"

    @property
    def same_order(self) -> bool:
        """Whether both directions read the text in the same order. In bilm-tf, each shuffles it independently."""
        return self.is_modern

    @property
    def resets_state(self) -> bool:
        """Whether the LSTM state of a row is set to zero before each window that begins with a sentence.

        This teaches the model to start from zero, too. bilm-tf does not do it.
        """
        return self.is_modern

    @property
    def loss_scale(self) -> int:
        """Factor of the loss: the window length in bilm-tf, whose gradient clipping depends on it."""
        return 1 if self.is_modern else self.window_length

    @property
    def predictions_per_step(self) -> int:
        """Predictions per direction, optimizer step and process."""
        return self.batch_size * self.window_length * self.gradient_accumulation_steps

    def learning_rate_at(self, fraction: float) -> float:
        """Return the learning rate after a fraction of the training; the warmup starts at 1 % of the peak."""
        if not self.is_modern:
            return self.learning_rate
        if fraction < WARMUP:
            return self.learning_rate * max(fraction / WARMUP, 1e-2)
        decayed = (fraction - WARMUP) / (1 - WARMUP)
        height = 0.5 * (1 + math.cos(math.pi * min(1.0, decayed)))
        return self.learning_rate * (FINAL + (1 - FINAL) * height)


RECIPES: dict[str, TrainingConfig] = {
    "modern": TrainingConfig(),
    "bilm-tf": TrainingConfig(
        recipe="bilm-tf",
        model=PRESETS["original"],
        epochs=10,
        batch_size=128,
        passage_length=1,
        lower_case=0.0,
        n_samples=8192,
        learning_rate=0.2,
        max_grad_norm=10.0,
        precision="float32",
        ema_decay=0.0,
    ),
}
"""Complete settings by recipe: ``modern`` is elmokit's, ``bilm-tf`` trains like the original models."""
TRAINING: dict[str, float] = {"epochs": 1.0, "max_words": MAX_WORDS}
"""Defaults of training for settings that a config does not set."""
FINETUNING_RATES = {"learning_rate": 1e-3, "matrix_learning_rate": 4e-3}
"""The learning rates of fine-tuning with the recipe ``modern``: a fifth of the usual rates. A new softmax is trained
at the usual ``learning_rate``."""
FINETUNING = {"epochs": 1.0, "patience": 3, "eval_every": 200, "save_every": 200, **FINETUNING_RATES}
"""Defaults of fine-tuning that differ from those of training."""


@dataclass(frozen=True)
class BaseConfig:
    """Settings that determine the defaults of others: keys at the top level of a config file."""

    preset: str | None = setting(
        None, f"Size of the model: {', '.join(PRESETS)}.  [default: mini; original with the recipe bilm-tf]"
    )
    input: Literal["characters", "words", "both"] = setting(
        "characters",
        "Input of the model. With both, layer 0 is a word's spelling plus its row in the softmax, which is tied.",
    )
    keep_optimizer: bool | None = setting(
        None,
        "Continue with the optimizer state of the model's checkpoint. By default, the recipe bilm-tf keeps it if there "
        "is one, and modern starts with a new optimizer.",
    )


NEW_MODEL_SETTINGS, FINETUNING_SETTINGS = ("preset", "input"), ("keep_optimizer",)
"""The fields of ``BaseConfig`` that are settings for a new model, and those for fine-tuning."""


@dataclass(frozen=True)
class DataConfig:
    """The table ``[data]`` of a config file."""

    texts: tuple[str, ...] = setting((), "Text files, directories or patterns to train on.", is_path=True)
    held_out: tuple[str, ...] = setting(
        (),
        "Validation text. The model with the lowest perplexity on it is kept.",
        is_path=True,
    )
    held_out_sentences: int = setting(
        HELD_OUT_SENTENCES, "Maximum number of held-out sentences; a longer text is sampled."
    )
    vocabulary: str | None = setting(None, "Vocabulary file, as written by elmokit vocab.", is_path=True)
    max_words: int | None = setting(
        None, "Vocabulary size: keep the text's N most frequent words (instead of `vocabulary`)."
    )
