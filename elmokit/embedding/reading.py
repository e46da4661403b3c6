"""Read a corpus: a text of sentences, raw text, or proteins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from elmokit.errors import ConfigError, TextError
from elmokit.storage.text_files import read_lines
from elmokit.text.raw_lines import Wrapped
from elmokit.text.text import check_has_documents, split_lines
from elmokit.text.tokenize import TextSplitter, split_tokens, text_splitter


@dataclass(frozen=True)
class SentenceCounts:
    """The size of a corpus."""

    n_sentences: int = 0
    n_tokens: int = 0
    n_blank: int = 0
    n_text_bytes: int = 0
    """UTF-8 bytes of the lines, or of the identifiers of proteins."""
    digest: str = ""
    """A hash of everything in the text that vectors depend on."""


class CorpusSentence(NamedTuple):
    """One line of a text, one sentence of CoNLL-U, or one protein."""

    name: str
    """The line; of raw text, the tokens with spaces between them; or the identifier of the protein."""
    tokens: list[str]
    text: str
    """Everything that the vectors depend on, for the hash of the text."""


@dataclass(frozen=True)
class Corpus:
    """A text file of sentences or proteins. Iterating over it reads the file.

    A TextError says what is wrong with the text.
    """

    source: str | Path
    fasta: bool = False
    """The file holds proteins in FASTA format."""
    strict: bool = False
    """Raise an error for blank lines."""
    tokenize: Callable[[str], list[str]] = split_tokens
    """Splits a line into tokens."""
    raw_language: str | None = None
    """The language of raw text, whose lines are split into sentences and tokens; None if the text is tokenized."""
    wrapped: Wrapped = "auto"
    """Whether the lines of raw text are wrapped."""
    tokenized: bool = False
    """Read text that is certainly raw as if it were tokenized."""
    documents: bool = False
    """Blank lines end documents, so they have a row in raw text, too."""

    def __post_init__(self) -> None:
        if self.documents:
            if self.fasta:
                raise ConfigError("Proteins are no documents, so fasta cannot be combined with documents.")
            check_has_documents(self.source)
        if self.raw_language is not None and (self.fasta or self.strict):
            raise ConfigError("Raw text cannot be read with fasta or strict: its rows are sentences, not lines.")
        if self.raw_language is None and self.wrapped != "auto":
            raise ConfigError("wrapped is for raw text, whose language is raw_language.")
        _ = self._split_raw  # an unknown language or a missing tokenizer is noticed now

    @cached_property
    def _split_raw(self) -> TextSplitter | None:
        return None if self.raw_language is None else text_splitter(self.raw_language, self.wrapped)

    @property
    def tokenizer(self) -> str:
        """The name of what splits the text, by which a resumed run recognizes it."""
        if self.raw_language is not None:
            return f"raw {self.raw_language}" + ("" if self.wrapped == "auto" else f", wrapped: {self.wrapped}")
        name = getattr(self.tokenize, "__qualname__", None)
        # Methods of built-in types have no module, and objects that can be called no name.
        module = getattr(self.tokenize, "__module__", None) or "builtins"
        return repr(self.tokenize) if name is None else f"{module}.{name}"

    def __iter__(self) -> Iterator[CorpusSentence]:
        if self.fasta:
            for protein in read_fasta(self.source):
                residues = "".join(protein.residues)
                yield CorpusSentence(protein.identifier, protein.residues, f"{protein.identifier} {residues}")
            return
        # A caller's own function can select the column of a table.
        is_own = (getattr(self.tokenize, "__module__", None) or "elmokit").startswith("elmokit")
        lines = split_lines(
            self.source,
            split=self._split_raw,
            accepted=() if is_own else None,
            tokenize=self.tokenize,
            refuse_raw=not self.tokenized,
        )
        for number, line, sentences in lines:
            if self._split_raw is not None:
                for tokens in sentences or [[]] * self.documents:
                    name = " ".join(tokens)
                    yield CorpusSentence(name, tokens, name)
                continue
            (tokens,) = sentences
            if self.strict and not tokens:
                raise TextError(f"{self.source}, line {number} is blank; expected a sentence on each line.")
            # Other white space is part of a token of split_tokens; other tokenizers, as AllenNLP's, split at it.
            name = line.strip(" \t" if self.tokenize is split_tokens else None)
            yield CorpusSentence(name, tokens, line)


STOP = "*"


class Protein(NamedTuple):
    """One record of a FASTA file."""

    identifier: str
    """The first word of the header."""
    residues: list[str]
    """One upper-case letter each."""


def read_fasta(path: str | Path) -> Iterator[Protein]:
    """Yield the records of a FASTA file. ``.gz``, ``.xz``, ``.zst`` and ``-`` are read as in ``read_lines``.

    Letters are converted to upper case. A ``*`` at the end of a sequence, spaces inside it, and comment lines that
    begin with ``;`` are dropped. Every letter is a residue, including the rare and ambiguous ones (U, O, B, Z, X).
    """
    seen: dict[str, int] = {}
    identifier: str | None = None
    residues: list[str] = []
    started, has_ended = 0, False  # the line of the record's header; whether a '*' has ended its sequence
    for number, line in enumerate(read_lines(path), start=1):
        sequence = "".join(line.split())
        if not sequence or sequence.startswith(";"):
            continue
        if line.startswith(">") or identifier is None:
            if identifier is not None:
                yield _record(path, started, identifier, residues)
            identifier, started, has_ended, residues = _identifier(path, number, line, seen), number, False, []
            continue
        for residue in STOP * has_ended + sequence.removesuffix(STOP):
            if not (residue.isascii() and residue.isalpha()):  # some other letters are two of A to Z in upper case
                raise TextError(f"{path}, line {number}: {residue!r} inside {identifier} is not a residue, A to Z.")
        has_ended = sequence.endswith(STOP)
        residues += sequence.removesuffix(STOP).upper()
    if identifier is not None:
        yield _record(path, started, identifier, residues)


def _identifier(path: str | Path, number: int, line: str, seen: dict[str, int]) -> str:
    words = line[1:].split()
    if not line.startswith(">") or not words:
        raise TextError(f"{path}, line {number}: expected the header of a FASTA record, '>identifier'.")
    if words[0] in seen:
        raise TextError(f"{path}, line {number}: the identifier {words[0]} is already used in line {seen[words[0]]}.")
    seen[words[0]] = number
    return words[0]


def _record(path: str | Path, started: int, identifier: str, residues: list[str]) -> Protein:
    if not residues:
        raise TextError(f"{path}, line {started}: {identifier} has no residues.")
    return Protein(identifier, residues)
