"""Sentiment: the biattentive classification network (McCann et al. 2017) on the Stanford Sentiment Treebank.

The sizes are from AllenNLP's configuration. The positions of ELMo, and lambda, are as in the supplement of Peters
et al. 2018. Files have one labeled tree in brackets per line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.config import MAX_UNITS, check_at_least, check_fraction, setting
from elmokit.errors import ConfigError, TextError
from elmokit.storage.text_files import read_lines
from elmokit.tasks.classification import ClassificationModel, ClassificationTask
from elmokit.tasks.inputs import InputLayer, TokenBatch
from elmokit.tasks.nn.layers import Maxout, attend, masked_max, masked_mean, masked_min, masked_softmax, run_packed
from elmokit.tasks.task import Labels, Sentence, Tokenize, read_sentence
from elmokit.tasks.task_config import (
    CharsConfig,
    ElmoConfig,
    MixConfig,
    TaskDataConfig,
    TaskTrainingConfig,
    WordsConfig,
)
from elmokit.tasks.trees import TreeReader
from elmokit.text.first_lines import JSON

SYMBOL = re.compile(r"[()]|[^() \t]+")  # not \s, because a no-break space is part of a word
EXPECTED = "expected one tree such as (3 (2 Mira) (3 (2 rides) (4 well)))"


@dataclass(frozen=True)
class TreeNode:
    """A phrase: tokens ``start`` to ``stop - 1`` of the sentence, and its label."""

    start: int
    stop: int
    label: str


@dataclass(frozen=True)
class LabeledTree:
    """A sentence and the labels of all its phrases in pre-order, root first."""

    tokens: list[str]
    nodes: list[TreeNode]
    where: str
    """File and line, for error messages."""


def read_trees(path: str) -> Iterator[LabeledTree]:
    """Read the trees of a file, which may be compressed. Blank lines are skipped."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            yield parse_tree(line, f"{path}, line {number}")


def parse_tree(line: str, where: str) -> LabeledTree:
    """Parse one tree such as ``(3 (2 Mira) (3 (2 rides) (4 superbly)))``."""
    reader = TreeReader()
    for number, symbol in enumerate(SYMBOL.findall(line), start=1):
        if not reader.add(symbol):
            raise TextError(f"{where}: found {symbol!r} as symbol {number}, {EXPECTED}.")
    if not reader.is_complete:
        raise TextError(f"{where}: found the end of the line, {EXPECTED}.")
    nodes = [TreeNode(bracket.start, bracket.stop, bracket.label) for bracket in reader.brackets]
    return LabeledTree(reader.tokens, nodes, where)


FIVE = ("very negative", "negative", "neutral", "positive", "very positive")
# For each number of classes: the classes of the treebank's labels 0 to 4. None drops the phrase.
CLASSES: dict[int, tuple[str | None, ...]] = {
    5: FIVE,
    3: ("negative", "negative", "neutral", "positive", "positive"),
    2: ("negative", "negative", None, "positive", "positive"),
}


def distinct_classes(n_classes: int) -> list[str]:
    """Return the names of 5, 3 or 2 classes, most negative first."""
    names: list[str] = []
    for name in CLASSES[n_classes]:
        if name is not None and name not in names:
            names.append(name)
    return names


@dataclass(frozen=True)
class SstData(TaskDataConfig):
    """Files of labeled trees, one per line."""

    classes: Literal[5, 3, 2] = setting(
        5, "Number of classes. 3 merges the two negative and the two positive ones; 2 also drops the neutral phrases."
    )
    phrases: Literal["all", "roots"] = setting(
        "all", "Train on all phrases, or only on whole sentences. Evaluation always uses whole sentences."
    )
    min_tokens: int = setting(1, "Minimum length of training phrases; 4 in the paper. Whole sentences are always used.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("min_tokens", self.min_tokens, 1)


@dataclass(frozen=True)
class SstModelConfig:
    """Sizes and dropouts of the network."""

    input_dropout: float | None = setting(None, "Dropout on the inputs. By default, 0.25 without ELMo and 0.5 with it.")
    projection_dim: int = setting(300, "Units of the layer that reduces each word vector.")
    projection_dropout: float = setting(0.25, "Dropout after that layer.")
    hidden: int = setting(300, "Units per direction of both bidirectional LSTMs.")
    pooled_dropout: float = setting(0.1, "Dropout on the pooled vector.")
    output: Literal["maxout", "relu"] = setting(
        "maxout", "Kind of the output layers. The paper used two ReLU layers with dropout instead of maxout."
    )
    output_hidden: tuple[int, ...] = setting((1200, 600), "Units of each output layer.")
    output_dropout: tuple[float, ...] = setting((0.2, 0.3), "Dropout after each of these layers.")
    pool: int = setting(4, "Number of linear maps per maxout unit.")

    def __post_init__(self) -> None:
        for name in ("projection_dim", "hidden", "pool"):
            check_at_least(name, getattr(self, name), 1, MAX_UNITS)
        for size in self.output_hidden:
            check_at_least("output_hidden", size, 1, MAX_UNITS)
        if self.input_dropout is not None:
            check_fraction("input_dropout", self.input_dropout)
        for name in ("projection_dropout", "pooled_dropout"):
            check_fraction(name, getattr(self, name))
        for ratio in self.output_dropout:
            check_fraction("output_dropout", ratio)
        if len(self.output_hidden) != len(self.output_dropout):
            raise ConfigError(
                f"output_dropout has {len(self.output_dropout)} values; it must have one for each of the "
                f"{len(self.output_hidden)} sizes of output_hidden."
            )


@dataclass(frozen=True)
class SstConfig:
    """The configuration of the task. The defaults are the published values, without ELMo."""

    data: SstData = SstData()
    words: WordsConfig | None = WordsConfig(dim=300, train=False)
    chars: CharsConfig | None = None
    elmo: ElmoConfig | None = None
    model: SstModelConfig = SstModelConfig()
    train: TaskTrainingConfig = TaskTrainingConfig(batch_size=100, epochs=40, patience=5, max_grad_norm=5.0)


SMALL = SstConfig(
    data=SstData(phrases="roots"),
    words=WordsConfig(dim=100, min_count=2),
    model=SstModelConfig(projection_dim=100, hidden=100, output_hidden=(200, 100)),
    train=TaskTrainingConfig(batch_size=32, epochs=10, patience=3, max_grad_norm=5.0),
)


@dataclass(frozen=True)
class Phrase:
    """A sentence or a part of one, and its class."""

    tokens: list[str]
    label: str | None
    where: str
    """File and line, for error messages."""
    sentence: list[str] | None = None
    """The tokens of the sentence that contains the phrase; None for a whole sentence."""


class SstModel(ClassificationModel):
    """The biattentive classification network.

    A BiLSTM reads the sentence, each token attends to all tokens of the sentence ("biattention" of the sentence with
    itself), a second BiLSTM reads the result, and the output layers read its pooled vectors.
    """

    def __init__(self, config: SstModelConfig, inputs: InputLayer, classes: Sequence[str]) -> None:
        super().__init__(inputs, classes)
        input_dropout = config.input_dropout
        if input_dropout is None:
            input_dropout = 0.5 if inputs.elmo_dim > 0 else 0.25
        self.input_dropout = nn.Dropout(input_dropout)
        self.project = nn.Linear(inputs.output_dim, config.projection_dim)
        self.projection_dropout = nn.Dropout(config.projection_dropout)
        self.encoder = nn.LSTM(config.projection_dim, config.hidden, batch_first=True, bidirectional=True)
        read_dim = 2 * config.hidden
        self.integrator = nn.LSTM(3 * read_dim, config.hidden, batch_first=True, bidirectional=True)
        pooled_dim = read_dim + inputs.elmo_output_dim
        self.weigh = nn.Linear(pooled_dim, 1)
        self.pooled_dropout = nn.Dropout(config.pooled_dropout)
        self.output = _output_layers(config, 4 * pooled_dim, len(classes))

    def scores(self, *texts: TokenBatch) -> Tensor:
        (tokens,) = texts
        mask = tokens.mask
        vectors = self.input_dropout(self.inputs(tokens))
        projected = self.projection_dropout(F.relu(self.project(vectors)))
        encoded = run_packed(self.encoder, projected, mask)  # (batch, time, 2 * hidden)
        # The paper attends to a second sentence. For classification, that is the same one, so one direction is enough.
        attended = attend(encoded @ encoded.transpose(1, 2), encoded, mask)
        compared = torch.cat([encoded, encoded - attended, encoded * attended], dim=-1)
        integrated = self.inputs.at_output(run_packed(self.integrator, compared, mask), tokens)
        weights = masked_softmax(self.weigh(integrated)[..., 0], mask)
        highest = masked_max(integrated, mask)
        lowest = masked_min(integrated, mask)
        mean = masked_mean(integrated, mask)
        weighted_sum = (weights[:, None, :] @ integrated)[:, 0]
        pooled = torch.cat([highest, lowest, mean, weighted_sum], dim=-1)
        scores: Tensor = self.output(self.pooled_dropout(pooled))
        return scores


def _output_layers(config: SstModelConfig, dim: int, n_classes: int) -> nn.Sequential:
    """Return the output layers, each followed by its dropout; the last one has an output for each class."""
    layers = nn.Sequential()
    for units, dropout in zip(config.output_hidden, config.output_dropout, strict=True):
        if config.output == "maxout":
            layer: nn.Module = Maxout(dim, units, config.pool)
        else:
            layer = nn.Sequential(nn.Linear(dim, units), nn.ReLU())
        layers.extend([layer, nn.Dropout(dropout)])
        dim = units
    if config.output == "maxout":
        last: nn.Module = Maxout(dim, n_classes, config.pool)
    else:
        last = nn.Linear(dim, n_classes)
    layers.extend([last, nn.Dropout(0.0)])
    return layers


def _phrases(tree: LabeledTree, n_classes: int, n_nodes: int, min_tokens: int) -> Iterator[Phrase]:
    """Yield the phrases with a class among the first ``n_nodes`` nodes, whole sentence first."""
    for node in tree.nodes:
        if node.label not in ("0", "1", "2", "3", "4"):
            raise TextError(f"{tree.where}: the label is {node.label!r}; it must be 0 to 4.")
    for index, node in enumerate(tree.nodes[:n_nodes]):
        label = CLASSES[n_classes][int(node.label)]
        if label is None:
            continue
        tokens = tree.tokens[node.start : node.stop]
        if index == 0:
            yield Phrase(tokens, label, tree.where, None)
        elif len(tokens) >= min_tokens:
            yield Phrase(tokens, label, tree.where, tree.tokens)


class SstTask(ClassificationTask[SstConfig, Phrase]):
    """Sentiment classification of sentences."""

    name = "sst"
    text_formats = (JSON,)
    presets: ClassVar[Mapping[str, SstConfig]] = {"published": SstConfig(), "small": SMALL}
    # The papers give no dropout for the output mix; bilm-tf recommends 0.5 for all mixes.
    elmo = ElmoConfig(input=MixConfig(penalty=0.001), output=MixConfig(penalty=0.001, dropout=0.5))

    def read(self, path: str, config: SstConfig) -> Iterator[Phrase]:
        """Read the whole sentences of a file of trees."""
        for tree in read_trees(path):
            yield from _phrases(tree, config.data.classes, 1, len(tree.tokens))

    def read_training(self, path: str, config: SstConfig) -> Iterator[Phrase]:
        """Read all phrases that are long enough, or only whole sentences, depending on the config."""
        for tree in read_trees(path):
            n_nodes = len(tree.nodes) if config.data.phrases == "all" else 1
            yield from _phrases(tree, config.data.classes, n_nodes, config.data.min_tokens)

    def read_line(self, line: str, where: str, tokenize: Tokenize, config: SstConfig) -> Phrase:
        """Read a sentence or a JSON object."""
        return Phrase(read_sentence(line, where, tokenize), None, where)

    def named_texts(self, example: Phrase) -> dict[str, list[str]]:
        return {"tokens": example.tokens}

    def texts(self, example: Phrase) -> Sequence[Sentence]:
        if example.sentence is None:
            return [example.tokens]
        return [example.sentence]

    def labels(self, examples: Sequence[Phrase], config: SstConfig) -> Labels:
        """Return all classes, even if they do not occur."""
        return {"classes": distinct_classes(config.data.classes)}

    def build(self, config: SstConfig, inputs: InputLayer, known: Labels) -> SstModel:
        return SstModel(config.model, inputs, known["classes"])
