"""Read sentences with a tag on each word: CoNLL-U, CoNLL-U Plus, and files of columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elmokit.errors import ConfigError
from elmokit.storage.progress import count_of
from elmokit.storage.text_files import read_lines
from elmokit.text.columns import read_column_sentences
from elmokit.text.conllu import NOT_GIVEN, read_conllu_rows
from elmokit.text.text import is_conllu
from elmokit.text.tokenize import split_tokens


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence and their tags; None for a word without a tag."""

    words: list[str]
    tags: list[str | None]


def read_tagged(path: str | Path, tags: str | None = None, words: int = 1) -> Iterator[TaggedSentence]:
    """Read a tagged file: CoNLL-U if it is named ``.conllu`` or ``.conllup``, otherwise columns.

    Args:
        path: The file. It can be compressed, as in ``read_lines``.
        tags: The tag column: its name, in any case, for CoNLL-U (default UPOS); otherwise, its number from 1 (default
            2).
        words: The word column, from 1. Not used for CoNLL-U.

    Raises:
        ConfigError: The column does not exist.
        TextError: The file cannot be read, or a line has a different number of columns.
    """
    if is_conllu(path):
        return read_conllu(path, tags or "UPOS")
    try:
        number = int(tags or 2)
    except ValueError:
        raise ConfigError(
            f"{path} is read as columns, so the column of the tags is a number, not {tags!r}; names are for .conllu."
        ) from None
    return read_columns(path, words, number)


def read_conllu(path: str | Path, tags: str = "UPOS") -> Iterator[TaggedSentence]:
    """Read CoNLL-U or CoNLL-U Plus. Multiword tokens (``1-2``) and empty nodes (``8.1``) are skipped."""
    for _, rows in read_conllu_rows(path, read_lines(path), "FORM", tags):
        sentence = TaggedSentence([], [])
        for word, tag in rows:
            sentence.words.append(word)
            sentence.tags.append(None if tag == NOT_GIVEN else tag)
        yield sentence


def read_columns(path: str | Path, words: int = 1, tags: int = 2) -> Iterator[TaggedSentence]:
    """Read a file with one token per line and columns separated by spaces or tabs, which are numbered from 1.

    This is the format of CoNLL 2000 and 2003: a blank line ends a sentence, and ``-DOCSTART-`` lines are skipped.
    """
    for sentence in read_column_sentences(path, enumerate(read_lines(path), start=1), split=split_tokens):
        n_columns = len(sentence.rows[0])
        for wanted in (words, tags):
            if not 1 <= wanted <= n_columns:
                raise ConfigError(
                    f"{path} has {count_of(n_columns, 'column')}, numbered from 1; there is no column {wanted}."
                )
        column_of_words = [row[words - 1] for row in sentence.rows]
        yield TaggedSentence(column_of_words, [row[tags - 1] for row in sentence.rows])
