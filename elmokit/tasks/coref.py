"""Coreference resolution: find the spans of a document that refer to the same entity.

The model is from Lee et al. 2017, or the coarse-to-fine model from Lee et al. 2018; see ``coref_model.py``.

Documents are CoNLL-2012 columns or JSON lines (e2e-coref). In CoNLL-2012, column 4 is the word, column 10 the speaker,
and the last column holds the coreference chains: ``(3`` opens a mention of chain 3, ``3)`` closes it, ``(3)`` is a
one-word mention, ``|`` separates several of these, and ``-`` means none.
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
NO_ANNOTATION = ["-"] * 8  # the columns between the word and the chains
NO_CHAIN = {"-", "_"}
BRACKET = re.compile(r"^(\()?(\d+)(\))?$")
UNESCAPED = {"/.": ".", "/?": "?"}  # OntoNotes escapes these tokens; e2e-coref unescapes them
GENRE = re.compile(r"^[a-z]{2}(?=/)")  # the genre in the names of OntoNotes documents: bc/..., nw/..., ...


@dataclass(frozen=True)
class Document:
    """A tokenized document, and clusters of spans that refer to the same entity."""

    where: str
    """File and line, for error messages."""
    key: str
    sentences: tuple[tuple[str, ...], ...]
    speakers: tuple[tuple[str, ...], ...] | None
    """One per token; None if no speaker is known."""
    clusters: Clusters | None
    """None if they are unknown."""
    begin: str | None = None
    """Its first line in CoNLL-2012; None for documents in other formats."""

    @property
    def genre(self) -> str:
        """The first two letters of an OntoNotes document's name; empty for other documents."""
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
    """Parse a JSON line for prediction, in e2e-coref's format or with a raw ``document``."""
    raw = parse_json(line, where, _RawDocument, "one JSON object per line with sentences, or with a raw document")
    if raw.document is None:
        document = parse_document(line, where)
        return replace(document, clusters=None)
    sentences = tuple(map(tuple, tokenize_text(raw.document)))
    if not sentences:
        raise TextError(f"{where}: the document {raw.document[:40]!r} contains no words.")
    return Document(where, raw.doc_key or key, sentences, None, None)


def parse_document(line: str, where: str) -> Document:
    """Parse a JSON line of e2e-coref: ``doc_key``, ``sentences``, and optionally ``speakers`` and ``clusters``."""
    content = parse_json(
        line,
        where,
        _JsonDocument,
        "one JSON object per line with doc_key, sentences (lists of words), and optionally speakers and clusters "
        "(lists of [first word, last word])",
    )
    sentences = _without_empty(content.sentences)
    speakers = None
    if content.speakers is not None:
        speakers = _without_empty(content.speakers)
        if list(map(len, speakers)) != list(map(len, sentences)):
            raise TextError(f"{where}: expected one speaker per word.")
    clusters = None
    if content.clusters is not None:
        _check_mentions(content.clusters, sum(map(len, sentences)), where)
        clusters = merge_clusters(content.clusters)
    return Document(where, content.doc_key, sentences, _known(speakers), clusters)


def _without_empty(sentences: Iterable[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(sentence) for sentence in sentences if sentence)


def _check_mentions(clusters: Iterable[Sequence[Mention]], n_tokens: int, where: str) -> None:
    """Raise an error for a mention outside the document."""
    for first, last in chain.from_iterable(clusters):
        if not 0 <= first <= last < n_tokens:
            raise TextError(
                f"{where}: a mention from word {first} to {last} in a document of "
                f"{count_of(n_tokens, 'word')}, counted from 0."
            )


def read_conll(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[Document]:
    """Read documents from numbered lines of CoNLL-2012."""
    begin: tuple[int, str] | None = None  # the first line of the open document
    body: list[tuple[int, str]] = []
    for number, line in chain(lines, [(0, BEGIN)]):  # the added line checks that the last document ended
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
        words = [row[WORD_COLUMN] for row in sentence.rows]
        sentences.append(tuple(UNESCAPED.get(word, word) for word in words))
        if n_columns > SPEAKER_COLUMN + 1:
            speakers.append(tuple(row[SPEAKER_COLUMN] for row in sentence.rows))
        else:
            speakers.append(("-",) * len(words))
        for index, row in enumerate(sentence.rows):
            chains.add_token(row[-1], sentence.where(index))
    clusters = merge_clusters(chains.closed())
    return Document(where, key, tuple(sentences), _known(tuple(speakers)), clusters, begin=begin[1])


def _document_key(begin: str) -> str:
    """Return a document's name and part number, given its first line."""
    name = begin.removeprefix(BEGIN).strip().removeprefix("(")
    part = ""
    match = PART.search(name)
    if match is not None:
        name = name[: match.start()].rstrip()
        part = f"_{match[1].lstrip('0') or '0'}"
    return name.removesuffix(";").removesuffix(")") + part


class _Chains:
    """Collects the mentions of a document from the last column, token by token."""

    def __init__(self) -> None:
        self.n_tokens = 0
        self.mentions: dict[str, list[Mention]] = {}  # by chain
        self.open: dict[str, list[tuple[int, str]]] = {}  # by chain: first token and line of each open mention

    def add_token(self, cell: str, where: str) -> None:
        """Read the last column of the next token."""
        if cell not in NO_CHAIN:
            for bracket in cell.split("|"):
                if not self._add_bracket(bracket, where):
                    raise TextError(
                        f"{where}: {cell!r} in the last column; expected -, or brackets separated by |: (3 opens a "
                        "mention of chain 3, 3) closes it, and (3) is a mention of one word."
                    )
        self.n_tokens += 1

    def _add_bracket(self, bracket: str, where: str) -> bool:
        """Open or close a mention, or both. Return False if the bracket is invalid here."""
        match = BRACKET.match(bracket)
        if match is None:
            return False
        opens, name, closes = match.groups()
        if opens:
            self.open.setdefault(name, []).append((self.n_tokens, where))
        if closes:
            if not self.open.get(name):
                return False
            # The format does not say which of several open mentions of a chain a bracket closes. They are read as
            # nested, so two crossing mentions of the same chain cannot be distinguished from nested ones.
            first, _ = self.open[name].pop()
            self.mentions.setdefault(name, []).append((first, self.n_tokens))
        return bool(opens or closes)

    def closed(self) -> Iterable[list[Mention]]:
        """Return the mentions of each chain. Raise an error if a mention is still open."""
        for name, mentions in self.open.items():
            for _, where in mentions:
                raise TextError(f"{where}: this mention of chain {name} is not closed before {END}.")
        return self.mentions.values()


def _known(speakers: tuple[tuple[str, ...], ...] | None) -> tuple[tuple[str, ...], ...] | None:
    """Return the speakers, or None if all of them are unknown."""
    names = set(chain.from_iterable(speakers or ()))
    return speakers if names - {"-", ""} else None


def merge_clusters(clusters: Iterable[Sequence[Mention]]) -> Clusters:
    """Merge clusters that share a mention, remove repeated mentions, and sort."""
    # Union-find: the parents of a mention lead to the representative of its cluster.
    parents: dict[Mention, Mention] = {}
    for cluster in clusters:
        for mention in cluster:
            parents.setdefault(mention, mention)
            root = _root(mention, parents)
            parents[root] = _root(cluster[0], parents)
    merged: defaultdict[Mention, list[Mention]] = defaultdict(list)
    for mention in parents:
        merged[_root(mention, parents)].append(mention)
    return tuple(sorted(tuple(sorted(mentions)) for mentions in merged.values()))


def _root(mention: Mention, parents: dict[Mention, Mention]) -> Mention:
    """Return the representative of a mention's cluster."""
    while parents[mention] != mention:
        parent = parents[mention]
        parents[mention] = parents[parent]  # shortens the path for the next call
        mention = parent
    return mention


def to_conll(document: Document, clusters: Iterable[Sequence[Mention]]) -> str:
    """Format a document with clusters as CoNLL-2012 columns for the reference scorer."""
    opening: dict[int, list[str]] = {}  # by token
    closing: dict[int, list[str]] = {}
    for number, cluster in enumerate(clusters):
        # The longer of two mentions with the same first token opens first, so that they nest.
        for first, last in sorted(cluster, key=lambda mention: (mention[0], -mention[1])):
            if first == last:
                opening.setdefault(first, []).append(f"({number})")
            else:
                opening.setdefault(first, []).append(f"({number}")
                closing.setdefault(last, []).append(f"{number})")
    name, part, begin = _name_and_part(document.key)
    # The scorer pairs the documents of two files by their first lines, so the line of a CoNLL-2012 file is kept.
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


def _name_and_part(key: str) -> tuple[str, int, str]:
    """Return the name and part number of a document with a key such as nw/name_0, and its first line in CoNLL-2012."""
    name, underscore, digits = key.rpartition("_")
    part = whole_number(digits)
    if not underscore or part is None or str(part) != digits:
        return key, 0, f"{BEGIN} ({key})"
    return name, part, f"{BEGIN} ({name}); part {digits:0>3}"


BLOCK_POSITIONS = 4096  # padded size of a block of sentences that the LSTM reads at once; limits memory
NO_GENRE = ""


@dataclass(frozen=True)
class CorefData(TaskDataConfig):
    """Files of documents: CoNLL-2012 columns, or JSON lines."""

    drop_singletons: bool = setting(
        False, "Ignore gold clusters with a single mention. OntoNotes has none, and the model predicts none."
    )


@dataclass(frozen=True)
class CorefConfig:
    """The configuration of the task. The defaults are from 2017; the preset "coarse-to-fine" is from 2018."""

    data: CorefData = CorefData()
    # The published vectors have 300 dimensions from GloVe 840B and 50 from Turian et al.
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
    speakers = list(chain.from_iterable(document.speakers or ()))
    if not speakers:
        speakers = [""] * len(position_in_blocks)
    ids: dict[str, int] = {}
    speaker_ids = [ids.setdefault(name, len(ids)) for name in speakers]
    genre = 0
    if document.genre in known["genres"]:
        genre = known["genres"].index(document.genre)
    return DocumentBatch(
        blocks,
        position_in_blocks,
        torch.tensor(sentence_ends, dtype=torch.int64),
        torch.tensor(speaker_ids, dtype=torch.int64),
        torch.tensor(genre),
        _cluster_numbers(document),
    )


def _blocks(sequences: Sequence[Sentence], inputs: Inputs) -> tuple[list[TokenBatch], torch.Tensor]:
    """Batch sequences of similar length. Also returns the position of each token of the document among the blocks'."""
    lengths = [len(sequence) for sequence in sequences]
    offsets = list(accumulate(lengths, initial=0))
    blocks: list[TokenBatch] = []
    order: list[int] = []  # the document's tokens in the order of the blocks
    for block in plan_batches(lengths, BLOCK_POSITIONS, n_boundaries=0) or [[]]:
        blocks.append(inputs.batch([sequences[number] for number in block]))
        for number in block:
            order += range(offsets[number], offsets[number + 1])
    position_in_blocks = torch.empty(len(order), dtype=torch.int64)
    position_in_blocks[order] = torch.arange(len(order))
    return blocks, position_in_blocks


def _cluster_numbers(document: Document) -> dict[Mention, int] | None:
    """Return each mention's cluster number, from 1; None if clusters are unknown."""
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

        A JSON object is in e2e-coref's format, or has a raw ``document``, as for AllenNLP's predictor.
        """
        sentences: list[tuple[str, ...]] = []
        n_documents = 0
        for number, line in enumerate(chain(lines, [""]), start=1):  # the added blank line ends the last document
            key = f"{name}_{n_documents}"
            if line.startswith("{") and not sentences:
                yield parse_text(line, f"{name}, line {number}", key)
                n_documents += 1
                continue
            tokens = tuple(tokenize(line))
            if tokens:
                if not sentences:
                    where = f"{name}, line {number}"
                sentences.append(tokens)
            elif sentences:
                yield Document(where, key, tuple(sentences), None, None)
                sentences = []
                n_documents += 1

    def sentences(self, example: Document) -> Sequence[Sentence]:
        return example.sentences

    def labels(self, examples: Sequence[Document], config: CorefConfig) -> Labels:
        """Return the genres. The first one is for documents without a genre or with one unseen in training."""
        coref_scores([], [])  # if SciPy is missing, fail now instead of after the first epoch
        clusters: list[Sequence[Mention]] = []
        for example in examples:
            clusters += require_gold(example.clusters, example.where, "clusters")
        check_learnable((len(cluster) > 1 for cluster in clusters), "cluster of two mentions")
        genres = {example.genre for example in examples} - {NO_GENRE}
        return {"genres": [NO_GENRE, *sorted(genres)]}

    def check(self, example: Document, known: Labels) -> None:
        """Raise an error for a document without gold clusters."""
        require_gold(example.clusters, example.where, "clusters")

    def build(self, config: CorefConfig, inputs: InputLayer, known: Labels) -> CorefModel:
        return CorefModel(config.model, inputs, len(known["genres"]))

    def collate(self, examples: Sequence[Document], inputs: Inputs, known: Labels, config: CorefConfig) -> CorefBatch:
        """Build a batch in which documents stay separate."""
        documents = []
        for example in examples:
            sequences = self.sequences(example, config)
            documents.append(_document_batch(example, sequences, inputs, known))
        return CorefBatch(documents)

    def sequences(self, example: Document, config: CorefConfig) -> Sequence[Sentence]:
        """Return the sequences that the network reads: each sentence on its own, as in Lee et al."""
        return example.sentences

    def augment(self, example: Document, config: CorefConfig, rng: random.Random) -> Document:
        """Return a random window of sentences of a long document, which limits the memory for training.

        Mentions outside the window are dropped. If a single mention of a cluster is left, it is kept, and trained to
        have no antecedent.
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
        speakers = example.speakers
        if speakers is not None:
            speakers = speakers[window]
        return replace(example, sentences=example.sentences[window], speakers=speakers, clusters=tuple(clusters))

    def score(
        self, examples: Sequence[Document], predictions: Sequence[Clusters], config: CorefConfig
    ) -> dict[str, float]:
        """Return the average F1, which is the published number, and its parts."""
        gold = [example.clusters or () for example in examples]
        scores = coref_scores(gold, predictions)
        values = {"average_f1": scores.average_f1}
        parts = {"muc": scores.muc, "b_cubed": scores.b_cubed, "ceaf_e": scores.ceaf_e, "mentions": scores.mentions}
        for name, part in parts.items():
            values[f"{name}_f1"] = part.f1
            values[f"{name}_precision"] = part.precision
            values[f"{name}_recall"] = part.recall
        return values

    def to_record(self, example: Document, clusters: Clusters) -> dict[str, Any]:
        """Return the document in e2e-coref's JSON format, which can be read again, with the words of the mentions."""
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
        # Short mentions come first, so that the brackets of a longer mention enclose those inside it.
        mentions.sort(key=lambda mention: mention[1] - mention[0])
        for first, last, number in mentions:
            tokens[first] = f"[{number} {tokens[first]}"
            tokens[last] += "]"
        lines = []
        start = 0
        for sentence in example.sentences:
            stop = start + len(sentence)
            lines.append(" ".join(tokens[start:stop]))
            start = stop
        return "\n".join(lines) + "\n"
