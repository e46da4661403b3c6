"""Coreference: which spans of a document refer to the same entity.

The model is that of Lee et al. 2017, or the coarse-to-fine one of Lee et al. 2018; ``coref_model.py`` explains it.

Documents are CoNLL-2012 columns, or JSON lines (e2e-coref). In CoNLL-2012 column 4 is the word, column 10 the speaker,
and the last column holds the coreference chains: ``(3`` opens a mention of chain 3, ``3)`` closes it, ``(3)`` is a
mention of one word, ``|`` separates several of these, and ``-`` means none.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any, ClassVar

import msgspec
import torch

from elmokit.config import setting, whole_number
from elmokit.errors import TextError
from elmokit.storage.progress import count_of
from elmokit.tasks.coref_model import HEAD_WORDS, CorefBatch, CorefModel, CorefModelConfig, DocumentBatch
from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch
from elmokit.tasks.scores import Clusters, Mention, coref_scores
from elmokit.tasks.task import (
    Labels,
    Sentence,
    Task,
    Tokenize,
    check_learnable,
    from_first_line,
    parse_json,
    require_gold,
)
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
from elmokit.text.columns import read_column_sentences
from elmokit.text.first_lines import JSON
from elmokit.text.tokenize import tokenize as tokenize_text

BEGIN, END = "#begin document", "#end document"
PART = re.compile(r"part\s+(\d+)$")
WORD_COLUMN, SPEAKER_COLUMN, LEAST_COLUMNS = 3, 9, 5
NO_ANNOTATION = ["-"] * 8  # in the columns between the word and the chains
NO_CHAIN = {"-", "_"}
BRACKET = re.compile(r"^(\()?(\d+)(\))?$")
UNESCAPED = {"/.": ".", "/?": "?"}  # OntoNotes escapes these tokens; e2e-coref reads them in this way
GENRE = re.compile(r"^[a-z]{2}(?=/)")  # of the names of OntoNotes documents: bc/..., nw/..., ...


@dataclass(frozen=True)
class Document:
    """A tokenized document, and which of its spans refer to the same entity."""

    where: str
    """File and line, for error messages."""
    key: str
    sentences: tuple[tuple[str, ...], ...]
    speakers: tuple[tuple[str, ...], ...] | None
    """One per token; None if no speaker is known."""
    clusters: Clusters | None
    """None if they are unknown."""
    begin: str | None = None
    """The line that begins it in CoNLL-2012; None for documents of the other formats."""

    @property
    def genre(self) -> str:
        """The first two letters of the name of an OntoNotes document; empty for other documents."""
        match = GENRE.match(self.key)
        return match[0] if match else ""


def read_coref(path: str) -> Iterator[Document]:
    """Read the documents of a file. The format is detected from its first line."""
    first, lines = from_first_line(path)
    if first.lstrip().startswith("{"):
        for number, line in lines:
            if line.strip():
                yield parse_document(line, f"{path}, line {number}")
    else:
        yield from read_conll(path, lines)


class _JsonDocument(msgspec.Struct):
    sentences: list[list[str]]
    doc_key: str = ""
    speakers: list[list[str]] | None = None
    clusters: list[list[tuple[int, int]]] | None = None


class _RawDocument(msgspec.Struct):
    document: str | None = None
    doc_key: str = ""


def parse_text(line: str, where: str, key: str) -> Document:
    """Parse a line of JSON to predict on: one of e2e-coref's, or an object with a raw ``document``."""
    raw = parse_json(line, where, _RawDocument, "one JSON object per line with sentences, or with a raw document")
    if raw.document is None:
        return replace(parse_document(line, where), clusters=None)
    sentences = tuple(map(tuple, tokenize_text(raw.document)))
    if not sentences:
        raise TextError(f"{where}: the document {raw.document[:40]!r} contains no words.")
    return Document(where, raw.doc_key or key, sentences, None, None)


def parse_document(line: str, where: str) -> Document:
    """Parse one line of e2e-coref's JSON: ``doc_key``, ``sentences``, optionally ``speakers`` and ``clusters``."""
    content = parse_json(
        line,
        where,
        _JsonDocument,
        "one JSON object per line with doc_key, sentences (lists of words), and optionally speakers and clusters "
        "(lists of [first word, last word])",
    )
    sentences = tuple(tuple(sentence) for sentence in content.sentences if sentence)
    speakers = None if content.speakers is None else tuple(tuple(names) for names in content.speakers if names)
    if speakers is not None and list(map(len, speakers)) != list(map(len, sentences)):
        raise TextError(f"{where}: expected one speaker per word.")
    n_tokens = sum(map(len, sentences))
    for first, last in chain.from_iterable(content.clusters or []):
        if not 0 <= first <= last < n_tokens:
            raise TextError(
                f"{where}: a mention from word {first} to {last} in a document of "
                f"{count_of(n_tokens, 'word')}, counted from 0."
            )
    clusters = None if content.clusters is None else merge_clusters(content.clusters)
    return Document(where, content.doc_key, sentences, _known(speakers), clusters)


def read_conll(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[Document]:
    """Read the documents in numbered lines of CoNLL-2012."""
    begin: tuple[int, str] | None = None  # of the open document
    body: list[tuple[int, str]] = []
    for number, line in chain(lines, [(0, BEGIN)]):  # the added line shows that the last document ended
        if line.startswith(BEGIN):
            if begin is not None:
                raise TextError(f"{path}, line {begin[0]}: the document that starts here has no {END}.")
            begin, body = (number, line), []
        elif begin is None:
            if line.strip():
                raise TextError(
                    f"{path}, line {number}: expected '{BEGIN} (name); part 000' (CoNLL-2012) or JSON lines."
                )
        elif line.startswith(END):
            yield _conll_document(path, begin, body)
            begin = None
        else:
            body.append((number, line))


def _conll_document(path: str, begin: tuple[int, str], body: Iterable[tuple[int, str]]) -> Document:
    where = f"{path}, line {begin[0]}"
    key = _document_key(begin[1])
    sentences: list[tuple[str, ...]] = []
    speakers: list[tuple[str, ...]] = []
    chains = _Chains()
    for sentence in read_column_sentences(path, body, boundaries=(), same_in_file=False):
        n_columns = sentence.check_width(LEAST_COLUMNS)
        sentences.append(tuple(UNESCAPED.get(row[WORD_COLUMN], row[WORD_COLUMN]) for row in sentence.rows))
        has_speakers = n_columns > SPEAKER_COLUMN + 1
        speakers.append(tuple(row[SPEAKER_COLUMN] if has_speakers else "-" for row in sentence.rows))
        for index, row in enumerate(sentence.rows):
            chains.add_token(row[-1], sentence.where(index))
    return Document(
        where, key, tuple(sentences), _known(tuple(speakers)), merge_clusters(chains.closed()), begin=begin[1]
    )


def _document_key(begin: str) -> str:
    """Return the name of a document and the number of its part, from the line that begins it."""
    name = begin.removeprefix(BEGIN).strip().removeprefix("(")
    match = PART.search(name)
    name = name[: match.start()].rstrip() if match else name
    name = name.removesuffix(";").removesuffix(")")
    return name if match is None else f"{name}_{match[1].lstrip('0') or '0'}"


class _Chains:
    """The mentions of one document, collected from the last column token by token."""

    def __init__(self) -> None:
        self.n_tokens = 0
        self.mentions: dict[str, list[Mention]] = {}  # by chain
        self.open: dict[str, list[tuple[int, str]]] = {}  # by chain: first token and line of each open mention

    def add_token(self, cell: str, where: str) -> None:
        for bracket in () if cell in NO_CHAIN else cell.split("|"):
            match = BRACKET.match(bracket)
            name = match[2] if match else ""
            if match and match[1]:
                self.open.setdefault(name, []).append((self.n_tokens, where))
            if match is None or not (match[1] or match[3]) or not self.open.get(name):
                raise TextError(
                    f"{where}: {cell!r} in the last column; expected -, or mentions such as (3 that opens one of chain "
                    "3, 3) that closes it, and (3), separated by |."
                )
            if match[3]:
                # The format does not say which of several open mentions of one chain a bracket closes. We read them as
                # nested, so two mentions of one chain that cross each other cannot be told apart from nested ones.
                first, _ = self.open[name].pop()
                self.mentions.setdefault(name, []).append((first, self.n_tokens))
        self.n_tokens += 1

    def closed(self) -> Iterable[list[Mention]]:
        for name, mentions in self.open.items():
            for _, where in mentions:
                raise TextError(f"{where}: this mention of chain {name} is not closed before {END}.")
        return self.mentions.values()


def _known(speakers: tuple[tuple[str, ...], ...] | None) -> tuple[tuple[str, ...], ...] | None:
    names = {name for sentence in speakers or () for name in sentence}
    return speakers if names - {"-", ""} else None


def merge_clusters(clusters: Iterable[Sequence[Mention]]) -> Clusters:
    """Merge clusters that share a mention, remove repeated mentions, and sort."""
    # Union-find: following the parents of a mention leads to the representative of its cluster.
    parents: dict[Mention, Mention] = {}

    def root(mention: Mention) -> Mention:
        while (parent := parents[mention]) != mention:
            parents[mention] = parents[parent]  # a shorter way for the next time
            mention = parent
        return mention

    for cluster in clusters:
        for mention in cluster:
            parents.setdefault(mention, mention)
            parents[root(mention)] = root(cluster[0])
    merged: defaultdict[Mention, list[Mention]] = defaultdict(list)
    for mention in parents:
        merged[root(mention)].append(mention)
    return tuple(sorted(tuple(sorted(mentions)) for mentions in merged.values()))


def to_conll(document: Document, clusters: Iterable[Sequence[Mention]]) -> str:
    """Format a document with clusters as CoNLL-2012 columns, which the reference scorer reads."""
    opening: dict[int, list[str]] = {}  # by token
    closing: dict[int, list[str]] = {}
    for number, cluster in enumerate(clusters):
        # Of mentions with the same first token the longer one opens first, so that they nest.
        for first, last in sorted(cluster, key=lambda mention: (mention[0], -mention[1])):
            if first == last:
                opening.setdefault(first, []).append(f"({number})")
            else:
                opening.setdefault(first, []).append(f"({number}")
                closing.setdefault(last, []).append(f"{number})")
    name, underscore, digits = document.key.rpartition("_")
    part = whole_number(digits) if underscore else None
    begin = f"{BEGIN} ({name}); part {digits:0>3}"
    if part is None or str(part) != digits:
        name, part, begin = document.key, 0, f"{BEGIN} ({document.key})"
    # The scorer pairs the documents of two files by these lines, so that of a CoNLL-2012 file is kept.
    lines = [document.begin or begin]
    token = 0
    for sentence in document.sentences:
        for index, word in enumerate(sentence):
            brackets = opening.get(token, []) + closing.get(token, [])
            chains = "|".join(brackets) or "-"
            lines.append("\t".join([name, str(part), str(index), word, *NO_ANNOTATION, chains]))
            token += 1
        lines.append("")
    return "\n".join([*lines, END]) + "\n"


BLOCK_POSITIONS = 4096  # padded size of a block of sentences that the LSTM reads together; bounds the memory
NO_GENRE = ""


@dataclass(frozen=True)
class CorefData(TaskDataConfig):
    """Files of documents: CoNLL-2012 columns, or JSON lines."""

    drop_singletons: bool = setting(
        False, "Ignore gold clusters with a single mention. OntoNotes has none, and the model predicts none."
    )


@dataclass(frozen=True)
class CorefConfig:
    """The configuration of the task. The defaults are those of 2017; the preset "coarse-to-fine" has those of 2018."""

    data: CorefData = CorefData()
    # The published vectors: 300 dimensions of GloVe 840B and 50 of Turian et al.
    words: WordsConfig | None = WordsConfig(dim=350, train=False, unit_length=True, unknown="zero")
    head_words: WordsConfig | None = setting(
        None,
        "Separate word vectors for the tokens that a span attends to. By default, those of `[words]`.",
    )
    chars: CharsConfig | None = CharsConfig(dim=8, filters=((3, 50), (4, 50), (5, 50)))
    elmo: ElmoConfig | None = None
    model: CorefModelConfig = CorefModelConfig()
    train: TaskTrainingConfig = TaskTrainingConfig(
        batch_size=1,
        bucketed=False,
        epochs=150,
        eval_every=5000,
        max_grad_norm=5.0,
        step_decay=StepDecayConfig(rate=0.999, every=100),
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
    sentence_ends: list[int] = []
    for sentence in document.sentences:
        end = len(sentence_ends) + len(sentence)
        sentence_ends += [end - 1] * len(sentence)
    blocks, position_in_blocks = _blocks(sequences, inputs)
    speakers = list(chain.from_iterable(document.speakers or ())) or [""] * len(position_in_blocks)
    speaker_ids = {name: number for number, name in enumerate(dict.fromkeys(speakers))}
    genre = known["genres"].index(document.genre) if document.genre in known["genres"] else 0
    return DocumentBatch(
        blocks,
        position_in_blocks,
        torch.tensor(sentence_ends, dtype=torch.int64),
        torch.tensor([speaker_ids[name] for name in speakers], dtype=torch.int64),
        torch.tensor(genre),
        _cluster_numbers(document),
    )


def _blocks(sequences: Sequence[Sentence], inputs: Inputs) -> tuple[list[TokenBatch], torch.Tensor]:
    """Batch sequences of similar length. Returns also where each token of the document is among those of the blocks."""
    lengths = list(map(len, sequences))
    offsets = list(accumulate(lengths, initial=0))
    blocks: list[TokenBatch] = []
    order: list[int] = []  # the document's tokens in the order in which the blocks contain them
    for block in plan_batches(lengths, BLOCK_POSITIONS, n_boundaries=0) or [[]]:
        blocks.append(inputs.batch([sequences[number] for number in block]))
        for number in block:
            order += range(offsets[number], offsets[number + 1])
    position_in_blocks = torch.empty(len(order), dtype=torch.int64)
    position_in_blocks[order] = torch.arange(len(order))
    return blocks, position_in_blocks


def _cluster_numbers(document: Document) -> dict[Mention, int] | None:
    """Return the number of the cluster of each mention, from 1; None if clusters are unknown."""
    if document.clusters is None:
        return None
    numbers: dict[Mention, int] = {}
    for number, cluster in enumerate(document.clusters, start=1):
        numbers |= dict.fromkeys(cluster, number)
    return numbers


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
        """Read one sentence per line, with a blank line between documents, or JSON lines.

        An object of JSON is a line of e2e-coref's files, or has a raw ``document``, as for AllenNLP's predictor.
        """
        sentences: list[tuple[str, ...]] = []
        start, n_documents = 1, 0
        for number, line in enumerate(chain(lines, [""]), start=1):  # the added blank line ends the last document
            if line.startswith("{") and not sentences:
                yield parse_text(line, f"{name}, line {number}", f"{name}_{n_documents}")
                n_documents += 1
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
        genres = {example.genre for example in examples} - {NO_GENRE}
        return {"genres": [NO_GENRE, *sorted(genres)]}

    def check(self, example: Document, known: Labels) -> None:
        """Raise an error for a document without gold clusters."""
        require_gold(example.clusters, example.where, "clusters")

    def build(self, config: CorefConfig, inputs: InputLayer, known: Labels) -> CorefModel:
        return CorefModel(config.model, inputs, len(known["genres"]))

    def collate(self, examples: Sequence[Document], inputs: Inputs, known: Labels, config: CorefConfig) -> CorefBatch:
        """Build a batch, in which the documents stay separate."""
        documents = []
        for example in examples:
            documents.append(_document_batch(example, self.sequences(example, config), inputs, known))
        return CorefBatch(documents)

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
        clusters = []
        for cluster in example.clusters or ():
            inside = [(begin - first, end - first) for begin, end in cluster if first <= begin and end < stop]
            if inside:
                clusters.append(tuple(inside))
        return replace(
            example,
            sentences=example.sentences[window],
            speakers=None if example.speakers is None else example.speakers[window],
            clusters=tuple(clusters),
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
        record: dict[str, Any] = {
            "doc_key": example.key,
            "sentences": [list(sentence) for sentence in example.sentences],
        }
        if example.speakers is not None:
            record["speakers"] = [list(names) for names in example.speakers]
        record["clusters"] = [[list(mention) for mention in cluster] for cluster in clusters]
        record["words"] = []
        for cluster in clusters:
            record["words"].append([" ".join(tokens[first : last + 1]) for first, last in cluster])
        return record

    def to_text(self, example: Document, clusters: Clusters) -> str:
        """Return one line per sentence, with mentions in brackets: ``[1 Mira] fixed [2 [1 her] bike] .``"""
        tokens = list(chain.from_iterable(example.sentences))
        mentions = []
        for number, cluster in enumerate(clusters, start=1):
            for first, last in cluster:
                mentions.append((first, last, number))
        # Short mentions first, so that the brackets of a longer mention are written around those inside it.
        mentions.sort(key=lambda mention: mention[1] - mention[0])
        for first, last, number in mentions:
            tokens[first] = f"[{number} {tokens[first]}"
            tokens[last] += "]"
        marked = iter(tokens)
        lines = [" ".join(next(marked) for _ in sentence) for sentence in example.sentences]
        return "\n".join(lines) + "\n"
