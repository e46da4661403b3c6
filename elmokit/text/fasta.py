"""Read proteins from FASTA files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from elmokit.errors import TextError
from elmokit.storage.text_files import read_lines

STOP = "*"
_NO_RESIDUE = re.compile("[^A-Za-z]")


class Protein(NamedTuple):
    """One record of a FASTA file."""

    identifier: str
    """The first word of the header."""
    residues: list[str]
    """One upper-case letter per residue."""


def numbered_proteins(path: str | Path) -> Iterator[tuple[int, Protein]]:
    """Yield each record of a FASTA file, after the line number of its header, from 1.

    Letters are converted to upper case. A ``*`` at the end of a sequence, spaces inside it, and comment lines starting
    with ``;`` are dropped. All letters are residues, including rare and ambiguous ones (U, O, B, Z, X).
    """
    seen: dict[str, int] = {}
    protein: Protein | None = None
    started = 0  # the line of its header
    has_ended = False  # by a '*'
    for number, line in enumerate(read_lines(path), start=1):
        sequence = "".join(line.split())
        if not sequence or sequence.startswith(";"):
            continue
        if protein is None or line.startswith(">"):
            if protein is not None:
                yield started, _checked(path, started, protein)
            protein = Protein(_identifier(path, number, line, seen), [])
            started, has_ended = number, False
            continue
        residues = sequence.removesuffix(STOP)
        if has_ended:
            residues = STOP + residues  # the previous one is inside the sequence, so it is refused
        if wrong := _NO_RESIDUE.search(residues):
            raise TextError(f"{path}, line {number}: {wrong[0]!r} in {protein.identifier} is not a residue, A to Z.")
        has_ended = sequence.endswith(STOP)
        protein.residues.extend(residues.upper())
    if protein is not None:
        yield started, _checked(path, started, protein)


def _identifier(path: str | Path, number: int, line: str, seen: dict[str, int]) -> str:
    words = line[1:].split()
    if not line.startswith(">") or not words:
        raise TextError(f"{path}, line {number}: expected the header of a FASTA record, '>identifier'.")
    if words[0] in seen:
        raise TextError(f"{path}, line {number}: the identifier {words[0]} is already used on line {seen[words[0]]}.")
    seen[words[0]] = number
    return words[0]


def _checked(path: str | Path, started: int, protein: Protein) -> Protein:
    if not protein.residues:
        raise TextError(f"{path}, line {started}: {protein.identifier} has no residues.")
    return protein
