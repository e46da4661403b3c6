"""Read the files of word sense disambiguation: XML and key files of the unified framework, and sense inventories.

The framework is Raganato et al. 2017, "Word Sense Disambiguation: A Unified Evaluation Framework". ``X.data.xml``
contains ``<sentence>`` elements of ``<wf lemma pos>`` and ``<instance id lemma pos>``. ``X.gold.key.txt`` next to it
has one line per instance: its id and the correct senses, separated by spaces. Both can be compressed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.parsers import expat

from elmokit.errors import TextError
from elmokit.storage.bounded import whole_number
from elmokit.storage.text_files import or_packed, read_lines, split_tokens

BLOCK_CHARACTERS = 1 << 18
DATA, GOLD = ".data.xml", ".gold.key.txt"
PARTS = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}
"""The digit after ``%`` in a WordNet sense key, which is the part of speech. 5 is a satellite adjective."""

LemmaPos = tuple[str, str]


@dataclass(frozen=True)
class Instance:
    """A word, or several consecutive words, to disambiguate."""

    id: str
    lemma: str
    """In lower case, with ``_`` for spaces."""
    pos: str
    """NOUN, VERB, ADJ or ADV."""
    start: int
    stop: int
    """The instance covers the tokens ``words[start:stop]``."""


@dataclass(frozen=True)
class SenseSentence:
    """A sentence with the words to disambiguate."""

    words: list[str]
    instances: list[Instance]


@dataclass(frozen=True)
class SenseSet:
    """The two files of a dataset."""

    name: str
    data: Path
    gold: Path


def find_sense_set(path: str | Path) -> SenseSet:
    """Find the two files of a dataset, given the ``.data.xml`` file or the directory that contains one.

    Raises:
        TextError: One of the files is missing, or the directory contains several datasets.
    """
    path = Path(path)
    files = [file for end in or_packed(DATA) for file in path.glob(f"*{end}")] if path.is_dir() else [path]
    if len(files) != 1 or not files[0].is_file() or DATA not in files[0].name:
        raise TextError(f"{path}: expected a file *{DATA}, or a directory that contains exactly one.")
    (data,) = files
    stem = data.name.rpartition(DATA)[0]
    for end in or_packed(GOLD):
        if (gold := data.with_name(stem + end)).is_file():
            return SenseSet(stem, data, gold)
    raise TextError(f"{data} has no gold keys next to it: expected {data.with_name(stem + GOLD)}.")


def read_sense_xml(path: str | Path) -> Iterator[SenseSentence]:
    """Yield the sentences of a ``.data.xml`` file. An element with several words gives several tokens."""
    reader = _XmlHandler(str(path))
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, given: reader.start(name, given, parser.CurrentLineNumber)
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = lambda *_: reader.fail(parser.CurrentLineNumber, "an unsupported DOCTYPE")
    try:
        for block in _blocks(path):
            parser.Parse(block, False)
            yield from reader.taken()
        parser.Parse("", True)
    except expat.ExpatError as error:
        raise TextError(f"{path}: not well-formed XML ({error}).") from None


def _blocks(path: str | Path) -> Iterator[str]:
    """Yield a text in blocks of many lines, which is faster than line by line."""
    lines: list[str] = []
    n_characters = 0
    for line in read_lines(path):
        lines.append(f"{line}\n")
        n_characters += len(lines[-1])
        if n_characters >= BLOCK_CHARACTERS:
            yield "".join(lines)
            lines, n_characters = [], 0
    yield "".join(lines)


class _XmlHandler:
    """Collects XML elements into sentences."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.whole: list[SenseSentence] = []
        self.sentence: SenseSentence | None = None
        self.element: tuple[str, dict[str, str], int] | None = None
        self.pieces: list[str] = []
        self.seen: set[str] = set()

    def taken(self) -> list[SenseSentence]:
        taken, self.whole = self.whole, []
        return taken

    def fail(self, line: int, problem: str) -> None:
        raise TextError(f"{self.path}, line {line}: {problem}.")

    def start(self, name: str, given: dict[str, str], line: int) -> None:
        if name == "sentence":
            self.sentence = SenseSentence([], [])
        elif name in ("wf", "instance"):
            if self.sentence is None:
                self.fail(line, f"<{name}> outside of a <sentence>")
            self.element, self.pieces = (name, given, line), []

    def text(self, piece: str) -> None:
        if self.element is not None:
            self.pieces.append(piece)

    def end(self, name: str) -> None:
        if name == "sentence" and self.sentence is not None:
            self.whole.append(self.sentence)
            self.sentence = None
        elif self.element is not None and name == self.element[0] and self.sentence is not None:
            _, given, line = self.element
            self.element = None
            words = split_tokens(" ".join("".join(self.pieces).splitlines()))
            if name == "instance":
                self.sentence.instances.append(self._instance(given, line, len(self.sentence.words), len(words)))
            self.sentence.words.extend(words)

    def _instance(self, given: dict[str, str], line: int, start: int, n_words: int) -> Instance:
        for key in ("id", "lemma", "pos"):
            if not given.get(key):
                self.fail(line, f"an <instance> without {key!r}, expected id, lemma and pos")
        if not n_words:
            self.fail(line, f"instance {given['id']} has no text")
        if given["id"] in self.seen:
            self.fail(line, f"a second instance {given['id']}; ids must be unique")
        self.seen.add(given["id"])
        return Instance(given["id"], normal_lemma(given["lemma"]), given["pos"].upper(), start, start + n_words)


def normal_lemma(lemma: str) -> str:
    """Spell a lemma as WordNet does: in lower case, with ``_`` for spaces."""
    return lemma.lower().replace(" ", "_")


def read_keys(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Read a key file: for each instance id its correct senses. Lines with the same id are merged."""
    keys: dict[str, dict[str, None]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        columns = split_tokens(line)
        if len(columns) == 1:
            raise TextError(f"{path}, line {number}: {line!r} has no sense, expected: id key [key ...].")
        if columns:
            keys.setdefault(columns[0], {}).update(dict.fromkeys(columns[1:]))
    return {instance: tuple(senses) for instance, senses in keys.items()}


def read_inventory(path: str | Path) -> dict[LemmaPos, tuple[str, ...]]:
    """Read a sense inventory: for each lemma and part of speech its senses, the first sense first.

    There are two formats: WordNet's ``index.sense`` (``key offset number count``, separated by spaces, where the number
    gives the order), and a table ``lemma<TAB>POS<TAB>key [key ...]``. Lines that start with ``# `` are skipped.

    Raises:
        TextError: The file cannot be read, or a line has neither format.
    """
    numbered: dict[LemmaPos, list[tuple[int, str]]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line or line.startswith("# "):
            continue
        columns = line.split("\t")
        if len(columns) == 3 and columns[2].strip():
            entry = numbered.setdefault((normal_lemma(columns[0]), columns[1].upper()), [])
            entry += [(len(entry) + index, key) for index, key in enumerate(split_tokens(columns[2]))]
            continue
        fields = line.split()
        lemma, mark, rest = fields[0].rpartition("%") if len(fields) == 4 else ("", "", "")
        order = whole_number(fields[2]) if mark and rest[:1] in PARTS else None
        if order is None:
            raise TextError(
                f"{path}, line {number}: expected lemma, POS and sense keys separated by tabs, or a line of WordNet's "
                f"index.sense, but found {line[:60]!r}."
            )
        numbered.setdefault((lemma, PARTS[rest[0]]), []).append((order, fields[0]))
    if not numbered:
        raise TextError(f"{path} lists no sense.")
    return {entry: tuple(key for _, key in sorted(senses)) for entry, senses in numbered.items()}
