"""The sentences and documents of text files, and where each comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from typing import NamedTuple

from elmokit.errors import TextError
from elmokit.storage.text_files import read_lines, text_name
from elmokit.text.conllu import conllu_lines, is_conllu
from elmokit.text.other_formats import HEAD_CHARACTERS, HEAD_LINES, refuse_other_formats
from elmokit.text.raw_lines import check_tokens, join_wrapped
from elmokit.text.tokenize import split_tokens


def text_lines(
    path: str | Path,
    on_bytes: Callable[[int], object] | None = None,
    accepted: Sequence[str] | None = (),
    like_bilm_tf: bool = False,
    on_head: Callable[[list[str]], object] | None = None,
) -> Iterator[tuple[int, str]]:
    """Yield the numbers, from 1, and the lines of a text: every reader of sentences gets them here.

    CoNLL-U is read by its name: each sentence becomes a line of its words, with the number of the line of the first.

    Args:
        path, on_bytes, like_bilm_tf: As in ``read_lines``.
        accepted: Other formats that the caller reads, as ``text_formats`` names them; None for all.
        on_head: Called with the first lines, except of CoNLL-U or where all formats are accepted.

    Raises:
        TextError: As in ``read_lines``, or the text has another format, such as HTML or a table.
    """
    lines = read_lines(path, on_bytes, like_bilm_tf)
    if is_conllu(path):
        yield from conllu_lines(path, lines)
        return
    head: list[str] = []
    if accepted is not None:
        n_characters = 0
        for line in islice(lines, HEAD_LINES):
            head.append(line)
            n_characters += len(line)
            if n_characters > HEAD_CHARACTERS:
                break
        refuse_other_formats(text_name(path), head, accepted)
        if on_head is not None:
            on_head(head)
    yield from enumerate(chain(head, lines), start=1)


class TextLine(NamedTuple):
    """A line of a text."""

    number: int
    """From 1."""
    text: str
    sentences: list[list[str]]
    """Its tokens: of tokenized text one sentence, which is empty if the line is blank; of raw text any number."""


def split_lines(
    path: str | Path,
    on_bytes: Callable[[int], object] | None = None,
    split: Callable[[str], list[list[str]]] | None = None,
    accepted: Sequence[str] | None = (),
    like_bilm_tf: bool = False,
    tokenize: Callable[[str], list[str]] | None = None,
    refuse_raw: bool = False,
) -> Iterator[TextLine]:
    """Yield the lines of a text with their sentences.

    Args:
        path, on_bytes, split, like_bilm_tf: As in ``read_sentences``. Lines of raw text that are wrapped are joined.
        accepted: As in ``text_lines``.
        tokenize: Splits a line, which is a sentence, into tokens. None: ``split_tokens``.
        refuse_raw: Raise a TextError if nothing splits the text and it is certainly raw.
    """
    is_split = split is not None or tokenize not in (None, split_tokens, str.split)
    refuse_raw = refuse_raw and tokenize is not str.split  # of the old programs, which read what they are given
    if is_conllu(path):
        split = tokenize = None  # it has words already
    tokens_of = str.split if like_bilm_tf else tokenize or split_tokens
    split_line = split or (lambda line: [tokens_of(line)])

    def look_at(head: list[str]) -> None:
        check_tokens(text_name(path), (tokens for line in head for tokens in split_line(line)), is_split, refuse_raw)

    lines = text_lines(path, on_bytes, accepted, like_bilm_tf, look_at)
    for number, line in lines if split is None else join_wrapped(text_name(path), lines, split):
        yield TextLine(number, line, split_line(line))


def read_sentences(
    path: str | Path,
    on_bytes: Callable[[int], object] | None = None,
    split: Callable[[str], list[list[str]]] | None = None,
    like_bilm_tf: bool = False,
) -> Iterator[list[str]]:
    """Yield the sentences of a text. Blank lines are skipped.

    Args:
        path: The file, as in ``text_lines``.
        on_bytes: As in ``read_lines``.
        split: Splits a line of raw text into sentences and tokens; a ``RawSplitter`` says whether lines are wrapped.
            None: a line is a tokenized sentence.
        like_bilm_tf: Read lines as in ``read_lines``; a blank one is a sentence, and any white space separates tokens.

    Raises:
        TextError: As in ``text_lines``, or the file contains no sentence.
    """
    return (tokens for _, tokens in numbered_sentences(path, on_bytes, split, like_bilm_tf))


def numbered_sentences(
    path: str | Path,
    on_bytes: Callable[[int], object] | None = None,
    split: Callable[[str], list[list[str]]] | None = None,
    like_bilm_tf: bool = False,
) -> Iterator[tuple[int, list[str]]]:
    """Yield what ``read_sentences`` does, each with the number of its line, from 1."""
    is_empty = True
    for line in split_lines(path, on_bytes, split, like_bilm_tf=like_bilm_tf):
        for tokens in line.sentences:
            if tokens or like_bilm_tf:
                is_empty = False
                yield line.number, tokens
    if is_empty:
        raise TextError(f"{text_name(path)} contains no sentence.")


def split_documents(
    path: str | Path, split: Callable[[str], list[list[str]]] | None = None
) -> Iterator[Iterator[TextLine]]:
    """Yield the lines of each document of a text, which a blank line ends; each must be read before the next one.

    Raises:
        TextError: As in ``text_lines``; or the text is CoNLL-U, where blank lines end sentences.
    """
    check_has_documents(path)
    groups = groupby(split_lines(path, split=split), key=lambda line: any(line.sentences))
    return (lines for has_tokens, lines in groups if has_tokens)


def check_has_documents(path: str | Path) -> None:
    """Refuse a text in which blank lines do not end documents."""
    if is_conllu(path):
        raise TextError(f"{path} is CoNLL-U, where a blank line ends a sentence; expected text with documents.")
