from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import sys
from pathlib import Path

import pytest

from elmokit.errors import OutputError, TextError
from elmokit.files import read_lines, split_tokens, written_whole


def test_nothing_is_left_behind_when_writing_fails(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")
    with contextlib.suppress(ZeroDivisionError), written_whole(target, overwrite=True) as path:
        path.write_text("half")
        _ = 1 / 0
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_or_folder_appears_whole(tmp_path: Path) -> None:
    with written_whole(tmp_path / "new" / "out.txt") as path:
        path.write_text("new")
        assert not (tmp_path / "new" / "out.txt").exists()
    assert (tmp_path / "new" / "out.txt").read_text() == "new"
    for content in ("first", "second"):
        with written_whole(tmp_path / "folder", overwrite=True, folder=True) as path:
            (path / "file").write_text(content)
    assert (tmp_path / "folder" / "file").read_text() == "second"


def test_an_existing_output_is_refused_and_untouched(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")
    with pytest.raises(OutputError, match="exists already"), written_whole(target):
        pytest.fail("the block must not run")
    with pytest.raises(OutputError, match="is a file, and a folder"), written_whole(target, True, folder=True):
        pytest.fail("the block must not run")
    assert target.read_text() == "old"


def test_a_place_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Cannot write to"), written_whole(tmp_path / "file" / "out.txt"):
        pytest.fail("the block must not run")


@pytest.mark.parametrize(("suffix", "opener"), [("", open), (".gz", gzip.open), (".xz", lzma.open)])
def test_compressed_and_plain_files_give_the_same_lines(tmp_path: Path, suffix: str, opener: object) -> None:
    path = tmp_path / f"text.txt{suffix}"
    with opener(path, "wb") as file:  # type: ignore[operator]
        file.write("one Ā\r\n\ntwo".encode())
    assert list(read_lines(path)) == ["one Ā", "", "two"]


def test_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    assert list(read_lines("-")) == ["a", "b"]


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_damaged_compressed_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text{suffix}"
    opener = {".gz": gzip.open, ".xz": lzma.open}[suffix]
    with opener(path, "wb") as file:
        file.write(b"some text\n" * 1000)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TextError, match=r"text\.[gx]z: reading stopped"):
        list(read_lines(path))
    path.write_bytes(b"plain text in disguise\n")
    with pytest.raises(TextError, match="reading stopped"):
        list(read_lines(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"Cannot read .*nowhere"):
        list(read_lines(tmp_path / "nowhere"))


def test_tokens_are_split_at_blanks_and_tabs_only() -> None:
    assert split_tokens(" a  b\tc\u00a0d\u3000e ") == ["a", "b", "c\u00a0d\u3000e"]


def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("old")

    def fails(self: Path, target: Path) -> Path:
        raise OSError("no")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OutputError, match="untouched"), written_whole(tmp_path / "folder", True, folder=True) as path:
        (path / "file").write_text("new")
    assert (tmp_path / "folder" / "file").read_text() == "old"
