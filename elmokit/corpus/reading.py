"""Input text to pools: sentences that are batched together, and where in the output each of them goes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.corpus.unfinished import Done
from elmokit.errors import TextError
from elmokit.io.text_files import LINES_BETWEEN_PROGRESS, read_lines, split_tokens
from elmokit.text.batching import read_ahead
from elmokit.text.fasta import read_fasta


@dataclass(frozen=True)
class Survey:
    """What a look through the input found before any work was done."""

    n_sentences: int
    n_tokens: int
    n_blank: int
    n_text_bytes: int = 0
    """UTF-8 bytes of the lines, or of the identifiers of proteins."""


class Sentence(NamedTuple):
    """One line, or one protein."""

    name: str
    tokens: list[str]
    text: str
    """All that its vectors depend on."""


@dataclass(frozen=True)
class Pool:
    """Sentences one after another; the same ones whenever the same text is read with the same limits."""

    sentences: list[list[str]]
    names: list[str]
    places: list[int]
    """Where in the output each one's vectors begin."""
    lengths: NDArray[np.int64]
    done: Done
    """Once the pool is written."""


def survey(
    source: str | Path,
    fasta: bool = False,
    strict: bool = False,
    tokenize: Callable[[str], list[str]] = split_tokens,
    progress: Callable[[int], None] = lambda n_sentences: None,
) -> Survey:
    """Read the whole input once: it is all there and all sound, and this is how much it is.

    Args:
        progress: called now and then with how many sentences more were read.

    Raises:
        TextError: it cannot be read, or a line is not UTF-8, or (``fasta``) not as FASTA has it, or (``strict``) blank.
    """
    n_sentences = n_tokens = n_blank = n_text_bytes = 0
    for sentence in read_sentences(source, fasta, strict, tokenize):
        n_sentences, n_tokens = n_sentences + 1, n_tokens + len(sentence.tokens)
        n_blank += not sentence.tokens
        n_text_bytes += len(sentence.name.encode("utf-8"))
        if n_sentences % LINES_BETWEEN_PROGRESS == 0:
            progress(LINES_BETWEEN_PROGRESS)
    return Survey(n_sentences, n_tokens, n_blank, n_text_bytes)


def read_sentences(
    source: str | Path, fasta: bool, strict: bool, tokenize: Callable[[str], list[str]]
) -> Iterator[Sentence]:
    """The sentences of a file, or the proteins.

    Raises:
        TextError: as in ``survey``.
    """
    if fasta:
        for protein in read_fasta(source):
            yield Sentence(protein.identifier, protein.residues, f"{protein.identifier} {''.join(protein.residues)}")
        return
    for number, line in enumerate(read_lines(source), start=1):
        tokens = tokenize(line)
        if strict and not tokens:
            raise TextError(f"{source}, line {number} is blank. Take it out, or leave out --strict.")
        yield Sentence(line.strip(), tokens, line)


def read_pools(
    sentences: Iterator[Sentence],
    done: Done,
    token_bytes: int,
    max_tokens: int | None = None,
    max_sentences: int | None = None,
) -> Iterator[Pool]:
    """The sentences that are not done yet, pool by pool.

    Args:
        sentences: all of them, the ones that are done too.
        token_bytes: what one token's vectors take.
        max_tokens: a pool ends with the sentence that reaches so many, boundaries included.
        max_sentences: a pool ends at so many.

    Raises:
        TextError: the sentences that were done are not those at the beginning of this text.
    """
    _skip(sentences, done)
    for taken in read_ahead(
        sentences, max_tokens=max_tokens, max_items=max_sentences, length=lambda sentence: len(sentence.tokens)
    ):
        yield (pool := _pool(taken, done, token_bytes))
        done = pool.done


def _skip(sentences: Iterator[Sentence], done: Done) -> None:
    checksum = 0
    for _ in range(done.n_sentences):
        sentence = next(sentences, None)
        if sentence is None:
            break
        checksum = _checksum(sentence, checksum)
    if checksum != done.checksum:
        raise TextError(
            f"The text is not the one that the unfinished run was begun with: its first {done.n_sentences:,} sentences "
            "differ. Put the text back, or start anew with --overwrite."
        )


def _pool(sentences: list[Sentence], done: Done, token_bytes: int) -> Pool:
    lengths = np.array([len(sentence.tokens) for sentence in sentences], dtype="<i8")
    ends = done.data_end + np.cumsum(lengths) * token_bytes
    checksum = done.checksum
    for sentence in sentences:
        checksum = _checksum(sentence, checksum)
    return Pool(
        [sentence.tokens for sentence in sentences],
        [sentence.name for sentence in sentences],
        (ends - lengths * token_bytes).tolist(),
        lengths,
        replace(
            done,
            n_batches=0,
            pool_checksum=0,
            n_sentences=done.n_sentences + len(sentences),
            n_tokens=done.n_tokens + int(lengths.sum()),
            n_blank=done.n_blank + int((lengths == 0).sum()),
            data_end=int(ends[-1]),
            names_end=done.names_end + sum(len(sentence.name.encode("utf-8")) + 1 for sentence in sentences),
            checksum=checksum,
        ),
    )


def _checksum(sentence: Sentence, before: int) -> int:
    return zlib.crc32(sentence.text.encode("utf-8") + b"\n", before)
