"""A file of sentences to a file of vectors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elmokit.corpus.hdf5 import Keys, VectorWriter
from elmokit.embedder import Elmo, Layers
from elmokit.errors import TextError
from elmokit.files import read_lines, split_tokens, written_whole
from elmokit.hdf5 import created_hdf5
from elmokit.text.fasta import read_fasta


@dataclass(frozen=True)
class Survey:
    """What a look through the input found before any work was done."""

    n_sentences: int
    n_tokens: int
    n_blank: int


@dataclass(frozen=True)
class EmbedSummary:
    """What was written."""

    n_sentences: int
    n_tokens: int
    n_blank: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Over the whole run: reading, computing, writing."""
        return self.n_tokens / max(self.seconds, 1e-9)


def survey(source: str | Path, fasta: bool = False) -> Survey:
    """Read the whole input once: it is all there and all sound, and this is how much it is.

    Raises:
        TextError: it cannot be read, or a line is not UTF-8, or (``fasta``) not as FASTA has it.
    """
    n_sentences = n_tokens = n_blank = 0
    if fasta:
        lengths = [len(protein.residues) for protein in read_fasta(source)]
        return Survey(len(lengths), sum(lengths), 0)
    for line in read_lines(source):
        n = len(split_tokens(line))
        n_sentences, n_tokens, n_blank = n_sentences + 1, n_tokens + n, n_blank + (n == 0)
    return Survey(n_sentences, n_tokens, n_blank)


def embed_file(
    elmo: Elmo,
    source: str | Path,
    output: str | Path,
    *,
    layers: Layers = "all",
    dtype: Literal["float32", "float16"] = "float32",
    keys: Keys = "numbers",
    with_map: bool = True,
    with_old_map: bool = False,
    strict: bool = False,
    fasta: bool = False,
    tokenize: Callable[[str], list[str]] = split_tokens,
    batch_tokens: int = 2048,
    batch_size: int = 64,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda n_tokens: None,
) -> EmbedSummary:
    """Embed a file of one sentence per line.

    A blank line becomes an empty dataset, so that dataset numbers stay line numbers.

    Args:
        source: a text file (``.gz``, ``.xz`` and ``.zst`` too), or ``-`` for standard input.
        output: the HDF5 file to write; it appears when it is complete.
        layers, batch_tokens, batch_size: as in ``Elmo.embed``.
        dtype, keys, with_map, with_old_map: as in ``VectorWriter``.
        strict: refuse blank lines.
        fasta: the input holds proteins, one residue a token; datasets are named by identifier.
        tokenize: from a line to its tokens.
        progress: called after each sentence with its number of tokens.

    Raises:
        TextError: the input cannot be read, a line is not UTF-8, or a line is blank and ``strict`` is set.
        OutputError: the output exists and may not be overwritten, or cannot be written.
    """
    started = time.monotonic()
    n_tokens = n_blank = 0
    pending: deque[str] = deque()  # lines that are read and not yet written

    def sentences() -> Iterator[list[str]]:
        if fasta:
            for protein in read_fasta(source):
                pending.append(protein.identifier)
                yield protein.residues
            return
        for number, line in enumerate(read_lines(source)):
            tokens = tokenize(line)
            if strict and not tokens:
                raise TextError(f"{source}, line {number + 1} is blank. Take it out, or leave out --strict.")
            pending.append(line.strip())
            yield tokens

    with written_whole(output, overwrite) as beside, created_hdf5(beside) as (file, check):
        writer = VectorWriter(file, "sentences" if fasta else keys, with_map, with_old_map, dtype)
        for array in elmo.embed(sentences(), layers=layers, batch_tokens=batch_tokens, batch_size=batch_size):
            n_here = array.shape[-2]
            writer.write(pending.popleft(), array)
            check()
            n_tokens, n_blank = n_tokens + n_here, n_blank + (n_here == 0)
            progress(n_here)
        writer.finish()
    return EmbedSummary(writer.n_sentences, n_tokens, n_blank, time.monotonic() - started)
