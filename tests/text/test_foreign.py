"""Marks of other programs are read as plain marks, or the text is said to have them, once and in one line."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import elmokit
from elmokit import Elmo, LanguageModel, SentenceEmbedder
from elmokit.compat.many_langs import Embedder
from elmokit.text.foreign import find_foreign
from elmokit.text.marks import EXACT, PLAIN
from elmokit.text.vocabulary import SPECIALS, Vocabulary
from elmokit.text.vocabulary_files import build_vocabulary
from elmokit.training.training_text import count_corpus
from tests.helpers.many_langs_files import toy_model

PLAIN_TWINS = [
    ("I do n&apos;t know .", "I do n't know .", "&apos;"),
    ("&quot; A &amp; B &quot; , &lt; &#91; &#93; &gt; &#124;", '" A & B " , < [ ] > |', "Moses"),
    ("It is -LRB- almost -RRB- over .", "It is ( almost ) over .", "-LRB-"),
    ("-lcb- 1\\/2 -rcb- `` yes '' /.", '{ 1/2 } " yes " .', "Penn Treebank"),
    ("a well @-@ known 1 @,@ 000 @.@ 5", "a well - known 1 , 000 . 5", "@-@"),
]


@pytest.mark.parametrize(("text", "plain", "named"), PLAIN_TWINS)
def test_escapes_are_read_as_plain_marks_and_named(text: str, plain: str, named: str) -> None:
    lm = LanguageModel.from_pretrained()
    elmo = Elmo(lm.model)
    with pytest.warns(UserWarning, match=named) as seen:
        (found,) = lm.surprisal([text.split()])
    assert len({str(warning.message) for warning in seen}) == 1
    (expected,) = lm.surprisal([plain.split()])
    np.testing.assert_array_equal(found.nats, expected.nats)
    assert found.tokens[1:-1] == text.split()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for vectors in (elmo.embed, SentenceEmbedder(elmo).embed, elmo.ids):
            np.testing.assert_array_equal(*map(vectors, ([text.split()], [plain.split()])))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("token", "cure"),
    [
        *[("<s>", "Remove them"), ("</s>", "Remove them"), ("<eos>", "Remove them"), ("<bos>", "Remove them")],
        *[("[CLS]", "Remove them"), ("[SEP]", "Remove them"), ("<|endoftext|>", "Remove them")],
        *[("<pad>", "Remove it"), ("[PAD]", "Remove it"), ("@@PADDING@@", "Remove it")],
        *[("##ing", "sed 's/ ##//g'"), ("wal@@", "sed 's/@@ //g'"), ("\u2581walk", "SentencePiece")],
    ],
)
def test_what_is_no_word_is_named_with_its_cure(token: str, cure: str) -> None:
    read = Vocabulary([*SPECIALS, "the"]).read
    with pytest.warns(UserWarning, match="The text has .* are read as words") as seen:
        assert read(token) == token
    assert cure in str(seen[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Vocabulary([*SPECIALS, token]).read(token) == token  # a word of the model


@pytest.mark.parametrize("token", ["<unk>", "[UNK]", "@@UNKNOWN@@"])
def test_marks_of_unknown_words_are_the_unknown_word_without_letters(token: str) -> None:
    lm = LanguageModel.from_pretrained()
    with pytest.warns(UserWarning, match="<unk> .* are read as <UNK>"):
        (found,) = lm.surprisal([["The", token, "sat", "."]])
    assert found.is_unknown.tolist() == [False, False, True, False, False, False]
    assert found.spelling_nats.sum() == 0
    (expected,) = lm.surprisal([["The", "<UNK>", "sat", "."]])
    np.testing.assert_array_equal(found.nats, expected.nats)
    assert lm.perplexity([["The", "<UNK>", "sat", "."]]).spelling_bits == 0


def test_what_a_vocabulary_knows_of_a_program_holds_for_all_its_marks() -> None:
    treebank = Vocabulary([*SPECIALS, "-LRB-", "-RRB-"]).read
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [treebank(token) for token in ("-LRB-", "-LCB-", "1\\/2", "''")] == ["-LRB-", "-LCB-", "1\\/2", "''"]


def test_exact_models_read_as_before_and_tell_only_of_what_is_never_a_word(tmp_path: Path) -> None:
    tokens = ["&apos;", "-LRB-", "@-@", "<unk>", "##ing", "''"]
    assert [EXACT(token) for token in tokens] == tokens
    embedder = Embedder(toy_model().write(tmp_path / "toy"))
    with pytest.warns(UserWarning, match="<pad>"):
        (padded,) = embedder.sents2elmo([["d-s", "<pad>"]])
    assert padded.shape == (2, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embedder.sents2elmo([["<bos>", "d-s", "<eos>"]])  # its own marks
    assert PLAIN("don't") == "don't"


def test_raw_text_with_html_entities_is_named() -> None:
    with pytest.warns(UserWarning, match="&amp;.*html.unescape"):
        assert elmokit.tokenize("Tom &amp; Jerry") == [["Tom", "&", "amp", ";", "Jerry"]]
    assert elmokit.tokenize("R&D; AT&T; a?b&c=1;") != []


def test_a_vocabulary_counts_marks_of_unknown_words_as_unknown_and_names_the_others(tmp_path: Path) -> None:
    text, words = tmp_path / "text.txt", tmp_path / "words.txt"
    text.write_text("the <unk> cat <unk> &apos;s\n<s> a [UNK] </s>\n", encoding="utf-8")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        report = build_vocabulary([text], words)
    assert sorted(words.read_text(encoding="utf-8").split()) == sorted(
        [*SPECIALS, "the", "cat", "&apos;s", "<s>", "</s>", "a"]
    )
    assert round(report.unknown_ratio * report.n_tokens) == 3
    messages = "\n".join(str(warning.message) for warning in seen)
    assert len(seen) == messages.count("\n") + 1 == 3
    for named in ("<unk>.* count as <UNK>", "&apos;.* are counted as words", "<s> </s>.* are counted as words"):
        assert re.search(named, messages)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        corpus, _, counts = count_corpus([text], [], None, None)
    messages = "\n".join(str(warning.message) for warning in seen)
    for named in ("<unk>.* are read as <UNK>", "&apos;.* are counted as words", "<s> </s>.* are counted as words"):
        assert re.search(named, messages)
    assert counts["<UNK>"] == 3
    assert "<unk>" not in corpus.vocabulary.ids


@pytest.mark.parametrize(
    "token",
    [
        *["&", "AT&T", "&c.", "/", "//", "and/or", "1/2", "@", "a@b.org", "@user", "#", "#tag", "##", "<", "<3", "["],
        *["--", "-", "'", '"', "...", "<user>", "<url>", "[...]", "http://a.b/c?d=1&e=2;", "C:\\dir", "\\", "[1]"],
    ],
)
def test_honest_tokens_are_no_foreign_marks(token: str) -> None:
    assert find_foreign(token) is None
