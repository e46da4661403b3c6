"""The settings of a biLM training: what to start from, how to train, where the text is; and the recipes.

They are keys of a config file, keyword arguments and flags (``training/settings.py``). Tables of a config file are
classes of their own: ``[model]`` and ``[softmax]`` are those of the network, in ``engine/``. What a recipe always does
is no setting, but a property of its config.
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
"""The settings that say how long to train; at most one of them is given."""
MAY_CHANGE = frozenset({*LENGTHS, "log_every", "eval_every", "save_every", "patience", "tensorboard"})
"""Settings that may differ between a run and its resumption."""
WARMUP, FINAL = 0.02, 0.05
"""The fraction of a training over which the learning rate rises, and the ratio of the peak at which it ends."""


@dataclass(frozen=True)
class DistillationConfig:
    """What a student learns, for `elmokit distill`: the loss is the weighted sum of three losses."""

    layer_weight: float = setting(
        1.0,
        "Weight of the loss that compares the layers with the teacher's, after a learned projection: the mean squared "
        "error, as a fraction of the variance of the teacher's layer. 0 leaves it out.",
    )
    prediction_weight: float | None = setting(
        None,
        "Weight of the divergence from the teacher's predictions. By default 1 if the teacher has a softmax over the "
        "same words, and otherwise 0.",
    )
    temperature: float = setting(1.0, "Flattens the predictions that are compared: logits are divided by it.")
    text_weight: float = setting(
        1.0, "Weight of the language model loss, which compares the predictions with the text."
    )

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
        "Settings to start from. modern is what the included model was trained with; bilm-tf trains as bilm-tf does, "
        "and fine-tunes as its restart.py does.",
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
        "Stop after N evaluations without improvement (early stopping), in a training of at least five times "
        "eval_every steps. 0 disables early stopping.",
    )
    batch_size: int = setting(48, "Number of rows of text that are read in parallel, in each process.")
    window_length: int = setting(
        20, "Positions per row and training step. Gradients are truncated at the window's edges (TBPTT)."
    )
    gradient_accumulation_steps: int = setting(
        1, "Number of windows whose gradients are averaged for one optimizer step."
    )
    passage_length: int = setting(
        35,
        "Mean number of consecutive sentences that are read in their original order; a blank line ends such a passage. "
        "Half of the text (with 1, all of it) is shuffled sentence by sentence.",
    )
    lower_case: float = setting(
        0.05,
        "Fraction of the sentences to read in lower case: half of them whole, half of them the first word.",
    )
    seed: int = setting(0, "Seed of the initial weights, the order of the text, dropout and sampling.")
    n_samples: int = setting(
        4096,
        "Number of words that the sampled softmax draws for each window. 0 trains with the full softmax.",
    )
    learning_rate: float = setting(5e-3, "Peak learning rate.")
    matrix_learning_rate: float = setting(
        0.02,
        "Peak learning rate of the matrices of LSTM, highway layers and projections, which Muon trains (recipe "
        "modern); Adam trains the rest at the other rate.",
    )
    max_grad_norm: float = setting(1.0, "Clip the global norm of the gradient to this value.")
    precision: Literal["float32", "bfloat16"] = setting(
        "bfloat16",
        "Data type of matrix products. Weights, LSTM state and sums are always float32. bfloat16 needs AMX, AVX-512 "
        "BF16 or a GPU; elsewhere float32 is used.",
    )
    ema_decay: float = setting(
        0.999,
        "Evaluate and keep an exponential moving average of the weights with this decay per step. 0 evaluates the "
        "weights themselves.",
    )
    frozen_layers: tuple[int, ...] = setting(
        (), "Layers to freeze, such as 0,1. Layer 0 is the token layer; LSTM layers count from 1."
    )
    freeze_softmax: bool = setting(False, "Freeze the weights of the softmax.")
    log_every: int = setting(50, "Optimizer steps between lines of the log.")
    eval_every: int = setting(
        1000, "Optimizer steps between evaluations on the held-out text; at most a fifth of the training."
    )
    save_every: int = setting(500, "Optimizer steps between checkpoints.")
    tensorboard: bool = setting(False, "Write the log for TensorBoard, too.")
    shuffle: bool = True
    """Shuffle files and sentences. ``elmokit.compat.bilm`` sets it; it is not a flag."""
    bilm_tf_lines: bool = False
    """Read the text as bilm-tf does (``Text(..., kind="bilm-tf")``); not a flag either."""

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
        """Yield what settings exclude each other, and whether these do."""
        yield None not in (self.epochs, self.tokens), "Give only one of epochs and tokens."
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
        """Whether the recipe is ours."""
        return self.recipe == "modern"

    @property
    def optimizer(self) -> str:
        """``muon`` (which trains with Adam what is no matrix), or ``adagrad`` as in TensorFlow."""
        return "muon" if self.is_modern else "adagrad"

    @property
    def same_order(self) -> bool:
        """Both directions read the text in the same order; in bilm-tf, each one shuffles it independently."""
        return self.is_modern

    @property
    def resets_state(self) -> bool:
        """The LSTM state of a row is set to zero before each window that begins with a sentence.

        So the model also learns to start from zero. bilm-tf does not.
        """
        return self.is_modern

    @property
    def loss_scale(self) -> int:
        """What the loss is multiplied by: in bilm-tf, the window length, on which its gradient clipping depends."""
        return 1 if self.is_modern else self.window_length

    @property
    def predictions_per_step(self) -> int:
        """Predictions per direction of one optimizer step in one process."""
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
"""Complete settings to start from: ``modern`` is ours, ``bilm-tf`` is how the original models were trained."""
TRAINING: dict[str, float] = {"epochs": 1.0, "max_words": MAX_WORDS}
"""What a training takes where a config has none."""
FINETUNING_RATES = {"learning_rate": 1e-3, "matrix_learning_rate": 4e-3}
"""The learning rates of fine-tuning with the recipe ``modern``: a fifth of those of training. A new softmax is
trained at the ``learning_rate`` of a training."""
FINETUNING = {"epochs": 1.0, "patience": 3, "eval_every": 200, "save_every": 200, **FINETUNING_RATES}
"""The defaults of fine-tuning that differ from those of training."""


@dataclass(frozen=True)
class BaseConfig:
    """What the other settings start from: keys at the top level of a config file."""

    preset: str | None = setting(
        None, f"Size of the model: {', '.join(PRESETS)}.  [default: mini; original with the recipe bilm-tf]"
    )
    input: Literal["characters", "words", "both"] = setting(
        "characters",
        "What the model reads. With both, layer 0 is a word's spelling plus its row in the softmax, which is tied.",
    )
    keep_optimizer: bool | None = setting(
        None,
        "Continue with the optimizer's state of the checkpoint that the model is from. By default, the recipe bilm-tf "
        "keeps it where there is one, and others start with a new optimizer.",
    )


NEW_MODEL_SETTINGS, FINETUNING_SETTINGS = ("preset", "input"), ("keep_optimizer",)
"""The fields of ``BaseConfig`` that are settings of a new model, and those of a fine-tuning."""


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
        HELD_OUT_SENTENCES, "Largest number of held-out sentences. If there are more, they are sampled."
    )
    vocabulary: str | None = setting(None, "Vocabulary file, as written by elmokit vocab.", is_path=True)
    max_words: int | None = setting(
        None, "Vocabulary size: keep the text's N most frequent words (instead of `vocabulary`)."
    )
