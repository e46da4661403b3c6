"""``Text``: how lines of files become sentences, documents or passages that know where they come from.

A ``Text`` is made once, at the start of a call, and passed on as a whole. Reading has these steps:

* ``find_text_files`` finds the files, and ``read_lines`` decodes their lines (``storage/text_files.py``);
* ``numbered_lines`` numbers them, turns CoNLL-U into lines of words, and refuses texts whose first lines show another
  format;
* ``lines`` splits each line into sentences, after joining wrapped lines of raw text;
* ``sentences``, ``document_sentences`` and ``passages`` yield the contents of the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from elmokit.config import check_choice
from elmokit.errors import ConfigError, TextError
from elmokit.storage.text_files import (
    TextPaths,
    can_reread,
    find_text_files,
    read_lines,
    read_lines_like_python,
    text_name,
    unpacked_name,
)
from elmokit.text.columns import InputTable, is_table, read_table
from elmokit.text.conllu import conllu_lines
from elmokit.text.fasta import numbered_proteins
from elmokit.text.first_lines import Wrapped, check_split, check_tokens, join_wrapped, look_ahead, refuse_other_formats
from elmokit.text.tokenize import ENGLISH, TextSplitter, get_tokenizer, split_tokens, text_splitter

Tokenize = Callable[[str], list[str]]
"""Splits a line, which is one sentence, into tokens."""
TextKind = Literal["tokens", "raw", "lines", "words", "fasta", "bilm-tf", "allennlp"]
"""How a text is read; see :class:`Text`."""
CONLLU_SUFFIXES = (".conllu", ".conllup")


class Line(NamedTuple):
    """A line of text, a paragraph of wrapped lines, a sentence of CoNLL-U, or a protein."""

    number: int
    """The number of its first line in the file, from 1."""
    text: str
    """The line; for CoNLL-U, the words with spaces between them; for a protein, the identifier."""
    sentences: list[list[str]]
    """Its tokens: one sentence per line of tokenized text (empty for a blank line), any number for raw text."""


class Sentence(list[str]):
    """The tokens of a sentence, with its position in the file."""

    # Set after construction, which takes a quarter of the time of an __init__.
    __slots__ = ("file", "line")
    line: int
    """The line number, from 1."""
    file: str | None
    """The file, if the text has several."""


class RawPassage(NamedTuple):
    """Raw text: a line, a paragraph, a document, or a cell of a table."""

    text: str
    path: str
    line: int
    """The number of its first line, from 1."""
    cells: dict[str, str]
    """All cells of its table row, by column name; empty without a table."""


@dataclass(frozen=True)
class Text:
    """Text files, and how they are read.

    ``kind`` says what a line is:

    ==============  ==================================================================================================
    ``"tokens"``    a tokenized sentence: tokens between spaces or tabs
    ``"raw"``       raw text, which is split into sentences and tokens as by :func:`elmokit.tokenize`
    ``"lines"``     one raw sentence, which is split into tokens (English only)
    ``"words"``     raw text of words between white space, which is read by ``passages``
    ``"fasta"``     proteins in FASTA format: each residue is a token, and an identifier names them
    ``"bilm-tf"``   a tokenized sentence as bilm-tf reads it: tokens between any white space. A blank line is a
                    sentence, and a carriage return ends a line.
    ``"allennlp"``  a tokenized sentence as AllenNLP's ``elmo`` reads it: tokens between any white space. A blank line
                    is an error.
    a function      one sentence, which the function splits into tokens
    ==============  ==================================================================================================

    Files named ``.conllu`` and ``.conllup`` already have words. Every kind except ``"fasta"`` reads them.

    Args:
        paths: Files, directories or patterns, as in :func:`~elmokit.storage.text_files.find_text_files`.
        kind: What a line is.
        language: The language of raw text, as in :func:`elmokit.tokenize`.
        wrapped: Whether lines of raw text are wrapped: "yes" joins them into paragraphs, "no" reads them one by one,
            and "auto" decides from the first lines and reports the decision.
        documents: Blank lines end documents, in which each sentence is read after the previous ones.
        refuse_raw: Refuse "tokenized" text that is certainly raw; otherwise, such text gives a warning.
        column: The column of the text in tables (TSV or CSV with a header), whose rows are passages.

    Raises:
        ConfigError: The kind is unknown; ``language``, ``wrapped`` or ``column`` is given for text of another kind; or
            proteins cannot be documents.
        ConfigError, MissingExtraError: As in :func:`elmokit.tokenize`.

    Example:
        >>> text = Text("essay.txt", kind="raw")
        >>> for sentence in text.sentences():
        ...     print(sentence.line, sentence)
    """

    paths: TextPaths
    kind: TextKind | Tokenize = "tokens"
    language: str = ENGLISH
    wrapped: Wrapped = "auto"
    documents: bool = False
    refuse_raw: bool = False
    column: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.paths, str | Path):  # an iterator could only be read once
            object.__setattr__(self, "paths", tuple(self.paths))
        if not callable(self.kind):
            check_choice("kind", self.kind, get_args(TextKind))
        check_choice("wrapped", self.wrapped, get_args(Wrapped))
        if not self.is_raw and self.wrapped != "auto":
            raise ConfigError('wrapped is for raw text (kind="raw").')
        if not self.is_raw and self.language != ENGLISH:
            raise ConfigError('language is for raw text (kind="raw").')
        if self.kind != "words" and self.column is not None:
            raise ConfigError('column is for passages (kind="words").')
        if self.kind == "fasta" and self.documents:
            raise ConfigError("Proteins are no documents, so fasta cannot be combined with documents.")
        _ = self._splitter  # reports an unknown language or a missing tokenizer now

    @property
    def is_raw(self) -> bool:
        """Whether a line can have several sentences, and a paragraph several lines."""
        return self.kind in ("raw", "words")

    @cached_property
    def files(self) -> list[Path]:
        """The files, each once."""
        return find_text_files(self.paths)

    @property
    def can_reread(self) -> bool:
        """Whether the text can be read twice, which pipes and standard input cannot."""
        return all(map(can_reread, self.files))

    @property
    def splitter_name(self) -> str:
        """The name of the tokenizer, which a resumed run compares."""
        if self.kind == "raw":
            return f"raw {self.language}" + ("" if self.wrapped == "auto" else f", wrapped: {self.wrapped}")
        if isinstance(self.kind, str):
            return self.kind
        name = getattr(self.kind, "__qualname__", None)
        if name is None:  # an object that is called
            return repr(self.kind)
        module = getattr(self.kind, "__module__", None) or "builtins"  # methods of built-in types have none
        return f"{module}.{name}"

    def lines(self) -> Iterator[Line]:
        """Yield all lines with their sentences.

        Raises:
            TextError: A file cannot be read, or is in another format, such as HTML or a table; AllenNLP's text has a
                blank line; or text looks raw and ``refuse_raw`` is set.
        """
        return chain.from_iterable(map(self.lines_of, self.files))

    def sentences(self) -> Iterator[Sentence]:
        """Yield the non-empty sentences; for bilm-tf's text, all sentences.

        Raises:
            TextError: As in :meth:`lines`, or a file has no sentences.
        """
        for path in self.files:
            file = self._file_name(path)
            for number, tokens in self._numbered_sentences(path):
                yield _located(tokens, number, file)

    def token_lists(self, on_bytes: Callable[[int], object] | None = None) -> Iterator[list[str]]:
        """Yield the same sentences as plain lists, which is faster; ``on_bytes`` is as in ``read_lines``."""
        for path in self.files:
            for _, tokens in self._numbered_sentences(path, on_bytes):
                yield tokens

    def document_lines(self) -> Iterator[Iterator[Line]]:
        """Yield the lines of each document; each document must be read before the next one.

        Raises:
            TextError: As in :meth:`lines`; or the text is CoNLL-U, where blank lines end sentences.
        """
        return chain.from_iterable(map(self._document_lines, self.files))

    def document_sentences(self) -> Iterator[Iterator[Sentence]]:
        """Yield the sentences of each document; each document must be read before the next one. Errors as above."""
        for path in self.files:
            file = self._file_name(path)
            for lines in self._document_lines(path):
                yield (_located(tokens, line.number, file) for line in lines for tokens in line.sentences)

    def passages(self) -> Iterator[RawPassage]:
        """Yield the raw text of each non-blank line or paragraph, or with ``documents``, of each document.

        From tables, yield the cells of ``column``.

        Raises:
            TextError: As in :meth:`lines`; or a table cannot be read, or its columns differ from those of the first
                one.
            ConfigError: A table does not have the column, or no column is given for tables.
        """
        if self.column is None and not any(map(is_table, self.files)):
            return chain.from_iterable(map(self._passages_of, self.files))
        tables = list(map(read_table, self.files))
        if self.column is None:
            columns = ", ".join(tables[0].columns)
            raise ConfigError(f"{tables[0].path} is a table; --column must name one of {columns}.")
        return _cells_of(tables, self.column)

    def n_predictions(self) -> int | None:
        """Count a language model's predictions, including sentence ends; None if the text can only be read once."""
        if not self.can_reread:
            return None
        return sum(len(tokens) + 1 for tokens in self.token_lists())

    def lines_of(self, path: str | Path, on_bytes: Callable[[int], object] | None = None) -> Iterator[Line]:
        """Yield the lines of one file, as in :meth:`lines`."""
        if self.kind == "fasta":
            return (Line(number, one.identifier, [one.residues]) for number, one in numbered_proteins(path))
        if is_conllu(path):
            return self._conllu_lines_of(path, on_bytes)
        if self._splitter is not None:
            return self._raw_lines_of(path, self._splitter, on_bytes)
        return self._tokenized_lines_of(path, on_bytes)

    def numbered_lines(
        self,
        path: str | Path,
        on_bytes: Callable[[int], object] | None = None,
        formats: Sequence[str] | None = (),
    ) -> Iterator[tuple[int, str]]:
        """Yield the line numbers, from 1, and unchanged lines of a file, for all readers of sentences.

        CoNLL-U is recognized by its name: each sentence becomes a line of words, with the line number of the first.

        Args:
            path: The file.
            on_bytes: As in ``read_lines``.
            formats: Other formats that the caller reads, by their names in ``first_lines.py``; None for all.
        """
        read = read_lines_like_python if self.kind == "bilm-tf" else read_lines
        lines = read(path, on_bytes)
        if is_conllu(path):
            yield from conllu_lines(path, lines)
            return
        numbered: Iterator[tuple[int, str]] = enumerate(lines, start=1)
        if formats is not None:
            head, numbered = look_ahead(numbered)
            refuse_other_formats(text_name(path), [line for _, line in head], formats)
        yield from numbered

    @cached_property
    def _splitter(self) -> TextSplitter | None:
        if self.kind == "raw":
            return text_splitter(self.language)
        if self.kind == "words":
            text_splitter(self.language)
            return _words_of
        return None

    @cached_property
    def split(self) -> Tokenize:
        """The function that splits a line, which is one sentence, into tokens; not used for raw text."""
        if callable(self.kind):
            return self.kind
        if self.kind in ("bilm-tf", "allennlp"):
            return str.split
        return get_tokenizer("treebank" if self.kind == "lines" else "spaces")

    def _raw_lines_of(
        self, path: str | Path, split: TextSplitter, on_bytes: Callable[[int], object] | None
    ) -> Iterator[Line]:
        head, numbered = look_ahead(self.numbered_lines(path, on_bytes))
        check_split(text_name(path), chain.from_iterable(split(line) for _, line in head))
        for number, line in join_wrapped(text_name(path), numbered, self.wrapped):
            yield Line(number, line, split(line))

    def _conllu_lines_of(self, path: str | Path, on_bytes: Callable[[int], object] | None) -> Iterator[Line]:
        split = str.split if self.kind == "bilm-tf" else split_tokens
        for number, line in self.numbered_lines(path, on_bytes):
            yield Line(number, line, [split(line)])

    def _tokenized_lines_of(self, path: str | Path, on_bytes: Callable[[int], object] | None) -> Iterator[Line]:
        if callable(self.kind) and _is_foreign(self.kind):
            # A caller's own function can select the column of a table.
            numbered = self.numbered_lines(path, on_bytes, formats=None)
        else:
            head, numbered = look_ahead(self.numbered_lines(path, on_bytes))
            self._check_head(text_name(path), [self.split(line) for _, line in head])
        for number, line in numbered:
            tokens = self.split(line)
            if not tokens and self.kind == "allennlp":
                raise TextError(f"{path}, line {number} is blank; expected a sentence on each line.")
            yield Line(number, line, [tokens])

    def _check_head(self, name: str, sentences: list[list[str]]) -> None:
        if self.split in (split_tokens, str.split):
            check_tokens(name, sentences, self.refuse_raw)
        else:
            check_split(name, sentences)

    def _numbered_sentences(
        self, path: str | Path, on_bytes: Callable[[int], object] | None = None
    ) -> Iterator[tuple[int, list[str]]]:
        keeps_blank = self.kind == "bilm-tf"
        is_empty = True
        for number, _, sentences in self.lines_of(path, on_bytes):
            for tokens in sentences:
                if tokens or keeps_blank:
                    is_empty = False
                    yield number, tokens
        if is_empty:
            raise TextError(f"{text_name(path)} contains no sentence.")

    def _document_lines(self, path: str | Path) -> Iterator[Iterator[Line]]:
        check_has_documents(path)
        groups = groupby(self.lines_of(path), key=lambda line: any(line.sentences))
        return (lines for has_tokens, lines in groups if has_tokens)

    def _passages_of(self, path: str | Path) -> Iterator[RawPassage]:
        groups: Iterable[Iterable[Line]] = ([line] for line in self.lines_of(path))
        if self.documents:
            groups = self._document_lines(path)
        for first, *others in groups:
            if any(first.sentences):
                text = "\n".join(line.text for line in (first, *others))
                yield RawPassage(text, str(path), first.number, {})

    def _file_name(self, path: Path) -> str | None:
        return str(path) if len(self.files) > 1 else None


def as_text(text: Text | TextPaths) -> Text:
    """Return a ``Text`` unchanged, or files as tokenized text."""
    return text if isinstance(text, Text) else Text(text)


def is_conllu(path: str | Path) -> bool:
    """Check by its name whether a text is CoNLL-U or CoNLL-U Plus."""
    return unpacked_name(path).endswith(CONLLU_SUFFIXES)


def check_has_documents(path: str | Path) -> None:
    """Refuse a text in which blank lines do not end documents."""
    if is_conllu(path):
        raise TextError(f"{path} is CoNLL-U, where a blank line ends a sentence; expected text with documents.")


def _located(tokens: list[str], line: int, file: str | None) -> Sentence:
    sentence = Sentence(tokens)
    sentence.line, sentence.file = line, file
    return sentence


def _cells_of(tables: Sequence[InputTable], column: str) -> Iterator[RawPassage]:
    """Yield the cells of a column of tables, which have the same columns."""
    first = tables[0]
    name = first.columns[first.column(column)]
    for table in tables:
        if table.columns != first.columns:
            raise TextError(f"{table.path} has the columns {', '.join(table.columns)}, and {first.path} has others.")
        for line, row in table.rows:
            cells = dict(zip(table.columns, row, strict=True))
            yield RawPassage(cells[name], table.path, line, cells)


def _words_of(line: str) -> list[list[str]]:
    return [line.split()]


def _is_foreign(function: Tokenize) -> bool:
    """Check whether a function is the caller's own, not one of elmokit or a method of Python's."""
    return not (getattr(function, "__module__", None) or "elmokit").startswith("elmokit")
