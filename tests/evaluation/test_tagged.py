from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.evaluation.tagged import TaggedSentence, read_columns, read_conllu, read_tagged
from elmokit.text.tokenize import split_tokens

TAIL = "\t_" * 5
TREE = (
    f"# sent_id = 1\n1-2\tdon't\t_\t_\t_{TAIL}\n1\tdo\t_\tAUX\tVBP{TAIL}\n2\tn't\t_\tPART\tRB{TAIL}\n"
    f"2.1\tx\t_\tX\tX{TAIL}\n\n\n1\tGo\t_\tVERB\t_{TAIL}\n"
)
Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def text(name: str, content: str) -> Path:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return path

    return text


def test_conllu_is_read_without_multiword_tokens_and_empty_nodes(write: Write) -> None:
    path = write("text.conllu", TREE)
    assert list(read_conllu(path)) == [
        TaggedSentence(["do", "n't"], ["AUX", "PART"]),
        TaggedSentence(["Go"], ["VERB"]),
    ]


def test_conllu_gives_the_chosen_column_and_none_for_empty_cells(write: Write) -> None:
    path = write("text.conllu", TREE)
    assert [sentence.tags for sentence in read_tagged(path, "xpos")] == [["VBP", "RB"], [None]]


def test_conllu_plus_names_its_own_columns(write: Write) -> None:
    path = write("text.conllup", "# global.columns = FORM NER\n# text\nOslo\tLOC\n#\tO\n\n# text\nGo\tO\n")
    assert list(read_tagged(path, "NER")) == [
        TaggedSentence(["Oslo", "#"], ["LOC", "O"]),  # a word may look like a comment, but for the first
        TaggedSentence(["Go"], ["O"]),
    ]


def test_columns_are_split_at_spaces_and_tabs_and_document_lines_skipped(write: Write) -> None:
    path = write("eng.train", "-DOCSTART- -X- -X- O\n\nMira NNP I-NP  I-PER\nran\tVBD I-VP O\n \nOslo NNP I-NP I-LOC\n")
    assert list(read_tagged(path)) == [
        TaggedSentence(["Mira", "ran"], ["NNP", "VBD"]),
        TaggedSentence(["Oslo"], ["NNP"]),
    ]
    assert [sentence.tags for sentence in read_tagged(path, "4")] == [["I-PER", "O"], ["I-LOC"]]
    assert [sentence.words for sentence in read_tagged(path, "1", words=2)] == [["NNP", "VBD"], ["NNP"]]


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
