"""Configs of AllenNLP's models: the settings of each task's config, and those that only AllenNLP's models have.

A config file with one of the latter settings is read as one of these configs (``config_file.config_of``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from elmokit.config import MAX_LAYERS, MAX_UNITS, check_at_least, check_fraction, from_dict, setting, to_dict
from elmokit.embedding.elmo import Start
from elmokit.errors import ConfigError
from elmokit.tasks.allennlp.char_layers import AllenNLPCharCNN, TokenCharRNN
from elmokit.tasks.coref import CorefConfig
from elmokit.tasks.coref_model import CorefModelConfig
from elmokit.tasks.ner import NerConfig, NerModelConfig
from elmokit.tasks.nli import NliConfig, NliData, NliModelConfig
from elmokit.tasks.nn.layers import CharFeatures
from elmokit.tasks.qa import QaConfig, QaModelConfig
from elmokit.tasks.srl import SrlConfig, SrlModelConfig
from elmokit.tasks.sst import SstConfig
from elmokit.tasks.task_config import CharsConfig, ElmoConfig, Spelling, check_sizes


@dataclass(frozen=True)
class ArchivedCharsConfig(CharsConfig):
    """Character features of words as computed by AllenNLP."""

    layer: Literal["cnn", "lstm", "gru"] = setting(
        "cnn", "Convolutions with the maximum over the word, or the last state of an LSTM or GRU."
    )
    hidden: int = setting(100, "Units of each layer and direction of an LSTM or GRU.")
    n_layers: int = setting(1, "Number of layers of an LSTM or GRU.")
    bidirectional: bool = setting(True, "Whether an LSTM or GRU also reads words backward.")
    windows: Literal["word", "complete", "batch"] = setting(
        "word",
        "Windows over which a filter's maximum is taken: those inside the word, or the first one if the word is "
        "shorter than the filter; the same, but 0 for such a word (AllenNLP since 1.3); or all windows up to the "
        "longest word in the batch (AllenNLP before 1.3).",
    )
    spelling: Spelling = setting(
        "characters", "Read the characters of a word, its UTF-8 bytes, or its bytes between a begin and an end mark."
    )
    min_chars: int | None = setting(None, 'With windows = "batch", pad words to at least this many characters.')

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("hidden", self.hidden, 1, MAX_UNITS)
        check_at_least("n_layers", self.n_layers, 1, MAX_LAYERS)
        check_at_least("min_chars", self.min_chars, 1, MAX_UNITS, optional=True)

    def build(self, n_rows: int) -> CharFeatures:
        if self.layer != "cnn":
            return TokenCharRNN(
                n_rows, self.dim, self.layer, self.hidden, self.n_layers, self.bidirectional, self.dropout
            )
        if self.windows == "word":
            return super().build(n_rows)
        return AllenNLPCharCNN(
            n_rows,
            self.dim,
            self.filters,
            self.activation,
            self.dropout,
            every_window=self.windows == "batch",
            min_chars=self.min_chars,
        )


@dataclass(frozen=True)
class ArchivedElmoConfig(ElmoConfig):
    """ELMo inside an archive."""

    start: Literal["warm", "zero", "continued"] = setting(  # type: ignore[assignment]
        "warm",
        "LSTM state that each sentence starts from. With continued, the first text of an example starts from zero, and "
        "each further text from the state after the previous one.",
    )

    @property
    def elmo_start(self) -> Start:
        return "stateful" if self.start == "continued" else self.start


@dataclass(frozen=True)
class ArchivedNerModelConfig(NerModelConfig):
    """Sizes of ``crf_tagger``."""

    encoder: Literal["lstm", "gru", "highway", "alternating"] = setting(
        "lstm",
        "Bidirectional LSTM or GRU layers; bidirectional LSTM layers with a highway gate; or layers with such a gate "
        "and alternating direction, as in srl.",
    )
    recurrent_dropout: float = setting(
        0.0, "Dropout on the state of layers with a highway gate, with one mask per sentence."
    )
    input_bias: bool = setting(True, "Add a second bias, for the input, to alternating layers.")
    feedforward: tuple[int, ...] = setting((), "Units of each feed-forward layer between the encoder and the tags.")
    activation: Literal["relu", "tanh", "none"] = setting("relu", "Activation of the feed-forward layers.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feedforward:
            check_sizes("feedforward", self.feedforward)
        check_fraction("recurrent_dropout", self.recurrent_dropout)


@dataclass(frozen=True)
class ArchivedNerConfig(NerConfig):
    """The configuration of ``crf_tagger``."""

    chars: ArchivedCharsConfig | None = ArchivedCharsConfig()
    elmo: ArchivedElmoConfig | None = None
    model: ArchivedNerModelConfig = ArchivedNerModelConfig()


@dataclass(frozen=True)
class ArchivedSstConfig(SstConfig):
    """The configuration of ``bcn``."""

    chars: ArchivedCharsConfig | None = None
    elmo: ArchivedElmoConfig | None = None


@dataclass(frozen=True)
class ArchivedNliData(NliData):
    """Pairs of sentences, to which tokens can be added."""

    end_tokens: tuple[str, ...] = setting((), "Tokens to add at the end of each sentence.")


@dataclass(frozen=True)
class ArchivedNliModelConfig(NliModelConfig):
    """Sizes and dropouts of ``esim`` and ``decomposable_attention``."""

    network: Literal["esim", "decomposable attention"] = setting(
        "esim", "ESIM, or the model of Parikh et al. 2016, which compares aligned tokens without reading their order."
    )
    attend: tuple[int, ...] = setting((), "Units of the layers before the alignment (decomposable attention).")
    compare: tuple[int, ...] = setting((), "Units of the layers that compare aligned tokens.")
    aggregate: tuple[int, ...] = setting((), "Units of the layers before the classes.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network == "decomposable attention":
            check_sizes("attend", self.attend)
            check_sizes("compare", self.compare)
            check_sizes("aggregate", self.aggregate or (1,))


@dataclass(frozen=True)
class ArchivedNliConfig(NliConfig):
    """The configuration of ``esim`` and ``decomposable_attention``."""

    data: ArchivedNliData = ArchivedNliData()
    model: ArchivedNliModelConfig = ArchivedNliModelConfig()
    chars: ArchivedCharsConfig | None = None
    elmo: ArchivedElmoConfig | None = None


@dataclass(frozen=True)
class ArchivedSrlModelConfig(SrlModelConfig):
    """Sizes of ``srl``."""

    decoding: Literal["log-probabilities", "allennlp", "allennlp 0.x"] = setting(
        "log-probabilities",
        "Scores whose sum is maximized by the best tag sequence. AllenNLP added probabilities and rounded their sum to "
        "1/128; before version 1.0, it broke ties differently.",
    )


@dataclass(frozen=True)
class ArchivedSrlConfig(SrlConfig):
    """The configuration of ``srl``."""

    chars: ArchivedCharsConfig | None = None
    elmo: ArchivedElmoConfig | None = None
    model: ArchivedSrlModelConfig = ArchivedSrlModelConfig()


@dataclass(frozen=True)
class ArchivedCorefModelConfig(CorefModelConfig):
    """Sizes of ``coref``."""

    network: Literal["e2e-coref", "allennlp"] = setting(
        "e2e-coref",
        "The model of Lee et al., or AllenNLP's version, which reads a document as one sequence with a plain LSTM, "
        "attends to the words of a span only by their vectors (including ELMo), keeps crossing spans, and uses "
        "neither speakers nor genre.",
    )


@dataclass(frozen=True)
class ArchivedCorefConfig(CorefConfig):
    """The configuration of ``coref``."""

    chars: ArchivedCharsConfig | None = ArchivedCharsConfig()
    elmo: ArchivedElmoConfig | None = None
    model: ArchivedCorefModelConfig = ArchivedCorefModelConfig()


@dataclass(frozen=True)
class ArchivedQaModelConfig(QaModelConfig):
    """Sizes and dropouts of ``bidaf``."""

    network: Literal["bidaf++", "bidaf"] = setting(
        "bidaf++", "BiDAF++ with self-attention and GRUs, or AllenNLP's BiDAF with highway layers and LSTMs."
    )
    highway_layers: int = setting(2, "Highway layers on the embeddings (bidaf).")
    modeling_layers: int = setting(2, "LSTM layers after the attention (bidaf).")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("modeling_layers", self.modeling_layers, 1, MAX_LAYERS)
        check_at_least("highway_layers", self.highway_layers, 0, MAX_LAYERS)
        if self.network == "bidaf" and self.no_answer:
            raise ConfigError('no_answer needs network = "bidaf++".')


@dataclass(frozen=True)
class ArchivedQaConfig(QaConfig):
    """The configuration of ``bidaf``."""

    chars: ArchivedCharsConfig | None = ArchivedCharsConfig()
    elmo: ArchivedElmoConfig | None = None
    model: ArchivedQaModelConfig = ArchivedQaModelConfig()


ADDED: dict[str, dict[str, type]] = {
    "ner": {"model": ArchivedNerModelConfig},
    "nli": {"model": ArchivedNliModelConfig, "data": ArchivedNliData},
    "srl": {"model": ArchivedSrlModelConfig},
    "coref": {"model": ArchivedCorefModelConfig},
    "qa": {"model": ArchivedQaModelConfig},
}
"""By task: the tables with more settings than the task's own, and their classes."""


def added_settings(task: str) -> dict[str, dict[str, Any]]:
    """Return the settings that only AllenNLP's models have, with their defaults, by table."""
    tables = {"chars": ArchivedCharsConfig, **ADDED.get(task, {})}
    settings: dict[str, dict[str, Any]] = {}
    for name, kind in tables.items():
        settings[name] = {key: getattr(kind, key) for key in kind.__annotations__}
    return settings


def is_archived(task: str, content: Mapping[str, Any]) -> bool:
    """Check whether the tables of a config file have a setting that only AllenNLP's models have."""
    for name, added in added_settings(task).items():
        table = content.get(name)
        if isinstance(table, dict) and not table.keys().isdisjoint(added):
            return True
    elmo = content.get("elmo")
    return isinstance(elmo, dict) and elmo.get("start") == "continued"


def archived_presets(kind: type, presets: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a task's presets to the config class of AllenNLP's model, with the same values."""
    converted: dict[str, Any] = {}
    for name, preset in presets.items():
        converted[name] = from_dict(kind, to_dict(preset), name)
    return converted
