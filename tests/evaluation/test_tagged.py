from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.evaluation.tagged import read_columns, read_tagged
from elmokit.text.tokenize import split_tokens

TAIL = "\t_" * 5
TREE = (
    f"# sent_id = 1\n1-2\tdon't\t_\t_\t_{TAIL}\n1\tdo\t_\tAUX\tVBP{TAIL}\n2\tn't\t_\tPART\tRB{TAIL}\n"
    f"2.1\tx\t_\tX\tX{TAIL}\n\n\n1\tGo\t_\tVERB\t_{TAIL}\n"
)
COLUMNS = "-DOCSTART- -X- -X- O\n\nMira NNP I-NP  I-PER\nran\tVBD I-VP O\n \nOslo NNP I-NP I-LOC\n"
OWN_COLUMNS = "# global.columns = FORM NER\n# text\nOslo\tLOC\n#\tO\n\n# text\nGo\tO\n"
# A file, what is read from it, and the words with their tags: multiword tokens and empty nodes are left out.
READ: list[tuple[str, str, dict[str, Any], list[list[tuple[str, str | None]]]]] = [
    ("text.conllu", TREE, {}, [[("do", "AUX"), ("n't", "PART")], [("Go", "VERB")]]),
    ("text.conllu", TREE, {"tags": "xpos"}, [[("do", "VBP"), ("n't", "RB")], [("Go", None)]]),
    # A word may look like a comment, but for the first.
    ("text.conllup", OWN_COLUMNS, {"tags": "NER"}, [[("Oslo", "LOC"), ("#", "O")], [("Go", "O")]]),
    ("eng.train", COLUMNS, {}, [[("Mira", "NNP"), ("ran", "VBD")], [("Oslo", "NNP")]]),
    ("eng.train", COLUMNS, {"tags": "4"}, [[("Mira", "I-PER"), ("ran", "O")], [("Oslo", "I-LOC")]]),
    ("eng.train", COLUMNS, {"tags": "1", "words": 2}, [[("NNP", "Mira"), ("VBD", "ran")], [("NNP", "Oslo")]]),
]


@pytest.mark.parametrize(("name", "content", "settings", "expected"), READ)
def test_the_chosen_columns_of_each_format_are_read(
    name: str, content: str, settings: dict[str, Any], expected: list[list[tuple[str, str | None]]], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    found = read_tagged(tmp_path / name, **settings)
    assert [list(zip(sentence.words, sentence.tags, strict=True)) for sentence in found] == expected


WORD = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1).filter(
    lambda word: split_tokens(word) == [word] and word != "-DOCSTART-"
)


@given(st.lists(st.lists(st.tuples(WORD, WORD), min_size=1), max_size=4))
def test_columns_survive_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[tuple[str, str]]]
) -> None:
    path = tmp_path_factory.mktemp("columns") / "text.txt"
    content = "\n".join("".join(f"{word} {tag}\n" for word, tag in sentence) for sentence in sentences)
    path.write_text(content, encoding="utf-8", newline="\n")
    assert [list(zip(s.words, s.tags, strict=True)) for s in read_columns(path)] == sentences
