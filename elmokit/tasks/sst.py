"""Sentiment: the biattentive classification network (McCann et al. 2017) on the Stanford Sentiment Treebank.

The sizes are those of AllenNLP's configuration; places and lambda of ELMo those of Peters et al. 2018, supplement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.config import check_at_least, check_fraction
from elmokit.errors import ConfigError, TextError
from elmokit.tasks.classes import Probabilities, likeliest, probabilities_of
from elmokit.tasks.config import CharsConfig, DataConfig, ElmoConfig, MixConfig, TaskTrainingConfig, WordsConfig
from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch
from elmokit.tasks.nn.attention import attend, masked_max, masked_mean, masked_min, masked_softmax
from elmokit.tasks.nn.feedforward import Maxout
from elmokit.tasks.nn.recurrent import run_packed
from elmokit.tasks.readers.trees import LabelledTree, read_trees
from elmokit.tasks.scores.accuracy import accuracy
from elmokit.tasks.task import Labels, Sentence, Task, TaskModel, Tokenize

FIVE = ("very negative", "negative", "neutral", "positive", "very positive")
# By the treebank's label 0 to 4; None drops the phrase.
CLASSES: dict[int, tuple[str | None, ...]] = {
    5: FIVE,
    3: ("negative", "negative", "neutral", "positive", "positive"),
    2: ("negative", "negative", None, "positive", "positive"),
}


@dataclass(frozen=True)
class SstData(DataConfig):
    """Trees, one a line."""

    classes: Literal[5, 3, 2] = 5
    """3 joins the two negative and the two positive labels; 2 drops the neutral ones as well."""
    phrases: Literal["all", "roots"] = "all"
    """Train on every phrase, or on whole sentences alone; dev and test are whole sentences in any case."""
    min_tokens: int = 1
    """Train on no shorter phrases; the paper took 4. Whole sentences stay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("min_tokens", self.min_tokens, 1)


@dataclass(frozen=True)
class SstModelConfig:
    """Sizes and dropouts of the network."""

    input_dropout: float | None = None
    """None: 0.25 without ELMo, 0.5 with."""
    projection_dim: int = 300
    projection_dropout: float = 0.25
    hidden: int = 300
    """Units a side of both bidirectional LSTMs."""
    pooled_dropout: float = 0.1
    output: Literal["maxout", "relu"] = "maxout"
    """The last layers; the paper took two ReLU layers with dropout instead of maxout."""
    output_hidden: tuple[int, ...] = (1200, 600)
    output_dropout: tuple[float, ...] = (0.2, 0.3)
    """After each of them."""
    pool: int = 4
    """Of every maxout layer, the last one too."""

    def __post_init__(self) -> None:
        for name in ("projection_dim", "hidden", "pool"):
            check_at_least(name, getattr(self, name), 1)
        for size in self.output_hidden:
            check_at_least("output_hidden", size, 1)
        for share in (self.projection_dropout, self.pooled_dropout, *self.output_dropout, self.input_dropout or 0.0):
            check_fraction("A dropout", share)
        if len(self.output_hidden) != len(self.output_dropout):
            raise ConfigError(
                f"output_hidden has {len(self.output_hidden)} sizes and output_dropout {len(self.output_dropout)} "
                "shares; give one share for each size."
            )


@dataclass(frozen=True)
class SstConfig:
    """The defaults are the published ones, without ELMo."""

    data: SstData = field(default_factory=SstData)
    words: WordsConfig | None = field(default_factory=lambda: WordsConfig(dim=300, train=False))
    chars: CharsConfig | None = None
    elmo: ElmoConfig | None = None
    model: SstModelConfig = field(default_factory=SstModelConfig)
    train: TaskTrainingConfig = field(
        default_factory=lambda: TaskTrainingConfig(batch_size=100, epochs=40, patience=5, max_grad_norm=5.0)
    )


SMALL = SstConfig(
    data=SstData(phrases="roots"),
    words=WordsConfig(dim=100, min_count=2),
    model=SstModelConfig(projection_dim=100, hidden=100, output_hidden=(200, 100)),
    train=TaskTrainingConfig(batch_size=32, epochs=10, patience=3, max_grad_norm=5.0),
)


@dataclass(frozen=True)
class Phrase:
    """Tokens and their class."""

    tokens: list[str]
    label: str | None
    where: str
    sentence: list[str] | None = None
    """The tokens of the sentence that it is a part of; None of a whole one."""


@dataclass(frozen=True)
class SstBatch:
    """Phrases as numbers."""

    tokens: TokenBatch
    classes: Tensor | None  # (batch,)


class SstModel(TaskModel[SstBatch, Probabilities]):
    """The network. Its loss is the mean cross-entropy of the batch."""

    def __init__(self, config: SstModelConfig, inputs: InputLayer, classes: Sequence[str]) -> None:
        super().__init__()
        self.inputs, self.classes = inputs, list(classes)
        with_elmo = inputs.elmo_dim > 0
        chosen = config.input_dropout
        self.input_dropout = nn.Dropout((0.5 if with_elmo else 0.25) if chosen is None else chosen)
        self.project = nn.Linear(inputs.output_dim, config.projection_dim)
        self.projection_dropout = nn.Dropout(config.projection_dropout)
        self.encoder = nn.LSTM(config.projection_dim, config.hidden, batch_first=True, bidirectional=True)
        read_dim = 2 * config.hidden
        self.integrator = nn.LSTM(3 * read_dim, config.hidden, batch_first=True, bidirectional=True)
        pooled_dim = read_dim + inputs.elmo_output_dim
        self.weigh = nn.Linear(pooled_dim, 1)
        self.pooled_dropout = nn.Dropout(config.pooled_dropout)
        sizes = [4 * pooled_dim, *config.output_hidden, len(classes)]
        layers: list[nn.Module] = []
        for size, next_size, dropout in zip(sizes, sizes[1:], (*config.output_dropout, 0.0), strict=False):
            is_last = len(layers) == 2 * len(config.output_hidden)
            if config.output == "maxout":
                layers.append(Maxout(size, next_size, config.pool))
            else:
                layers.append(
                    nn.Linear(size, next_size) if is_last else nn.Sequential(nn.Linear(size, next_size), nn.ReLU())
                )
            layers.append(nn.Dropout(dropout))
        self.output = nn.Sequential(*layers)

    def scores(self, tokens: TokenBatch) -> Tensor:
        """``(batch, classes)``."""
        mask = tokens.mask
        projected = self.projection_dropout(F.relu(self.project(self.input_dropout(self.inputs(tokens)))))
        encoded = run_packed(self.encoder, projected, mask)  # (batch, time, 2 * hidden)
        attended = attend(encoded @ encoded.transpose(1, 2), encoded, mask)
        compared = torch.cat([encoded, encoded - attended, encoded * attended], dim=-1)
        integrated = self.inputs.at_output(run_packed(self.integrator, compared, mask), tokens)
        weights = masked_softmax(self.weigh(integrated)[..., 0], mask)
        pooled = torch.cat(
            [
                masked_max(integrated, mask),
                masked_min(integrated, mask),
                masked_mean(integrated, mask),
                (weights[:, None, :] @ integrated)[:, 0],
            ],
            dim=-1,
        )
        scores: Tensor = self.output(self.pooled_dropout(pooled))
        return scores

    def loss(self, batch: SstBatch) -> Tensor:
        assert batch.classes is not None
        return F.cross_entropy(self.scores(batch.tokens), batch.classes)

    def predict(self, batch: SstBatch) -> list[Probabilities]:
        """Each phrase's probabilities."""
        return probabilities_of(self.scores(batch.tokens), self.classes)


def _phrases(tree: LabelledTree, n_classes: int, n_nodes: int, min_tokens: int) -> Iterator[Phrase]:
    for node in tree.nodes:
        if node.label not in ("0", "1", "2", "3", "4"):
            raise TextError(f"{tree.where}: the label {node.label!r}; expected 0 (very negative) to 4 (very positive).")
    for place, node in enumerate(tree.nodes[:n_nodes]):
        label = CLASSES[n_classes][int(node.label)]
        if label is not None and (place == 0 or node.stop - node.start >= min_tokens):
            yield Phrase(tree.tokens[node.start : node.stop], label, tree.where, tree.tokens if place else None)


class SstTask(Task[SstConfig, Phrase, SstBatch, Probabilities]):
    """Sentiment classification of sentences."""

    name = "sst"
    presets: ClassVar[Mapping[str, SstConfig]] = {"published": SstConfig(), "small": SMALL}
    metric = "accuracy"
    # The sources give no dropout for the output mix; 0.5 is bilm-tf's advice for every mix.
    elmo = ElmoConfig(input=MixConfig(penalty=0.001), output=MixConfig(penalty=0.001, dropout=0.5))

    def read(self, path: str, config: SstConfig) -> Iterator[Phrase]:
        """The whole sentences of a file of trees.

        Raises:
            TextError: a line is no tree, or a label is none of 0 to 4.
        """
        for tree in read_trees(path):
            yield from _phrases(tree, config.data.classes, 1, len(tree.tokens))

    def read_training(self, path: str, config: SstConfig) -> Iterator[Phrase]:
        """What is trained on: every phrase that is long enough, or the whole sentences.

        Raises:
            TextError: as in ``read``.
        """
        for tree in read_trees(path):
            n_nodes = len(tree.nodes) if config.data.phrases == "all" else 1
            yield from _phrases(tree, config.data.classes, n_nodes, config.data.min_tokens)

    def read_text(self, lines: Iterable[str], name: str, tokenize: Tokenize, config: SstConfig) -> Iterator[Phrase]:
        """One sentence a line."""
        for number, line in enumerate(lines, start=1):
            yield Phrase(tokenize(line), None, f"{name}, line {number}")

    def texts(self, example: Phrase) -> Sequence[Sentence]:
        return [example.tokens if example.sentence is None else example.sentence]

    def labels(self, examples: Sequence[Phrase], config: SstConfig) -> Labels:
        """The classes, whether they occur or not."""
        return {"classes": list(dict.fromkeys(name for name in CLASSES[config.data.classes] if name is not None))}

    def check(self, example: Phrase, known: Labels) -> None:
        """Refuse a class of another division."""
        if example.label not in known["classes"]:
            raise TextError(
                f"{example.where}: the class {example.label!r}; this run knows {', '.join(known['classes'])}."
            )

    def build(self, config: SstConfig, inputs: InputLayer, known: Labels) -> SstModel:
        return SstModel(config.model, inputs, known["classes"])

    def collate(self, examples: Sequence[Phrase], inputs: Inputs, known: Labels, config: SstConfig) -> SstBatch:
        """A batch; without classes if one phrase has none."""
        tokens = inputs.batch([example.tokens for example in examples])
        names = [example.label for example in examples if example.label is not None]
        if len(names) < len(examples):
            return SstBatch(tokens, None)
        return SstBatch(tokens, torch.tensor([known["classes"].index(name) for name in names], dtype=torch.int64))

    def score(
        self, examples: Sequence[Phrase], predictions: Sequence[Probabilities], config: SstConfig
    ) -> dict[str, float]:
        """Accuracy."""
        return {"accuracy": accuracy([example.label for example in examples], [likeliest(one) for one in predictions])}

    def to_record(self, example: Phrase, prediction: Probabilities) -> dict[str, Any]:
        """Tokens, class and probabilities."""
        return {"tokens": example.tokens, "label": likeliest(prediction), "probabilities": prediction}

    def to_text(self, example: Phrase, prediction: Probabilities) -> str:
        """Class, its probability, and the sentence, with tabs between."""
        best = likeliest(prediction)
        return f"{best}\t{prediction[best]:.2f}\t{' '.join(example.tokens)}"
