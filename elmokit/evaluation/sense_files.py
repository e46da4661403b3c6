"""Read the files of word sense disambiguation: XML and key files of the unified framework, and sense inventories.

The framework is Raganato et al. 2017, "Word Sense Disambiguation: A Unified Evaluation Framework". ``X.data.xml``
contains ``<sentence>`` elements of ``<wf lemma pos>`` and ``<instance id lemma pos>``. ``X.gold.key.txt`` next to it
has one line per instance: its id and the correct senses, separated by spaces. Both can be compressed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from elmokit.errors import TextError
from elmokit.storage.text_files import or_packed, read_lines
from elmokit.text.tokenize import split_tokens

BLOCK_CHARACTERS = 1 << 18
DATA, GOLD = ".data.xml", ".gold.key.txt"
PARTS = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}
"""The part of speech for the digit after ``%`` in a WordNet sense key. 5 is a satellite adjective."""

# A line of ``index.sense``: a key such as ``bank%1:14:00::``, an offset, an order and a count.
_INDEX_LINE = re.compile(r"(?P<key>(?P<lemma>\S*)%(?P<part>[1-5])[^\s%]*)\s+\S+\s+(?P<order>\d{1,18})\s+\S+", re.ASCII)

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
    """Find the two files of a dataset, given the ``.data.xml`` file or a directory with one.

    Raises:
        TextError: One of the files is missing, or the directory contains several datasets.
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        files = [file for end in or_packed(DATA) for file in path.glob(f"*{end}")]
    if len(files) != 1 or DATA not in files[0].name or not files[0].is_file():
        raise TextError(f"{path}: expected a file *{DATA}, or a directory that contains exactly one.")
    data = files[0]
    stem = data.name.rpartition(DATA)[0]
    for end in or_packed(GOLD):
        gold = data.with_name(stem + end)
        if gold.is_file():
            return SenseSet(stem, data, gold)
    raise TextError(f"{data} has no gold keys next to it: expected {data.with_name(stem + GOLD)}.")


def read_sense_xml(path: str | Path) -> Iterator[SenseSentence]:
    """Yield the sentences of a ``.data.xml`` file. An element with several words gives several tokens."""
    parser: ElementTree.XMLPullParser[Any] = ElementTree.XMLPullParser(["end"])
    seen: set[str] = set()
    try:
        for block in _blocks(path):
            parser.feed(block)
            for event in parser.read_events():
                element: Any = event[-1]
                if element.tag == "sentence":
                    yield _read_sentence(element, f"{path}, sentence {element.get('id')}", seen)
                    element.clear()  # a corpus is large
        parser.close()
    except ElementTree.ParseError as error:
        raise TextError(f"{path}: not well-formed XML ({error}).") from None


def _blocks(path: str | Path) -> Iterator[str]:
    """Yield a text in blocks of many lines, which is faster than single lines."""
    lines: list[str] = []
    n_characters = 0
    for line in read_lines(path):
        lines.append(f"{line}\n")
        n_characters += len(lines[-1])
        if n_characters >= BLOCK_CHARACTERS:
            yield "".join(lines)
            lines, n_characters = [], 0
    yield "".join(lines)


def _read_sentence(element: ElementTree.Element, where: str, seen: set[str]) -> SenseSentence:
    sentence = SenseSentence([], [])
    for part in element.iter():
        if part.tag not in ("wf", "instance"):
            continue
        words = split_tokens(" ".join("".join(part.itertext()).splitlines()))
        if part.tag == "instance":
            instance = _read_instance(part, words, len(sentence.words), where)
            if instance.id in seen:
                raise TextError(f"{where}: a second instance {instance.id}; ids must be unique.")
            seen.add(instance.id)
            sentence.instances.append(instance)
        sentence.words.extend(words)
    return sentence


def _read_instance(part: ElementTree.Element, words: list[str], start: int, where: str) -> Instance:
    key, lemma, pos = part.get("id"), part.get("lemma"), part.get("pos")
    if not (key and lemma and pos and words):
        raise TextError(f"{where}: expected an <instance> with id, lemma, pos and a text; found {part.attrib}.")
    return Instance(key, normal_lemma(lemma), pos.upper(), start, start + len(words))


def normal_lemma(lemma: str) -> str:
    """Spell a lemma as in WordNet: in lower case, with ``_`` for spaces."""
    return lemma.lower().replace(" ", "_")


def read_keys(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Read a key file: the correct senses of each instance id. Lines with the same id are merged."""
    keys: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        columns = split_tokens(line)
        if len(columns) == 1:
            raise TextError(f"{path}, line {number}: {line!r} has no sense; expected: id key [key ...].")
        if columns:
            instance, *senses = columns
            keys.setdefault(instance, []).extend(senses)
    return {instance: tuple(dict.fromkeys(senses)) for instance, senses in keys.items()}


def read_inventory(path: str | Path) -> dict[LemmaPos, tuple[str, ...]]:
    """Read a sense inventory: the senses of each lemma and part of speech, first sense first.

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
            lemma, pos, keys = columns
            senses = numbered.setdefault((normal_lemma(lemma), pos.upper()), [])
            for key in split_tokens(keys):
                senses.append((len(senses), key))
        elif match := _INDEX_LINE.fullmatch(line.strip()):
            senses = numbered.setdefault((match["lemma"], PARTS[match["part"]]), [])
            senses.append((int(match["order"]), match["key"]))
        else:
            raise TextError(
                f"{path}, line {number}: expected lemma, POS and sense keys separated by tabs, or a line of WordNet's "
                f"index.sense, but found {line[:60]!r}."
            )
    if not numbered:
        raise TextError(f"{path} lists no senses.")
    inventory = {}
    for entry, senses in numbered.items():
        inventory[entry] = tuple(key for _, key in sorted(senses))
    return inventory
