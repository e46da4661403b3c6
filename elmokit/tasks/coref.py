"""Coreference: which spans of a document refer to the same entity.

The model is that of Lee et al. 2017, or the coarse-to-fine one of Lee et al. 2018; ``coref_model.py`` explains it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Any, ClassVar

import torch

from elmokit.config import setting
from elmokit.storage.text_formats import JSON
from elmokit.tasks.coref_model import HEAD_WORDS, CorefBatch, CorefModel, CorefModelConfig, DocumentBatch
from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch
from elmokit.tasks.readers.coref import Document, parse_document, read_coref
from elmokit.tasks.scores.coref import Clusters, Mention, coref_scores
from elmokit.tasks.task import Labels, Sentence, Task, Tokenize, check_learnable, require_gold
from elmokit.tasks.task_config import (
    CharsConfig,
    ElmoConfig,
    MixConfig,
    OptimizerConfig,
    StepDecayConfig,
    TaskDataConfig,
    TaskTrainingConfig,
    WordsConfig,
)
from elmokit.text.batching import plan_batches

BLOCK_POSITIONS = 4096  # padded size of a block of sentences that the LSTM reads together; bounds the memory
NO_GENRE = ""


@dataclass(frozen=True)
class CorefData(TaskDataConfig):
    """Files of documents: CoNLL-2012 columns, or JSON lines."""

    drop_singletons: bool = setting(
        False, "Ignore gold clusters of one mention. OntoNotes has none, and the model predicts none."
    )


@dataclass(frozen=True)
class CorefConfig:
    """The configuration of the task. The defaults are those of 2017; the preset "coarse-to-fine" has those of 2018."""

    data: CorefData = field(default_factory=CorefData)
    # The published vectors: 300 dimensions of GloVe 840B and 50 of Turian et al.
    words: WordsConfig | None = field(
        default_factory=lambda: WordsConfig(dim=350, train=False, unit_length=True, unknown="zero")
    )
    head_words: WordsConfig | None = setting(
        None,
        "Other word vectors for the tokens that a span attends to. Without this table, they are those of `[words]`.",
    )
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


def _document_batch(document: Document, sequences: Sequence[Sentence], inputs: Inputs, known: Labels) -> DocumentBatch:
    """Turn a document into tensors, with the sequences that the network reads. Spans end within their sentence."""
    lengths = list(map(len, document.sentences))
    sentence_ends = [end - 1 for end, length in zip(accumulate(lengths), lengths, strict=True) for _ in range(length)]
    lengths = list(map(len, sequences))
    offsets = list(accumulate(lengths, initial=0))
    blocks: list[TokenBatch] = []
    order: list[int] = []  # the document's tokens in the order in which the blocks contain them
    for block in plan_batches(lengths, BLOCK_POSITIONS, n_boundaries=0) or [[]]:
        blocks.append(inputs.batch([sequences[number] for number in block]))
        order += chain.from_iterable(range(offsets[number], offsets[number + 1]) for number in block)
    position_in_blocks = torch.empty(len(order), dtype=torch.int64)
    position_in_blocks[order] = torch.arange(len(order))
    speakers = list(chain.from_iterable(document.speakers or ())) or [""] * len(order)
    speaker_ids = {name: number for number, name in enumerate(dict.fromkeys(speakers))}
    cluster_of: dict[Mention, int] | None = None
    if document.clusters is not None:
        cluster_of = {span: number for number, cluster in enumerate(document.clusters, start=1) for span in cluster}
    genre = known["genres"].index(document.genre) if document.genre in known["genres"] else 0
    return DocumentBatch(
        blocks,
        position_in_blocks,
        torch.tensor(sentence_ends, dtype=torch.int64),
        torch.tensor([speaker_ids[name] for name in speakers], dtype=torch.int64),
        torch.tensor(genre),
        cluster_of,
    )


class CorefTask(Task[CorefConfig, Document, CorefBatch, Clusters]):
    """Coreference resolution: cluster the mentions of a document."""

    name = "coref"
    text_formats = (JSON,)
    presets: ClassVar[Mapping[str, CorefConfig]] = {
        "published": CorefConfig(),
        "coarse-to-fine": COARSE_TO_FINE,
        "small": SMALL,
    }
    metric = "average_f1"
    elmo = ElmoConfig(input=MixConfig(dropout=0.5))
    word_tables = ("words", HEAD_WORDS)

    def read(self, path: str, config: CorefConfig) -> Iterator[Document]:
        """Read the documents of a file."""
        for document in read_coref(path):
            if config.data.drop_singletons and document.clusters is not None:
                kept = tuple(cluster for cluster in document.clusters if len(cluster) > 1)
                document = replace(document, clusters=kept)
            yield document

    def read_text(self, lines: Iterable[str], name: str, tokenize: Tokenize, config: CorefConfig) -> Iterator[Document]:
        """Read one sentence per line, with a blank line between documents, or JSON lines."""
        sentences: list[tuple[str, ...]] = []
        start, n_documents = 1, 0
        for number, line in enumerate(chain(lines, [""]), start=1):  # the added blank line ends the last document
            if line.startswith("{") and not sentences:
                yield replace(parse_document(line, f"{name}, line {number}"), clusters=None)
                continue
            tokens = tuple(tokenize(line))
            if tokens:
                start = start if sentences else number
                sentences.append(tokens)
            elif sentences:
                yield Document(f"{name}, line {start}", f"{name}_{n_documents}", tuple(sentences), None, None)
                sentences, n_documents = [], n_documents + 1

    def sentences(self, example: Document) -> Sequence[Sentence]:
        return example.sentences

    def labels(self, examples: Sequence[Document], config: CorefConfig) -> Labels:
        """Return the genres. The first is for documents without a genre, or with one that training did not see."""
        coref_scores([], [])  # fails now, and not after the first epoch, if SciPy is missing
        for example in examples:
            self.check(example, {})
        clusters = chain.from_iterable(example.clusters or () for example in examples)
        check_learnable((len(cluster) > 1 for cluster in clusters), "cluster of two mentions")
        return {"genres": [NO_GENRE, *sorted({example.genre for example in examples} - {NO_GENRE})]}

    def check(self, example: Document, known: Labels) -> None:
        """Raise an error for a document without gold clusters."""
        require_gold(example.clusters, example.where, "clusters")

    def build(self, config: CorefConfig, inputs: InputLayer, known: Labels) -> CorefModel:
        return CorefModel(config.model, inputs, len(known["genres"]))

    def collate(self, examples: Sequence[Document], inputs: Inputs, known: Labels, config: CorefConfig) -> CorefBatch:
        """Build a batch, in which the documents stay separate."""
        sequences = (self.sequences(example, config) for example in examples)
        return CorefBatch(
            [_document_batch(example, own, inputs, known) for example, own in zip(examples, sequences, strict=True)]
        )

    def sequences(self, example: Document, config: CorefConfig) -> Sequence[Sentence]:
        """Return what the network reads of a document: each sentence on its own, as in Lee et al."""
        return example.sentences

    def augment(self, example: Document, config: CorefConfig, rng: random.Random) -> Document:
        """Return a random window of sentences of a long document, to bound the memory that training needs.

        Mentions outside the window are dropped. A cluster of which only one mention is left is kept: that mention is
        then trained to have no antecedent.
        """
        n_sentences = config.model.train_sentences
        if len(example.sentences) <= n_sentences:
            return example
        start = rng.randint(0, len(example.sentences) - n_sentences)
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
        """Return the average F1, which is the published number, and its parts."""
        scores = coref_scores([example.clusters or () for example in examples], predictions)
        values = {"average_f1": scores.average_f1}
        for name in ("muc", "b_cubed", "ceaf_e", "mentions"):
            for measure in ("f1", "precision", "recall"):
                values[f"{name}_{measure}"] = getattr(getattr(scores, name), measure)
        return values

    def to_record(self, example: Document, clusters: Clusters) -> dict[str, Any]:
        """Return the document like a line of e2e-coref's JSON, which can be read again, with the mentions' words."""
        tokens = list(chain.from_iterable(example.sentences))
        speakers = {} if example.speakers is None else {"speakers": [list(names) for names in example.speakers]}
        return {
            "doc_key": example.key,
            "sentences": [list(sentence) for sentence in example.sentences],
            **speakers,
            "clusters": [[list(mention) for mention in cluster] for cluster in clusters],
            "words": [[" ".join(tokens[first : last + 1]) for first, last in cluster] for cluster in clusters],
        }

    def to_text(self, example: Document, clusters: Clusters) -> str:
        """Return one line per sentence, with mentions in brackets: ``[1 Mira] fixed [2 [1 her] bike] .``"""
        tokens = list(chain.from_iterable(example.sentences))
        mentions = [(mention, number) for number, cluster in enumerate(clusters, start=1) for mention in cluster]
        # Short mentions first, so that the brackets of a longer mention are written around those inside it.
        for (first, last), number in sorted(mentions, key=lambda one: one[0][1] - one[0][0]):
            tokens[first] = f"[{number} {tokens[first]}"
            tokens[last] += "]"
        marked = iter(tokens)
        lines = [" ".join(next(marked) for _ in sentence) for sentence in example.sentences]
        return "\n".join(lines) + "\n"
