"""Read GAP: for each ambiguous pronoun, which of two names it refers to (Webster et al. 2018).

The file is a tab-separated table with a header. Its texts are raw, and its offsets count characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from elmokit.errors import TextError
from elmokit.storage.bounded import whole_number
from elmokit.tasks.readers.passages import covering_tokens
from elmokit.tasks.scores.coref import Clusters, Mention
from elmokit.text.english import token_spans

HEADER = ["ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL"]
SENTENCE_END = re.compile(r"""[.!?]["'\u201d\u2019)\]]*\s+(?=["'\u201c\u2018(\[]*[A-Z0-9])""")
TITLES = "Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Rev|Gen|Col|Lt|Sgt|Capt|Gov|Sen|Rep|No|vs"
ABBREVIATION = re.compile(rf"(?:^|[\s(.])(?:[A-Z]|{TITLES})\.\s+$")
LONGEST_TITLE = max(map(len, TITLES.split("|")))
IS_REFERENT = {"TRUE": True, "FALSE": False}
FEMININE = {"she", "her", "hers"}

Sentences = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Pronoun:
    """An ambiguous pronoun, two names, and which of them it refers to."""

    span: Mention
    is_feminine: bool
    names: tuple[Mention, Mention]
    answers: tuple[bool, bool]

    def clusters(self) -> Clusters:
        """Return what the table says about coreference: one cluster of the pronoun and the names it refers to."""
        referents = [name for name, is_referent in zip(self.names, self.answers, strict=True) if is_referent]
        return (tuple(sorted({self.span, *referents})),) if referents else ()


def read_gap(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, str, Sentences, Pronoun]]:
    """Read the rows of the table from its numbered lines, of which the first is the header.

    Returns:
        For each row: file and line, ID, tokenized sentences, and the pronoun.
    """
    for number, line in lines:
        columns = line.split("\t")
        where = f"{path}, line {number}"
        if columns == HEADER or not line.strip():
            continue
        try:
            row = dict(zip(HEADER, columns, strict=True))
            answers = (IS_REFERENT[row["A-coref"]], IS_REFERENT[row["B-coref"]])
        except (ValueError, KeyError):
            raise TextError(
                f"{where}: expected the columns {', '.join(HEADER)}, with {' or '.join(IS_REFERENT)} in A-coref and "
                "B-coref."
            ) from None
        text = row["Text"]
        sentences: list[tuple[str, ...]] = []
        offsets: list[tuple[int, int]] = []  # of each token, in the text
        for start, stop in _sentence_offsets(text):
            spans = [(start + first, start + last) for first, last in token_spans(text[start:stop])]
            offsets += spans
            sentences.append(tuple(text[first:last] for first, last in spans))
        span, one, other = (_mention(row, name, offsets, where) for name in ("Pronoun", "A", "B"))
        pronoun = Pronoun(span, row["Pronoun"].lower() in FEMININE, (one, other), answers)
        yield where, row["ID"], tuple(sentences), pronoun


def _sentence_offsets(text: str) -> list[tuple[int, int]]:
    """Split after . ! ? in front of a capital letter or digit, but not after an initial or a title."""
    cuts = [
        end.end()
        for end in SENTENCE_END.finditer(text)
        if not ABBREVIATION.search(text, max(end.start() - LONGEST_TITLE - 1, 0), end.end())
    ]
    starts = [0, *cuts]
    return [(start, stop) for start, stop in zip(starts, [*cuts, len(text)], strict=True) if text[start:stop].strip()]


def _mention(row: dict[str, str], name: str, offsets: list[tuple[int, int]], where: str) -> Mention:
    """Return the first and last token that overlap with a name or pronoun of the row."""
    offset = row[f"{name}-offset"]
    number = whole_number(offset)
    start = -1 if number is None else number
    stop = start + len(row[name])
    covered = covering_tokens(offsets, start, stop)
    if start < 0 or not row[name] or row["Text"][start:stop] != row[name] or covered is None:
        raise TextError(
            f"{where}: {name} is {row[name]!r} at character {offset}, but the text there is "
            f"{row['Text'][max(start, 0) : max(stop, 0)]!r}; expected the same words."
        )
    return covered
