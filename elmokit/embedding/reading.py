"""Read a corpus in pools of sentences, and compute where in the output each sentence belongs."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.outputs.writer import WriteProgress
from elmokit.errors import TextError
from elmokit.storage.progress import ProgressCallback
from elmokit.storage.segmentation import SegmentationCheck
from elmokit.storage.text_files import LINES_BETWEEN_PROGRESS, read_lines, split_tokens
from elmokit.text.batching import read_ahead
from elmokit.text.fasta import read_fasta
from elmokit.text.tokenize import TextSplitter


@dataclass(frozen=True)
class SentenceCounts:
    """The size of a corpus."""

    n_sentences: int
    n_tokens: int
    n_blank: int
    n_text_bytes: int = 0
    """UTF-8 bytes of the lines, or of the identifiers of proteins."""


class CorpusSentence(NamedTuple):
    """One line of a text, or one protein."""

    name: str
    """The line; of raw text, the tokens with spaces between them; or the identifier of the protein."""
    tokens: list[str]
    text: str
    """Everything that the vectors depend on, for the checksum."""


@dataclass(frozen=True)
class SentencePool:
    """Consecutive sentences that are read together, and then batched by length.

    The same text and limits always give the same pools, so that a resumed run computes the same batches.
    """

    sentences: list[list[str]]
    names: list[str]
    offsets: list[int]
    """Where in the output the vectors of each sentence begin."""
    lengths: NDArray[np.int64]
    progress: WriteProgress
    """The progress of the output once the pool is written."""


def count_sentences(
    source: str | Path,
    fasta: bool = False,
    strict: bool = False,
    tokenize: Callable[[str], list[str]] = split_tokens,
    progress: ProgressCallback | None = None,
    split: TextSplitter | None = None,
) -> SentenceCounts:
    """Read a corpus to its end, to count it and to find errors in it before any work is done.

    Args:
        source: The text file.
        fasta: The text holds proteins in FASTA format.
        strict: Raise an error for blank lines.
        tokenize: Splits a line into tokens.
        progress: Called now and then with the number of sentences read.
        split: Splits a line of raw text into sentences and tokens, instead of ``tokenize``.

    Raises:
        TextError: The text cannot be read, a line is not UTF-8 or not FASTA, or (with ``strict``) a line is blank.
    """
    n_sentences = n_tokens = n_blank = n_text_bytes = 0
    for sentence in read_corpus_sentences(source, fasta, strict, tokenize, split):
        n_sentences, n_tokens = n_sentences + 1, n_tokens + len(sentence.tokens)
        n_blank += not sentence.tokens
        n_text_bytes += len(sentence.name.encode("utf-8"))
        if progress is not None and n_sentences % LINES_BETWEEN_PROGRESS == 0:
            progress("reading lines", n_sentences, None)
    return SentenceCounts(n_sentences, n_tokens, n_blank, n_text_bytes)


def read_corpus_sentences(
    source: str | Path,
    fasta: bool,
    strict: bool,
    tokenize: Callable[[str], list[str]],
    split: TextSplitter | None = None,
) -> Iterator[CorpusSentence]:
    """Yield the sentences or proteins of a file. Arguments and errors as in :func:`count_sentences`."""
    if fasta:
        for protein in read_fasta(source):
            residues = "".join(protein.residues)
            yield CorpusSentence(protein.identifier, protein.residues, f"{protein.identifier} {residues}")
        return
    check = SegmentationCheck(str(source))
    if split is not None:
        for line in read_lines(source):
            for tokens in split(line):
                check(tokens)
                name = " ".join(tokens)
                yield CorpusSentence(name, tokens, name)
        return
    for number, line in enumerate(read_lines(source), start=1):
        tokens = tokenize(line)
        check(tokens)
        if strict and not tokens:
            raise TextError(f"{source}, line {number} is blank. Remove it, or do not pass --strict.")
        yield CorpusSentence(line.strip(), tokens, line)


def read_pools(
    sentences: Iterator[CorpusSentence],
    done: WriteProgress,
    row_bytes: int,
    max_tokens: int | None = None,
    max_sentences: int | None = None,
    n_rows: Callable[[NDArray[np.int64]], NDArray[np.int64]] = lambda lengths: lengths,
) -> Iterator[SentencePool]:
    """Yield the sentences that are not yet embedded, pool by pool.

    Args:
        sentences: The whole corpus, including what is done.
        done: The progress of the output.
        row_bytes: The size of the vectors of one token, or of one sentence.
        max_tokens: The size of a pool in tokens, as in :func:`~elmokit.text.batching.read_ahead`.
        max_sentences: The size of a pool in sentences.
        n_rows: Returns how many times ``row_bytes`` sentences of given lengths take, as in
            :class:`~elmokit.embedding.outputs.layout.VectorFileLayout`. By default one for each token.

    Raises:
        TextError: The text does not begin with the sentences that are done.
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
            "differ. Restore the text, or start from scratch with --overwrite."
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
