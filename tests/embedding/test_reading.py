from __future__ import annotations

from pathlib import Path

from elmokit.embedding.reading import Corpus, CorpusSentence


def test_the_name_of_a_sentence_has_the_spaces_that_its_tokens_have(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\u00a0 Hi .\n \tHi .\t\n\u3000\n", encoding="utf-8")
    assert [sentence.name for sentence in Corpus(text)] == ["\u00a0 Hi .", "Hi .", "\u3000"]
    # As in AllenNLP, whose tokens are split at them too.
    assert [sentence.name for sentence in Corpus(text, tokenize=str.split)] == ["Hi .", "Hi .", ""]


def test_proteins_depend_on_all_their_residues(tmp_path: Path) -> None:
    (tmp_path / "a.fasta").write_text(">one\nMK\n>two\nV\n")
    assert tuple(Corpus(tmp_path / "a.fasta", fasta=True)) == (
        CorpusSentence("one", ["M", "K"], "one MK"),
        CorpusSentence("two", ["V"], "two V"),
    )
