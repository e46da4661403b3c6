"""What is read as sentences, what is read as CoNLL-U, and what is refused as another format."""

from __future__ import annotations

import gzip
import lzma
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import get_args

import pytest

from elmokit import LanguageModel
from elmokit.embedding.reading import corpus_rows
from elmokit.errors import ConfigError, TextError
from elmokit.evaluation.probe_corpus import read_corpus_files
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.first_lines import HEAD_LINES, JSON, check_split, check_tokens, refuse_other_formats
from elmokit.text.text import Text
from elmokit.text.tokenize import Tokenization, get_tokenizer
from elmokit.text.vocabulary_files import WordCounts
from elmokit.training.shards import ReadingOrder, SentenceBlocks
from tests.conftest import SHARED

CONLLU = (
    "# sent_id = 1\n# text = don't go\n"
    + "1-2\tdon't" + "\t_" * 8 + "\n"
    + "1\tdo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_\n2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_\n"
    + "2.1\tyou" + "\t_" * 8 + "\n"
    + "3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n\n# sent_id = 2\n"
    + "1\t10 000\t_\tNUM\tCD\t_\t2\tnummod\t_\t_\n2\tdogs\tdog\tNOUN\tNNS\t_\t0\troot\t_\t_\n"
)  # fmt: skip
WORDS = [["do", "n't", "go"], ["10\u00a0000", "dogs"]]
OTHER_FORMATS = {
    "CoNLL-U": [CONLLU],
    "HTML or XML": [
        "<!DOCTYPE html>\n<title>The cat</title>",
        "<html lang='en'>\n<body>\nThe cat sat .\n</body>\n</html>",
        "<p>The cat sat .</p>\n<p>A dog ran .</p>",
        "<b>The cat</b> sat .\n<b>A dog</b> ran .",
        "The cat <b>sat</b>\nA dog <b>ran</b>",
        '<seg id="1">The cat sat .</seg>\n<seg id="2">A dog ran .</seg>',
        "<?xml version='1.0'?>\n<text/>",
        '<doc id="1" url="http://x" title="Cats">\nCats\n\nCats are animals .\n</doc>',
        '<text id="1">\n<s>\nThe\tDT\n</s>\n</text>',
    ],
    "JSON": [
        '{"text": "The cat"}\n{"text": "A dog"}',
        '{\n  "text": "The cat",\n  "ids": [\n    1,\n    2\n  ]\n}',
        '[{"text": "The cat <a href=\\"x\\">sat</a>"},\n {"text": "A dog"}]',
        '["The cat sat .", "A dog ran ."]',
    ],
    "a table": [
        "1\tThe cat sat .\t0.5\n2\tA dog .\t1",
        "the\tDT\ncat\tNN\n\na\tDT",
        "The cat\tsat\tby me\nA dog\tran\nBirds\tfly high\tor low\tor not",
    ],
    "a table of comma-separated values": [
        'id,text,label\n1,"The cat sat, and slept.",0\n2,A dog.,1',
        "text;label\nThe cat sat.;1\nA dog, it ran.;2",
        "1,0.5,3\n4,5.5,6",
    ],
    "FASTA": [">p1 first\nMKTAYIAK\nMKV\n>p2\nAAA*", ">chr1\nacgtnnACGT\nAC-GT"],
    "FASTQ": ["@r1 run\nACGTN\n+\nII#I!\n@r2\nAC\n+r2\nII"],
    "subtitles": [
        "1\n00:00:01,000 --> 00:00:03,000\nHello there.\n\n2\n00:00:04,000 --> 00:00:05,000\nBye.",
        "WEBVTT\n\nNOTE by me\n\n00:01.000 --> 00:04.000 align:start\nHello.",
    ],
    "a language model in the ARPA format": ["\n\\data\\\nngram 1=3\nngram 2=2\n\n\\1-grams:\n-1.0 the -0.3"],
}
HONEST = [
    "<3 <3\nI <3 you",
    "<user> hello <url>\n<user> lol\n<url>",
    "<s> the cat </s>\n<s> a dog </s>",
    "The tags <p> and </p> are paired .",
    "&lt;3 &amp; &lt;3\n&lt;3",
    "[ Music ]\n[ Laughter ]",
    '[ Scene 1 ]\n" Hello . "\n" Hi . "',
    "[1]\n[ 2 ]",
    "{\n} {",
    "if ( x < 3 && y > 4 ) { return ; }\n#include <stdio.h>\nvector<int> x ;",
    "\u7684\n\u6211\n\u4f60",
    "a\nb\nc",
    "The\tcat\tsat\nA\tdog\nBirds\tfly\tvery\thigh\nIt\tran\tto\tme\t.",
    "The\tcat\tsat\t.\nDogs\trun\t.",
    "\tIt was a night .\n\tThe dog ran .",
    "The cat\tsat .\nA dog ran .\nIt slept .",
    "a\tb",
    "10,000 people came\n12,000 left\n3,500 stayed",
    "Yes , sir .\nNo , sir .\nOh , sir .",
    "Yes, sir.\nNo, sir.\nOh, sir.",
    "haha ;)\n;-)\nlol ;)",
    "Roses are red,\nviolets are blue,\nsugar is sweet,",
    '<p align="center">\n\n# The cat\n\nThe cat sat .\nA dog ran .',
    "The cat sat .\nA dog ran .\nBirds fly high .",
    "= Robert <unk> =\n\nRobert <unk> is an actor .",
    "# Heading\n\n- The cat .\n- A dog .",
    "> The cat sat .\nYES !\n> A dog .",
    "> OK\n> NO",
    "@user hello\nACGT\n+ 1\nnope",
    "At 10:00 --> 11:00 , we ate .\n1\n2\n00:00:01,000 --> 00:00:03,000",
    "THE\nCAT\nSAT",
    "The counts come after this line :\n\\data\\\nThe model begins .",
    "ngram 1=3 is the first count\nngram 2=2 is the second",
    "\n\n",
]


@pytest.mark.parametrize(("format_", "text"), [(name, text) for name, texts in OTHER_FORMATS.items() for text in texts])
def test_what_plainly_has_another_format_is_refused_by_its_name(format_: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(text + "\n", encoding="utf-8")
    for kind in ("tokens", "raw", "words", "bilm-tf"):
        with pytest.raises(TextError, match=rf"text\.txt looks like {format_}, not") as caught:
            list(Text(path, kind=kind).token_lists())
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", HONEST)
def test_honest_text_is_no_other_format(text: str) -> None:
    refuse_other_formats("text", text.split("\n"))


def _trained_on(path: Path) -> list[list[str]]:
    blocks = SentenceBlocks(Text(path), ReadingOrder(shuffle=False, n_epochs=1))
    try:
        return [tokens for block in blocks for passage in block.passages for tokens in passage]
    finally:
        blocks.close()


def _counted(path: Path) -> list[list[str]]:
    counts = WordCounts()
    counts.add(Text(path))
    return [list(counts.words)]


@pytest.mark.parametrize(
    "read",
    [
        *(
            lambda path, kind=kind: Text(path, kind=kind).token_lists()
            for kind in ("tokens", "raw", "lines", "bilm-tf")
        ),
        lambda path: (sentence.tokens for sentence in corpus_rows(Text(path))),
        lambda path: (sentence.tokens for sentence in corpus_rows(Text(path, kind="allennlp"))),
        lambda path: read_corpus_files(Text(path)),
        _trained_on,
        _counted,
    ],
)
def test_every_reader_takes_the_words_of_conllu_and_no_page(
    read: Callable[[Path], Iterable[list[str]]], tmp_path: Path
) -> None:
    path = tmp_path / "text.CoNLLU.gz"
    path.write_bytes(gzip.compress(CONLLU.encode()))
    # bilm-tf and AllenNLP split at no-break spaces; other readers keep the token with its space.
    found = [token for tokens in read(path) for token in tokens]
    assert [piece for token in found for piece in token.split("\u00a0")] == ["do", "n't", "go", "10", "000", "dogs"]
    (tmp_path / "page.txt").write_text("<html>\n<p>The cat</p>\n</html>\n")
    with pytest.raises(TextError, match="looks like HTML"):
        list(read(tmp_path / "page.txt"))


def test_sentences_of_conllu_have_the_lines_of_their_first_words(tmp_path: Path) -> None:
    path = tmp_path / "text.conllu"
    path.write_text(CONLLU, encoding="utf-8")
    assert [(one.line, one) for one in Text(path).sentences()] == [(4, WORDS[0]), (10, WORDS[1])]
    plus = tmp_path / "text.conllup"
    plus.write_text("# global.columns = TAG FORM\nO\tHello\nO\t.\n\nO\tGo\n")
    assert [(one.line, one) for one in Text(plus).sentences()] == [(2, ["Hello", "."]), (5, ["Go"])]
    plus.write_text("# global.columns = FORM ID\ndu\t1-2\nde\t1\nle\t2\n")
    assert list(Text(plus).token_lists()) == [["de", "le"]]
    plus.write_text("# global.columns = TAG LEMMA\nO\tHello\n")
    with pytest.raises(ConfigError, match="no column 'FORM'"):
        list(Text(plus).token_lists())
    path.write_text("".join(f"{number}\t_" + "\t_" * 8 + "\n" for number in (1, 2)))
    with pytest.raises(TextError, match="line 1: all words are '_'"):
        list(Text(path).token_lists())


def test_a_caller_can_accept_a_format_or_select_the_column_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text('{"text": "The cat"}\n')
    assert list(Text(path).numbered_lines(path, formats=[JSON])) == [(1, '{"text": "The cat"}')]
    path.write_text("1\tThe cat\n2\tA dog\n")
    text = Text(path, kind=lambda line: line.split("\t")[1].split())
    assert list(text.token_lists()) == [["The", "cat"], ["A", "dog"]]
    with pytest.raises(TextError, match="looks like a table"):
        list(Text(path).token_lists())


def test_text_for_a_tokenizer_of_elmokit_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text('{"text": "The cat"}\n')
    for tokenization in get_args(Tokenization):
        with pytest.raises(TextError, match="looks like JSON"):
            list(Text(path, kind=get_tokenizer(tokenization)).token_lists())


def test_a_tokenizer_without_a_module_is_named_like_one_of_python(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The cat\n")
    for split, name in ((str.split, "str.split"), (re.compile(" ").split, "Pattern.split")):
        assert Text(tmp_path / "text.txt", kind=split).splitter_name == f"builtins.{name}"


def test_the_surprisal_of_conllu_is_that_of_its_words(model: PretrainedBiLM, tmp_path: Path) -> None:
    (tmp_path / "text.conllu").write_text(CONLLU, encoding="utf-8")
    lm = LanguageModel(model)
    assert lm.perplexity(tmp_path / "text.conllu") == lm.perplexity(WORDS)


def raw_text_warnings(lines: Iterable[str], check: Callable[..., None] = check_tokens) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check("text.txt", map(str.split, lines))
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    "lines",
    [
        ["The cat sat on the mat."],
        ["no mark here", "It rained, so we left."],
        ['He said: "Stop!"'],
        ["Das ist sch\u00f6n, ja?"],
        ["One line.", "Another line.", "A third line.", "A mark , too late ."],
    ],
)
def test_raw_text_is_recognized_by_punctuation_that_is_attached_to_words(lines: list[str]) -> None:
    (message,) = raw_text_warnings(lines)
    assert message.startswith("text.txt looks like raw text: '")
    assert "--raw" in message
    assert not raw_text_warnings(lines, check_split)
    with pytest.raises(TextError, match="--text-kind tokens"):
        check_tokens("text.txt", map(str.split, lines), refuse=True)


@pytest.mark.parametrize(
    "lines",
    [
        ["Mr. Smith of Acme Inc. left ."],
        ["The cat sat on the mat .", "A raw line. Another. And a third."],  # the first one decides
        ["no mark at all", "nor here"],
        ["3.5 % of 1,000"],
        ["a.b x=1; http://example.org/?q=1 @you"],
        ["a word"] * HEAD_LINES + ["dr. who"],
    ],
)
def test_tokenized_text_is_not_taken_for_raw_text(lines: list[str]) -> None:
    assert not raw_text_warnings(lines)


def test_a_single_abbreviation_inside_of_a_sentence_is_not_certain() -> None:
    with pytest.warns(UserWarning, match="looks like raw text"):
        check_tokens("text.txt", [["Mr.", "Smith", "left"]], refuse=True)


def test_no_tokenized_corpus_is_taken_for_raw_text() -> None:
    for path in (SHARED / "data").glob("lm-*/dev.txt.xz"):
        with lzma.open(path, "rt", encoding="utf-8") as file:
            assert not raw_text_warnings(islice(file, HEAD_LINES)), path


def test_a_text_can_have_its_paths_from_an_iterator(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b\n", encoding="utf-8")
    text = Text(iter([tmp_path / "a.txt"]))
    assert [list(sentence) for sentence in text.sentences()] == [["a", "b"]]
    assert [list(sentence) for sentence in replace(text, kind="lines").sentences()] == [["a", "b"]]
