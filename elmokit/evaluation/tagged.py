"""Read sentences with a tag on each word: CoNLL-U, CoNLL-U Plus, and files of columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elmokit.errors import ConfigError, TextError
from elmokit.storage.progress import count_of
from elmokit.storage.text_files import read_lines, split_tokens, unpacked_name
from elmokit.text.columns import read_column_sentences

CONLLU = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
PLUS = "# global.columns ="  # the first line of CoNLL-U Plus names its columns
CONLLU_SUFFIXES = (".conllu", ".conllup")
NO_TAG = "_"  # CoNLL-U's word for "not given"


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence and their tags; None for a word without a tag."""

    words: list[str]
    tags: list[str | None]


def read_tagged(path: str | Path, tags: str | None = None, words: int = 1) -> Iterator[TaggedSentence]:
    """Read a tagged file: CoNLL-U if it is named ``.conllu`` or ``.conllup``, otherwise columns.

    Args:
        path: The file. It can be compressed, as in ``read_lines``.
        tags: The column of the tags. In CoNLL-U its name in any case (default UPOS), in columns its number from 1
            (default 2).
        words: The column of the words, from 1. Used for columns only.

    Raises:
        ConfigError: The column does not exist.
        TextError: The file cannot be read, or a line has a different number of columns.
    """
    if unpacked_name(path).endswith(CONLLU_SUFFIXES):
        return read_conllu(path, tags or "UPOS")
    try:
        number = int(tags or 2)
    except ValueError:
        raise ConfigError(
            f"{path} is read as columns, so the column of the tags is a number, not {tags!r}. "
            "Give a number from 1, or rename a CoNLL-U file to .conllu."
        ) from None
    return read_columns(path, words, number)


def read_conllu(path: str | Path, tags: str = "UPOS") -> Iterator[TaggedSentence]:
    """Read CoNLL-U or CoNLL-U Plus. Multiword tokens (``1-2``) and empty nodes (``8.1``) are skipped."""
    names = list(CONLLU)
    sentence: list[tuple[str, str | None]] = []
    for number, line in enumerate(read_lines(path), start=1):
        if number == 1 and line.startswith(PLUS):
            names = line.removeprefix(PLUS).split()
        if number == 1:
            form, tag = _column(path, names, "FORM"), _column(path, names, tags)
        if line.startswith("#") and (not sentence or names[0] == "ID"):  # otherwise it can be the word "#"
            continue
        if not line.strip():
            yield from _sentence(sentence)
            sentence = []
            continue
        columns = line.split("\t")
        if len(columns) != len(names):
            raise TextError(
                f"{path}, line {number}: {count_of(len(columns), 'column')}, expected {len(names)} separated by tabs."
            )
        if "ID" not in names or columns[names.index("ID")].isdigit():
            sentence.append((columns[form], None if columns[tag] == NO_TAG else columns[tag]))
    yield from _sentence(sentence)


def read_columns(path: str | Path, words: int = 1, tags: int = 2) -> Iterator[TaggedSentence]:
    """Read a file with one token per line and columns separated by spaces or tabs, which are numbered from 1.

    This is the format of CoNLL 2000 and 2003: a blank line ends a sentence, and ``-DOCSTART-`` lines are skipped.
    """
    for sentence in read_column_sentences(path, enumerate(read_lines(path), start=1), split=split_tokens):
        n_columns = len(sentence.rows[0])
        for wanted in (words, tags):
            if not 1 <= wanted <= n_columns:
                raise ConfigError(
                    f"{path} has {count_of(n_columns, 'column')}; there is no column {wanted}. Give one from 1."
                )
        yield TaggedSentence([row[words - 1] for row in sentence.rows], [row[tags - 1] for row in sentence.rows])


def _sentence(rows: list[tuple[str, str | None]]) -> Iterator[TaggedSentence]:
    if rows:
        yield TaggedSentence([word for word, _ in rows], [tag for _, tag in rows])


def _column(path: str | Path, names: list[str], wanted: str) -> int:
    for index, name in enumerate(names):
        if name.lower() == wanted.lower():
            return index
    raise ConfigError(f"{path} has no column {wanted!r}; its columns are {', '.join(names)}.")
