"""Coreference: which spans of a document name the same (Lee et al. 2017; coarse to fine as in Lee et al. 2018)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from elmokit.errors import TextError
from elmokit.tasks.config import (
    CharsConfig,
    DataConfig,
    ElmoConfig,
    MixConfig,
    OptimizerConfig,
    StepDecayConfig,
    TaskTrainingConfig,
    WordsConfig,
)
from elmokit.tasks.coref_model import (
    HEAD_WORDS,
    Clusters,
    CorefBatch,
    CorefModel,
    CorefModelConfig,
    DocumentBatch,
    Mention,
)
from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch
from elmokit.tasks.readers.coref import Document, document_from_json, read_coref
from elmokit.tasks.scores.coref import Ratio, coref_scores
from elmokit.tasks.scores.gap import Answers, gap_scores
from elmokit.tasks.task import Labels, Sentence, Task, Tokenize

POSITIONS_AT_ONCE = 4096  # of sentences that are read together, padding included
NO_GENRE = ""


@dataclass(frozen=True)
class CorefData(DataConfig):
    """Documents in CoNLL-2012's columns, as JSON lines, or as GAP's table."""

    drop_singletons: bool = False
    """Leave out gold clusters of one mention: OntoNotes marks none, and the model gives none."""


@dataclass(frozen=True)
class CorefConfig:
    """The defaults are those of 2017, without ELMo; the preset "coarse-to-fine" has those of 2018."""

    data: CorefData = field(default_factory=CorefData)
    words: WordsConfig | None = field(
        default_factory=lambda: WordsConfig(dim=350, train=False, unit_length=True, unknown="zero")
    )
    """Published: 300 of GloVe 840B and 50 of Turian et al."""
    head_words: WordsConfig | None = None
    """Other vectors for what a span attends to; None: the same."""
    chars: CharsConfig | None = field(default_factory=lambda: CharsConfig(dim=8, filters=((3, 50), (4, 50), (5, 50))))
    elmo: ElmoConfig | None = None
    model: CorefModelConfig = field(default_factory=CorefModelConfig)
    train: TaskTrainingConfig = field(
        default_factory=lambda: TaskTrainingConfig(
            batch_size=1,
            bucketed=False,
            epochs=150,
            eval_every=5000,
            max_grad_norm=5.0,
            step_decay=StepDecayConfig(rate=0.999, every=100),
        )
    )


COARSE_TO_FINE = CorefConfig(
    words=WordsConfig(dim=300, train=False, unit_length=True, unknown="zero"),
    head_words=WordsConfig(dim=300, train=False, unit_length=True, unknown="zero"),
    model=CorefModelConfig(layers=3, lstm_dropout=0.4, max_width=30, antecedents=50, coarse_to_fine=True, rounds=2),
)
SMALL = CorefConfig(
    words=WordsConfig(dim=50, min_count=2),
    chars=CharsConfig(dim=8, filters=((3, 50),)),
    model=CorefModelConfig(
        hidden=80, lexical_dropout=0.3, scorer_hidden=80, keep=0.3, antecedents=50, train_sentences=25
    ),
    train=TaskTrainingConfig(
        optimizer=OptimizerConfig(learning_rate=1e-3), batch_size=1, epochs=20, patience=5, max_grad_norm=5.0
    ),
)


def _numbers(document: Document, inputs: Inputs, known: Labels) -> DocumentBatch:
    lengths = [len(sentence) for sentence in document.sentences]
    offsets = [sum(lengths[:number]) for number in range(len(lengths))]
    blocks: list[TokenBatch] = []
    order: list[int] = []  # of the document's tokens, as the blocks have them
    for block in _blocks(lengths):
        blocks.append(inputs.batch([document.sentences[number] for number in block]))
        order += [offsets[number] + place for number in block for place in range(lengths[number])]
    places = torch.empty(len(order), dtype=torch.int64)
    places[order] = torch.arange(len(order))
    ends = [offset + length - 1 for offset, length in zip(offsets, lengths, strict=True) for _ in range(length)]
    names = [name for sentence in document.speakers or () for name in sentence] or [""] * len(order)
    number_of = {name: number for number, name in enumerate(dict.fromkeys(names))}
    clusters: dict[Mention, int] | None = None
    if document.clusters is not None:
        clusters = {mention: number for number, cluster in enumerate(document.clusters, start=1) for mention in cluster}
    genre = known["genres"].index(document.genre) if document.genre in known["genres"] else 0
    return DocumentBatch(
        blocks,
        places,
        torch.tensor(ends, dtype=torch.int64),
        torch.tensor([number_of[name] for name in names], dtype=torch.int64),
        torch.tensor(genre),
        clusters,
    )


def _blocks(lengths: Sequence[int]) -> list[list[int]]:
    """Sentences that are read together, the longest first: little padding, and bounded memory on a long document."""
    blocks: list[list[int]] = []
    longest = 0
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if blocks and longest * (len(blocks[-1]) + 1) <= POSITIONS_AT_ONCE:
            blocks[-1].append(number)
        else:
            longest = lengths[number]
            blocks.append([number])
    return blocks or [[]]


def _three(name: str, ratio: Ratio) -> dict[str, float]:
    return {f"{name}_f1": ratio.f1, f"{name}_precision": ratio.precision, f"{name}_recall": ratio.recall}


def _answers(pronoun: Mention, names: tuple[Mention, Mention], clusters: Clusters) -> Answers:
    """Which names stand in the pronoun's cluster, with just these bounds."""
    meant = {mention for cluster in clusters if pronoun in cluster for mention in cluster}
    return names[0] in meant, names[1] in meant


class CorefTask(Task[CorefConfig, Document, CorefBatch, Clusters]):
    """Coreference resolution: cluster the mentions of a document."""

    name = "coref"
    presets: ClassVar[Mapping[str, CorefConfig]] = {
        "published": CorefConfig(),
        "coarse-to-fine": COARSE_TO_FINE,
        "small": SMALL,
    }
    metric = "average_f1"
    elmo = ElmoConfig(input=MixConfig(dropout=0.5))
    word_tables = ("words", HEAD_WORDS)

    def read(self, path: str, config: CorefConfig) -> Iterator[Document]:
        """The documents of a file."""
        for document in read_coref(path):
            if config.data.drop_singletons and document.clusters is not None:
                kept = tuple(cluster for cluster in document.clusters if len(cluster) > 1)
                document = replace(document, clusters=kept)
            yield document

    def read_text(self, lines: Iterable[str], name: str, tokenize: Tokenize, config: CorefConfig) -> Iterator[Document]:
        """One sentence a line, a blank line between documents; or JSON lines."""
        sentences: list[tuple[str, ...]] = []
        start, n_documents = 1, 0
        for number, line in enumerate(lines, start=1):
            if line.startswith("{") and not sentences:
                yield replace(document_from_json(line, f"{name}, line {number}"), clusters=None)
                continue
            tokens = tuple(tokenize(line))
            if tokens:
                start = start if sentences else number
                sentences.append(tokens)
            elif sentences:
                yield Document(f"{name}, line {start}", f"{name}_{n_documents}", tuple(sentences), None, None)
                sentences, n_documents = [], n_documents + 1
        if sentences:
            yield Document(f"{name}, line {start}", f"{name}_{n_documents}", tuple(sentences), None, None)

    def sentences(self, example: Document) -> Sequence[Sentence]:
        return example.sentences

    def labels(self, examples: Sequence[Document], config: CorefConfig) -> Labels:
        """The genres; the first one is that of documents without one, or with one that training did not see."""
        coref_scores([], [])  # if SciPy is missing, training is not begun
        for example in examples:
            self.check(example, {})
        if not any(len(cluster) > 1 for example in examples for cluster in example.clusters or ()):
            raise TextError("No document has a cluster of two mentions: there is nothing to learn.")
        return {"genres": [NO_GENRE, *sorted({example.genre for example in examples} - {NO_GENRE})]}

    def check(self, example: Document, known: Labels) -> None:
        """Refuse a document without clusters."""
        if example.clusters is None:
            raise TextError(f"{example.where}: no clusters. Training and judging need them.")

    def build(self, config: CorefConfig, inputs: InputLayer, known: Labels) -> CorefModel:
        return CorefModel(config.model, inputs, len(known["genres"]))

    def collate(self, examples: Sequence[Document], inputs: Inputs, known: Labels, config: CorefConfig) -> CorefBatch:
        """A batch, each document for itself."""
        return CorefBatch([_numbers(example, inputs, known) for example in examples])

    def vary(self, example: Document, config: CorefConfig, randomness: random.Random) -> Document:
        """A random window of a long document: what training sees of it in one epoch."""
        n_sentences = config.model.train_sentences
        if len(example.sentences) <= n_sentences:
            return example
        start = randomness.randint(0, len(example.sentences) - n_sentences)
        window = slice(start, start + n_sentences)
        first = sum(map(len, example.sentences[:start]))
        stop = first + sum(map(len, example.sentences[window]))
        inside = (
            tuple((begin - first, end - first) for begin, end in cluster if first <= begin and end < stop)
            for cluster in example.clusters or ()
        )
        return replace(
            example,
            sentences=example.sentences[window],
            speakers=None if example.speakers is None else example.speakers[window],
            clusters=tuple(cluster for cluster in inside if cluster),
        )

    def score(
        self, examples: Sequence[Document], predictions: Sequence[Clusters], config: CorefConfig
    ) -> dict[str, float]:
        """The average F1 that is published, and what it is made of; for GAP's documents its own scores too."""
        scores = coref_scores([example.clusters or () for example in examples], predictions)
        named = {"muc": scores.muc, "b_cubed": scores.b_cubed, "ceaf_e": scores.ceaf_e, "mentions": scores.mentions}
        found = {"average_f1": scores.average_f1}
        for name, ratio in named.items():
            found |= _three(name, ratio)
        asked = [(one.pronoun, clusters) for one, clusters in zip(examples, predictions, strict=True) if one.pronoun]
        if asked:
            gap = gap_scores(
                [pronoun.answers for pronoun, _ in asked],
                [_answers(pronoun.span, pronoun.names, clusters) for pronoun, clusters in asked],
                [pronoun.is_feminine for pronoun, _ in asked],
            )
            found |= {
                "gap_f1": gap.overall.f1,
                "gap_masculine_f1": gap.masculine.f1,
                "gap_feminine_f1": gap.feminine.f1,
                "gap_bias": gap.bias,
            }
        return found

    def to_record(self, example: Document, clusters: Clusters) -> dict[str, Any]:
        """As e2e-coref's JSON lines, so that it can be read again; the mentions' words beside."""
        tokens = [token for sentence in example.sentences for token in sentence]
        speakers = {} if example.speakers is None else {"speakers": [list(names) for names in example.speakers]}
        return {
            "doc_key": example.key,
            "sentences": [list(sentence) for sentence in example.sentences],
            **speakers,
            "clusters": [[list(mention) for mention in cluster] for cluster in clusters],
            "words": [[" ".join(tokens[first : last + 1]) for first, last in cluster] for cluster in clusters],
        }

    def to_text(self, example: Document, clusters: Clusters) -> str:
        """A line for each sentence, mentions in brackets with their cluster: ``[1 Mira] fixed [2 [1 her] bike] .``"""
        tokens = [token for sentence in example.sentences for token in sentence]
        mentions = [(mention, number) for number, cluster in enumerate(clusters, start=1) for mention in cluster]
        # The outer bracket is written last, so that it stands outside.
        for (first, last), number in sorted(mentions, key=lambda one: one[0][1] - one[0][0]):
            tokens[first] = f"[{number} {tokens[first]}"
            tokens[last] += "]"
        lines, start = [], 0
        for sentence in example.sentences:
            lines.append(" ".join(tokens[start : start + len(sentence)]))
            start += len(sentence)
        return "\n".join(lines) + "\n"
