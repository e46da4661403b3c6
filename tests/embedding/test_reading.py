from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.embedding.outputs.writer import DATA_START, WriteProgress
from elmokit.embedding.reading import Corpus, CorpusSentence, SentencePool, read_pools
from elmokit.errors import TextError
from elmokit.storage.text_files import split_tokens


def sentences_of(lines: list[str]) -> list[CorpusSentence]:
    return [CorpusSentence(line.strip(), split_tokens(line), line) for line in lines]


def facts(pools: list[SentencePool]) -> list[tuple[object, ...]]:
    return [(pool.sentences, pool.names, pool.offsets, pool.lengths.tolist(), pool.progress) for pool in pools]


@given(st.lists(st.text("ab ", max_size=8), max_size=25), st.integers(1, 20), st.integers(1, 5))
def test_resuming_after_a_pool_gives_the_same_further_pools(
    lines: list[str], max_tokens: int, max_sentences: int
) -> None:
    for limits in ({"max_tokens": max_tokens}, {"max_sentences": max_sentences}):
        pools = list(read_pools(iter(sentences_of(lines)), WriteProgress(), 12, **limits))
        assert [name for pool in pools for name in pool.names] == [line.strip() for line in lines]
        for number, pool in enumerate(pools):
            rest = list(read_pools(iter(sentences_of(lines)), pool.progress, 12, **limits))
            assert facts(rest) == facts(pools[number + 1 :])


@given(st.lists(st.text("ab ", max_size=8), min_size=1, max_size=25))
def test_the_vectors_of_sentences_follow_one_another(lines: list[str]) -> None:
    pools = list(read_pools(iter(sentences_of(lines)), WriteProgress(), 12, max_tokens=10))
    offsets = [offset for pool in pools for offset in pool.offsets]
    lengths = [len(split_tokens(line)) for line in lines]
    assert offsets == [DATA_START + 12 * sum(lengths[:row]) for row in range(len(lines))]
    last = pools[-1].progress
    assert (last.n_sentences, last.n_tokens, last.n_blank) == (len(lines), sum(lengths), lengths.count(0))
    assert last.data_end == DATA_START + 12 * sum(lengths)


@pytest.mark.parametrize("changed", [["a b", "X"], ["a b"], [], ["a  b", "c"]])
def test_a_changed_text_is_not_resumed(changed: list[str]) -> None:
    (pool,) = read_pools(iter(sentences_of(["a b", "c"])), WriteProgress(), 12, max_tokens=100)
    with pytest.raises(TextError, match="its first 2 sentences differ"):
        list(read_pools(iter(sentences_of(changed)), pool.progress, 12, max_tokens=100))


def test_a_corpus_can_be_counted(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat\n\n  caf\u00e9\u00a0au lait \n", encoding="utf-8")
    counts = Corpus(tmp_path / "text.txt").count()
    assert (counts.n_sentences, counts.n_tokens, counts.n_blank) == (3, 4, 1)
    assert counts.n_text_bytes == 7 + len("caf\u00e9\u00a0au lait".encode())
    read: list[tuple[str, int, int | None]] = []
    (tmp_path / "long.txt").write_text("a\n" * 2500)
    assert Corpus(tmp_path / "long.txt").count(lambda *report: read.append(report)).n_sentences == 2500
    assert read == [("reading lines", 1000, None), ("reading lines", 2000, None)]


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
