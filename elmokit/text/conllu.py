"""Read CoNLL-U and CoNLL-U Plus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from elmokit.errors import TextError
from elmokit.storage.progress import count_of
from elmokit.text.columns import find_column

CONLLU = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
PLUS = "# global.columns ="  # the first line of CoNLL-U Plus names its columns
NOT_GIVEN = "_"


def read_conllu_rows(
    path: str | Path, lines: Iterable[str], *wanted: str
) -> Iterator[tuple[int, list[tuple[str, ...]]]]:
    """Yield the sentences of CoNLL-U or CoNLL-U Plus: the first word's line, and the wanted columns of each word.

    Multiword tokens (``1-2``) and empty nodes (``8.1``) are skipped.
    """
    lines = iter(lines)
    header = next(lines, "")
    table = _Columns(path, header, wanted)
    rows: list[tuple[str, ...]] = []
    first = 0
    for number, line in enumerate(chain([header], lines, [""]), start=1):  # a blank line ends the last sentence
        is_comment = line.startswith("#") and (not rows or table.has_ids)  # otherwise, it can be the word "#"
        if is_comment:
            continue
        if not line.strip():
            if rows:
                yield first, rows
            rows = []
            continue
        row = table.row(line, number)
        if row is not None:
            if not rows:
                first = number
            rows.append(row)


class _Columns:
    """The columns of a file; in CoNLL-U Plus, the first line names them."""

    def __init__(self, path: str | Path, header: str, wanted: Sequence[str]) -> None:
        self.path = path
        self.names = list(CONLLU)
        if header.startswith(PLUS):
            self.names = header.removeprefix(PLUS).split()
        self.wanted = [find_column(path, self.names, name) for name in wanted]
        self.has_ids = self.names[0] == "ID"
        self.id_column = self.names.index("ID") if "ID" in self.names else None

    def row(self, line: str, number: int) -> tuple[str, ...] | None:
        """Return the wanted columns of a line; None if it is not a word."""
        cells = line.split("\t")
        if len(cells) != len(self.names):
            n_columns = count_of(len(cells), "column")
            raise TextError(f"{self.path}, line {number}: {n_columns}, expected {len(self.names)} separated by tabs.")
        if self.id_column is not None and not cells[self.id_column].isdigit():
            return None
        return tuple(cells[column] for column in self.wanted)


def conllu_lines(path: str | Path, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield each sentence of CoNLL-U: the line number of its first word, and its words as one line."""
    for number, rows in read_conllu_rows(path, lines, "FORM"):
        words = [word for (word,) in rows]
        if len(words) > 1 and set(words) == {NOT_GIVEN}:
            raise TextError(
                f"{path}, line {number}: all words are '_': this treebank comes without its text. Add the text."
            )
        # The space in a word such as "10 000" stays part of the token.
        yield number, " ".join(word.replace(" ", "\u00a0") for word in words)
