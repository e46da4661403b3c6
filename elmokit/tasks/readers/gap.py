"""GAP: which of two names an ambiguous pronoun means (Webster et al. 2018).

A table with a header; the texts are raw, and the offsets count characters in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from elmokit.errors import TextError
from elmokit.text.tokenize import treebank_tokenizer

HEADER = ["ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL"]
SENTENCE_END = re.compile(r"""[.!?]["'\u201d\u2019)\]]*\s+(?=["'\u201c\u2018(\[]*[A-Z0-9])""")
TITLES = "Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Rev|Gen|Col|Lt|Sgt|Capt|Gov|Sen|Rep|No|vs"
ABBREVIATION = re.compile(rf"(?:^|[\s(.])(?:[A-Z]|{TITLES})\.\s+$")
FEMININE = {"she", "her", "hers"}

Sentences = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Pronoun:
    """The pronoun, the two names, and which of them it means; spans of tokens, both ends included."""

    span: tuple[int, int]
    is_feminine: bool
    names: tuple[tuple[int, int], tuple[int, int]]
    answers: tuple[bool, bool]

    def clusters(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """What the table says of coreference: the pronoun and the names that it means."""
        meant = [name for name, answer in zip(self.names, self.answers, strict=True) if answer]
        return (tuple(sorted({self.span, *meant})),) if meant else ()


def read_gap(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, str, Sentences, Pronoun]]:
    """Place, key, sentences and pronoun of each row; the first line is the header.

    Raises:
        TextError: a row has another number of columns, or its offsets do not fit its text.
        MissingExtraError: the tokenizer is not installed.
    """
    tokenize = treebank_tokenizer()
    for number, line in lines:
        columns = line.split("\t")
        where = f"{path}, line {number}"
        if columns == HEADER or not line.strip():
            continue
        if len(columns) != len(HEADER):
            raise TextError(f"{where}: {len(columns)} columns, expected {len(HEADER)}: {', '.join(HEADER)}.")
        row = dict(zip(HEADER, columns, strict=True))
        text = row["Text"]
        sentences: list[tuple[str, ...]] = []
        bounds: list[tuple[int, int]] = []  # in the text, of each token
        for start, stop in _sentence_bounds(text):
            tokens = tokenize(text[start:stop])
            at = start
            for token in tokens:
                at = text.index(token, at)
                bounds.append((at, at + len(token)))
                at += len(token)
            sentences.append(tuple(tokens))
        spans = [_span(row, name, bounds, where) for name in ("Pronoun", "A", "B")]
        answers = []
        for name in ("A-coref", "B-coref"):
            if row[name] not in ("TRUE", "FALSE"):
                raise TextError(f"{where}: {name} is {row[name]!r}. Expected TRUE or FALSE.")
            answers.append(row[name] == "TRUE")
        pronoun = Pronoun(spans[0], row["Pronoun"].lower() in FEMININE, (spans[1], spans[2]), (answers[0], answers[1]))
        yield where, row["ID"], tuple(sentences), pronoun


def _sentence_bounds(text: str) -> list[tuple[int, int]]:
    """Where sentences stand: cut after . ! ? before a capital, not after an initial or a title."""
    cuts = [end.end() for end in SENTENCE_END.finditer(text) if not ABBREVIATION.search(text[: end.end()])]
    starts = [0, *cuts]
    return [(start, stop) for start, stop in zip(starts, [*cuts, len(text)], strict=True) if text[start:stop].strip()]


def _span(row: dict[str, str], name: str, bounds: list[tuple[int, int]], where: str) -> tuple[int, int]:
    """The tokens that a string of the row touches."""
    offset = row[f"{name}-offset"]
    start = int(offset) if offset.isdecimal() else -1
    stop = start + len(row[name])
    if start < 0 or not row[name] or row["Text"][start:stop] != row[name]:
        raise TextError(
            f"{where}: {name} is {row[name]!r} at character {offset}, but the text has "
            f"{row['Text'][max(start, 0) : max(stop, 0)]!r} there."
        )
    touched = [place for place, (first, last) in enumerate(bounds) if first < stop and start < last]
    if not touched:
        raise TextError(f"{where}: {name} is {row[name]!r}, which holds no word.")
    return touched[0], touched[-1]
