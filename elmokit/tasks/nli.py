"""Natural language inference: ESIM (Chen et al. 2017) on pairs of premise and hypothesis.

The sizes are those of AllenNLP's configuration; places, lambda and layer norm of ELMo those of Peters et al. 2018,
supplement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.config import check_at_least, check_fraction
from elmokit.errors import TextError
from elmokit.io.text_files import split_tokens
from elmokit.tasks.classes import Probabilities, likeliest, probabilities_of
from elmokit.tasks.config import (
    CharsConfig,
    DataConfig,
    ElmoConfig,
    MixConfig,
    OptimizerConfig,
    PlateauConfig,
    TaskTrainingConfig,
    WordsConfig,
)
from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch
from elmokit.tasks.nn.attention import attend, masked_max, masked_mean
from elmokit.tasks.nn.dropout import VariationalDropout
from elmokit.tasks.nn.recurrent import init_glorot_orthogonal, run_packed
from elmokit.tasks.readers.pairs import Pair, leaves, pair_of, parse_object, read_pairs
from elmokit.tasks.scores.accuracy import accuracy
from elmokit.tasks.task import Labels, Sentence, Task, TaskModel, Tokenize, unknown_label
from elmokit.text.tokenize import treebank_tokenizer


@dataclass(frozen=True)
class NliData(DataConfig):
    """JSON lines as SNLI has them, or tables with tabs and a head line (SICK)."""

    tokenize: Literal["treebank", "blanks", "parse"] = "treebank"
    """Split sentences in the Penn Treebank's manner, at blanks, or take the tokens of SNLI's binary parses."""


@dataclass(frozen=True)
class NliModelConfig:
    """Sizes and dropouts of the network."""

    hidden: int = 300
    """Units a side of both bidirectional LSTMs, and of the layers between and after."""
    dropout: float = 0.5
    """Before both LSTMs with one mask a sentence; plain on the pooled vector and the last hidden layer."""
    attention_dropout: float | None = None
    """On what the attention gives, before it is compared. None: none without ELMo, 0.5 with."""

    def __post_init__(self) -> None:
        check_at_least("hidden", self.hidden, 1)
        check_fraction("dropout", self.dropout)
        check_fraction("attention_dropout", self.attention_dropout or 0.0)


@dataclass(frozen=True)
class NliConfig:
    """The defaults are the published ones, without ELMo."""

    data: NliData = field(default_factory=NliData)
    words: WordsConfig | None = field(default_factory=lambda: WordsConfig(dim=300))
    chars: CharsConfig | None = None
    elmo: ElmoConfig | None = None
    model: NliModelConfig = field(default_factory=NliModelConfig)
    train: TaskTrainingConfig = field(
        default_factory=lambda: TaskTrainingConfig(
            optimizer=OptimizerConfig(learning_rate=4e-4),
            batch_size=32,
            epochs=75,
            patience=5,
            max_grad_norm=10.0,
            plateau=PlateauConfig(factor=0.5, patience=0),
        )
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
    """Premise, hypothesis, and how they stand to each other."""

    premise: list[str]
    hypothesis: list[str]
    label: str | None
    where: str


@dataclass(frozen=True)
class NliBatch:
    """Pairs as numbers."""

    premises: TokenBatch
    hypotheses: TokenBatch
    classes: Tensor | None  # (batch,)


class NliModel(TaskModel[NliBatch, Probabilities]):
    """The network. Its loss is the mean cross-entropy of the batch."""

    def __init__(self, config: NliModelConfig, inputs: InputLayer, classes: Sequence[str]) -> None:
        super().__init__()
        self.inputs, self.classes = inputs, list(classes)
        hidden, chosen = config.hidden, config.attention_dropout
        read_dim = 2 * hidden
        compared_dim = read_dim + inputs.elmo_output_dim
        self.shared_dropout = VariationalDropout(config.dropout)
        self.attention_dropout = nn.Dropout((0.5 if inputs.elmo_dim else 0.0) if chosen is None else chosen)
        self.encoder = nn.LSTM(inputs.output_dim, hidden, batch_first=True, bidirectional=True)
        self.project = nn.Linear(4 * compared_dim, hidden)
        self.composer = nn.LSTM(hidden, hidden, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(config.dropout)
        self.join = nn.Linear(4 * read_dim, hidden)
        self.output = nn.Linear(hidden, len(classes))
        for part in (self.encoder, self.project, self.composer, self.join, self.output):
            init_glorot_orthogonal(part)

    def scores(self, batch: NliBatch) -> Tensor:
        """``(batch, classes)``."""
        premise_mask, hypothesis_mask = batch.premises.mask, batch.hypotheses.mask
        premises, hypotheses = self._encoded(batch.premises), self._encoded(batch.hypotheses)
        similarity = premises @ hypotheses.transpose(1, 2)  # (batch, premise, hypothesis)
        of_hypotheses = attend(similarity, hypotheses, hypothesis_mask)
        of_premises = attend(similarity.transpose(1, 2), premises, premise_mask)
        pooled = []
        for own, other, mask in (
            (premises, of_hypotheses, premise_mask),
            (hypotheses, of_premises, hypothesis_mask),
        ):
            composed = self._composed(own, self.attention_dropout(other), mask)
            pooled += [masked_mean(composed, mask), masked_max(composed, mask)]
        joined = self.dropout(F.relu(self.join(self.dropout(torch.cat(pooled, dim=-1)))))
        scores: Tensor = self.output(joined)
        return scores

    def loss(self, batch: NliBatch) -> Tensor:
        assert batch.classes is not None
        return F.cross_entropy(self.scores(batch), batch.classes)

    def predict(self, batch: NliBatch) -> list[Probabilities]:
        """Each pair's probabilities."""
        return probabilities_of(self.scores(batch), self.classes)

    def _encoded(self, tokens: TokenBatch) -> Tensor:
        """``(batch, time, 2 * hidden)``, and the output mix where there is one."""
        read = run_packed(self.encoder, self.shared_dropout(self.inputs(tokens)), tokens.mask)
        return self.inputs.at_output(read, tokens)

    def _composed(self, own: Tensor, other: Tensor, mask: Tensor) -> Tensor:
        """Each token beside what it was aligned with, read once more: ``(batch, time, 2 * hidden)``."""
        compared = torch.cat([own, other, own - other, own * other], dim=-1)
        return run_packed(self.composer, self.shared_dropout(F.relu(self.project(compared))), mask)


def _tokenizer(config: NliConfig) -> Callable[[str], list[str]] | None:
    """What splits sentences; None where the parses do."""
    if config.data.tokenize == "parse":
        return None
    return treebank_tokenizer() if config.data.tokenize == "treebank" else split_tokens


def _tokenised(pair: Pair, tokenize: Callable[[str], list[str]] | None) -> SentencePair:
    if tokenize is not None:
        return SentencePair(tokenize(pair.first), tokenize(pair.second), pair.label, pair.where)
    if pair.parses is None:
        raise TextError(
            f"{pair.where}: there is no sentence1_binary_parse and sentence2_binary_parse. Set data.tokenize to "
            "'treebank' or 'blanks'."
        )
    return SentencePair(leaves(pair.parses[0]), leaves(pair.parses[1]), pair.label, pair.where)


_MIX = MixConfig(penalty=0.001, layer_norm=True)


class NliTask(Task[NliConfig, SentencePair, NliBatch, Probabilities]):
    """Natural language inference: classify pairs of sentences."""

    name = "nli"
    presets: ClassVar[Mapping[str, NliConfig]] = {"published": NliConfig(), "small": SMALL}
    metric = "accuracy"
    elmo = ElmoConfig(input=_MIX, output=_MIX)

    def read(self, path: str, config: NliConfig) -> Iterator[SentencePair]:
        """The pairs of a file, those without a majority label left out.

        Raises:
            TextError: as in ``read_pairs``; or a parse is wanted and missing.
            MissingExtraError: NLTK is needed to tokenise, and not installed.
        """
        tokenize = _tokenizer(config)
        for pair in read_pairs(path):
            yield _tokenised(pair, tokenize)

    def read_text(
        self, lines: Iterable[str], name: str, tokenize: Tokenize, config: NliConfig
    ) -> Iterator[SentencePair]:
        """Premise and hypothesis with a tab between, or a JSON object with sentence1 and sentence2, on each line; blank
        ones are passed over.

        They are split as the run's training data were, whatever ``tokenize`` says; by ``tokenize`` where those were
        parses.

        Raises:
            TextError: a line is neither.
        """
        chosen = tokenize if config.data.tokenize == "parse" else _tokenizer(config)
        for number, line in enumerate(lines, start=1):
            where = f"{name}, line {number}"
            if not line.strip():
                continue
            if line.lstrip().startswith("{"):
                pair = pair_of(parse_object(line, where), where)
            else:
                parts = line.split("\t")
                if len(parts) != 2:
                    raise TextError(
                        f"{where}: expected a premise and a hypothesis with one tab between them, "
                        f"found {len(parts) - 1} tabs."
                    )
                pair = Pair(parts[0], parts[1], None, None, where)
            assert chosen is not None
            yield SentencePair(chosen(pair.first), chosen(pair.second), None, where)

    def sentences(self, example: SentencePair) -> Sequence[Sentence]:
        return [example.premise, example.hypothesis]

    def lengths(self, example: SentencePair) -> tuple[int, ...]:
        return len(example.premise), len(example.hypothesis)

    def labels(self, examples: Sequence[SentencePair], config: NliConfig) -> Labels:
        """The classes that occur."""
        return {"classes": sorted({example.label for example in examples if example.label is not None})}

    def check(self, example: SentencePair, known: Labels) -> None:
        """Refuse a class that the run does not know."""
        if example.label not in known["classes"]:
            raise unknown_label(example.where, f"the label {example.label!r}", known["classes"])

    def build(self, config: NliConfig, inputs: InputLayer, known: Labels) -> NliModel:
        return NliModel(config.model, inputs, known["classes"])

    def collate(self, examples: Sequence[SentencePair], inputs: Inputs, known: Labels, config: NliConfig) -> NliBatch:
        """A batch; without classes if one pair has none, or one that is not known."""
        premises = inputs.batch([example.premise for example in examples])
        hypotheses = inputs.batch([example.hypothesis for example in examples])
        names = [example.label for example in examples if example.label in known["classes"]]
        if len(names) < len(examples):
            return NliBatch(premises, hypotheses, None)
        classes = torch.tensor([known["classes"].index(name) for name in names], dtype=torch.int64)
        return NliBatch(premises, hypotheses, classes)

    def score(
        self, examples: Sequence[SentencePair], predictions: Sequence[Probabilities], config: NliConfig
    ) -> dict[str, float]:
        """Accuracy."""
        return {"accuracy": accuracy([example.label for example in examples], [likeliest(one) for one in predictions])}

    def to_record(self, example: SentencePair, prediction: Probabilities) -> dict[str, Any]:
        """Tokens, class and probabilities."""
        return {
            "premise": example.premise,
            "hypothesis": example.hypothesis,
            "label": likeliest(prediction),
            "probabilities": prediction,
        }

    def to_text(self, example: SentencePair, prediction: Probabilities) -> str:
        """Class, its probability, premise and hypothesis, with tabs between."""
        best = likeliest(prediction)
        return f"{best}\t{prediction[best]:.2f}\t{' '.join(example.premise)}\t{' '.join(example.hypothesis)}"
