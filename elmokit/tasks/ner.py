"""Named entities: words and characters, bidirectional LSTMs, a CRF over tags.

Peters et al. 2018, section 4 and supplement; the sizes are those of AllenNLP's configuration for CoNLL-2003.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from elmokit.config import check_at_least, check_fraction
from elmokit.errors import ConfigError, TextError
from elmokit.tasks.config import (
    CharsConfig,
    DataConfig,
    ElmoConfig,
    MixConfig,
    OptimizerConfig,
    TaskTrainingConfig,
    WordsConfig,
)
from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch
from elmokit.tasks.nn.crf import CRF
from elmokit.tasks.nn.dropout import VariationalDropout
from elmokit.tasks.nn.recurrent import run_packed
from elmokit.tasks.readers.conll_tags import read_columns
from elmokit.tasks.scores.chunks import Chunk, chunk_f1, chunk_f1_per_label, chunks_of
from elmokit.tasks.tags import Scheme, TagError, all_tags, chunks_in, rules_of, tags_of
from elmokit.tasks.task import Labels, Task, TaskModel, Tokenize, unknown_label


@dataclass(frozen=True)
class NerData(DataConfig):
    """Columns with a token first and its tag last, if nothing else is said."""

    tags: Scheme = "IOB1"
    """How the files tag; IOB1 reads sound IOB2 too."""
    token_column: int = 0
    tag_column: int = -1
    """Counted from the end if negative."""


@dataclass(frozen=True)
class NerModelConfig:
    """Sizes of the tagger."""

    hidden: tuple[int, ...] = (200, 200)
    """Units a side of each bidirectional LSTM layer; the paper's own were 200 and 100."""
    dropout: float = 0.5
    """Before, between and after the layers."""
    variational: bool = False
    """Drop the same features at every token of a sentence, as in the paper; else each for itself, as AllenNLP."""
    tags: Literal["BIOUL", "IOB2"] = "BIOUL"
    """The tags that the model gives."""
    constraints: Literal["decoding", "both", "none"] = "decoding"
    """Where the rules on what may follow what hold: in Viterbi's search alone, as AllenNLP, or in training too."""
    learn_ends: bool = False
    """Learn scores for each tag at a sentence's start and end."""

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ConfigError("hidden is empty; give the units of one LSTM layer at least.")
        for size in self.hidden:
            check_at_least("hidden", size, 1)
        check_fraction("dropout", self.dropout)


@dataclass(frozen=True)
class NerConfig:
    """The defaults are the published ones, without ELMo."""

    data: NerData = field(default_factory=NerData)
    words: WordsConfig | None = field(default_factory=lambda: WordsConfig(dim=50, lowercase=True))
    chars: CharsConfig | None = field(default_factory=CharsConfig)
    elmo: ElmoConfig | None = None
    model: NerModelConfig = field(default_factory=NerModelConfig)
    train: TaskTrainingConfig = field(
        default_factory=lambda: TaskTrainingConfig(
            batch_size=64, bucketed=False, epochs=75, patience=25, max_grad_norm=5.0
        )
    )


SMALL = NerConfig(
    words=WordsConfig(dim=50, lowercase=True, min_count=2),
    chars=CharsConfig(filters=((3, 50),)),
    model=NerModelConfig(hidden=(100,)),
    train=TaskTrainingConfig(
        optimizer=OptimizerConfig(learning_rate=3e-3), batch_size=32, epochs=20, patience=6, max_grad_norm=5.0
    ),
)


@dataclass(frozen=True)
class TaggedSentence:
    """Tokens and their entities."""

    tokens: list[str]
    chunks: list[Chunk] | None
    """None where it is not known."""
    where: str
    """File and line, for errors."""


@dataclass(frozen=True)
class NerBatch:
    """Sentences as numbers."""

    tokens: TokenBatch
    tags: Tensor | None  # (batch, time)


class NerModel(TaskModel[NerBatch, list[Chunk]]):
    """The tagger. Its loss is the CRF's, summed over the batch as in AllenNLP: the mixes' lambda weighs little."""

    def __init__(self, config: NerModelConfig, inputs: InputLayer, tags: Sequence[str]) -> None:
        super().__init__()
        self.inputs = inputs
        self.tags = list(tags)
        self.scheme: Scheme = config.tags
        sizes = [inputs.output_dim, *(2 * units for units in config.hidden)]
        self.layers = nn.ModuleList(
            nn.LSTM(size, units, batch_first=True, bidirectional=True)
            for size, units in zip(sizes, config.hidden, strict=False)
        )
        self.dropout = VariationalDropout(config.dropout) if config.variational else nn.Dropout(config.dropout)
        self.to_tags = nn.Linear(sizes[-1] + inputs.elmo_output_dim, len(self.tags))
        rules = None if config.constraints == "none" else rules_of(self.tags, config.tags)
        self.crf = CRF(len(self.tags), rules, config.constraints == "both", config.learn_ends)

    def emissions(self, tokens: TokenBatch) -> Tensor:
        """``(batch, time, tags)``."""
        hidden = self.dropout(self.inputs(tokens))
        for layer in self.layers:
            assert isinstance(layer, nn.LSTM)
            hidden = self.dropout(run_packed(layer, hidden, tokens.mask))
        scores: Tensor = self.to_tags(self.inputs.at_output(hidden, tokens))
        return scores

    def loss(self, batch: NerBatch) -> Tensor:
        assert batch.tags is not None
        return self.crf.loss(self.emissions(batch.tokens), batch.tags, batch.tokens.mask).sum()

    def predict(self, batch: NerBatch) -> list[list[Chunk]]:
        """The entities of each sentence."""
        paths = self.crf.decode(self.emissions(batch.tokens), batch.tokens.mask)
        # Without rules the best tags may be ill-formed; conlleval's reading makes chunks of them all the same.
        return [_read_leniently([self.tags[tag] for tag in path], self.scheme) for path in paths]


def _read_leniently(tags: Sequence[str], scheme: Scheme) -> list[Chunk]:
    try:
        return chunks_in(tags, scheme)
    except TagError:
        return chunks_of([f"{'B' if tag[0] in 'BU' else 'I'}{tag[1:]}" if tag != "O" else tag for tag in tags])


class NerTask(Task[NerConfig, TaggedSentence, NerBatch, list[Chunk]]):
    """Named entity recognition: find and label the names in a sentence."""

    name = "ner"
    presets: ClassVar[Mapping[str, NerConfig]] = {"published": NerConfig(), "small": SMALL}
    metric = "f1"
    elmo = ElmoConfig(input=MixConfig(penalty=0.1))

    def read(self, path: str, config: NerConfig) -> Iterator[TaggedSentence]:
        """The sentences of a file in columns.

        Raises:
            TextError: there is no such column, or tags that the scheme does not allow.
        """
        data = config.data
        for sentence in read_columns(path):
            try:
                tokens = [row[data.token_column] for row in sentence.rows]
                tags = [row[data.tag_column] for row in sentence.rows]
            except IndexError:
                raise TextError(
                    f"{path}, line {sentence.first_line}: {len(sentence.rows[0])} columns; data.token_column is "
                    f"{data.token_column} and data.tag_column {data.tag_column}."
                ) from None
            try:
                chunks = chunks_in(tags, data.tags)
            except TagError as error:
                raise TextError(
                    f"{path}, line {sentence.first_line + error.place}: {error}. Is data.tags = {data.tags!r} right?"
                ) from None
            yield TaggedSentence(tokens, chunks, f"{path}, line {sentence.first_line}")

    def read_text(
        self, lines: Iterable[str], name: str, tokenize: Tokenize, config: NerConfig
    ) -> Iterator[TaggedSentence]:
        """One sentence a line."""
        for number, line in enumerate(lines, start=1):
            yield TaggedSentence(tokenize(line), None, f"{name}, line {number}")

    def labels(self, examples: Sequence[TaggedSentence], config: NerConfig) -> Labels:
        """The tags of all types that occur."""
        types = {chunk.label for example in examples for chunk in example.chunks or ()}
        if not types:
            raise TextError("No sentence has an entity: there is nothing to learn.")
        return {"tags": all_tags(sorted(types), config.model.tags)}

    def check(self, example: TaggedSentence, known: Labels) -> None:
        """Refuse types that the run does not know."""
        types = sorted({tag.partition("-")[2] for tag in known["tags"]} - {""})
        for chunk in example.chunks or ():
            if chunk.label not in types:
                what = f"token {chunk.start + 1} of the sentence has the type {chunk.label!r}"
                raise unknown_label(example.where, what, types)

    def build(self, config: NerConfig, inputs: InputLayer, known: Labels) -> NerModel:
        return NerModel(config.model, inputs, known["tags"])

    def collate(self, examples: Sequence[TaggedSentence], inputs: Inputs, known: Labels, config: NerConfig) -> NerBatch:
        """A batch; without tags if one sentence has none, or a type that is not known."""
        tokens = inputs.batch([example.tokens for example in examples])
        ids = {tag: number for number, tag in enumerate(known["tags"])}
        types = {tag.partition("-")[2] for tag in ids}
        if any(
            example.chunks is None or any(chunk.label not in types for chunk in example.chunks) for example in examples
        ):
            return NerBatch(tokens, None)
        tags = torch.zeros(tokens.mask.shape, dtype=torch.int64)
        for row, example in zip(tags, examples, strict=True):
            given = tags_of(example.chunks or (), len(example.tokens), config.model.tags)
            row[: len(given)] = torch.tensor([ids[tag] for tag in given], dtype=torch.int64)
        return NerBatch(tokens, tags)

    def score(
        self, examples: Sequence[TaggedSentence], predictions: Sequence[list[Chunk]], config: NerConfig
    ) -> dict[str, float]:
        """Precision, recall and F1 over entities as conlleval has them, with the F1 of each type that gold has."""
        gold = [example.chunks or [] for example in examples]
        whole = chunk_f1(gold, predictions)
        per_label = chunk_f1_per_label(gold, predictions)
        per_type = {f"f1-{kind}": counts.f1 for kind, counts in per_label.items() if counts.gold}
        return {"f1": whole.f1, "precision": whole.precision, "recall": whole.recall, **per_type}

    def to_record(self, example: TaggedSentence, chunks: list[Chunk]) -> dict[str, Any]:
        """Tokens, IOB2 tags, and the entities, each from token ``start`` to before ``stop``."""
        return {
            "tokens": example.tokens,
            "tags": tags_of(chunks, len(example.tokens), "IOB2"),
            "entities": [
                {**chunk._asdict(), "text": " ".join(example.tokens[chunk.start : chunk.stop])} for chunk in chunks
            ],
        }

    def to_text(self, example: TaggedSentence, chunks: list[Chunk]) -> str:
        """The sentence with its entities in brackets: ``[PER Mira] visits [LOC Oslo] .``"""
        words = list(example.tokens)
        for chunk in chunks:
            words[chunk.start] = f"[{chunk.label} {words[chunk.start]}"
            words[chunk.stop - 1] += "]"
        return " ".join(words)
