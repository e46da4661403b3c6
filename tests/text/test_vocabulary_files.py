from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmokit.text.text import Text
from elmokit.text.vocabulary import SPECIALS, Vocabulary
from elmokit.text.vocabulary_files import WordCounts, build_vocabulary, counts_path, repair_vocabulary, repaired_words


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    """Nine tokens in three sentences of two files."""
    (tmp_path / "one.txt").write_text("the cat sat\nthe dog\n")
    (tmp_path / "two.txt.gz").write_bytes(gzip.compress(b"the dog ran .\n"))
    return [tmp_path / "one.txt", tmp_path / "two.txt.gz"]


def test_words_and_counts_are_in_the_same_order(texts: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "new" / "vocab.txt"
    report = build_vocabulary(texts, out, max_words=6)
    assert Vocabulary.from_file(out).words == [*SPECIALS, "the", "dog", "."]
    assert counts_path(out) == tmp_path / "new" / "vocab.counts.tsv"
    assert counts_path(out).read_text() == "<S>\t3\n</S>\t3\n<UNK>\t3\nthe\t3\ndog\t2\n.\t1\n"
    assert (report.n_sentences, report.n_tokens, report.n_types, report.n_words) == (3, 9, 6, 6)
    assert report.unknown_ratio == pytest.approx(3 / 9)
    assert report.n_boundaries_in_text == 0
    assert report.unknown_words == ("cat", "ran", "sat")


def test_a_minimum_count_and_a_compressed_output(texts: list[Path], tmp_path: Path) -> None:
    report = build_vocabulary(texts, tmp_path / "vocab.txt.gz", min_count=2)
    assert Vocabulary.from_file(tmp_path / "vocab.txt.gz").words == [*SPECIALS, "the", "dog"]
    assert report.unknown_ratio == pytest.approx(4 / 9)
    assert counts_path(tmp_path / "vocab.txt.gz").name == "vocab.counts.tsv"


def test_special_words_in_the_text_keep_their_meaning(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("<S> the <UNK> cat </S>\n")
    report = build_vocabulary([tmp_path / "text.txt"], tmp_path / "vocab.txt")
    assert (report.n_boundaries_in_text, report.n_types, report.unknown_ratio) == (2, 5, 1 / 5)
    assert counts_path(tmp_path / "vocab.txt").read_text() == "<S>\t1\n</S>\t1\n<UNK>\t1\ncat\t1\nthe\t1\n"


def test_a_repair_lists_its_changes() -> None:
    words, changes = repaired_words(["<s>", "</S>", "the", "", "cat", "the", "<unk>"])
    assert words == ["<S>", "</S>", "the", "cat", "<UNK>"]
    assert changes == [
        "line 1: renamed <s> to <S>",
        "line 4: removed a blank line",
        "line 6: removed the, which is already on line 3",
        "line 7: renamed <unk> to <UNK>",
    ]
    assert repaired_words(["the"]) == (
        [*SPECIALS, "the"],
        [f"added {special}, which was missing, at the top" for special in SPECIALS],
    )
    assert repaired_words([*SPECIALS, "<unk>"]) == ([*SPECIALS, "<unk>"], [])


@given(st.lists(st.sampled_from(["", "a", "b", "a 1", "b\t2", "3 a", "<s>", "<S>", "</S>", "<UNK>", "<unk>", "<Unk>"])))
def test_a_repaired_list_is_valid_and_needs_no_repair(words: list[str]) -> None:
    valid, changes = repaired_words(words)
    assert Vocabulary(valid).words == valid
    assert repaired_words(valid) == (valid, [])
    assert bool(changes) == (valid != words)


def test_a_file_is_repaired(tmp_path: Path) -> None:
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("a\nb\na\n!!!MAXTERMID\n")
    assert len(repair_vocabulary(old, new)) == 4
    assert Vocabulary.from_file(new).words == [*SPECIALS, "a", "b"]


COLUMNS = {
    "counts": "the\t100\ncat\t5\n",
    "counts after spaces": "<S>\n</S>\n<UNK>\nthe 100\ncat  5\n",
    "counts before the words": "    100 the\n      5 cat\n",
    "ids, words and counts": "1 the 100\n2 cat 5\n",
    "scores of SentencePiece": "<unk>\t0\n<s>\t0\n</s>\t0\nthe\t-3.14\ncat\t-1e-05\n",
    "vectors of word2vec": "3 2\n</s> 0.1 0.2\nthe 0.1 0.2\ncat 0.3 -0.4\n",
    "vectors of GloVe": "the 0.1 0.2\ncat 0.3 -0.4\n",
}


@pytest.mark.parametrize("content", COLUMNS.values(), ids=COLUMNS)
def test_a_repair_keeps_the_words_alone_of_a_file_with_several_columns(content: str, tmp_path: Path) -> None:
    old, new = tmp_path / "old.tsv", tmp_path / "new.txt"
    old.write_text(content)
    changes = repair_vocabulary(old, new)
    words = Vocabulary.from_file(new).words
    assert sorted(words[:3]) == sorted(SPECIALS)
    assert words[3:] == ["the", "cat"]
    assert changes[0].startswith("kept only the words: the lines have several columns: line ")


def test_a_repair_reads_the_counts_that_were_written_with_a_vocabulary(texts: list[Path], tmp_path: Path) -> None:
    build_vocabulary(texts, tmp_path / "vocab.txt")
    repair_vocabulary(counts_path(tmp_path / "vocab.txt"), tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_text() == (tmp_path / "vocab.txt").read_text()


def test_a_repair_removes_a_word_with_a_space() -> None:
    words, changes = repaired_words([*SPECIALS, "the", "New York", "cat", "10\u00a0000"])
    assert words == [*SPECIALS, "the", "cat", "10\u00a0000"]
    assert changes == ["line 5: removed 'New York', because tokens have no spaces"]


def test_opening_a_model_whose_words_have_a_second_column_warns(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("<S>\n</S>\n<UNK>\nthe\t100\ncat\t5\n")
    with pytest.warns(UserWarning, match=r"vocab\.txt: the lines have several columns: line 4 is 'the\\t100'"):
        assert Vocabulary.from_file(path).words == [*SPECIALS, "the\t100", "cat\t5"]


def test_tokens_and_sentences_are_counted_and_blank_lines_are_not(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("b a b\n\nc b a <S>\n", encoding="utf-8")
    counts = WordCounts()
    counts.add(Text(text))
    counts.add(Text(text))
    assert (counts.n_sentences, counts.n_tokens) == (4, 14)
    assert dict(counts.items()) == {"b": 6, "a": 4, "c": 2, "<S>": 2}


# Without what makes a text FASTA, FASTQ or no text at all.
WORDS = st.text(st.characters(exclude_characters=" \t\n\0>@", exclude_categories=["Cs"]), min_size=1, max_size=3)


@pytest.mark.filterwarnings("ignore:.* looks like raw text:UserWarning")  # such as "AA:", which is one word here
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(lines=st.lists(st.lists(WORDS, min_size=1), min_size=1, max_size=12), max_types=st.integers(1, 5))
def test_counts_that_were_spilled_to_disk_are_exact(lines: list[list[str]], max_types: int, tmp_path: Path) -> None:
    lines = [[word for word in line if word.strip("\r")] or ["x"] for line in lines]
    lines = [[word.strip("\r") for word in line] for line in lines]
    text = tmp_path / "text.txt"
    text.write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8", newline="\n")
    with WordCounts(max_types) as counts:
        counts.add(Text(text))
        items = list(counts.items())
        assert len(counts.words) <= max_types
    expected = Counter(word for line in lines for word in line)
    assert dict(items) == expected
    assert len(items) == len(expected)
