"""What the readers of evaluation data refuse: every error names the file, its line or row, and what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from elmokit.errors import ConfigError, ElmoError, TextError
from elmokit.evaluation.minimal_pairs import read_minimal_pairs, read_published_accuracies
from elmokit.evaluation.sense_files import find_sense_set, read_inventory, read_keys, read_sense_xml
from elmokit.evaluation.similarity import read_scored_pairs
from elmokit.evaluation.tagged import read_columns, read_conllu, read_tagged

Read = Callable[[Path], object]


def minimal_pairs(path: Path) -> object:
    return read_minimal_pairs([path])


def tagged(path: Path, tags: str) -> object:
    return list(read_tagged(path, tags))


def senses(path: Path) -> object:
    return list(read_sense_xml(path))


PAIR = '{"sentence_good": "a", "sentence_bad": "b", "UID": "x", "linguistics_term": "y"}\n'
ACCURACIES = "UID\tlstm\n"
SENTENCE = '<c><sentence id="s1">\n<instance id="a" lemma="b" pos="NOUN">b</instance></sentence></c>'
SIX = (6, 7, 5)
REFUSED: list[tuple[Read, str, str, type[ElmoError], str]] = [
    (minimal_pairs, "x.jsonl", "\n", TextError, "contains no "),
    *(
        (minimal_pairs, "x.jsonl", PAIR + line, TextError, "line 2: expected two sentences, in")
        for line in (
            *("not json", '["a", "b"]', '{"sentence_good": "a"}', '{"sentence_good": "a", "sentence_bad": 1}'),
            *('{"sentence_good": "", "sentence_bad": "b"}', '{"sentence_good": "a", "sentence_bad": " "}'),
        )
    ),
    (minimal_pairs, "x.jsonl", PAIR + PAIR.replace('"y"', '"z"'), TextError, "line 2: the linguistics_term of"),
    (minimal_pairs, "x.tsv", "good\tbad\na\t \n", TextError, "in the columns good and bad"),
    (minimal_pairs, "x.csv", "good,bda\na,b\n", ConfigError, "no column 'bad'; its columns are good, bda"),
    (read_published_accuracies, "x.tsv", "name\tlstm\na\t1\n", ConfigError, "no column 'UID'"),
    (read_published_accuracies, "x.tsv", f"{ACCURACIES}order\t1.01\n", TextError, "line 2: '1.01'"),
    (read_published_accuracies, "x.tsv", f"{ACCURACIES}order\tx\n", TextError, "line 2: 'x'"),
    (senses, "x.data.xml", "<c>\n<sentence></sentense></c>", TextError, "mismatched tag: line 2"),
    (senses, "x.data.xml", "<c>\n<sentence>", TextError, "no element found: line 3"),
    (senses, "x.data.xml", SENTENCE.replace("lemma", "x"), TextError, "sentence s1: expected an <instance>"),
    (senses, "x.data.xml", SENTENCE.replace(">b<", "> <"), TextError, "sentence s1: expected an <instance>"),
    (senses, "x.data.xml", f"<a>{SENTENCE}{SENTENCE}</a>", TextError, "sentence s1: a second instance a"),
    (read_keys, "x.gold.key.txt", "d0.t0 a%1:00:00::\nd0.t1\n", TextError, "line 2: 'd0.t1' has no sense"),
    (read_inventory, "x.tsv", "# nothing\n", TextError, "lists no sense"),
    *(
        (read_inventory, "x.tsv", line, TextError, "line 1: expected lemma, POS and sense keys")
        for line in (
            *("long ADJ long%3:00:01::\n", "long\tADJ\n", "long%9:00:01:: 00001 2 5\n", "  \n", "a\tb\t \n"),
            "long%3:00:01:: 1 ² 0\n",
        )
    ),
    (find_sense_set, "x.data.xml", "", TextError, "no gold keys next to it: expected"),
    (find_sense_set, "x.gold.key.txt", "", TextError, "expected a file *.data.xml"),
    (lambda path: find_sense_set(path.parent), "x.txt", "", TextError, "a directory that contains exactly one"),
    (lambda path: find_sense_set(path.with_name("y.data.xml")), "x.txt", "", TextError, "expected a file"),
    *(
        (read_scored_pairs, "x.csv", f"a,b,1\n{row}\n", TextError, "row 2: expected two sentences and a number")
        for row in ("only one,field", "a,b,c", "a,b,1,more", "a,b,nan", "a,b,inf", " ,b,1", "a, ,1")
    ),
    (read_scored_pairs, "x.csv", "a,b,nan\n", TextError, "row 1: expected two sentences and a number"),  # no header
    (read_scored_pairs, "x.tsv", "a\tb\n", TextError, "row 1: expected two sentences and a number, separated by tabs"),
    (read_scored_pairs, "x.csv", "", TextError, "contains no "),
    (read_scored_pairs, "x.csv", "first,second,score\n", TextError, "contains no "),
    (read_scored_pairs, "x.csv", "a" * 200_000 + ",b,1\n", TextError, "not a CSV file that can be read"),
    (partial(read_scored_pairs, columns=SIX), "x.csv", "a,b,c\n", TextError, "row 1: expected two sentences and a "),
    (partial(read_scored_pairs, columns=(0, 1, 2)), "x.csv", "a,b,1\n", TextError, "in columns 0, 1 and 2"),
    (partial(read_scored_pairs, columns=SIX), "x.csv", "a\tb\tc\t1\t5\td\te\n", TextError, "end in .tsv"),
    (lambda path: list(read_conllu(path)), "x.conllu", "# text\n1\tGo\tVERB\n", TextError, "line 2: 3 columns"),
    (partial(tagged, tags="xpso"), "x.conllu", "1\tGo" + "\t_" * 8, ConfigError, "no column 'xpso'"),
    (partial(tagged, tags="upos"), "x.txt", "a b\n", ConfigError, "'upos'"),
    (partial(tagged, tags="2"), "x.txt", "a b\n\na b c\n", TextError, "line 3: 3 columns, expected 2"),
    (partial(tagged, tags="3"), "x.txt", "a b\n", ConfigError, "has 2 columns, numbered from 1; there is no column 3"),
    (lambda path: list(read_columns(path, words=0)), "x.txt", "a b\n", ConfigError, "there is no column 0"),
]


@pytest.mark.parametrize(("read", "name", "text", "error", "mentioned"), REFUSED, ids=range(len(REFUSED)))
def test_a_file_with_a_mistake_is_refused_by_name(
    read: Read, name: str, text: str, error: type[ElmoError], mentioned: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(error, match=f"^{re.escape(str(tmp_path))}.*{re.escape(mentioned)}"):
        read(tmp_path / name)
