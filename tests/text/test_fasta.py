"""Proteins in FASTA: one residue a token, vectors by identifier."""

from __future__ import annotations

import gzip
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit.embedding.corpus import embed_file
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.reading import Corpus
from elmokit.errors import TextError
from elmokit.text.fasta import Protein, read_fasta
from tests.conftest import random_model
from tests.helpers.shell import Shell

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


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "bad.fasta"
    path.write_text(text)
    return path


def test_records_are_joined_over_lines_in_upper_case_without_their_stop(proteins: Path) -> None:
    assert list(read_fasta(proteins)) == [
        Protein("sp|P1|ONE", list("MKTAYI")),
        Protein("two/2", list("MX")),
        Protein("three", list("GG")),
    ]


def test_a_compressed_file_reads_the_same(proteins: Path, tmp_path: Path) -> None:
    (tmp_path / "p.fasta.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert list(read_fasta(tmp_path / "p.fasta.gz")) == list(read_fasta(proteins))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (">a\nMK\n>b\nM\n>a x\nM\n", r"bad\.fasta, line 5: the identifier a is already used in line 1"),
        (">a\n>b\nM\n", "line 1: a has no residues"),
        (">a\nM\n>b\n*\n", "line 3: b has no residues"),
        (">a\nM\n>\nM\n", "line 3: a header without an identifier"),
        ("MKT\n", "line 1: a sequence without a header"),
        (">a\nMK-T\n", "line 2: '-' in a is not a residue"),
        (">a\nMK*T\n", r"line 2: '\*' in a is not a residue"),
        (">a\nMK*\nT\n", r"line 3: a continues after the '\*' in line 2"),
        (">a\nMKÄ\n", "line 2: 'Ä' in a is not a residue"),
        (">a\nMKß\n", "line 2: 'ß' in a is not a residue"),
        (">a\nMK\N{LATIN SMALL LETTER DOTLESS I}\n", "line 2: '.' in a is not a residue"),
        ("", "no FASTA record in 0 lines"),
    ],
)
def test_a_bad_record_is_named_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        list(read_fasta(write(tmp_path, text)))


def test_vectors_of_proteins_are_named_by_identifier(proteins: Path, tmp_path: Path) -> None:
    elmo = Elmo(random_model())
    assert Corpus(proteins, fasta=True).count().n_tokens == 10
    summary = embed_file(elmo, proteins, tmp_path / "out.hdf5", fasta=True)
    assert (summary.n_sentences, summary.n_tokens) == (3, 10)
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert set(file) == {"sp|P1|ONE", "two%2F2", "three"}
        for name, residues in (("sp|P1|ONE", "MKTAYI"), ("two%2F2", "MX")):
            np.testing.assert_allclose(file[name], elmo.embed([list(residues)])[0], atol=1e-5, rtol=0)


def test_a_bad_record_leaves_no_output(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="line 3"):
        embed_file(Elmo(random_model()), write(tmp_path, ">a\nM\n>b\n"), tmp_path / "out.hdf5", fasta=True)
    assert not (tmp_path / "out.hdf5").exists()


def test_the_command_embeds_proteins(proteins: Path, shell: Shell) -> None:
    arguments = ["embed", str(proteins), "out.hdf5", "--fasta", "--model", "model"]
    assert shell(*arguments, "--tokenize").code == 2
    assert shell(*arguments).code == 0
    with h5py.File("out.hdf5") as file:
        assert set(file) == {"sp|P1|ONE", "two%2F2", "three"}
