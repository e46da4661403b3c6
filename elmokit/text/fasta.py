"""FASTA files of protein sequences: one residue a token, as SeqVec reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from elmokit.errors import TextError
from elmokit.io.text_files import read_lines

STOP = "*"


class Protein(NamedTuple):
    """One record."""

    identifier: str
    """The first word of its header."""
    residues: list[str]
    """One upper-case letter each."""


def read_fasta(path: str | Path) -> Iterator[Protein]:
    """The records of a FASTA file (``.gz``, ``.xz``, ``.zst`` and ``-`` as in ``read_lines``), in their order.

    Letters become upper case; a ``*`` that ends a sequence is dropped, as are blanks inside it and comment lines that
    begin with ``;``. Any letter is a residue, the rare and the unsure ones (U, O, B, Z, X) too.

    Raises:
        TextError: the file cannot be read or is no FASTA; two records have one identifier; a record is empty or holds
            something that is no residue.
    """
    seen: dict[str, int] = {}
    identifier: str | None = None
    residues: list[str] = []
    started = ended = 0  # the lines of the record's header and of a '*' that should end it
    number = 0
    for number, line in enumerate(read_lines(path), start=1):
        if line.startswith(">"):
            if identifier is not None:
                yield _record(path, started, identifier, residues)
            identifier, started, ended, residues = _identifier(path, number, line, seen), number, 0, []
            continue
        sequence = "".join(line.split()).upper()
        if not sequence or sequence.startswith(";"):
            continue
        if identifier is None:
            raise TextError(
                f"{path}, line {number}: a sequence without a header. A FASTA record begins with a line '>identifier'."
            )
        if ended:
            raise TextError(f"{path}, line {number}: {identifier} goes on after the '*' in line {ended} that ends it.")
        if sequence.endswith(STOP):
            ended, sequence = number, sequence[: -len(STOP)]
        for residue in sequence:
            if not ("A" <= residue <= "Z"):
                raise TextError(
                    f"{path}, line {number}: {residue!r} in {identifier} is no residue. Residues are the letters A to "
                    "Z; take out gaps, numbers and other marks."
                )
        residues += sequence
    if identifier is None:
        raise TextError(f"{path} holds no FASTA record in {number} lines: none begins with '>'.")
    yield _record(path, started, identifier, residues)


def _identifier(path: str | Path, number: int, line: str, seen: dict[str, int]) -> str:
    words = line[1:].split()
    if not words:
        raise TextError(f"{path}, line {number}: a header without an identifier. Write one after the '>'.")
    if words[0] in seen:
        raise TextError(
            f"{path}, line {number}: the identifier {words[0]} stands in line {seen[words[0]]} already. Vectors are "
            "named by identifier; give each record its own."
        )
    seen[words[0]] = number
    return words[0]


def _record(path: str | Path, started: int, identifier: str, residues: list[str]) -> Protein:
    if not residues:
        raise TextError(f"{path}, line {started}: {identifier} has no residues. Take the record out.")
    return Protein(identifier, residues)
