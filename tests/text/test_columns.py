"""Files with one token per line are grouped into sentences, or rejected with file and line."""

from __future__ import annotations

import re
from pathlib import Path

from elmokit.storage.text_files import read_lines
from elmokit.text.columns import ColumnSentence, read_column_sentences, read_table
from elmokit.text.tokenize import split_tokens


def read(text: str, **options: object) -> list[ColumnSentence]:
    lines = enumerate(text.splitlines(), start=1)
    return list(read_column_sentences("file.txt", lines, **options))  # type: ignore[arg-type]


def test_columns_are_separated_by_spaces_or_tabs_and_document_marks_are_skipped() -> None:
    sentences = read("-DOCSTART- -X- O\n\na b  c\n-DOCSTART- -X- O\n\n\nd\u00a0e\tf\tg h\n")
    assert [sentence.rows for sentence in sentences] == [[["a", "b", "c"]], [["d\u00a0e", "f", "g h"]]]
    assert [sentence.where() for sentence in sentences] == ["file.txt, line 3", "file.txt, line 7"]


def test_sentences_may_differ_in_their_number_of_columns_where_the_format_says_so() -> None:
    assert [len(sentence.rows[0]) for sentence in read("a b c\n\nd e\n", same_in_file=False)] == [3, 2]


def test_comments_are_recognized_only_before_a_sentence() -> None:
    sentences = read("# one\na b\n# two\n\n# three\n", comment=re.compile("#"))
    assert [(sentence.first_line, sentence.rows) for sentence in sentences] == [(2, [["a", "b"], ["#", "two"]])]


def test_the_caller_chooses_how_lines_are_split() -> None:
    assert read("a\tb c\n", split=split_tokens)[0].rows == [["a", "b", "c"]]


def test_the_shared_data_is_read_completely(shared: Path) -> None:
    path = shared / "data" / "ner-wikigold" / "dev.conll"
    sentences = list(read_column_sentences(path, enumerate(read_lines(path), start=1)))
    assert (len(sentences), sum(len(sentence.rows) for sentence in sentences)) == (296, 6982)


def test_a_table_is_read_by_its_name_and_its_header(tmp_path: Path) -> None:
    rows = [(2, ["1", 'He said, "go".']), (4, ["2", "two\nlines"])]
    for name, text in (
        ("a.csv", 'item,text\n1,"He said, ""go""."\n\n2,"two\nlines"\n,\n'),
        ("b.csv", '\ufeffitem;text\r\n1;"He said, ""go""."\r\n\r\n2;"two\r\nlines"\r\n'),
        ("c.tsv", 'item\ttext\n1\t"He said, ""go""."\n\n2\t"two\nlines"\n'),
        ("d", 'item\ttext\n1\t"He said, ""go""."\n\n2\t"two\nlines"\n'),
    ):
        (tmp_path / name).write_bytes(text.encode())
        table = read_table(tmp_path / name)
        assert (table.columns, table.rows) == (["item", "text"], rows)
        assert table.column("TEXT") == 1


def test_quotes_that_enclose_no_cell_of_a_table_with_tabs_belong_to_its_text(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('item\ttext\n1\t"Go," he said.\n2\t"One\n3\tTwo"\n')
    assert read_table(tmp_path / "a.tsv").rows == [(2, ["1", '"Go," he said.']), (3, ["2", '"One']), (4, ["3", 'Two"'])]
