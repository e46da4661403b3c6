"""Read semantic roles, one proposition (a sentence and one of its predicates) at a time.

The format is detected from the start of the file:

- CoNLL-2012 (``#begin document``): column 4 is the word. From column 12 on there is one column of brackets per
  predicate, such as ``(ARG0*``, ``*)`` and ``(V*)``; the last column holds coreference and is ignored.
- One line per proposition (He et al. 2017): ``1 Mira fixed it ||| B-ARG0 B-V B-ARG1``. The predicate's index is first.
- Columns: the word, the predicate (its sense or lemma, ``-`` for other words), then one column per predicate, with
  brackets (CoNLL-2005, the words pasted in front of the props) or BIO tags (PropBank on the English Web Treebank).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from elmokit.errors import TextError
from elmokit.storage.bounded import whole_number
from elmokit.storage.progress import count_of
from elmokit.storage.text_files import read_lines, split_tokens
from elmokit.text.columns import ColumnSentence, read_column_sentences

PREDICATE = "V"
WORD_COLUMN, FIRST_ROLE_COLUMN = 3, 11  # of CoNLL-2012, from 0
NO_PREDICATE = "-"
DIVIDER = "|||"
DOCUMENT_BOUNDARIES = ("#begin document", "#end document")
COMMENT = re.compile(r"# \w+ =")  # "# sent_id = ..."; a sentence may start with the token #
CELL = re.compile(r"^((?:\([^()*]+)*)\*((?:[^()*]*\))*)$")  # opening brackets, *, closing brackets
OPENING = re.compile(r"\(([^()*]+)")


@dataclass(frozen=True)
class Proposition:
    """A sentence and one of its predicates."""

    where: str
    """File and line of the sentence, for error messages."""
    tokens: tuple[str, ...]
    predicate: int | None
    """Index of the predicate; None if the sentence has none, or if it is unknown."""
    tags: tuple[str, ...] | None
    """BIO tags of the roles, with the predicate tagged as V; None if they are unknown."""


def read_srl(path: str) -> Iterator[Proposition]:
    """Read the propositions of a file. A sentence without a predicate gives one proposition without roles."""
    numbered = enumerate(read_lines(path), start=1)
    first = next(((number, line) for number, line in numbered if line.strip()), None)
    if first is None:
        return
    lines = itertools.chain([first], numbered)
    if DIVIDER in first[1] and not first[1].startswith(DOCUMENT_BOUNDARIES):
        for number, line in lines:
            if line.strip():
                proposition = parse_proposition(line, f"{path}, line {number}")
                if proposition.tags is not None:
                    _check_predicate(proposition.tags[proposition.predicate or 0], proposition.where)
                yield proposition
        return
    from_columns = _conll_2012 if first[1].startswith(DOCUMENT_BOUNDARIES[0]) else _conll_2005
    for sentence in read_column_sentences(
        path, lines, boundaries=DOCUMENT_BOUNDARIES, comment=COMMENT, same_in_file=False
    ):
        yield from from_columns(sentence)


def parse_proposition(line: str, where: str) -> Proposition:
    """Parse the one-line format. The tags after the divider are optional."""
    left, divider, right = line.partition(DIVIDER)
    index, *tokens = split_tokens(left) or [""]
    tags = split_tokens(right)
    predicate = whole_number(index)
    if not divider or predicate is None or predicate >= len(tokens) or len(tags) not in (0, len(tokens)):
        raise TextError(
            f"{where}: expected the index of the predicate from 0, the tokens, {DIVIDER}, and no tag or one for each "
            f"token; found {line[:60]!r}."
        )
    _check_bio(tags, where)
    return Proposition(where, tuple(tokens), predicate, tuple(tags) if tags else None)


def _check_predicate(tag: str, where: str) -> None:
    """Reject gold tags that do not tag the predicate as such."""
    if tag not in (f"B-{PREDICATE}", f"I-{PREDICATE}"):
        raise TextError(f"{where}: expected B-{PREDICATE} or I-{PREDICATE} for the predicate, found {tag!r}.")


def _conll_2012(sentence: ColumnSentence) -> Iterator[Proposition]:
    rows = sentence.rows
    sentence.check_width(FIRST_ROLE_COLUMN + 1)
    tagged = []
    for column in range(FIRST_ROLE_COLUMN, len(rows[0]) - 1):
        tags = _tags_from_brackets([row[column] for row in rows], sentence)
        predicate = tags.index(f"B-{PREDICATE}") if f"B-{PREDICATE}" in tags else 0
        _check_predicate(tags[predicate], f"{sentence.where()}, column {column + 1}")
        tagged.append((predicate, tags))
    yield from _propositions(sentence, WORD_COLUMN, tagged)


def _conll_2005(sentence: ColumnSentence) -> Iterator[Proposition]:
    rows = sentence.rows
    predicates = [token for token, row in enumerate(rows) if row[1:2] != [NO_PREDICATE]]
    n_columns = len(rows[0]) - 2
    if len(predicates) != n_columns:
        raise TextError(
            f"{sentence.where()}: {count_of(len(rows[0]), 'column')} and {count_of(len(predicates), 'predicate')}, "
            f"expected the word, the predicate's sense or '{NO_PREDICATE}', and one column of roles per predicate."
        )
    tagged = []
    for column, predicate in enumerate(predicates, start=2):
        cells = [row[column] for row in rows]
        if "*" in cells[0]:
            tags = _tags_from_brackets(cells, sentence)
        else:
            tags = cells
            _check_bio(tags, sentence.where())
        _check_predicate(tags[predicate], f"{sentence.where(predicate)}, column {column + 1}")
        tagged.append((predicate, tags))
    yield from _propositions(sentence, 0, tagged)


def _propositions(
    sentence: ColumnSentence, word_column: int, tagged: Sequence[tuple[int, Sequence[str]]]
) -> Iterator[Proposition]:
    tokens = tuple(row[word_column] for row in sentence.rows)
    for predicate, tags in tagged:
        yield Proposition(sentence.where(), tokens, predicate, tuple(tags))
    if not tagged:
        yield Proposition(sentence.where(), tokens, None, ("O",) * len(tokens))


def _tags_from_brackets(cells: Sequence[str], sentence: ColumnSentence) -> list[str]:
    """Convert one column of brackets to BIO tags.

    Of nested brackets only the outermost is kept, because BIO tags cannot nest.
    """
    tags = []
    labels: list[str] = []  # of the open brackets, the outermost first
    for token, cell in enumerate(cells):
        brackets = CELL.match(cell)
        prefix = "I" if labels else "B"
        labels += OPENING.findall(brackets[1]) if brackets else []
        tags.append(f"{prefix}-{labels[0]}" if labels else "O")
        n_closed = brackets[2].count(")") if brackets else 0
        if brackets is None or n_closed > len(labels):
            raise TextError(
                f"{sentence.where(token)}: {cell!r} in a column of roles, expected (ARG0*, *, (V*), or *) after an "
                "opening bracket."
            )
        del labels[len(labels) - n_closed :]
    if labels:
        raise TextError(f"{sentence.where(len(cells) - 1)}: the sentence ends, but ({labels[-1]}* is still open.")
    return tags


def _check_bio(tags: Sequence[str], where: str) -> None:
    previous = "O"
    for token, tag in enumerate(tags):
        prefix, _, label = tag.partition("-")
        is_inside = prefix == "I" and previous in (f"B-{label}", f"I-{label}")
        if tag != "O" and not (label and (prefix == "B" or is_inside)):
            raise TextError(
                f"{where}: the tag of token {token} is {tag!r} after {previous!r}, expected O, B-ROLE, or I-ROLE after "
                "another tag of the role."
            )
        previous = tag
