"""Settings that all tasks share, the paths in config files, and ``table.key=value`` overrides."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from elmokit.config import (
    MAX_SEED,
    MAX_UNITS,
    check_at_least,
    check_fraction,
    check_not_negative,
    check_positive,
    check_ratio,
    deep_merge,
    setting,
)
from elmokit.embedding.elmo import Start
from elmokit.errors import ConfigError
from elmokit.storage.text_files import find_text_files
from elmokit.tasks.nn.layers import CharFeatures, TokenCharCNN

Paths = str | tuple[str, ...]
"""A path, a glob pattern, a directory of ``*gold_conll`` files, or several of these."""
Spelling = Literal["characters", "bytes", "marked bytes"]
"""What character features read of a word: its characters, its UTF-8 bytes, or its bytes between two marks."""
GOLD_CONLL = "gold_conll"  # the suffix that CoNLL-2012's scripts write, and that AllenNLP reads from directories


@dataclass(frozen=True)
class TaskDataConfig:
    """The files of examples."""

    train: Paths = setting((), "Training files.")
    dev: Paths = setting((), "Validation files. The model with the best score on them is kept.")
    test: Paths = setting((), "Test files, only used for the vocabulary, so their words get pretrained vectors, too.")
    train_ratio: float = setting(
        1.0, "Fraction of the texts to train on, sampled randomly. Smaller samples are subsets of larger ones."
    )

    def __post_init__(self) -> None:
        check_ratio("train_ratio", self.train_ratio)


@dataclass(frozen=True)
class WordsConfig:
    """Word vectors."""

    vectors: Paths = setting(
        (), "Files with pretrained vectors (GloVe or word2vec). Vectors from several files are concatenated."
    )
    dim: int | None = setting(None, "Vector size. Required without files; otherwise, that of the files.")
    train: bool = setting(True, "Train the vectors. Without files, they are always trained.")
    lowercase: bool = setting(False, "Look words up in lower case.")
    min_count: int = setting(1, "Rarer words in the training text are unknown, unless a file has them.")
    unit_length: bool = setting(False, "Scale the vectors of each file to length 1.")
    unknown: Literal["random", "zero"] = setting(
        "random", "Initial vectors of words missing from the files: drawn with the files' mean and deviation, or zero."
    )

    def __post_init__(self) -> None:
        check_at_least("dim", self.dim, 1, MAX_UNITS, optional=True)
        check_at_least("min_count", self.min_count, 1)


@dataclass(frozen=True)
class CharsConfig:
    """Character features of words."""

    dim: int = setting(16, "Size of a character's vector.")
    filters: tuple[tuple[int, int], ...] = setting(((3, 128),), "Width and number of filters of each convolution.")
    max_chars: int | None = setting(None, "Truncate words to this many characters.")
    min_count: int = setting(1, "Rarer characters in the training text are unknown.")
    dropout: float = setting(0.0, "Dropout on the character vectors.")
    activation: Literal["relu", "tanh", "none"] = setting("relu", "Activation after the convolutions.")

    def __post_init__(self) -> None:
        check_at_least("dim", self.dim, 1, MAX_UNITS)
        check_at_least("min_count", self.min_count, 1)
        check_at_least("max_chars", self.max_chars, 1, optional=True)
        check_fraction("dropout", self.dropout)
        sizes: list[int] = []
        for pair in self.filters:
            sizes += pair
        check_sizes("filters", sizes)

    @property
    def spelling(self) -> Spelling:
        """Whether a word is read as characters or as bytes."""
        return "characters"

    def build(self, n_rows: int) -> CharFeatures:
        """Build the layer that computes the features, with a character table of ``n_rows`` rows."""
        return TokenCharCNN(n_rows, self.dim, self.filters, self.activation, self.dropout)


@dataclass(frozen=True)
class MixConfig:
    """A learned mix of the biLM's layers."""

    layers: Literal["all", "top", "average"] | tuple[int, ...] = setting("all", "The layers to mix.")
    penalty: float = setting(0.0, "Lambda: factor of the sum of squares of the raw weights in each batch's loss.")
    dropout: float = setting(0.0, "Dropout on the mix.")
    layer_norm: bool = setting(False, "First normalize the layers over the batch, as in bilm-tf.")

    def __post_init__(self) -> None:
        check_fraction("dropout", self.dropout)
        check_not_negative("penalty", self.penalty)


@dataclass(frozen=True)
class FinetuneConfig:
    """Fine-tune the biLM as a language model on the task's text first (Peters et al. 2018, supplement A.1)."""

    epochs: int = setting(1, "Number of passes over the text.")
    learning_rate: float | None = setting(None, "Learning rate; false for the default of `elmokit finetune`.")

    def __post_init__(self) -> None:
        check_at_least("epochs", self.epochs, 1)
        check_positive("learning_rate", self.learning_rate)


@dataclass(frozen=True)
class ElmoConfig:
    """The biLM, and where its scalar mixes enter the model.

    By default the biLM is frozen: only the scalar mixes are trained.
    """

    model: str | None = setting(None, "Path, URL or published name of a model; false for the included model.")
    start: Literal["warm", "zero"] = setting("warm", "LSTM state that each sentence starts from.")
    input: MixConfig | None = setting(
        MixConfig(), "A learned mix of layers, concatenated to the word vectors; `false` disables it."
    )
    output: MixConfig | None = setting(
        None,
        "A learned mix of layers, concatenated to the output of the first (nli, qa) or last (sst) recurrent "
        "layer; `false` disables it.",
    )
    cache: str | None = setting(
        None, "Directory for the computed layers of a frozen biLM, which runs can share. By default, in the run."
    )
    cache_dtype: Literal["float16", "float32"] = setting("float16", "Data type of the cached layers.")
    trainable: bool = setting(
        False,
        "Train the biLM with the task's model. Its layers are then computed in each step instead of cached, and the "
        "run stores the trained biLM.",
    )
    learning_rate: float | None = setting(
        None, "Learning rate of a trainable biLM's top layer; false for a hundredth of train.optimizer.learning_rate."
    )
    layer_decay: float = setting(
        1.0, "Learning rate of each layer of a trainable biLM, relative to the layer above it. ULMFiT uses 0.38."
    )
    freeze_epochs: int = setting(0, "Number of initial epochs in which a trainable biLM stays frozen.")
    unfreeze_every: int | None = setting(
        None,
        "Gradual unfreezing of a trainable biLM: train only the top layer at first, and one more layer after this many "
        "epochs, the token layer last; false to train all layers at once.",
    )
    finetune: FinetuneConfig | None = setting(
        None, "First fine-tune the biLM as a language model on the training text (Peters et al. 2018, supplement A.1)."
    )

    def __post_init__(self) -> None:
        if self.input is None and self.output is None:
            raise ConfigError("elmo has neither an input nor an output mix; it must have at least one.")
        check_positive("learning_rate", self.learning_rate)
        check_at_least("freeze_epochs", self.freeze_epochs, 0)
        check_at_least("unfreeze_every", self.unfreeze_every, 1, optional=True)
        check_ratio("layer_decay", self.layer_decay)
        for name in ("learning_rate", "layer_decay", "freeze_epochs", "unfreeze_every"):
            if not self.trainable and getattr(self, name) != getattr(type(self), name):
                raise ConfigError(f"elmo.{name} is {getattr(self, name)}, which needs elmo.trainable = true.")

    @property
    def elmo_start(self) -> Start:
        """How an ``Elmo`` starts sentences."""
        return self.start


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer."""

    name: Literal["adam", "adadelta", "sgd"] = setting("adam", "Optimizer.")
    learning_rate: float = setting(1e-3, "Learning rate.")
    betas: tuple[float, float] = setting((0.9, 0.999), "Decay of the running means (adam).")
    epsilon: float = setting(1e-8, "Added to the divisor (adam, adadelta).")
    rho: float = setting(0.95, "Decay of the running means (adadelta).")
    momentum: float = setting(0.0, "Momentum (sgd).")

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_positive("epsilon", self.epsilon)
        check_not_negative("momentum", self.momentum)
        for beta in self.betas:
            check_fraction("betas", beta)
        check_fraction("rho", self.rho)


@dataclass(frozen=True)
class PlateauConfig:
    """Lower the learning rate when the dev score stops improving."""

    factor: float = setting(0.5, "Factor by which the learning rate is multiplied.")
    patience: int = setting(0, "Number of evaluations without improvement before it is lowered.")

    def __post_init__(self) -> None:
        check_at_least("patience", self.patience, 0)
        check_ratio("factor", self.factor)


@dataclass(frozen=True)
class StepDecayConfig:
    """Lower the learning rate at regular intervals."""

    rate: float = setting(0.999, "Factor by which the learning rate is multiplied.")
    every: int = setting(100, "Number of steps between changes.")

    def __post_init__(self) -> None:
        check_at_least("every", self.every, 1)
        check_ratio("rate", self.rate)


@dataclass(frozen=True)
class TaskTrainingConfig:
    """Training of a task's model."""

    optimizer: OptimizerConfig = OptimizerConfig()
    batch_size: int = setting(32, "Examples per batch.")
    bucketed: bool = setting(True, "Batch examples of similar length together.")
    epochs: int = setting(20, "Maximum number of passes over the training examples.")
    patience: int | None = setting(None, "Stop after this many evaluations without improvement; false disables it.")
    eval_every: int | None = setting(None, "Steps between evaluations on dev; false for once per epoch.")
    max_grad_norm: float | None = setting(None, "Clip the gradient's global norm.")
    clip_value: float | None = setting(None, "Clip each entry of the gradient.")
    plateau: PlateauConfig | None = setting(None, "Lower the learning rate when the dev score stops improving.")
    step_decay: StepDecayConfig | None = setting(None, "Lower the learning rate at regular intervals.")
    average: float | None = setting(
        None, "Decay of an exponential moving average of the weights, which is then evaluated and stored."
    )
    l2: float = setting(0.0, "Factor of the sum of squares of all matrices except embedding tables in the loss.")
    seeds: tuple[int, ...] = setting((0,), "Train once with each random seed.")

    def __post_init__(self) -> None:
        check_at_least("batch_size", self.batch_size, 1)
        check_at_least("epochs", self.epochs, 1)
        check_at_least("patience", self.patience, 1, optional=True)
        check_at_least("eval_every", self.eval_every, 1, optional=True)
        for name in ("max_grad_norm", "clip_value"):
            check_positive(name, getattr(self, name))
        check_not_negative("l2", self.l2)
        if self.average is not None:
            check_fraction("average", self.average)
        for seed in self.seeds:
            check_at_least("seeds", seed, 0, MAX_SEED)
        has_repeats = len(set(self.seeds)) < len(self.seeds)
        if not self.seeds or has_repeats:
            raise ConfigError(f"seeds is {list(self.seeds)}; it must be one or more distinct numbers.")


def check_sizes(name: str, sizes: Sequence[int]) -> None:
    """Raise a SettingError unless there is at least one size, and all are possible numbers of units."""
    check_at_least(f"the length of {name}", len(sizes), 1)
    for size in sizes:
        check_at_least(name, size, 1, MAX_UNITS)


def expand_paths(paths: Paths) -> list[str]:
    """List the files of a config's ``Paths``. A file named twice is listed twice: word vectors may be repeated."""
    names = [paths] if isinstance(paths, str) else paths
    files: list[str] = []
    for name in names:
        # "train/**" means the directory train: glob would also list the files in it that are not gold_conll files.
        found = find_text_files(name.removesuffix("/**"), suffixes=(GOLD_CONLL,))
        files += map(str, found)
    return files


def apply_override(content: dict[str, Any], override: str) -> dict[str, Any]:
    """Apply a ``table.key=value`` override to a config's tables. The value is TOML, or a string without quotes."""
    name, sign, value = override.partition("=")
    keys = name.strip().split(".")
    try:
        table = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        table = {"value": value.strip()}
    if not sign or not all(keys) or len(table) > 1:
        raise ConfigError(f"Expected table.key=value, such as train.batch_size=16, but got {override!r}.")
    changed: dict[str, Any] = table["value"]
    for key in reversed(keys):
        changed = {key: changed}
    return deep_merge(content, changed)
