"""Natural language inference: ESIM (Chen et al. 2017) on pairs of premise and hypothesis.

The sizes are from AllenNLP's configuration. The positions of ELMo, lambda and layer norm are as in the supplement
of Peters et al. 2018. Files are JSON lines (SNLI), or tab-separated tables with a header (SNLI, SICK).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.config import MAX_UNITS, check_at_least, check_fraction, setting
from elmokit.errors import TextError
from elmokit.storage.progress import count_of
from elmokit.tasks.classification import ClassificationModel, ClassificationTask
from elmokit.tasks.inputs import InputLayer, TokenBatch
from elmokit.tasks.nn.layers import (
    VariationalDropout,
    attend,
    init_glorot_orthogonal,
    masked_max,
    masked_mean,
    run_packed,
)
from elmokit.tasks.task import Labels, Tokenize, from_first_line, parse_json
from elmokit.tasks.task_config import (
    CharsConfig,
    ElmoConfig,
    MixConfig,
    OptimizerConfig,
    PlateauConfig,
    TaskDataConfig,
    TaskTrainingConfig,
    WordsConfig,
)
from elmokit.text.first_lines import JSON, TABLE
from elmokit.text.tokenize import get_tokenizer

NO_MAJORITY = "-"  # SNLI: the annotators did not agree
# Column names in SNLI, in SICK's SemEval release and full release, and in input for AllenNLP's predictor.
FIRST = ("sentence1", "sentence_A", "premise")
SECOND = ("sentence2", "sentence_B", "hypothesis")
LABEL = ("gold_label", "entailment_judgment", "entailment_label")
NAMES = (*FIRST, *SECOND, *LABEL)
_JsonPair = msgspec.defstruct("_JsonPair", [(name, str | None, None) for name in NAMES])


@dataclass(frozen=True)
class RawPair:
    """A pair of sentences before tokenization."""

    first: str
    second: str
    label: str | None
    """In lower case; None if the file has no labels."""
    where: str
    """File and line, for error messages."""


def read_pairs(path: str) -> Iterator[RawPair]:
    """Read the pairs of a file, which may be compressed. If it starts with a brace, it is JSON lines, else a table.

    Pairs without a majority label are skipped, as in all published work on SNLI.
    """
    first, lines = from_first_line(path)
    is_json = first.lstrip().startswith("{")
    header: list[str] = []
    for number, line in lines:
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        if not is_json and not header:
            header = _parse_header(line, where)
            continue
        values = _parse_json(line, where) if is_json else _parse_row(line, header, where)
        pair = _pair_of(values, where, needs_label=True)
        if pair.label != NO_MAJORITY:
            yield pair


def parse_pair(line: str, where: str) -> RawPair:
    """Parse a pair as JSON, with or without a label."""
    return _pair_of(_parse_json(line, where), where, needs_label=False)


def _parse_json(line: str, where: str) -> dict[str, str | None]:
    values = parse_json(line, where, _JsonPair, "one JSON object per line with two sentences")
    return {name: getattr(values, name) for name in NAMES}


def _pair_of(values: Mapping[str, str | None], where: str, needs_label: bool) -> RawPair:
    """Make a pair of the values of a line, by their names in the file."""
    first = _first_of(values, FIRST)
    second = _first_of(values, SECOND)
    label = _first_of(values, LABEL)
    if label is not None:
        label = label.lower()
    if first is None:
        raise _missing(FIRST, where)
    if second is None:
        raise _missing(SECOND, where)
    if needs_label and not (label or "").strip():
        raise _missing(LABEL, where)
    return RawPair(first, second, label, where)


def _missing(names: Sequence[str], where: str) -> TextError:
    return TextError(f"{where}: the pair has no {' or '.join(names)}.")


def _first_of(values: Mapping[str, str | None], names: Sequence[str]) -> str | None:
    """Return the first value that is given under one of several names."""
    for name in names:
        value = values.get(name)
        if value is not None:
            return value
    return None


def _parse_header(line: str, where: str) -> list[str]:
    """Return the column names of a table. Each of the three needed columns must occur under exactly one name."""
    names = line.split("\t")
    known = [name for name in names if name in NAMES]
    has_repeats = len(set(known)) < len(known)
    has_all = all(set(choices) & set(known) for choices in (FIRST, SECOND, LABEL))
    if has_repeats or not has_all:
        expected = ", ".join(" or ".join(choices) for choices in (FIRST, SECOND, LABEL))
        raise TextError(
            f"{where}: expected JSON lines, or a header with each of these columns once, separated by tabs: {expected}."
        )
    return names


def _parse_row(line: str, header: list[str], where: str) -> dict[str, str | None]:
    columns = line.split("\t")
    last_needed = max(index for index, name in enumerate(header) if name in NAMES)
    if not last_needed < len(columns) <= len(header):  # SNLI's own tables omit trailing empty columns
        raise TextError(f"{where}: {count_of(len(columns), 'column')}, expected {len(header)}, as in the header.")
    return dict(zip(header, columns, strict=False))


@dataclass(frozen=True)
class NliData(TaskDataConfig):
    """Files of JSON lines (SNLI), or tab-separated tables with a header (SICK)."""

    tokenize: Literal["treebank", "spaces"] = setting(
        "treebank", "Use the Penn Treebank tokenizer, or split at spaces."
    )


@dataclass(frozen=True)
class NliModelConfig:
    """Sizes and dropouts of the network."""

    hidden: int = setting(
        300, "Units per direction of both bidirectional LSTMs, and of the layers between and after them."
    )
    dropout: float = setting(
        0.5, "Variational dropout before both LSTMs; plain dropout on the pooled vector and the last hidden layer."
    )
    attention_dropout: float | None = setting(
        None, "Dropout on the attended vectors before the comparison. By default, 0 without ELMo and 0.5 with it."
    )

    def __post_init__(self) -> None:
        check_at_least("hidden", self.hidden, 1, MAX_UNITS)
        check_fraction("dropout", self.dropout)
        if self.attention_dropout is not None:
            check_fraction("attention_dropout", self.attention_dropout)


@dataclass(frozen=True)
class NliConfig:
    """The configuration of the task. The defaults are the published values, without ELMo."""

    data: NliData = NliData()
    words: WordsConfig | None = WordsConfig(dim=300)
    chars: CharsConfig | None = None
    elmo: ElmoConfig | None = None
    model: NliModelConfig = NliModelConfig()
    train: TaskTrainingConfig = TaskTrainingConfig(
        optimizer=OptimizerConfig(learning_rate=4e-4),
        batch_size=32,
        epochs=75,
        patience=5,
        max_grad_norm=10.0,
        plateau=PlateauConfig(factor=0.5, patience=0),
    )


SMALL = NliConfig(
    words=WordsConfig(dim=100, min_count=2),
    model=NliModelConfig(hidden=100),
    train=TaskTrainingConfig(
        optimizer=OptimizerConfig(learning_rate=1e-3),
        batch_size=32,
        epochs=10,
        patience=3,
        max_grad_norm=10.0,
        plateau=PlateauConfig(factor=0.5, patience=0),
    ),
)


@dataclass(frozen=True)
class SentencePair:
    """A premise, a hypothesis, and their relation."""

    premise: list[str]
    hypothesis: list[str]
    label: str | None
    where: str
    """File and line, for error messages."""


class NliModel(ClassificationModel):
    """The enhanced sequential inference model (ESIM).

    A BiLSTM reads both sentences. Attention aligns each token with the tokens of the other sentence, and the token is
    compared with the aligned vector. A second BiLSTM reads the comparisons, and its pooled vectors are classified.
    """

    def __init__(self, config: NliModelConfig, inputs: InputLayer, classes: Sequence[str]) -> None:
        super().__init__(inputs, classes)
        hidden = config.hidden
        attention_dropout = config.attention_dropout
        if attention_dropout is None:
            attention_dropout = 0.5 if inputs.elmo_dim else 0.0
        read_dim = 2 * hidden
        compared_dim = read_dim + inputs.elmo_output_dim
        self.shared_dropout = VariationalDropout(config.dropout)
        self.attention_dropout = nn.Dropout(attention_dropout)
        self.encoder = nn.LSTM(inputs.output_dim, hidden, batch_first=True, bidirectional=True)
        self.project = nn.Linear(4 * compared_dim, hidden)
        self.composer = nn.LSTM(hidden, hidden, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(config.dropout)
        self.join = nn.Linear(4 * read_dim, hidden)
        self.output = nn.Linear(hidden, len(classes))
        for part in (self.encoder, self.project, self.composer, self.join, self.output):
            init_glorot_orthogonal(part)

    def scores(self, *texts: TokenBatch) -> Tensor:
        premise_tokens, hypothesis_tokens = texts
        premises = self._encode(premise_tokens)
        hypotheses = self._encode(hypothesis_tokens)
        similarity = premises @ hypotheses.transpose(1, 2)  # (batch, premise, hypothesis)
        of_hypotheses = attend(similarity, hypotheses, hypothesis_tokens.mask)
        of_premises = attend(similarity.transpose(1, 2), premises, premise_tokens.mask)
        pooled = [
            *self._pooled(premises, of_hypotheses, premise_tokens.mask),
            *self._pooled(hypotheses, of_premises, hypothesis_tokens.mask),
        ]
        both = self.dropout(torch.cat(pooled, dim=-1))
        joined = self.dropout(F.relu(self.join(both)))
        scores: Tensor = self.output(joined)
        return scores

    def _encode(self, tokens: TokenBatch) -> Tensor:
        """Read sentences. The result is ``(batch, time, 2 * hidden)``, plus the features of ELMo's output mix."""
        vectors = self.shared_dropout(self.inputs(tokens))
        encoded = run_packed(self.encoder, vectors, tokens.mask)
        return self.inputs.at_output(encoded, tokens)

    def _pooled(self, own: Tensor, aligned: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compare each token with its aligned vector, read the comparisons, and return their mean and maximum."""
        aligned = self.attention_dropout(aligned)
        compared = torch.cat([own, aligned, own - aligned, own * aligned], dim=-1)
        projected = self.shared_dropout(F.relu(self.project(compared)))
        composed = run_packed(self.composer, projected, mask)  # (batch, time, 2 * hidden)
        return masked_mean(composed, mask), masked_max(composed, mask)


def _tokenized(pair: RawPair, config: NliConfig) -> SentencePair:
    """Tokenize the sentences of a pair as configured."""
    tokenize = get_tokenizer(config.data.tokenize)
    return SentencePair(tokenize(pair.first), tokenize(pair.second), pair.label, pair.where)


_MIX = MixConfig(penalty=0.001, layer_norm=True)


class NliTask(ClassificationTask[NliConfig, SentencePair]):
    """Natural language inference: classify pairs of sentences."""

    name = "nli"
    text_formats = (JSON, TABLE)
    reads_tokens = False
    presets: ClassVar[Mapping[str, NliConfig]] = {"published": NliConfig(), "small": SMALL}
    elmo = ElmoConfig(input=_MIX, output=_MIX)

    def read(self, path: str, config: NliConfig) -> Iterator[SentencePair]:
        """Read the pairs of a file, except those without a majority label."""
        for pair in read_pairs(path):
            yield _tokenized(pair, config)

    def read_line(self, line: str, where: str, tokenize: Tokenize, config: NliConfig) -> SentencePair:
        """Read a premise and a hypothesis separated by a tab, or a JSON object with the names of a file.

        They are tokenized like the run's training data, not by ``tokenize``.
        """
        if line.lstrip().startswith("{"):
            return replace(_tokenized(parse_pair(line, where), config), label=None)
        parts = line.split("\t")
        if len(parts) != 2:
            raise TextError(f"{where}: expected a premise and a hypothesis separated by one tab.")
        return _tokenized(RawPair(parts[0], parts[1], None, where), config)

    def named_texts(self, example: SentencePair) -> dict[str, list[str]]:
        return {"premise": example.premise, "hypothesis": example.hypothesis}

    def labels(self, examples: Sequence[SentencePair], config: NliConfig) -> Labels:
        """Return the classes that occur, in alphabetical order."""
        labels = {example.label for example in examples if example.label is not None}
        return {"classes": sorted(labels)}

    def build(self, config: NliConfig, inputs: InputLayer, known: Labels) -> ClassificationModel:
        return NliModel(config.model, inputs, known["classes"])
