"""The settings of a biLM training: what to start from, how to train, where the text is; and the recipes.

They are keys of a config file, keyword arguments and flags (``training/settings.py``). Tables of a config file are
classes of their own: ``[model]`` and ``[softmax]`` are those of the network, in ``engine/``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from elmokit.config import (
    MAX_SEED,
    check_at_least,
    check_at_most,
    check_choice,
    check_fraction,
    check_not_negative,
    check_positive,
    setting,
)
from elmokit.engine.config import PRESETS, BiLMConfig
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.errors import ConfigError

MAX_WORDS, HELD_OUT_SENTENCES = 30_000, 2000
LENGTHS = ("epochs", "tokens", "hours")
"""The settings that say how long to train; at most one of them is given."""
MAY_CHANGE = frozenset({*LENGTHS, "log_every", "eval_every", "save_every", "save_words", "patience", "tensorboard"})
"""Settings that may differ between a run and its resumption."""
CHOICES = {
    "optimizer": ("adam", "adamw", "adagrad", "muon"),
    "schedule": ("cosine", "trapezoid", "constant"),
    "precision": ("float32", "bfloat16"),
}


@dataclass(frozen=True)
class DistillationConfig:
    """What a student learns, for `elmokit distill`: the loss is the weighted sum of three losses."""

    layer_weight: float = setting(
        1.0, "Weight of the loss that compares the layers with the teacher's. 0 leaves it out.", "Distillation"
    )
    layer_loss: Literal["mse", "cosine"] = setting(
        "mse",
        "How layers are compared, after a learned projection: by the mean squared error, as a fraction of the variance "
        "of the teacher's layer, or by the cosine distance.",
        "Distillation",
    )
    prediction_weight: float | None = setting(
        None,
        "Weight of the divergence from the teacher's predictions. By default 1 if the teacher has a softmax over the "
        "same words, and otherwise 0.",
        "Distillation",
    )
    temperature: float = setting(
        1.0, "Flattens the predictions that are compared: logits are divided by it.", "Distillation"
    )
    text_weight: float = setting(
        1.0, "Weight of the language model loss, which compares the predictions with the text.", "Distillation"
    )

    def __post_init__(self) -> None:
        for name in ("layer_weight", "text_weight", "prediction_weight"):
            check_not_negative(name, getattr(self, name) or 0.0)
        check_positive("temperature", self.temperature)
        check_choice("layer_loss", self.layer_loss, ("mse", "cosine"))
        if not (self.layer_weight or self.text_weight or self.prediction_weight is None or self.prediction_weight):
            raise ConfigError("layer_weight, prediction_weight and text_weight are all 0: there is nothing to learn.")

    @property
    def trains_softmax(self) -> bool:
        """Whether the student's softmax is trained, once ``prediction_weight`` is known."""
        return bool(self.text_weight or self.prediction_weight)


@dataclass(frozen=True)
class TrainingConfig:
    """How to train a biLM. The defaults are those of the recipe ``modern``."""

    model: BiLMConfig = field(default_factory=lambda: PRESETS["mini"])
    softmax: SoftmaxConfig = field(default_factory=SoftmaxConfig)
    distillation: DistillationConfig | None = None
    epochs: float | None = setting(None, "Number of epochs over the text.", "Length")
    tokens: int | None = setting(
        None,
        "Number of predictions per direction (alternative to epochs). A sentence of n tokens has n + 1 predictions.",
        "Length",
    )
    hours: float | None = setting(
        None, "Training time in hours (alternative to epochs), at the speed measured before the first step.", "Length"
    )
    patience: int = setting(
        0, "Stop after N evaluations without improvement (early stopping). 0 disables early stopping.", "Length"
    )
    batch_size: int = setting(48, "Number of rows of text that are read in parallel, in each process.", "Batches")
    window_length: int = setting(
        20, "Positions per row and training step. Gradients are truncated at the window's edges (TBPTT).", "Batches"
    )
    gradient_accumulation_steps: int = setting(
        1, "Number of windows whose gradients are averaged for one optimizer step.", "Batches"
    )
    reset_state: bool = setting(
        False,
        "Set the LSTM state of a row to zero before each window that begins with a sentence, so that the model also "
        "learns to start from zero.",
        "Batches",
    )
    shuffle: bool = setting(True, "Shuffle files and sentences.", "Batches")
    passage_length: int = setting(
        1,
        "Mean number of consecutive sentences that are read in their original order; a blank line ends such a passage. "
        "Half of the text (with 1, all of it) is still shuffled sentence by sentence.",
        "Batches",
    )
    lower_case: float = setting(
        0.0,
        "Fraction of the sentences to read in lower case: half of them whole, half of them the first word.",
        "Batches",
    )
    word_dropout: float = setting(
        0.1,
        "For a model that reads characters and words: the fraction of the distinct words of a window that it reads as "
        "characters alone.",
        "Optimization",
    )
    same_order: bool = setting(
        True,
        "Both directions read the text in the same order. If false, each direction shuffles it independently, as in "
        "bilm-tf.",
        "Batches",
    )
    seed: int = setting(0, "Seed of the initial weights, the order of the text, dropout and sampling.", "Batches")
    n_samples: int = setting(
        0,
        "Number of words that the sampled softmax draws for each window. 0 trains with the full softmax.",
        "Optimization",
    )
    optimizer: Literal["adam", "adamw", "adagrad", "muon"] = setting(
        "adam",
        "Optimizer. muon orthogonalizes the steps of the matrices of LSTM, highway layers and projections, and trains "
        "the rest with Adam. adagrad behaves as in TensorFlow and bilm-tf.",
        "Optimization",
    )
    learning_rate: float = setting(5e-3, "Peak learning rate.", "Optimization")
    matrix_learning_rate: float = setting(
        0.02, "Peak learning rate of the matrices that muon orthogonalizes; the schedule is the same.", "Optimization"
    )
    weight_decay: float = setting(0.0, "Decoupled weight decay (adamw only).", "Optimization")
    schedule: Literal["cosine", "trapezoid", "constant"] = setting(
        "cosine",
        "Learning rate after the warmup: a cosine decay, a plateau with a linear decay at the end, or constant.",
        "Optimization",
    )
    warmup_ratio: float = setting(
        0.02, "Fraction of the training over which the learning rate rises linearly.", "Optimization"
    )
    decay_ratio: float = setting(
        0.2, "Fraction of the training, at its end, over which the trapezoid schedule decays.", "Optimization"
    )
    final_ratio: float = setting(
        0.05, "Ratio of the peak learning rate at which the cosine and trapezoid schedules end.", "Optimization"
    )
    max_grad_norm: float = setting(1.0, "Clip the global norm of the gradient to this value.", "Optimization")
    scale_loss_by_steps: bool = setting(
        False,
        "Multiply the loss by the window length, which makes gradient clipping act as in bilm-tf.",
        "Optimization",
    )
    precision: Literal["float32", "bfloat16"] = setting(
        "float32",
        "Data type of matrix products. Weights, LSTM state and sums are always float32. bfloat16 needs AMX, AVX-512 "
        "BF16 or a GPU; elsewhere float32 is used.",
        "Optimization",
    )
    ema_decay: float = setting(
        0.0,
        "Evaluate and keep an exponential moving average of the weights with this decay per step, such as 0.999. "
        "0 evaluates the weights themselves.",
        "Optimization",
    )
    frozen_layers: tuple[int, ...] = setting(
        (), "Layers to freeze, such as 0,1. Layer 0 is the token layer; LSTM layers count from 1.", "Frozen weights"
    )
    freeze_softmax: bool = setting(False, "Freeze the weights of the softmax.", "Frozen weights")
    log_every: int = setting(50, "Optimizer steps between lines of the log.", "Output")
    eval_every: int = setting(1000, "Optimizer steps between evaluations on the held-out text.", "Output")
    save_every: int = setting(500, "Optimizer steps between checkpoints.", "Output")
    save_words: tuple[int, ...] = setting(
        (),
        "Keep the model after these numbers of words, such as 1M,2M,10M, in words-1M and so on.",
        "Output",
    )
    tensorboard: bool = setting(False, "Write the log for TensorBoard, too.", "Output")
    bilm_tf_lines: bool = False
    """Read the text as bilm-tf does (``read_sentences``). ``elmokit.compat.bilm`` sets it; it is not a flag."""

    def __post_init__(self) -> None:
        for name in (
            *("batch_size", "window_length", "gradient_accumulation_steps", "passage_length"),
            *("log_every", "eval_every", "save_every"),
        ):
            check_at_least(name, getattr(self, name), 1)
        for name in ("lower_case", "word_dropout", "ema_decay", "warmup_ratio", "decay_ratio"):
            check_fraction(name, getattr(self, name))
        for name in ("n_samples", "patience"):
            check_at_least(name, getattr(self, name), 0)
        check_at_least("seed", self.seed, 0, MAX_SEED)
        for n_words in self.save_words:
            check_at_least("save_words", n_words, 1)
        for name in ("weight_decay", "final_ratio"):
            check_not_negative(name, getattr(self, name))
        check_at_most("final_ratio", self.final_ratio, 1)
        for name in ("learning_rate", "matrix_learning_rate", "max_grad_norm", *LENGTHS):
            check_positive(name, getattr(self, name))
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for is_wrong, problem in self._conflicts():
            if is_wrong:
                raise ConfigError(problem)

    def _conflicts(self) -> Iterator[tuple[bool, str]]:
        """Yield what settings exclude each other, and whether these do."""
        lengths = [name for name in LENGTHS if getattr(self, name) is not None]
        yield len(lengths) > 1, "Give only one of epochs, tokens or hours."
        ratios = f"warmup_ratio is {self.warmup_ratio} and decay_ratio is {self.decay_ratio}"
        yield self.warmup_ratio + self.decay_ratio > 1, f"{ratios}; their sum is at most 1."
        decays = self.weight_decay > 0 and self.optimizer != "adamw"
        yield decays, f"weight_decay needs the optimizer adamw, and the optimizer is {self.optimizer}."
        is_sampled = self.n_samples > 0 and self.softmax.kind == "adaptive"
        yield is_sampled, "An adaptive softmax cannot be sampled: set n_samples to 0, or choose another softmax."
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
    def predictions_per_step(self) -> int:
        """Predictions per direction of one optimizer step in one process."""
        return self.batch_size * self.window_length * self.gradient_accumulation_steps

    def learning_rate_at(self, fraction: float) -> float:
        """Return the learning rate after a fraction of the training; the warmup starts at 1 % of the peak."""
        if fraction < self.warmup_ratio:
            return self.learning_rate * max(fraction / self.warmup_ratio, 1e-2)
        if self.schedule == "constant":
            return self.learning_rate
        if self.schedule == "cosine":
            decayed = (fraction - self.warmup_ratio) / (1 - self.warmup_ratio)
            height = 0.5 * (1 + math.cos(math.pi * min(1.0, decayed)))
        else:
            is_constant = fraction < 1 - self.decay_ratio or not self.decay_ratio
            height = 1.0 if is_constant else max(0.0, 1 - fraction) / self.decay_ratio
        return self.learning_rate * (self.final_ratio + (1 - self.final_ratio) * height)


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
        same_order=False,
    ),
}
"""Complete settings to start from: ``modern`` is ours, ``bilm-tf`` is how the original models were trained."""
FINETUNING = {"epochs": 1.0, "learning_rate": 1e-3, "patience": 3, "eval_every": 200, "save_every": 200}
"""The defaults of fine-tuning that differ from those of training: one epoch at a fifth of the learning rate."""


@dataclass(frozen=True)
class BaseConfig:
    """What the other settings start from: keys at the top level of a config file."""

    recipe: str = setting(
        "modern",
        f"Settings to start from: {' or '.join(RECIPES)}. bilm-tf trains as bilm-tf does, and fine-tunes as its "
        "restart.py does.",
        "Run",
    )
    preset: str | None = setting(
        None, f"Size of the model: {', '.join(PRESETS)}. By default that of the recipe.", "Model"
    )
    input: Literal["characters", "words", "both"] = setting(
        "characters",
        "What the model reads. With both, layer 0 is a word's spelling plus its row in the softmax, which is tied.",
        "Model",
    )
    keep_optimizer: bool | None = setting(
        None,
        "Continue with the optimizer's state of the checkpoint that the model is from. By default, the recipe bilm-tf "
        "keeps it where there is one, and others start with a new optimizer.",
        "Optimization",
    )


NEW_MODEL_SETTINGS, FINETUNING_SETTINGS = ("recipe", "preset", "input"), ("recipe", "keep_optimizer")
"""The fields of ``BaseConfig`` that are settings of a new model, and those of a fine-tuning."""


@dataclass(frozen=True)
class DataConfig:
    """The table ``[data]`` of a config file."""

    texts: tuple[str, ...] = setting((), "Text files, directories or patterns to train on.", is_path=True)
    held_out: tuple[str, ...] = setting(
        (),
        "Validation text. The model with the lowest perplexity on it is kept.",
        "Text",
        is_path=True,
    )
    held_out_sentences: int = setting(
        HELD_OUT_SENTENCES, "Largest number of held-out sentences. If there are more, they are sampled.", "Text"
    )
    vocabulary: str | None = setting(None, "Vocabulary file, as written by elmokit vocab.", "Text", is_path=True)
    max_words: int | None = setting(
        None, "Vocabulary size: keep the text's N most frequent words (instead of `vocabulary`).", "Text"
    )
