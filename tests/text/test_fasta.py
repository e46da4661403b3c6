"""Proteins in FASTA: one residue a token, vectors by identifier."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit.embedding.corpus import embed_file
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.reading import Corpus
from elmokit.text.fasta import Protein, read_fasta
from tests.conftest import random_model

TEXT = """; a comment
>sp|P1|ONE first protein
MKT
aYI

>two/2
 m x
*
>three OS=Homo
GG*
"""


@pytest.fixture
def proteins(tmp_path: Path) -> Path:
    path = tmp_path / "proteins.fasta"
    path.write_text(TEXT)
    return path


def test_records_are_joined_over_lines_in_upper_case_without_their_stop(proteins: Path) -> None:
    assert list(read_fasta(proteins)) == [
        Protein("sp|P1|ONE", list("MKTAYI")),
        Protein("two/2", list("MX")),
        Protein("three", list("GG")),
    ]


def test_vectors_of_proteins_are_named_by_identifier(proteins: Path, tmp_path: Path) -> None:
    elmo = Elmo(random_model())
    assert sum(len(protein.tokens) for protein in Corpus(proteins, fasta=True)) == 10
    summary = embed_file(elmo, proteins, tmp_path / "out.hdf5", fasta=True)
    assert (summary.n_sentences, summary.n_tokens) == (3, 10)
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert set(file) == {"sp|P1|ONE", "two%2F2", "three"}
        for name, residues in (("sp|P1|ONE", "MKTAYI"), ("two%2F2", "MX")):
            np.testing.assert_allclose(file[name], elmo.embed([list(residues)])[0], atol=1e-5, rtol=0)
