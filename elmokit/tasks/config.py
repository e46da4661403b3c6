"""What the six tasks' configs share, and how a TOML file is laid over a preset.

In a file, ``key = false`` says None wherever the key may be None and may not be a bool: ``words = false`` leaves the
word vectors out.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from elmokit.config import check_at_least, check_fraction, check_positive, deep_merge
from elmokit.errors import ConfigError, TextError

Paths = str | tuple[str, ...]
"""One path, a glob pattern, a folder of ``*gold_conll`` files, or several of them."""
IN_FOLDERS = "*gold_conll"  # what CoNLL-2012's own scripts write, and AllenNLP reads of a folder


@dataclass(frozen=True)
class DataConfig:
    """Where the examples are."""

    train: Paths = ()
    dev: Paths = ()
    """Decides which epoch is kept."""
    test: Paths = ()
    """Only for the vocabulary: its words get their pretrained vectors too. Its labels are not looked at."""
    train_ratio: float = 1.0
    """Train on a random share of the texts; a smaller share is a part of every larger one."""

    def __post_init__(self) -> None:
        if not 0 < self.train_ratio <= 1:
            raise ConfigError(f"train_ratio is {self.train_ratio}; it is a share above 0, up to 1.")


@dataclass(frozen=True)
class WordsConfig:
    """A vector for each word."""

    vectors: Paths = ()
    """Files in GloVe's or word2vec's form, text or binary; several stand side by side in each word's vector."""
    dim: int | None = None
    """Needed where there is no file; else derived, and checked if given."""
    train: bool = True
    """Without files the vectors are trained in any case."""
    lowercase: bool = False
    min_count: int = 1
    """Words seen less often in training, and not in the files, are unknown."""
    unit_length: bool = False
    """Scale the vectors of each file to length 1."""
    unknown: Literal["random", "zero"] = "random"
    """The start of words that the files lack: drawn around the files' mean, or zero."""

    def __post_init__(self) -> None:
        if self.dim is not None:
            check_at_least("dim", self.dim, 1)
        check_at_least("min_count", self.min_count, 1)


@dataclass(frozen=True)
class CharsConfig:
    """Convolutions over a word's characters."""

    dim: int = 16
    filters: tuple[tuple[int, int], ...] = ((3, 128),)
    """(width, count) of each."""
    max_chars: int | None = None
    """Words are cut there."""
    min_count: int = 1
    """Characters seen less often in training are unknown."""
    dropout: float = 0.0
    """On the character vectors."""
    activation: Literal["relu", "tanh", "none"] = "relu"

    def __post_init__(self) -> None:
        check_at_least("dim", self.dim, 1)
        check_at_least("min_count", self.min_count, 1)
        check_fraction("dropout", self.dropout)
        if not self.filters or any(len(pair) != 2 or min(pair) < 1 for pair in self.filters):
            raise ConfigError(f"filters are pairs (width, count), both at least 1; given {list(self.filters)}.")
        if self.max_chars is not None:
            check_at_least("max_chars", self.max_chars, 1)


@dataclass(frozen=True)
class MixConfig:
    """One learned mix of the biLM's layers."""

    layers: Literal["all", "top", "average"] | tuple[int, ...] = "all"
    penalty: float = 0.0
    """lambda: times the sum of squares of the raw weights, added to each batch's loss."""
    dropout: float = 0.0
    layer_norm: bool = False
    """Normalise the layers over the batch first, as in bilm-tf."""

    def __post_init__(self) -> None:
        check_fraction("dropout", self.dropout)
        if self.penalty < 0:
            raise ConfigError(f"penalty is {self.penalty}; it must be 0 or more.")


@dataclass(frozen=True)
class FinetuneConfig:
    """Train the biLM on the task's training text first, then freeze it (Peters et al. 2018, supplement A.1)."""

    epochs: int = 1
    learning_rate: float | None = None
    """None: the biLM training's own choice."""

    def __post_init__(self) -> None:
        check_at_least("epochs", self.epochs, 1)
        if self.learning_rate is not None:
            check_positive("learning_rate", self.learning_rate)


@dataclass(frozen=True)
class ElmoConfig:
    """A frozen biLM, and where its mixes enter the model."""

    model: str | None = None
    """Path, address or published name; None for the model inside the package."""
    start: Literal["warm", "zero"] = "warm"
    input: MixConfig | None = field(default_factory=MixConfig)
    """Beside the word vectors."""
    output: MixConfig | None = None
    """Beside the output of the task's first (NLI, QA) or last (SST) recurrent layer."""
    cache: str | None = None
    """Folder for computed layers, which runs may share; None for the run's own."""
    cache_dtype: Literal["float16", "float32"] = "float16"
    finetune: FinetuneConfig | None = None

    def __post_init__(self) -> None:
        if self.input is None and self.output is None:
            raise ConfigError("elmo has neither an input nor an output mix. Give one, or leave the elmo table out.")


@dataclass(frozen=True)
class OptimizerConfig:
    """Which optimiser; ``rho`` is Adadelta's, ``momentum`` SGD's."""

    name: Literal["adam", "adadelta", "sgd"] = "adam"
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    rho: float = 0.95
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_positive("epsilon", self.epsilon)
        for beta in self.betas:
            check_fraction("betas", beta)
        if not 0 <= self.rho <= 1:
            raise ConfigError(f"rho is {self.rho}; it is a share from 0 to 1.")
        if self.momentum < 0:
            raise ConfigError(f"momentum is {self.momentum}; it must be 0 or more.")


@dataclass(frozen=True)
class PlateauConfig:
    """Lower the learning rate when the dev score stops rising."""

    factor: float = 0.5
    patience: int = 0
    """Evaluations without a better score that are let pass."""

    def __post_init__(self) -> None:
        check_at_least("patience", self.patience, 0)
        if not 0 < self.factor < 1:
            raise ConfigError(f"factor is {self.factor}; it must be between 0 and 1.")


@dataclass(frozen=True)
class StepDecayConfig:
    """Lower the learning rate every so many steps, as a staircase."""

    rate: float = 0.999
    every: int = 100

    def __post_init__(self) -> None:
        check_at_least("every", self.every, 1)
        if not 0 < self.rate <= 1:
            raise ConfigError(f"rate is {self.rate}; it must be above 0, up to 1.")


@dataclass(frozen=True)
class TaskTrainingConfig:
    """How to train."""

    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    batch_size: int = 32
    bucketed: bool = True
    """Batches of similar lengths; else any lengths."""
    epochs: int = 20
    patience: int | None = None
    """Stop after so many evaluations without a better dev score; None: never."""
    eval_every: int | None = None
    """Steps between evaluations on dev; None: at the end of each epoch."""
    max_grad_norm: float | None = None
    """Bound on the gradient's global norm."""
    clip_value: float | None = None
    """Bound on each entry of the gradient."""
    plateau: PlateauConfig | None = None
    step_decay: StepDecayConfig | None = None
    average: float | None = None
    """Decay of the exponential moving average of the weights, which is then what is evaluated and kept."""
    l2: float = 0.0
    """Times the sum of squares of all matrices, word and character tables left out, added to each batch's loss."""
    seeds: tuple[int, ...] = (0,)
    """One training for each."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs"):
            check_at_least(name, getattr(self, name), 1)
        for name in ("patience", "eval_every"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 1)
        for name in ("max_grad_norm", "clip_value"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.average is not None and not 0 < self.average < 1:
            raise ConfigError(f"average is {self.average}; the decay of a moving average lies between 0 and 1.")
        if self.l2 < 0:
            raise ConfigError(f"l2 is {self.l2}; it must be 0 or more.")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ConfigError(f"seeds is {list(self.seeds)}; give one or more different numbers from 0 up.")


def expand(given: Paths) -> list[str]:
    """The files of a config's ``Paths``, those of a pattern or folder sorted; a name without a match stands as it is.

    A file comes once for each name that it is given by.

    Raises:
        TextError: there is no ``*gold_conll`` file in a folder, nor below it.
    """
    found: list[str] = []
    for name in [given] if isinstance(given, str) else given:
        path = Path(name)
        anchor = Path(path.anchor) if path.is_absolute() else Path()
        is_pattern = any(mark in name for mark in "*?[") and not path.exists()
        matches = sorted(map(str, anchor.glob(str(path.relative_to(path.anchor))))) if is_pattern else []
        named: dict[str, None] = {}  # each once: ``**`` names a folder and those inside it
        for match in matches or [name]:
            named |= dict.fromkeys(_in_folder(match) if Path(match).is_dir() else [match])
        found += named
    return found


def _in_folder(folder: str) -> list[str]:
    found = sorted(str(path) for path in Path(folder).rglob(IN_FOLDERS) if path.is_file())
    if not found:
        raise TextError(
            f"{folder} is a folder, and no file in it or below is named {IN_FOLDERS}. Name files, or a pattern such as "
            f"{Path(folder) / '**' / '*.txt'}."
        )
    return found


def with_setting(content: dict[str, Any], setting: str) -> dict[str, Any]:
    """A config's tables with one ``table.key=value`` set; the value in TOML, or a bare word for a string.

    Raises:
        ConfigError: it is not of that form.
    """
    name, sign, value = setting.partition("=")
    keys = name.strip().split(".")
    if not sign or not all(keys):
        raise ConfigError(f"A setting reads table.key=value, such as train.batch_size=16; given {setting!r}.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    changed: dict[str, Any] = parsed
    for place in range(len(keys) - 1, -1, -1):
        changed = {keys[place]: changed}
    return deep_merge(content, changed)
