"""Semantic roles: one proposition, a sentence and one of its predicates, at a time.

Three layouts, told apart by what the file begins with:

- CoNLL-2012 (``#begin document``): the word is column 4, from column 12 on stands one column of brackets per predicate,
  ``(ARG0*``, ``*)``, ``(V*)``, and the last column is not ours;
- one line per proposition (He et al. 2017): ``1 Mira fixed it ||| B-ARG0 B-V B-ARG1``, the predicate's place first;
- columns: the word, the predicate (its sense or lemma, ``-`` elsewhere), one column per predicate, in brackets
  (CoNLL-2005: the words pasted before the props) or as BIO tags (PropBank on English EWT).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from elmokit.errors import TextError
from elmokit.io.text_files import read_lines, split_tokens

PREDICATE = "V"
FIRST_ROLE_COLUMN = 11  # of CoNLL-2012, from 0
WORD_COLUMN = 3
NO_PREDICATE = "-"
DIVIDER = "|||"
OPENING = re.compile(r"\(([^()*]+)")
COMMENT = re.compile(r"# \w+ =")  # "# sent_id = ...": a sentence may well begin with the token #
CELL = re.compile(r"^((?:\([^()*]+)*)\*((?:[^()*]*\))*)$")


@dataclass(frozen=True)
class Proposition:
    """A sentence and one of its predicates."""

    where: str
    """File and line of the sentence."""
    tokens: tuple[str, ...]
    predicate: int | None
    """Place of the predicate; None where the sentence has none, or where it is not known."""
    tags: tuple[str, ...] | None
    """BIO tags of the roles, the predicate under V; None where they are not known."""


def read_srl(path: str) -> Iterator[Proposition]:
    """The propositions of a file; a sentence without a predicate gives one, with no roles.

    Raises:
        TextError: the file cannot be read, or a line is not as its layout has it.
    """
    numbered = enumerate(read_lines(path), start=1)
    first = next(((number, line) for number, line in numbered if line.strip()), None)
    if first is None:
        return
    lines = itertools.chain([first], numbered)
    if first[1].startswith("#begin document"):
        for where, rows in _sentences(path, lines):
            yield from _conll_2012(where, rows)
    elif DIVIDER in first[1]:
        for number, line in lines:
            if line.strip():
                found = proposition_from_line(line, f"{path}, line {number}")
                _check_predicate(found)
                yield found
    else:
        for where, rows in _sentences(path, lines):
            yield from _columns(where, rows)


def proposition_from_line(line: str, where: str) -> Proposition:
    """Read the one-line layout; the tags may be missing after the bars.

    Raises:
        TextError: a part is missing or does not fit the others.
    """
    left, divider, right = line.partition(DIVIDER)
    place, *tokens = split_tokens(left) or [""]
    tags = split_tokens(right)
    if not divider or not place.isdecimal() or not tokens:
        raise TextError(f"{where}: expected: place of the predicate, tokens, {DIVIDER}, tags. Found {line[:60]!r}.")
    predicate = int(place)
    if predicate >= len(tokens):
        raise TextError(
            f"{where}: the predicate's place is {predicate}, but there are {len(tokens)} tokens, from 0 on."
        )
    if tags:
        if len(tags) != len(tokens):
            raise TextError(f"{where}: {len(tags)} tags for {len(tokens)} tokens. Each token needs one tag.")
        _check_bio(tags, where)
    return Proposition(where, tuple(tokens), predicate, tuple(tags) if tags else None)


def _check_predicate(found: Proposition) -> None:
    """Refuse gold tags that mark another token than the predicate, or none."""
    if found.tags is None or found.predicate is None:
        return
    tag = found.tags[found.predicate]
    if tag.partition("-")[2] != PREDICATE:
        raise TextError(
            f"{found.where}: the predicate is at place {found.predicate}, from 0 on, and the tag there is {tag}. "
            f"Expected B-{PREDICATE} or I-{PREDICATE}."
        )


def _sentences(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, list[list[str]]]]:
    """Place and rows of each sentence: equal numbers of columns, comments left out."""
    rows: list[list[str]] = []
    start = 0
    for number, line in itertools.chain(lines, [(0, "")]):
        columns = line.split("\t") if "\t" in line else split_tokens(line)
        if not line.strip() or line.startswith(("#begin document", "#end document")):
            if rows:
                yield f"{path}, line {start}", rows
            rows = []
        elif rows or not COMMENT.match(line):
            start = start if rows else number
            if rows and len(columns) != len(rows[0]):
                raise TextError(
                    f"{path}, line {number}: {len(columns)} columns, but {len(rows[0])} in the sentence's first line "
                    f"({start}). A blank line ends a sentence."
                )
            rows.append(columns)


def _line(where: str, place: int) -> str:
    """The place of a sentence's token: its line in the file."""
    path, _, first = where.rpartition(", line ")
    return f"{path}, line {int(first) + place}"


def _conll_2012(where: str, rows: list[list[str]]) -> Iterator[Proposition]:
    if len(rows[0]) <= FIRST_ROLE_COLUMN:
        raise TextError(
            f"{where}: {len(rows[0])} columns, expected at least {FIRST_ROLE_COLUMN + 1}: document, part, index, word, "
            "part of speech, parse, lemma, frameset, sense, speaker, entity, one per predicate, coreference."
        )
    tokens = tuple(row[WORD_COLUMN] for row in rows)
    found = []
    for column in range(FIRST_ROLE_COLUMN, len(rows[0]) - 1):
        tags = _tags_from_brackets([row[column] for row in rows], where)
        found.append((_predicate(tags, f"{where}: column {column + 1}"), tags))
    yield from _propositions(where, tokens, found)


def _columns(where: str, rows: list[list[str]]) -> Iterator[Proposition]:
    if len(rows[0]) < 2:
        raise TextError(
            f"{where}: one column, expected at least 2: the word; the predicate's sense or '{NO_PREDICATE}'; then the "
            "roles of each predicate."
        )
    tokens = tuple(row[0] for row in rows)
    places = [place for place, row in enumerate(rows) if row[1] != NO_PREDICATE]
    n_columns = len(rows[0]) - 2
    if len(places) != n_columns:
        raise TextError(
            f"{where}: {len(places)} predicates in column 2, but {n_columns} columns of roles after it. Each predicate "
            "needs one, in their order."
        )
    found = []
    for column, place in enumerate(places, start=2):
        cells = [row[column] for row in rows]
        if "*" in cells[0]:
            tags = _tags_from_brackets(cells, where)
        else:
            tags = cells
            _check_bio(tags, where)
        if tags[place] not in (f"B-{PREDICATE}", f"I-{PREDICATE}"):
            raise TextError(
                f"{_line(where, place)}: {tokens[place]!r} is a predicate, but column {column + 1} has "
                f"{cells[place]!r} there. Expected {PREDICATE}."
            )
        found.append((place, tags))
    yield from _propositions(where, tokens, found)


def _propositions(
    where: str, tokens: tuple[str, ...], found: Sequence[tuple[int, Sequence[str]]]
) -> Iterator[Proposition]:
    for place, tags in found:
        yield Proposition(where, tokens, place, tuple(tags))
    if not found:
        yield Proposition(where, tokens, None, ("O",) * len(tokens))


def _predicate(tags: Sequence[str], where: str) -> int:
    try:
        return tags.index(f"B-{PREDICATE}")
    except ValueError:
        raise TextError(f"{where} marks no predicate. Expected one ({PREDICATE}*) in each column of roles.") from None


def _tags_from_brackets(cells: Sequence[str], where: str) -> list[str]:
    """BIO tags of one column of brackets; of nested ones the outermost, as BIO has no room for the others."""
    tags = []
    labels: list[str] = []  # of the open brackets
    for place, cell in enumerate(cells):
        parts = CELL.match(cell)
        if parts is None:
            raise TextError(f"{_line(where, place)}: {cell!r} is no cell of roles. Expected as in (ARG0*, *, *), (V*).")
        prefix = "I" if labels else "B"
        labels += OPENING.findall(parts[1])
        tags.append(f"{prefix}-{labels[0]}" if labels else "O")
        n_closed = parts[2].count(")")
        if n_closed > len(labels):
            raise TextError(f"{_line(where, place)}: {cell!r} closes a bracket that is not open.")
        del labels[len(labels) - n_closed :]
    if labels:
        raise TextError(f"{_line(where, len(cells) - 1)}: the sentence ends, but ({labels[-1]}* is still open.")
    return tags


def _check_bio(tags: Sequence[str], where: str) -> None:
    before = "O"
    for place, tag in enumerate(tags):
        prefix, _, label = tag.partition("-")
        if tag != "O" and (prefix not in ("B", "I") or not label):
            raise TextError(f"{where}: the tag of token {place} is {tag!r}. Expected O, B-ROLE or I-ROLE.")
        if prefix == "I" and before not in (f"B-{label}", f"I-{label}"):
            raise TextError(f"{where}: the tag of token {place} is {tag!r}, after {before!r}. A role begins with B-.")
        before = tag
