from __future__ import annotations

from pathlib import Path

import pytest

from elmokit.errors import OutputError
from elmokit.storage.table_file import open_table, write_table

ROWS = [{"word": 'say "a,\tb"', "nats": 1.5, "unknown": True}, {"word": "c\rd", "nats": None, "unknown": False}]


@pytest.mark.parametrize(
    ("name", "is_quoted", "expected"),
    [
        ("t.csv", True, 'word,nats,unknown\n"say ""a,\tb""",1.500000,1\nc\\rd,,0\n'),
        ("t.tsv", True, 'word\tnats\tunknown\n"say ""a,\tb"""\t1.500000\t1\nc\\rd\t\t0\n'),
    ],
)
def test_a_table_names_its_columns_and_quotes_its_cells(
    name: str, is_quoted: bool, expected: str, tmp_path: Path
) -> None:
    write_table(ROWS, tmp_path / name, is_quoted=is_quoted)
    assert (tmp_path / name).read_bytes() == expected.encode()
    with pytest.raises(OutputError, match=name):
        write_table(ROWS, tmp_path / name)


def test_cells_that_are_not_quoted_are_written_as_they_are(tmp_path: Path) -> None:
    with open_table(tmp_path / "t.csv") as table:
        table.write({"token": '"', "nats": 0.25})
    assert (tmp_path / "t.csv").read_text() == 'token\tnats\n"\t0.250000\n'
    write_table([], tmp_path / "empty.tsv")
    assert (tmp_path / "empty.tsv").read_text() == ""
