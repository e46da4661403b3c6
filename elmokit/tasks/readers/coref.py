"""Documents with coreference: CoNLL-2012 columns, JSON lines (e2e-coref), GAP's table.

In CoNLL-2012 the last column holds the chains: ``(3`` opens a mention of chain 3, ``3)`` closes it, ``(3)`` is one
of one word, ``|`` joins several, ``-`` is none. The word is column 4, the speaker column 10.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from elmokit.errors import TextError
from elmokit.io.text_files import read_lines, split_tokens
from elmokit.tasks.readers.gap import HEADER as GAP_HEADER
from elmokit.tasks.readers.gap import Pronoun, read_gap

Mention = tuple[int, int]
"""First and last token in the document, both included."""
Clusters = tuple[tuple[Mention, ...], ...]

BEGIN = re.compile(r"^#begin document\s*\(?(.*?)\)?;?(?:\s*part\s+(\d+))?\s*$")
END = "#end document"
WORD_COLUMN, SPEAKER_COLUMN, LEAST_COLUMNS = 3, 9, 5
NO_CHAIN = {"-", "_"}
PIECE = re.compile(r"^(\()?(\d+)(\))?$")
UNESCAPED = {"/.": ".", "/?": "?"}  # as e2e-coref reads them
GENRE = re.compile(r"^[a-z]{2}(?=/)")  # OntoNotes names begin with it: bc/, nw/, ...


@dataclass(frozen=True)
class Document:
    """Tokenised sentences, and which of their spans name the same."""

    where: str
    """File and line."""
    key: str
    sentences: tuple[tuple[str, ...], ...]
    speakers: tuple[tuple[str, ...], ...] | None
    """One for each token; None where nobody is known to speak."""
    clusters: Clusters | None
    """None where they are not known."""
    pronoun: Pronoun | None = None
    """The question, in documents of GAP."""

    @property
    def genre(self) -> str:
        """The first two letters of an OntoNotes name; empty for others."""
        found = GENRE.match(self.key)
        return found[0] if found else ""


def read_coref(path: str) -> Iterator[Document]:
    """The documents of a file; the layout is told by its first line.

    Raises:
        TextError: the file cannot be read, or a line is not as its layout has it.
        MissingExtraError: GAP's raw text needs the tokenizer.
    """
    numbered = enumerate(read_lines(path), start=1)
    first = next(((number, line) for number, line in numbered if line.strip()), None)
    if first is None:
        return
    lines = itertools.chain([first], numbered)
    if first[1].lstrip().startswith("{"):
        for number, line in lines:
            if line.strip():
                yield document_from_json(line, f"{path}, line {number}")
    elif first[1].split("\t") == GAP_HEADER:
        for where, key, sentences, pronoun in read_gap(path, lines):
            yield Document(where, key, sentences, None, pronoun.clusters(), pronoun)
    else:
        yield from _read_conll(path, lines)


class _JsonDocument(msgspec.Struct):
    sentences: list[list[str]]
    doc_key: str = ""
    speakers: list[list[str]] | None = None
    clusters: list[list[tuple[int, int]]] | None = None


def document_from_json(line: str, where: str) -> Document:
    """Read one line of e2e-coref's JSON: ``doc_key``, ``sentences``, and if known ``speakers`` and ``clusters``.

    Raises:
        TextError: broken JSON, a key that is missing or of another type, a mention outside the document.
    """
    try:
        content = msgspec.json.decode(line, type=_JsonDocument)
    except msgspec.DecodeError as error:
        raise TextError(
            f"{where}: {error}. Expected one JSON object a line: doc_key, sentences (lists of words), and if known "
            "speakers and clusters (lists of [first word, last word])."
        ) from None
    sentences = tuple(tuple(sentence) for sentence in content.sentences if sentence)
    speakers = None if content.speakers is None else tuple(tuple(names) for names in content.speakers if names)
    if speakers is not None and list(map(len, speakers)) != list(map(len, sentences)):
        raise TextError(
            f"{where}: speakers are not one for each word. Give as many as there are words, or leave them out."
        )
    n_tokens = sum(map(len, sentences))
    for first, last in itertools.chain.from_iterable(content.clusters or []):
        if not 0 <= first <= last < n_tokens:
            raise TextError(
                f"{where}: a mention from word {first} to {last}, in a document of {n_tokens} words (from 0 on, the "
                "last one included)."
            )
    clusters = None if content.clusters is None else merged(content.clusters)
    return Document(where, content.doc_key, sentences, _known(speakers), clusters)


def _read_conll(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[Document]:
    builder: _Builder | None = None
    for number, line in lines:
        where = f"{path}, line {number}"
        if line.startswith("#begin document"):
            if builder is not None:
                raise TextError(f"{where}: a document begins, but the one of line {builder.line} has no {END}.")
            builder = _Builder(path, number, line)
        elif line.startswith(END):
            if builder is None:
                raise TextError(f"{where}: a document ends, but none has begun.")
            yield builder.document()
            builder = None
        elif builder is not None:
            builder.add(line, where)
        elif line.strip():
            raise TextError(f"{where}: expected '#begin document (name); part 000' (CoNLL-2012) or JSON lines.")
    if builder is not None:
        raise TextError(f"{path}: the file ends, but the document of line {builder.line} has no {END}.")


class _Builder:
    """One CoNLL document in the making."""

    def __init__(self, path: str, line: int, begin: str) -> None:
        found = BEGIN.match(begin)
        assert found is not None
        self.line = line
        self.where = f"{path}, line {line}"
        self.key = found[1] if found[2] is None else f"{found[1]}_{int(found[2])}"
        self.sentences: list[list[str]] = [[]]
        self.speakers: list[list[str]] = [[]]
        self.n_tokens = 0
        self.n_columns: int | None = None  # of the sentence that is being read
        self.open: dict[
            str, list[tuple[int, str]]
        ] = {}  # by chain: first token and line of the mentions not closed yet
        self.chains: dict[str, list[Mention]] = {}

    def add(self, line: str, where: str) -> None:
        columns = line.split("\t") if "\t" in line else split_tokens(line)
        if not line.strip():
            if self.sentences[-1]:
                self.sentences.append([])
                self.speakers.append([])
                self.n_columns = None
            return
        if len(columns) < LEAST_COLUMNS:
            raise TextError(
                f"{where}: {len(columns)} columns, expected at least {LEAST_COLUMNS}: document, part, index, word, …, "
                "chains."
            )
        if self.n_columns not in (None, len(columns)):
            raise TextError(
                f"{where}: {len(columns)} columns, but {self.n_columns} in the line before. A blank line ends a "
                "sentence."
            )
        self.n_columns = len(columns)
        word = columns[WORD_COLUMN]
        self.sentences[-1].append(UNESCAPED.get(word, word))
        self.speakers[-1].append(columns[SPEAKER_COLUMN] if len(columns) > SPEAKER_COLUMN + 1 else "-")
        self._add_mentions(columns[-1].strip(), where)
        self.n_tokens += 1

    def _add_mentions(self, cell: str, where: str) -> None:
        for piece in () if cell in NO_CHAIN else cell.split("|"):
            found = PIECE.match(piece)
            if found is None or not (found[1] or found[3]):
                raise TextError(
                    f"{where}: {cell!r} in the last column. Expected -, (3, 3), (3), or several joined by |."
                )
            chain = found[2]
            if found[1]:
                self.open.setdefault(chain, []).append((self.n_tokens, where))
            if found[3]:
                if not self.open.get(chain):
                    raise TextError(f"{where}: {piece!r} closes a mention of chain {chain} that is not open.")
                first, _ = self.open[chain].pop()
                self.chains.setdefault(chain, []).append((first, self.n_tokens))

    def document(self) -> Document:
        still_open = [(opened, chain) for chain, places in self.open.items() for _, opened in places]
        if still_open:
            opened, chain = still_open[0]
            raise TextError(f"{opened}: a mention of chain {chain} opens here and is not closed before {END}.")
        sentences = tuple(tuple(sentence) for sentence in self.sentences if sentence)
        speakers = tuple(tuple(names) for names in self.speakers if names)
        return Document(self.where, self.key, sentences, _known(speakers), merged(self.chains.values()))


def _known(speakers: tuple[tuple[str, ...], ...] | None) -> tuple[tuple[str, ...], ...] | None:
    names = {name for sentence in speakers or () for name in sentence}
    return speakers if names - {"-", ""} else None


def merged(clusters: Iterable[Sequence[Mention]]) -> Clusters:
    """Clusters that share a mention become one; a repeated mention stands once; mentions in order."""
    found: list[set[Mention]] = []
    for cluster in clusters:
        mentions = set(cluster)
        for other in [other for other in found if other & mentions]:
            mentions |= other
            found.remove(other)
        if mentions:
            found.append(mentions)
    return tuple(sorted(tuple(sorted(mentions)) for mentions in found))


def to_conll(document: Document, clusters: Iterable[Sequence[Mention]]) -> str:
    """A document with clusters in CoNLL-2012's columns, as the official scorer reads them."""
    opened: dict[int, list[str]] = {}
    closed: dict[int, list[str]] = {}
    for number, cluster in enumerate(clusters):
        for first, last in sorted(cluster, key=lambda mention: (mention[0], -mention[1])):
            if first == last:
                opened.setdefault(first, []).append(f"({number})")
            else:
                opened.setdefault(first, []).append(f"({number}")
                closed.setdefault(last, []).append(f"{number})")
    name, part = re.sub(r"_(\d+)$", "", document.key), re.search(r"_(\d+)$", document.key)
    number_of_part = int(part[1]) if part else 0
    lines = [f"#begin document ({name}); part {number_of_part:03d}"]
    place = 0
    for sentence in document.sentences:
        for index, word in enumerate(sentence):
            chains = "|".join([*opened.get(place, []), *closed.get(place, [])]) or "-"
            lines.append("\t".join([name, str(number_of_part), str(index), word, *["-"] * 8, chains]))
            place += 1
        lines.append("")
    return "\n".join([*lines, END]) + "\n"
