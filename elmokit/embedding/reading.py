"""Read a corpus in pools of sentences, and compute where in the output each sentence belongs."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.outputs.writer import WriteProgress
from elmokit.errors import ConfigError, TextError
from elmokit.storage.progress import ProgressCallback
from elmokit.storage.text_files import LINES_BETWEEN_PROGRESS, split_lines, split_tokens
from elmokit.text.batching import read_ahead
from elmokit.text.fasta import read_fasta
from elmokit.text.tokenize import TextSplitter, text_splitter


@dataclass(frozen=True)
class SentenceCounts:
    """The size of a corpus."""

    n_sentences: int
    n_tokens: int
    n_blank: int
    n_text_bytes: int = 0
    """UTF-8 bytes of the lines, or of the identifiers of proteins."""


class CorpusSentence(NamedTuple):
    """One line of a text, one sentence of CoNLL-U, or one protein."""

    name: str
    """The line; of raw text, the tokens with spaces between them; or the identifier of the protein."""
    tokens: list[str]
    text: str
    """Everything that the vectors depend on, for the checksum."""


@dataclass(frozen=True)
class SentencePool:
    """Consecutive sentences that are read together, and then batched by length."""

    sentences: list[list[str]]
    names: list[str]
    offsets: list[int]
    """Where in the output the vectors of each sentence begin."""
    lengths: NDArray[np.int64]
    progress: WriteProgress
    """The progress of the output once the pool is written."""


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

    def __post_init__(self) -> None:
        if self.raw_language is not None and (self.fasta or self.strict):
            raise ConfigError("Raw text cannot be read with fasta or strict: its rows are sentences, not lines.")
        _ = self._split_raw  # an unknown language or a missing tokenizer is noticed now

    @cached_property
    def _split_raw(self) -> TextSplitter | None:
        return None if self.raw_language is None else text_splitter(self.raw_language)

    @property
    def tokenizer(self) -> str:
        """The name of what splits the text, by which a resumed run recognizes it."""
        if self.raw_language is not None:
            return f"raw {self.raw_language}"
        name = getattr(self.tokenize, "__qualname__", None)
        # Methods of built-in types have no module, and objects that can be called no name.
        module = getattr(self.tokenize, "__module__", None) or "builtins"
        return repr(self.tokenize) if name is None else f"{module}.{name}"

    def count(self, progress: ProgressCallback | None = None) -> SentenceCounts:
        """Read the text to its end, to count it and to find errors in it before any work is done."""
        n_sentences = n_tokens = n_blank = n_text_bytes = 0
        for sentence in self:
            n_sentences, n_tokens = n_sentences + 1, n_tokens + len(sentence.tokens)
            n_blank += not sentence.tokens
            n_text_bytes += len(sentence.name.encode("utf-8"))
            if progress is not None and n_sentences % LINES_BETWEEN_PROGRESS == 0:
                progress("reading lines", n_sentences, None)
        return SentenceCounts(n_sentences, n_tokens, n_blank, n_text_bytes)

    def __iter__(self) -> Iterator[CorpusSentence]:
        if self.fasta:
            for protein in read_fasta(self.source):
                residues = "".join(protein.residues)
                yield CorpusSentence(protein.identifier, protein.residues, f"{protein.identifier} {residues}")
            return
        split = self._split_raw
        if split is None and self.tokenize is not split_tokens:
            split = lambda line: [self.tokenize(line)]  # noqa: E731
        # A caller's own function can select the column of a table.
        is_own = (getattr(self.tokenize, "__module__", None) or "elmokit").startswith("elmokit")
        for number, line, sentences in split_lines(self.source, split=split, accepted=() if is_own else None):
            if self._split_raw is not None:
                for tokens in sentences:
                    name = " ".join(tokens)
                    yield CorpusSentence(name, tokens, name)
                continue
            (tokens,) = sentences
            if self.strict and not tokens:
                raise TextError(f"{self.source}, line {number} is blank, which --strict does not allow.")
            # Other white space is part of a token of split_tokens; other tokenizers, as AllenNLP's, split at it.
            name = line.strip(" \t" if self.tokenize is split_tokens else None)
            yield CorpusSentence(name, tokens, line)


def read_pools(
    sentences: Iterator[CorpusSentence],
    done: WriteProgress,
    row_bytes: int,
    max_tokens: int | None = None,
    max_sentences: int | None = None,
    n_rows: Callable[[NDArray[np.int64]], NDArray[np.int64]] = lambda lengths: lengths,
) -> Iterator[SentencePool]:
    """Yield the sentences that are not done, pool by pool; a TextError if the text does not begin with those that are.

    The size of a pool is limited by ``max_tokens`` or ``max_sentences``, as in ``read_ahead``. ``row_bytes`` and
    ``n_rows`` are those of :class:`~elmokit.embedding.outputs.layout.VectorFileLayout`.
    """
    _skip(sentences, done)
    for taken in read_ahead(
        sentences, max_tokens=max_tokens, max_items=max_sentences, length=lambda sentence: len(sentence.tokens)
    ):
        yield (pool := _make_pool(taken, done, row_bytes, n_rows))
        done = pool.progress


def _skip(sentences: Iterator[CorpusSentence], done: WriteProgress) -> None:
    checksum = 0
    for _ in range(done.n_sentences):
        sentence = next(sentences, None)
        if sentence is None:
            break
        checksum = _checksum(sentence, checksum)
    if checksum != done.checksum:
        raise TextError(
            f"The text is not the one that the interrupted run embedded: its first {done.n_sentences:,} sentences "
            "differ. Restore it, or start from scratch with --overwrite."
        )


def _make_pool(
    sentences: list[CorpusSentence],
    done: WriteProgress,
    row_bytes: int,
    n_rows: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> SentencePool:
    lengths = np.array([len(sentence.tokens) for sentence in sentences], dtype="<i8")
    n_bytes = n_rows(lengths) * row_bytes
    ends = done.data_end + np.cumsum(n_bytes)
    checksum = done.checksum
    for sentence in sentences:
        checksum = _checksum(sentence, checksum)
    return SentencePool(
        [sentence.tokens for sentence in sentences],
        [sentence.name for sentence in sentences],
        (ends - n_bytes).tolist(),
        lengths,
        replace(
            done,
            n_batches=0,
            pool_checksum=0,
            n_sentences=done.n_sentences + len(sentences),
            n_tokens=done.n_tokens + int(lengths.sum()),
            n_blank=done.n_blank + int((lengths == 0).sum()),
            data_end=int(ends[-1]),
            checksum=checksum,
        ),
    )


def _checksum(sentence: CorpusSentence, before: int) -> int:
    return zlib.crc32(sentence.text.encode("utf-8") + b"\n", before)
