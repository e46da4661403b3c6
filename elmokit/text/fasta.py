"""FASTA files of protein sequences, with one residue per token as in SeqVec."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from elmokit.errors import TextError
from elmokit.storage.progress import count_of
from elmokit.storage.text_files import read_lines

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
    started = ended = 0  # line numbers of the record's header and of a '*' that ends the sequence
    number = 0
    for number, line in enumerate(read_lines(path), start=1):
        if line.startswith(">"):
            if identifier is not None:
                yield _record(path, started, identifier, residues)
            identifier, started, ended, residues = _identifier(path, number, line, seen), number, 0, []
            continue
        sequence = "".join(line.split())
        if not sequence or sequence.startswith(";"):
            continue
        if identifier is None:
            raise TextError(
                f"{path}, line {number}: a sequence without a header. A FASTA record starts with a line '>identifier'."
            )
        if ended:
            raise TextError(
                f"{path}, line {number}: {identifier} continues after the '*' in line {ended}, which ends a sequence."
            )
        if sequence.endswith(STOP):
            ended, sequence = number, sequence[: -len(STOP)]
        for residue in sequence:
            if not (residue.isascii() and residue.isalpha()):  # some other letters are two of A to Z in upper case
                raise TextError(
                    f"{path}, line {number}: {residue!r} in {identifier} is not a residue. Residues are the letters "
                    "A to Z; remove gaps, digits and other characters."
                )
        residues += sequence.upper()
    if identifier is None:
        raise TextError(f"{path} contains no FASTA record in {count_of(number, 'line')}: none starts with '>'.")
    yield _record(path, started, identifier, residues)


def _identifier(path: str | Path, number: int, line: str, seen: dict[str, int]) -> str:
    words = line[1:].split()
    if not words:
        raise TextError(f"{path}, line {number}: a header without an identifier. Write one after the '>'.")
    if words[0] in seen:
        raise TextError(
            f"{path}, line {number}: the identifier {words[0]} is already used in line {seen[words[0]]}. Vectors are "
            "named by identifier, so give each record its own."
        )
    seen[words[0]] = number
    return words[0]


def _record(path: str | Path, started: int, identifier: str, residues: list[str]) -> Protein:
    if not residues:
        raise TextError(f"{path}, line {started}: {identifier} has no residues. Remove the record.")
    return Protein(identifier, residues)
