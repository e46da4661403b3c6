from __future__ import annotations

from pathlib import Path

import pytest

from elmokit.storage.whole_files import read_bounded
from elmokit.storage.whole_number import whole_number


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert read_bounded(tmp_path / "file", 3) == b"abc"
    with pytest.raises(ValueError, match="larger than 2 bytes"):
        read_bounded(tmp_path / "file", 2)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), ("9" * 18, 10**18 - 1), ("1" * 19, None), ("1" * 5000, None), ("²", None), ("-1", None)],
    ids=range(7),
)
def test_a_whole_number_has_at_most_18_digits(text: str, number: int | None) -> None:
    assert whole_number(text) == number
