from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit.embedding.corpus import embed_file
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.reading import CorpusSentence, corpus_rows
from elmokit.text.fasta import Protein, numbered_proteins
from elmokit.text.text import Text
from tests.conftest import random_model


def test_the_name_of_a_sentence_has_the_spaces_that_its_tokens_have(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\u00a0 Hi .\n \tHi .\t\n\u3000\n", encoding="utf-8")
    assert [sentence.name for sentence in corpus_rows(Text(text))] == ["\u00a0 Hi .", "Hi .", "\u3000"]
    # As in AllenNLP, whose tokens are split at them too.
    assert [sentence.name for sentence in corpus_rows(Text(text, kind=str.split))] == ["Hi .", "Hi .", ""]


def test_proteins_depend_on_all_their_residues(tmp_path: Path) -> None:
    (tmp_path / "a.fasta").write_text(">one\nMK\n>two\nV\n")
    assert tuple(corpus_rows(Text(tmp_path / "a.fasta", kind="fasta"))) == (
        CorpusSentence("one", ["M", "K"], "one MK"),
        CorpusSentence("two", ["V"], "two V"),
    )


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
    assert list(numbered_proteins(proteins)) == [
        (2, Protein("sp|P1|ONE", list("MKTAYI"))),
        (6, Protein("two/2", list("MX"))),
        (9, Protein("three", list("GG"))),
    ]


def test_vectors_of_proteins_are_named_by_identifier(proteins: Path, tmp_path: Path) -> None:
    elmo = Elmo(random_model())
    assert sum(map(len, Text(proteins, kind="fasta").token_lists())) == 10
    summary = embed_file(elmo, Text(proteins, kind="fasta"), tmp_path / "out.hdf5")
    assert (summary.n_sentences, summary.n_tokens) == (3, 10)
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert set(file) == {"sp|P1|ONE", "two%2F2", "three"}
        for name, residues in (("sp|P1|ONE", "MKTAYI"), ("two%2F2", "MX")):
            np.testing.assert_allclose(file[name], elmo.embed([list(residues)])[0], atol=1e-5, rtol=0)
