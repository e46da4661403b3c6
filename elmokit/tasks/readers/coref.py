"""Read documents with coreference: CoNLL-2012 columns, or JSON lines (e2e-coref).

In CoNLL-2012 column 4 is the word, column 10 the speaker, and the last column holds the coreference chains: ``(3``
opens a mention of chain 3, ``3)`` closes it, ``(3)`` is a mention of one word, ``|`` separates several of these, and
``-`` means none.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from elmokit.errors import TextError
from elmokit.storage.bounded import whole_number
from elmokit.storage.progress import count_of
from elmokit.storage.text_files import read_lines
from elmokit.tasks.readers.json_text import parse_json
from elmokit.tasks.scores.coref import Clusters, Mention
from elmokit.text.columns import read_column_sentences

BEGIN, END = "#begin document", "#end document"
PART = re.compile(r"part\s+(\d+)$")
WORD_COLUMN, SPEAKER_COLUMN, LEAST_COLUMNS = 3, 9, 5
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
    numbered = enumerate(read_lines(path), start=1)
    first = next(((number, line) for number, line in numbered if line.strip()), None)
    if first is None:
        return
    lines = itertools.chain([first], numbered)
    if first[1].lstrip().startswith("{"):
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
        raise TextError(f"{where}: expected one of the speakers per word.")
    n_tokens = sum(map(len, sentences))
    for first, last in itertools.chain.from_iterable(content.clusters or []):
        if not 0 <= first <= last < n_tokens:
            raise TextError(
                f"{where}: a mention from word {first} to {last}, in a document of "
                f"{count_of(n_tokens, 'word')}, counted from 0."
            )
    clusters = None if content.clusters is None else merge_clusters(content.clusters)
    return Document(where, content.doc_key, sentences, _known(speakers), clusters)


def read_conll(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[Document]:
    """Read the documents in numbered lines of CoNLL-2012."""
    begin: tuple[int, str] | None = None  # of the open document
    body: list[tuple[int, str]] = []
    for number, line in itertools.chain(lines, [(0, BEGIN)]):  # the added line shows that the last document ended
        if line.startswith(BEGIN):
            if begin is not None:
                raise TextError(f"{path}, line {begin[0]}: the document that begins here has no {END}.")
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
            chain = match[2] if match else ""
            if match and match[1]:
                self.open.setdefault(chain, []).append((self.n_tokens, where))
            if match is None or not (match[1] or match[3]) or not self.open.get(chain):
                raise TextError(
                    f"{where}: {cell!r} in the last column, expected -, or mentions such as (3 that opens one of chain "
                    "3, 3) that closes it, and (3), separated by |."
                )
            if match[3]:
                # The format does not say which of several open mentions of one chain a bracket closes. We read them as
                # nested, so two mentions of one chain that cross each other cannot be told apart from nested ones.
                first, _ = self.open[chain].pop()
                self.mentions.setdefault(chain, []).append((first, self.n_tokens))
        self.n_tokens += 1

    def closed(self) -> Iterable[list[Mention]]:
        for chain, mentions in self.open.items():
            for _, where in mentions:
                raise TextError(f"{where}: this mention of chain {chain} is not closed before {END}.")
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
            chains = "|".join([*opening.get(token, []), *closing.get(token, [])]) or "-"
            lines.append("\t".join([name, str(part), str(index), word, *["-"] * 8, chains]))
            token += 1
        lines.append("")
    return "\n".join([*lines, END]) + "\n"
