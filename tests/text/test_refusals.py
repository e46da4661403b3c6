"""What the readers of text refuse: the class of the error, and what its text must mention."""

from __future__ import annotations

import gzip
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elmokit.errors import (
    ConfigError,
    ElmoError,
    FormatError,
    MissingExtraError,
    ModelNotFoundError,
    OutputError,
    TensorMismatchError,
    TextError,
)
from elmokit.text.batching import check_sentence, check_sentences, sentences_of_all
from elmokit.text.columns import read_column_sentences, read_table
from elmokit.text.fasta import numbered_proteins
from elmokit.text.lexicon import Lexicon, Marks
from elmokit.text.text import Text
from elmokit.text.tokenize import get_tokenizer, locate_tokens, text_splitter, tokenize
from elmokit.text.vocabulary import SPECIALS, Vocabulary, read_new_vocabulary, read_words, row_vocabulary
from elmokit.text.vocabulary_files import WordCounts, build_vocabulary, counts_path
from elmokit.training.shards import ReadingOrder, SentenceBlocks
from elmokit.training.windows import WindowStream

FIRST = "<S>\n</S>\n<UNK>\n"
MARKS = Marks("?", "<", ">", "(", ")", " ")
CHARS = ("?", "<", ">", "(", ")", " ")


def read_columns(path: Path) -> object:
    return list(read_column_sentences(path, enumerate(path.read_text().splitlines(), start=1)))


def read_proteins(path: Path) -> object:
    return list(numbered_proteins(path))


def read_windows(path: Path) -> object:
    vocabulary = Vocabulary([*SPECIALS, "the"])
    return next(
        WindowStream(
            [SentenceBlocks(Text(path), ReadingOrder())],
            vocabulary,
            lambda tokens: vocabulary.word_ids(tokens) + 1,
            2,
            3,
        )
    )


def count(path: Path) -> object:
    counts = WordCounts()
    return counts.add(Text(path))


def rows_of(path: Path) -> Vocabulary:
    return row_vocabulary(path, 4, "the table")


TEXTS: list[tuple[Callable[[Path], object], str | bytes, type[ElmoError], str]] = [
    (read_columns, "a b\nc\n", TextError, "line 2: 1 column, expected 2"),
    (read_columns, "a\tb\nc\t\n", TextError, "line 2: column 2 is empty"),
    (read_columns, "a b c\n\nd e\n", TextError, "line 3: 2 columns, expected 3"),
    *(
        (read_table, text, TextError, name)
        for text, name in (
            ("", "has no rows"),
            ("item\tsentence\n\n", "has no rows"),
            ("a\tb\na\n", "line 2: 1 column, expected 2"),
            ("a\tb\ta\n1\t2\t3\n", "two columns with the name 'a'"),
            ('a,b\n1,"x\n\n', "line 3: unexpected end of data"),
            ('a,b\n1,"x"y\n', "line 2: ',' expected"),
            ("a,b\n1," + 200_000 * "x", "field larger than field limit"),
        )
    ),
    (lambda path: read_table(path).column("c"), "A,b\n1,2\n", ConfigError, "has no column 'c'; its columns are A, b"),
    (read_proteins, ">a\nMK\n>b\nM\n>a x\nM\n", TextError, "line 5: the identifier a is already used on line 1"),
    (read_proteins, ">a\n>b\nM\n", TextError, "line 1: a has no residues"),
    (read_proteins, ">a\nM\n>b\n*\n", TextError, "line 3: b has no residues"),
    (read_proteins, ">a\nM\n>\nM\n", TextError, "line 3: expected the header"),
    (read_proteins, "MKT\n", TextError, "line 1: expected the header"),
    (read_proteins, ">a\nMK*\nT\n", TextError, "line 3: '*'"),
    *((read_proteins, f">a\nM{wrong}K\n", TextError, f"line 2: {wrong!r}") for wrong in "-*Äß\u0131"),
    (read_windows, "\n \n", TextError, "nothing to train on"),
    (read_windows, b"the .\nthe \xff\n", TextError, "line 2: not UTF-8"),
    (count, "", TextError, "contains no sentence"),
    (Vocabulary.from_file, "<S>\n<UNK>\nthe\n", FormatError, "missing: </S>. To repair it"),
    (Vocabulary.from_file, f"{FIRST}a\nb\na\n", FormatError, "Word 4 of the vocabulary"),
    (Vocabulary.from_file, "<S>\n</S>\n\n<UNK>\n", FormatError, "Word 3 of the vocabulary"),
    (Vocabulary.from_file, b"<S>\n\xff\n", FormatError, "utf-8"),
    *(
        (read_new_vocabulary, content, FormatError, name)
        for content, name in (
            (f"{FIRST}the\t9\ncat\t5\n", "line 4 is 'the\\t9'. To repair it"),
            ("<S> 4\n</S> 4\n<UNK> 2\nthe 9\n", "the lines have several columns: line 1 is '<S> 4'"),
            (f"{FIRST}the\nNew York\ncat\n", "line 5: 'New York' has a space"),
            (f"{FIRST}a\nb\na\n", "Word 4 of the vocabulary"),
        )
    ),
    (rows_of, FIRST, TensorMismatchError, "lists 3 words, but the table has 4 rows"),
    (rows_of, "a\nb\nc\nd\n", FormatError, "missing: <S>, </S>"),
]
ARGUMENTS: list[tuple[str, Callable[[], object], type[ElmoError], str]] = [
    ("one text", lambda: sentences_of_all("The cat", str.split), TextError, "'The cat'. Wrap it in a list"),
    ("texts", lambda: tokenize(["a"]), TextError, "got list"),  # type: ignore[arg-type]
    *(
        (f"{what} that is {value!r}", lambda call=call, value=value: call(value), TextError, "fillna('')")
        for value in (None, math.nan, np.float32("nan"))
        for what, call in (
            ("a text", tokenize),
            ("a text among others", lambda value: sentences_of_all(["A cat.", value], None)),
            ("a sentence", lambda value: list(check_sentences([["a"], value]))),
            ("a token", lambda value: check_sentence(["a", value])),
        )
    ),
    ("a token of another text", lambda: locate_tokens("a cat", [["a", "dog"]]), TextError, "'dog'"),
    ("a text with more", lambda: locate_tokens("a fat cat", [["a", "cat"]]), TextError, "'cat'"),
    ("an unknown tokenization", lambda: get_tokenizer("blanks"), ConfigError, "treebank, spaces"),  # type: ignore[arg-type]
    ("an empty word", lambda: Vocabulary([*SPECIALS, "", "a"]), FormatError, "Word 4"),
    ("an unknown word", lambda: Vocabulary(["<S>", "</S>"], strict=False).word_ids(["zebra"]), TextError, "'zebra'"),
    *(
        (f"the word {word!r}", lambda word=word: Vocabulary([*SPECIALS, word]).to_text(), TextError, repr(word))
        for word in (" cat", "cat\u3000", "a\nb", "!!!MAXTERMID")
    ),
    ("no entries", lambda: Lexicon(MARKS, 9), FormatError, "words, characters or both"),
    ("short tokens", lambda: Lexicon(MARKS, 2, chars=CHARS), FormatError, "max_chars"),
    ("words without marks", lambda: Lexicon(MARKS, 9, words=("?", "the")), FormatError, "the marks <, >"),
    ("characters without marks", lambda: Lexicon(MARKS, 9, chars=CHARS[:4]), FormatError, "the marks ),  "),
]


@pytest.mark.parametrize(("read", "content", "kind", "name"), TEXTS)
def test_a_text_that_cannot_be_read_is_named_with_its_line(
    read: Callable[[Path], object], content: str | bytes, kind: type[ElmoError], name: str, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(kind, match=rf"text\.txt.*{re.escape(name)}"):
        read(path)


@pytest.mark.parametrize(("call", "kind", "name"), [row[1:] for row in ARGUMENTS], ids=[row[0] for row in ARGUMENTS])
def test_arguments_without_a_meaning_are_refused(call: Callable[[], object], kind: type[ElmoError], name: str) -> None:
    with pytest.raises(kind, match=re.escape(name)):
        call()


@pytest.mark.parametrize("name", ["missing.txt", "folder", "cut.gz"])
def test_a_word_list_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"the\ncat\n")[:-9])
    with pytest.raises(ModelNotFoundError if name == "missing.txt" else FormatError, match=name):
        read_words(tmp_path / name)


OUTPUTS: list[tuple[str, str, dict[str, Any], type[ElmoError], str]] = [
    ("vocab.txt", "the cat\n", {"min_count": 9}, ConfigError, "9 times"),
    ("vocab.zst", "the cat\n", {}, ConfigError, ".zst"),
    ("vocab.txt", "\n", {}, TextError, "text.txt contains no sentence"),
    ("mine", "the cat\n", {}, OutputError, "mine.counts.tsv already exists"),
    ("folder", "the cat\n", {"overwrite": True}, OutputError, "is a directory"),
    ("text.txt", "the cat\n", {"overwrite": True}, OutputError, "both the input and the output"),
    ("vocab.txt", "the cat\n", {"max_words": 3}, ConfigError, "max_words"),
    ("vocab.txt", "the cat\n", {"min_count": 0}, ConfigError, "min_count"),
]


@pytest.mark.parametrize(("output", "text", "limits", "kind", "name"), OUTPUTS)
def test_no_vocabulary_is_written_on_an_error(
    output: str, text: str, limits: dict[str, Any], kind: type[ElmoError], name: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.txt").write_text(text)
    counts_path(tmp_path / "mine").write_text("mine")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(kind, match=re.escape(name)):
        build_vocabulary([tmp_path / "text.txt"], tmp_path / output, **limits)
    assert sorted(tmp_path.iterdir()) == before
    assert ((tmp_path / "text.txt").read_text(), counts_path(tmp_path / "mine").read_text()) == (text, "mine")


def test_a_language_that_spacy_cannot_split_is_refused_with_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def blank(language: str) -> None:
        raise ImportError("Japanese support requires SudachiPy.\nInstall it with pip")

    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(blank=blank))
    with pytest.raises(
        ConfigError,
        match=r"'ja', but 'any' splits any language: Japanese support requires SudachiPy\. Install it with pip",
    ):
        text_splitter.__wrapped__("ja")


def test_without_spacy_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(MissingExtraError, match=r"\[spacy\]"):
        text_splitter.__wrapped__("de")
