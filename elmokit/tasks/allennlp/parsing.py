"""Constituency parsing with ``constituency_parser``, which labels each span of a sentence (Stern et al. 2017).

A bidirectional LSTM reads words, ELMo and embedded parts of speech. A span's vector is the difference between the
forward outputs at its end and before its start, and between the backward outputs at its start and after its end.
AllenNLP does not search for the best tree: each span gets its most probable label, and if two labeled spans cross, the
less probable one is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.config import MAX_LAYERS, MAX_UNITS, check_at_least, check_fraction, setting
from elmokit.errors import ConfigError, TextError, needs_extra
from elmokit.storage.text_files import read_lines
from elmokit.tasks.allennlp.archived_configs import ArchivedCharsConfig, ArchivedElmoConfig
from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch
from elmokit.tasks.nn.layers import feed_forward, run_packed
from elmokit.tasks.tags import tag_ids
from elmokit.tasks.task import (
    Labels,
    Task,
    TaskModel,
    Tokenize,
    check_learnable,
    parse_json,
    read_sentence,
    require_gold,
)
from elmokit.tasks.task_config import (
    MixConfig,
    OptimizerConfig,
    TaskDataConfig,
    TaskTrainingConfig,
    WordsConfig,
    check_sizes,
)
from elmokit.tasks.trees import BRACKET_TOKENS, Span, Tree, chains_of, evalb, read_trees, to_brackets
from elmokit.text.first_lines import JSON, is_json_object

SPACY_MODEL = "en_core_web_sm"  # the model of AllenNLP's predictor
NO_LABEL = "NO-LABEL"  # the label of a span that is no constituent
UNKNOWN = "@@UNKNOWN@@"  # AllenNLP's entry for tags outside the vocabulary
TINY = 1e-13  # AllenNLP adds it to the sum of probabilities before dividing by it


@dataclass(frozen=True)
class ParsingData(TaskDataConfig):
    """Files with trees in brackets."""

    brackets: bool = setting(False, "Read the token -LRB- as (, and similarly for the other five brackets.")


@dataclass(frozen=True)
class ParsingModelConfig:
    """Sizes of ``constituency_parser``."""

    tags: bool = setting(True, "Whether sentences have part-of-speech tags.")
    tag_dim: int | None = setting(50, "Size of the part-of-speech vectors; false to ignore the tags.")
    hidden: int = setting(250, "Units per direction of each LSTM layer.")
    layers: int = setting(2, "LSTM layers.")
    lstm_dropout: float = setting(0.2, "Dropout between the LSTM layers.")
    learn_ends: bool = setting(True, "Learn the vectors before the first token and after the last one.")
    feedforward: tuple[int, ...] = setting((250,), "Units of each feed-forward layer between a span and its labels.")
    activation: Literal["relu", "tanh", "none"] = setting("relu", "Activation of the feed-forward layers.")
    dropout: float = setting(0.1, "Dropout after each feed-forward layer.")

    def __post_init__(self) -> None:
        check_at_least("tag_dim", self.tag_dim, 1, MAX_UNITS, optional=True)
        check_at_least("hidden", self.hidden, 1, MAX_UNITS)
        check_at_least("layers", self.layers, 1, MAX_LAYERS)
        check_fraction("lstm_dropout", self.lstm_dropout)
        check_fraction("dropout", self.dropout)
        if self.feedforward:
            check_sizes("feedforward", self.feedforward)


@dataclass(frozen=True)
class ParsingConfig:
    """The configuration of ``constituency_parser``, as published by AllenNLP without ELMo."""

    data: ParsingData = ParsingData()
    words: WordsConfig | None = WordsConfig(dim=100)
    chars: ArchivedCharsConfig | None = None
    elmo: ArchivedElmoConfig | None = None
    model: ParsingModelConfig = ParsingModelConfig()
    train: TaskTrainingConfig = TaskTrainingConfig(
        optimizer=OptimizerConfig("adadelta", learning_rate=1.0, rho=0.95, epsilon=1e-6),
        epochs=150,
        patience=20,
        max_grad_norm=5.0,
    )


@dataclass(frozen=True)
class ParsingExample:
    """A sentence, and its tree if it is known."""

    tokens: list[str]
    tags: list[str] | None
    """Parts of speech; None if the model does not read them."""
    tree: Tree | None
    where: str
    """File and line, for error messages."""


@dataclass(frozen=True)
class ParsingBatch:
    """Sentences and the labels of their spans as tensors."""

    tokens: TokenBatch
    tags: Tensor | None  # (batch, time); None if the model does not read them
    labels: list[Tensor] | None  # (spans,) for each sentence; None if they are unknown


class _Scored(NamedTuple):
    """A span with its most probable label."""

    start: int
    stop: int
    label: int
    probability: float
    without: float
    """The probability that the span is no constituent."""

    def crosses(self, other: _Scored) -> bool:
        ends_inside = self.start < other.start < self.stop < other.stop
        starts_inside = other.start < self.start < other.stop < self.stop
        return ends_inside or starts_inside


def without_crossing(spans: Sequence[_Scored]) -> list[_Scored]:
    """Drop spans until none cross. If two spans cross, the one that is more probably no constituent is dropped.

    The order matters, so it is AllenNLP's: a pass compares each span with later spans until it finds one that crosses,
    and then continues at the next position, even if the following spans have moved up.
    """
    kept = list(spans)
    is_changed = True
    while is_changed:
        is_changed = False
        position = 0
        while position < len(kept):
            crossing = _first_crossing(kept, position)
            if crossing is not None:
                is_changed = True
                span, other = kept[position], kept[crossing]
                is_better = span.without + other.probability < other.without + span.probability
                del kept[crossing if is_better else position]
            position += 1
    return kept


def _first_crossing(spans: Sequence[_Scored], position: int) -> int | None:
    """Return the position of the first later span that crosses the span at a position; None if there is none."""
    for later in range(position + 1, len(spans)):
        if spans[position].crosses(spans[later]):
            return later
    return None


class ParsingModel(TaskModel[ParsingBatch, list[Span]]):
    """The parser. Its loss is averaged over the spans of each sentence, and then over sentences."""

    def __init__(self, config: ParsingModelConfig, inputs: InputLayer, known: Labels) -> None:
        super().__init__()
        self.inputs = inputs
        self.labels = known["constituents"]
        dim = inputs.output_dim
        self.tags: nn.Embedding | None = None
        if config.tag_dim is not None:
            self.tags = nn.Embedding(len(known["tags"]), config.tag_dim)
            dim += config.tag_dim
        dropout = config.lstm_dropout if config.layers > 1 else 0.0  # PyTorch warns if there is only one layer
        self.lstm = nn.LSTM(dim, config.hidden, config.layers, batch_first=True, bidirectional=True, dropout=dropout)
        self.before = nn.Parameter(torch.randn(config.hidden)) if config.learn_ends else None
        self.after = nn.Parameter(torch.randn(config.hidden)) if config.learn_ends else None
        sizes = (2 * config.hidden, *config.feedforward)
        self.feedforward = feed_forward(sizes[0], config.feedforward, config.activation, config.dropout)
        self.to_labels = nn.Linear(sizes[-1], len(self.labels))

    def scores(self, batch: ParsingBatch) -> list[Tensor]:
        """Return the score of each label for each span, ``(spans, labels)`` per sentence.

        Spans are ordered by start and then by end, as in ``torch.triu_indices``.
        """
        mask = batch.tokens.mask
        vectors = self.inputs(batch.tokens)
        if self.tags is not None:
            assert batch.tags is not None
            vectors = torch.cat([vectors, self.tags(batch.tags)], dim=-1)
        hidden = run_packed(self.lstm, vectors, mask)
        lengths = mask.sum(dim=1).tolist()
        scores = []
        for of_sentence, length in zip(hidden, lengths, strict=True):
            scores.append(self._of_spans(of_sentence[:length]))
        return scores

    def _of_spans(self, hidden: Tensor) -> Tensor:
        """Score the spans of a sentence, given its LSTM outputs, ``(time, 2 * hidden)``."""
        time = len(hidden)
        if not time:
            return hidden.new_zeros(0, len(self.labels))
        starts, ends = torch.triu_indices(time, time, device=hidden.device)
        forward, backward = hidden.chunk(2, dim=1)
        # If nothing is learned for the ends, AllenNLP uses the first token for both.
        before = forward[0] if self.before is None else self.before
        after = backward[0] if self.after is None else self.after
        read_before = torch.cat([before[None], forward])[starts]
        read_after = torch.cat([backward, after[None]])[ends + 1]
        spans = torch.cat([forward[ends] - read_before, read_after - backward[starts]], dim=1)
        scores: Tensor = self.to_labels(self.feedforward(spans))
        return scores

    def loss(self, batch: ParsingBatch) -> Tensor:
        assert batch.labels is not None
        losses = []
        for scores, labels in zip(self.scores(batch), batch.labels, strict=True):
            if len(labels):
                losses.append(F.cross_entropy(scores, labels))
        return torch.stack(losses).mean()

    def predict(self, batch: ParsingBatch) -> list[list[Span]]:
        """Return the constituents of each sentence, outer ones before inner ones."""
        return [self._constituents(scores.softmax(dim=1)) for scores in self.scores(batch)]

    def _constituents(self, probabilities: Tensor) -> list[Span]:
        """Choose constituents from the probabilities of labels, ``(spans, labels)``."""
        n_spans = len(probabilities)
        time = int((2 * n_spans) ** 0.5)
        sums = probabilities.sum(dim=1, keepdim=True)
        probabilities = (probabilities / (sums + TINY)).cpu()
        no_label = self.labels.index(NO_LABEL)
        best, labels = probabilities.max(dim=1)
        starts, ends = torch.triu_indices(time, time)
        is_root = (starts == 0) & (ends == time - 1)  # the whole sentence is always a constituent
        chosen = ((labels != no_label) | is_root).nonzero()[:, 0]
        scored = []
        for span in chosen.tolist():
            start, stop = int(starts[span]), int(ends[span]) + 1
            without = float(probabilities[span, no_label])
            scored.append(_Scored(start, stop, int(labels[span]), float(best[span]), without))
        kept_spans = sorted(without_crossing(scored), key=lambda span: (span.start, -span.stop))
        spans = []
        for kept in kept_spans:
            # Several constituents with the same range have one label, such as S-VP.
            for label in self.labels[kept.label].split("-"):
                spans.append(Span(kept.start, kept.stop, label))
        return spans


class _Tagged(msgspec.Struct):
    sentence: str | None = None
    tokens: list[str] | None = None
    words: list[str] | None = None
    pos_tags: list[str] | None = None

    def is_raw(self) -> bool:
        """Check whether it is only a raw sentence, as for AllenNLP's predictor."""
        others = (self.tokens, self.words, self.pos_tags)
        return self.sentence is not None and all(value is None for value in others)


class ParsingTask(Task[ParsingConfig, ParsingExample, ParsingBatch, list[Span]]):
    """Constituency parsing: find and label the phrases of a sentence, including nested ones."""

    name = "parsing"
    text_formats = (JSON,)
    presets: ClassVar[Mapping[str, ParsingConfig]] = {"published": ParsingConfig()}
    metric = "f1"
    elmo = ArchivedElmoConfig(input=MixConfig(dropout=0.2))

    def read(self, path: str, config: ParsingConfig) -> Iterator[ParsingExample]:
        """Read trees."""
        for tree in read_trees(enumerate(read_lines(path), start=1), path):
            tags = tree.tags if config.model.tags else None
            yield ParsingExample(self._tokens(tree.tokens, config), tags, tree, tree.where)

    def read_line(self, line: str, where: str, tokenize: Tokenize, config: ParsingConfig) -> ParsingExample:
        """Read a JSON object or a sentence, with tags if the model reads them: ``She/PRP sleeps/VBZ``.

        If an object has only a raw ``sentence``, spaCy tags it.
        """
        tokens = read_sentence(line, where, tokenize)
        tags = None
        if config.model.tags:
            tokens, tags = _with_tags(line, tokens, where)
        return ParsingExample(self._tokens(tokens, config), tags, None, where)

    @staticmethod
    def _tokens(tokens: list[str], config: ParsingConfig) -> list[str]:
        if not config.data.brackets:
            return tokens
        return [BRACKET_TOKENS.get(token, token) for token in tokens]

    def labels(self, examples: Sequence[ParsingExample], config: ParsingConfig) -> Labels:
        """Return the constituent labels and parts of speech that occur."""
        chains: set[str] = set()
        tags: set[str] = set()
        for example in examples:
            if example.tree is not None:
                chains.update(chains_of(example.tree.spans).values())
                tags.update(example.tree.tags)
        check_learnable(chains, "constituent")
        known = {"constituents": [NO_LABEL, *sorted(chains)], "tags": []}
        if config.model.tags:
            known["tags"] = [UNKNOWN, *sorted(tags)]
        return known

    def check(self, example: ParsingExample, known: Labels) -> None:
        """Raise an error for an example without a tree. Its labels may be unknown, because all labels can be scored."""
        require_gold(example.tree, example.where, "tree")

    def build(self, config: ParsingConfig, inputs: InputLayer, known: Labels) -> ParsingModel:
        return ParsingModel(config.model, inputs, known)

    def collate(
        self, examples: Sequence[ParsingExample], inputs: Inputs, known: Labels, config: ParsingConfig
    ) -> ParsingBatch:
        """Build a batch, without labels if a sentence has no tree or an unknown label."""
        tokens = inputs.batch([example.tokens for example in examples])
        tags = None
        if config.model.tag_dim is not None:
            known_tags = [_known_tags(example, known["tags"]) for example in examples]
            tags = tag_ids(known_tags, known["tags"], tokens.mask, padding=0)
        ids = {label: index for index, label in enumerate(known["constituents"])}
        labels = []
        for example in examples:
            of_spans = _label_ids(example, ids)
            if of_spans is None:
                return ParsingBatch(tokens, tags, None)
            labels.append(of_spans)
        return ParsingBatch(tokens, tags, labels)

    def score(
        self, examples: Sequence[ParsingExample], predictions: Sequence[list[Span]], config: ParsingConfig
    ) -> dict[str, float]:
        """Return evalb's F1, precision and recall of brackets, and the percentage of sentences without errors."""
        trees = [require_gold(example.tree, example.where, "tree") for example in examples]
        return evalb(trees, predictions)

    def to_record(self, example: ParsingExample, spans: list[Span]) -> dict[str, Any]:
        """Return tokens, tags, the tree in brackets, and its constituents from token ``start`` to ``stop - 1``."""
        record: dict[str, Any] = {"tokens": example.tokens}
        if example.tags is not None:
            record["pos_tags"] = example.tags
        record["tree"] = self.to_text(example, spans)
        record["constituents"] = [span._asdict() for span in spans]
        return record

    def to_text(self, example: ParsingExample, spans: list[Span]) -> str:
        """Return the tree in brackets."""
        return to_brackets(example.tokens, example.tags, spans)


def _with_tags(line: str, tokens: list[str], where: str) -> tuple[list[str], list[str]]:
    """Return the tokens and tags of a line: ``She/PRP sleeps/VBZ``, or JSON with ``pos_tags``.

    spaCy tokenizes and tags a raw sentence in JSON, as in AllenNLP.
    """
    if not is_json_object(line):
        words, tags = [], []
        for token in tokens:
            word, _, tag = token.rpartition("/")
            words.append(word)
            tags.append(tag)
        return _checked_tags(words, tags, where)
    content = parse_json(line, where, _Tagged, "one JSON object per line")
    if not content.is_raw():
        return _checked_tags(tokens, content.pos_tags or [], where)
    tagged = [word for word in _spacy_tagger()(content.sentence) if not word.is_space]
    return [word.text for word in tagged], [word.tag_ for word in tagged]


def _checked_tags(tokens: list[str], tags: list[str], where: str) -> tuple[list[str], list[str]]:
    if len(tags) != len(tokens) or not all(tokens) or not all(tags):
        raise TextError(
            f"{where}: expected a part of speech for each token, which this model needs: She/PRP sleeps/VBZ, or JSON "
            "with lists of tokens and pos_tags of the same length."
        )
    return tokens, tags


@cache
def _spacy_tagger() -> Any:
    """Return spaCy's pipeline with which AllenNLP's predictor tokenized and tagged raw sentences."""
    with needs_extra("Tagging a raw sentence, for a model that reads parts of speech,", "spacy"):
        import spacy
    try:
        return spacy.load(SPACY_MODEL, disable=["parser", "ner"])
    except OSError as error:  # the first sentence names the model
        what = str(error).partition(". ")[0]
        raise ConfigError(f"{what}. Install it (python -m spacy download {SPACY_MODEL}), or pass pos_tags.") from None


def _known_tags(example: ParsingExample, known: Sequence[str]) -> list[str]:
    """Return a sentence's parts of speech. Unknown ones become the entry for unknown ones, if the model has it."""
    tags = []
    for tag in example.tags or ():
        if tag in known:
            tags.append(tag)
        elif UNKNOWN in known:
            tags.append(UNKNOWN)
        else:
            raise TextError(
                f"{example.where}: the model does not know the part of speech {tag!r}, only {', '.join(known)}."
            )
    return tags


def _label_ids(example: ParsingExample, ids: Mapping[str, int]) -> Tensor | None:
    """Return the label of each span of a sentence; None if the tree or a label is unknown."""
    if example.tree is None:
        return None
    chains = chains_of(example.tree.spans)
    if not ids.keys() >= set(chains.values()):
        return None
    n_tokens = len(example.tokens)
    labels = []
    for start in range(n_tokens):
        for stop in range(start + 1, n_tokens + 1):
            label = chains.get((start, stop), NO_LABEL)
            labels.append(ids[label])
    return torch.tensor(labels, dtype=torch.long)
