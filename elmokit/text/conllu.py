"""Read CoNLL-U and CoNLL-U Plus, which are told from other texts by the names of their files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from elmokit.errors import TextError
from elmokit.storage.progress import count_of
from elmokit.storage.text_files import unpacked_name
from elmokit.text.columns import find_column

CONLLU = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
PLUS = "# global.columns ="  # the first line of CoNLL-U Plus names its columns
CONLLU_SUFFIXES = (".conllu", ".conllup")
NOT_GIVEN = "_"


def is_conllu(path: str | Path) -> bool:
    """Check by its name whether a text is CoNLL-U or CoNLL-U Plus."""
    return unpacked_name(path).endswith(CONLLU_SUFFIXES)


def read_conllu_rows(
    path: str | Path, lines: Iterable[str], *wanted: str
) -> Iterator[tuple[int, list[tuple[str, ...]]]]:
    """Yield the sentences of CoNLL-U or CoNLL-U Plus: the line of the first word, and for each word the wanted columns.

    Multiword tokens (``1-2``) and empty nodes (``8.1``) are skipped.
    """
    names = list(CONLLU)
    columns: list[int] = []
    rows: list[tuple[str, ...]] = []
    first = 0
    for number, line in enumerate(lines, start=1):
        if number == 1:
            if line.startswith(PLUS):
                names = line.removeprefix(PLUS).split()
            columns = [find_column(path, names, name) for name in wanted]
        if line.startswith("#") and (not rows or names[0] == "ID"):  # otherwise it can be the word "#"
            continue
        if not line.strip():
            if rows:
                yield first, rows
            rows = []
            continue
        cells = line.split("\t")
        if len(cells) != len(names):
            raise TextError(
                f"{path}, line {number}: {count_of(len(cells), 'column')}, expected {len(names)} separated by tabs."
            )
        if "ID" not in names or cells[names.index("ID")].isdigit():
            first = first if rows else number
            rows.append(tuple(cells[column] for column in columns))
    if rows:
        yield first, rows


def conllu_lines(path: str | Path, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield each sentence of CoNLL-U as a line of words, and the number of the line of its first word."""
    for number, rows in read_conllu_rows(path, lines, "FORM"):
        words = [word for (word,) in rows]
        if len(words) > 1 and set(words) == {NOT_GIVEN}:
            raise TextError(f"{path}, line {number}: all words are '_', so this treebank has no text. Add its text.")
        # A word such as "10 000" has a space, which stays inside of its token.
        yield number, " ".join(word.replace(" ", "\u00a0") for word in words)
