from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elmokit.errors import ConfigError, MissingExtraError, OutputError, TextError
from elmokit.storage.atomic import atomic_write, check_output_path, recover_interrupted
from elmokit.storage.text_files import (
    MAX_LINE_BYTES,
    check_input_file,
    expand_user,
    find_text_files,
    read_lines,
    read_lines_like_python,
    read_text,
)
from elmokit.text.text import Text

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

OPENERS = {"": open, ".gz": gzip.open, ".xz": lzma.open, ".zst": zstd.open}


def test_nothing_is_left_when_writing_fails(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")
    with contextlib.suppress(ZeroDivisionError), atomic_write(target, overwrite=True) as path:
        path.write_text("half")
        _ = 1 / 0
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_or_directory_appears_complete(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "new" / "out.txt") as path:
        path.write_text("new")
        assert not (tmp_path / "new" / "out.txt").exists()
    assert (tmp_path / "new" / "out.txt").read_text() == "new"
    for content in ("first", "second"):
        with atomic_write(tmp_path / "folder", overwrite=True, folder=True) as path:
            (path / "file").write_text(content)
    assert (tmp_path / "folder" / "file").read_text() == "second"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_an_output_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, move = os.fsync, Path.replace

    def record_sync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def record_move(path: Path, target: Path) -> Path:
        events.append(f"rename {path.name}")
        return move(path, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_move)
    with atomic_write(tmp_path / "new" / "file") as path:
        path.write_text("content")
    assert events == [tmp_path.name, "file", "rename file", "new"]
    events.clear()
    with atomic_write(tmp_path / "folder", folder=True) as path:
        (path / "inner").mkdir()
        (path / "inner" / "deep").write_text("content")
    assert events[-2:] == ["rename folder", tmp_path.name]
    assert sorted(events[:-2]) == ["deep", "folder", "inner"]


@pytest.mark.parametrize("name", ["n" * 255, "\u6f22" * 85], ids=["letters", "three bytes each"])
def test_an_output_can_have_the_longest_name(tmp_path: Path, name: str) -> None:
    with atomic_write(tmp_path / name) as temporary:
        temporary.write_text("content")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_directory_with_the_longest_name_is_restored_after_a_kill(tmp_path: Path) -> None:
    folder, script = tmp_path / ("n" * 255), tmp_path / "script.py"
    folder.mkdir()
    (folder / "content").write_text("old")
    script.write_text(
        "import os, sys, pathlib\n"
        "from elmokit.storage.atomic import atomic_write\n"
        "pathlib.Path.replace = lambda *_: os._exit(9)  # between the two renames\n"
        "with atomic_write(sys.argv[1], overwrite=True, folder=True):\n"
        "    pass\n"
    )
    assert subprocess.run([sys.executable, str(script), str(folder)], check=False).returncode == 9
    script.unlink()
    assert not folder.exists()
    recover_interrupted(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert (folder / "content").read_text() == "old"


def test_a_hidden_directory_of_the_user_is_kept(tmp_path: Path) -> None:
    backup = tmp_path / ".backup.20261126"
    backup.mkdir()
    (backup / "notes.txt").write_text("mine")
    recover_interrupted(tmp_path)
    assert (backup / "notes.txt").read_text() == "mine"


def _a_model_with_notes(path: Path) -> None:
    path.mkdir()
    (path / "config.json").touch()
    (path / "notes.md").touch()


@pytest.mark.parametrize(
    ("make", "settings", "mentions"),
    [
        (Path.touch, {}, "already exists"),
        (Path.touch, {"overwrite": True, "folder": True}, "is a file"),
        (Path.mkdir, {"overwrite": True}, "is a directory"),
        (os.mkfifo, {"overwrite": True}, "a pipe"),
        (_a_model_with_notes, {"overwrite": True, "folder": True, "parts": ["*.json"]}, r"notes\.md"),
    ],
)
def test_an_output_replaces_nothing_else(
    tmp_path: Path, make: Callable[[Path], object], settings: dict[str, Any], mentions: str
) -> None:
    make(tmp_path / "out")
    with pytest.raises(OutputError, match=rf"out .*{mentions}"):
        check_output_path(tmp_path / "out", **{"overwrite": False, **settings})
    if "parts" not in settings:
        with pytest.raises(OutputError, match=mentions), atomic_write(tmp_path / "out", **settings):
            pytest.fail("the block must not run")


def test_a_directory_of_known_parts_can_be_overwritten(tmp_path: Path) -> None:
    _a_model_with_notes(tmp_path / "out")
    check_output_path(tmp_path / "out", overwrite=True, folder=True, parts=["*.json", "notes.md"])


def test_a_location_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"out\.txt"), atomic_write(tmp_path / "file" / "out.txt"):
        pytest.fail("the block must not run")


def test_the_longest_line_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"short\n" + b"x" * (MAX_LINE_BYTES + 1))
    lines = read_lines(path)
    assert next(lines) == "short"
    with pytest.raises(TextError, match=r"line 2 .*ELMOKIT_MAX_LINE_BYTES"):
        next(lines)
    monkeypatch.setenv("ELMOKIT_MAX_LINE_BYTES", str(MAX_LINE_BYTES + 1))
    assert [len(line) for line in read_lines(path)] == [5, MAX_LINE_BYTES + 1]
    monkeypatch.setenv("ELMOKIT_MAX_LINE_BYTES", "3")
    path.write_text("abc\nabc")
    assert list(read_lines(path)) == ["abc", "abc"]
    for value in ("0", "-1", "many"):
        monkeypatch.setenv("ELMOKIT_MAX_LINE_BYTES", value)
        with pytest.raises(ConfigError, match="ELMOKIT_MAX_LINE_BYTES"):
            list(read_lines(path))


@pytest.mark.parametrize("suffix", OPENERS)
def test_compressed_and_plain_files_give_the_same_lines(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text.txt{suffix}"
    for part in ("one Ā\r\n", "\ntwo"):  # two pieces, as programs that add to a compressed file write them
        with OPENERS[suffix](path, "ab") as file:  # type: ignore[operator]
            file.write(part.encode())
    assert list(read_lines(path)) == ["one Ā", "", "two"]


@pytest.mark.parametrize("suffix", OPENERS)
def test_progress_adds_up_to_the_size_on_disk(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text.txt{suffix}"
    with OPENERS[suffix](path, "wb") as file:  # type: ignore[operator]
        # Since Python 3.12, gzip reads 128 KiB of the compressed file at once; these are 250.
        file.write(b"".join(b"%d\n" % (number * 7919 % 100_003) for number in range(100_000)))
    steps: list[int] = []
    assert sum(1 for _ in read_lines(path, steps.append)) == 100_000
    assert sum(steps) == path.stat().st_size
    assert sum(step > 0 for step in steps) > 1


def test_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    assert list(read_lines("-")) == ["a", "b"]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_damaged_compressed_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text{suffix}"
    with OPENERS[suffix](path, "wb") as file:  # type: ignore[operator]
        file.write(b"some text\n" * 1000)
    for content in (path.read_bytes()[:-20], b"plain text in disguise\n"):
        path.write_bytes(content)
        with pytest.raises(TextError, match=rf"text\{suffix} "):
            list(read_lines(path))


REFUSED_TEXTS = [  # the content, and what the error says about it
    (b"fine\ncaf\xe9\n", "not UTF-8 .* at byte .*Save it as UTF-8"),
    (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0", "not UTF-8"),
    ("The cat sat .\n".encode("utf-16"), "not UTF-8"),
    (b"The cat\0 sat .\n", "line 1: NUL character; is it UTF-16"),
    (b"The cat .\nA\0 dog .\n", "line 2: NUL character"),
    ("The cat sat .\n".encode("utf-16-le"), "NUL character; is it UTF-16"),
    ("The cat sat .\n".encode("utf-16-be"), "NUL character; is it UTF-16"),
    (gzip.compress(b"some text\n"), r"gzip.*\.gz"),
    (lzma.compress(b"some text\n"), r"xz.*\.xz"),
    (zstd.compress(b"some text\n"), r"zstd.*\.zst"),
    (bz2.compress(b"some text\n"), "bzip2"),
    (b"PK\x03\x04\x14\0", r"ZIP.*\.docx"),
    (b"%PDF-1.4\n", "PDF"),
    (b"{\\rtf1\\ansi The cat}\n", "RTF"),
    (b"\xd0\xcf\x11\xe0\xa1", "Office"),
]


@pytest.mark.parametrize(("content", "mentions"), REFUSED_TEXTS, ids=range(len(REFUSED_TEXTS)))
def test_what_is_no_text_in_utf_8_is_refused_by_name(tmp_path: Path, content: bytes, mentions: str) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    for read in (lambda: list(Text(path).token_lists()), lambda: read_text(path)):
        with pytest.raises(TextError, match=rf"text\.txt.* {mentions}") as error:
            read()
        assert "\n" not in str(error.value)


def test_the_line_ends_of_old_macs_and_a_text_in_one_line_are_told_with_their_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text.txt"
    for content in (b"The cat sat .\rA dog .\r", b"a\tb\rc\td"):
        path.write_bytes(content)
        with pytest.raises(TextError, match=r"text.txt has the line ends of old Macs .*tr '\\r' '\\n'"):
            list(read_lines(path))
        assert list(read_lines_like_python(path)) == content.decode().removesuffix("\r").split("\r")
    for content in (b"The cat\r sat .\nA dog .\r\r\n", b"One line .\r"):
        path.write_bytes(content)
        assert len(list(read_lines(path))) == content.count(b"\n") or 1
    monkeypatch.setenv("ELMOKIT_MAX_LINE_BYTES", "20")
    for content, cure in ((b"word " * 10, "fold -s -w 1000"), (b"The cat .\r" * 5, "tr ")):
        path.write_bytes(content)
        with pytest.raises(TextError, match=rf"line 1 is longer than 20 bytes.*{cure}"):
            list(read_lines(path))


def test_the_place_of_a_wrong_byte_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"fine\ncaf\xe9\n")
    with pytest.raises(TextError, match=r"line 2: .*byte 3"):
        list(read_lines(path))
    with pytest.raises(TextError, match="byte 8"):
        read_text(path)


def test_a_carriage_return_inside_a_line_ends_it_only_for_bilm_tf(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"The ca\rt .\r\n")
    assert list(read_lines(path)) == ["The ca\rt ."]
    assert list(read_lines_like_python(path)) == ["The ca", "t ."]


def test_a_directory_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("old")

    def fails(self: Path, target: Path) -> Path:
        raise OSError("no")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OutputError, match="folder"), atomic_write(tmp_path / "folder", True, folder=True) as path:
        (path / "file").write_text("new")
    assert (tmp_path / "folder" / "file").read_text() == "old"


def test_zstandard_without_its_extra_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, zstd.__name__, None)
    if parent := sys.modules.get("backports"):
        monkeypatch.delattr(parent, "zstd", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install '(elmokit|\.)\[zstd\]'"):
        list(read_lines(tmp_path / "text.txt.zst"))


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with texts and other files in two folders."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.txt", "a.txt", "c/d.txt.gz", "c/e.txt.zst", "c/.hidden.txt", ".git/x.txt", "notes.md", "c/f.gz"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("the cat\n")
    Path("empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["b.txt", "a.txt"], ["b.txt", "a.txt"]),
        (["notes.md"], ["notes.md"]),
        (["."], ["a.txt", "b.txt", "c/d.txt.gz", "c/e.txt.zst"]),
        (["*.txt"], ["a.txt", "b.txt"]),
        (["**/*.gz"], ["c/d.txt.gz", "c/f.gz"]),
        (["*"], ["a.txt", "b.txt", "c/d.txt.gz", "c/e.txt.zst", "notes.md"]),
        (["c", "-", "c/d*", "./c/../a.txt", "a.txt", "-"], ["c/d.txt.gz", "c/e.txt.zst", "-", "c/../a.txt"]),
    ],
)
def test_texts_are_found_once_by_name_directory_and_pattern(
    corpus: Path, names: list[str], expected: list[str]
) -> None:
    assert [str(path) for path in find_text_files(names)] == expected


def test_the_suffix_of_a_text_may_be_in_capitals(corpus: Path) -> None:
    Path("empty/BOOK.TXT").write_text("the cat\n")
    for suffix in (".GZ", ".Xz", ".ZST"):
        with OPENERS[suffix.lower()](f"empty/more.Txt{suffix}", "wb") as file:  # type: ignore[operator]
            file.write(b"the dog\n")
    found = find_text_files("empty")
    assert [path.name for path in found] == ["BOOK.TXT", "more.Txt.GZ", "more.Txt.Xz", "more.Txt.ZST"]
    assert [line for path in found for line in read_lines(path)] == ["the cat", *["the dog"] * 3]
    assert read_text(found[1]) == "the dog\n"


def test_one_path_need_not_be_in_a_list(corpus: Path) -> None:
    for path in ("c", Path("c"), "a*"):
        assert find_text_files(path) == find_text_files([path])


def test_a_file_with_pattern_characters_in_its_name_is_found_by_its_name(corpus: Path) -> None:
    Path("a[1].txt").write_text("the cat\n")
    assert find_text_files(["a[1].txt"]) == [Path("a[1].txt")]


@pytest.mark.parametrize(
    ("name", "mentions"),
    [
        ("nowhere", "'nowhere'"),
        ("", "''"),
        ("x*", r"'x\*'"),
        ("empty", r"directory empty .*\*\.txt"),
        ("empt*", r"'empt\*'"),
        ("~nosuchuser/x.txt", "~nosuchuser"),
    ],
)
def test_names_without_a_text_are_rejected(corpus: Path, name: str, mentions: str) -> None:
    with pytest.raises(TextError, match=mentions):
        find_text_files(["a.txt", name])
    with pytest.raises(OutputError, match="~nosuchuser"):
        expand_user("~nosuchuser/x", OutputError)


def test_a_pipe_is_rejected_where_the_text_is_read_twice(corpus: Path) -> None:
    os.mkfifo("pipe")
    assert find_text_files(["pipe", "-"]) == [Path("pipe"), Path("-")]
    for name, what in (("-", "Standard input"), ("pipe", "pipe")):
        with pytest.raises(TextError, match=what):
            find_text_files(["a.txt", name], reread=True)


def test_a_text_without_a_sentence_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text.txt"
    path.write_text("the cat\n\n sat\n")
    assert list(Text(path).token_lists()) == [["the", "cat"], ["sat"]]
    for content in ("", "\n \n\t\n"):
        path.write_text(content)
        with pytest.raises(TextError, match=r"text\.txt contains no sentence"):
            list(Text(path).token_lists())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(TextError, match="Standard input contains no sentence"):
        list(Text("-").token_lists())


def test_an_input_must_exist_and_not_be_the_output(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    with pytest.raises(TextError, match=r"text\.txt"):
        list(read_lines(text))
    with pytest.raises(TextError, match=r"text\.txt"):
        check_input_file(text, tmp_path / "out")
    text.touch()
    check_input_file(text, tmp_path / "out")
    check_input_file("-", tmp_path / "out")
    with pytest.raises(TextError, match="directory"):
        check_input_file(tmp_path, tmp_path / "out")
    (tmp_path / "link").symlink_to(text)
    with pytest.raises(OutputError, match="link is both"):
        check_input_file(text, tmp_path / "link")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text.txt{suffix}"
    data = "\ufeffthe größe\n\ufeffsat\n".encode()
    path.write_bytes(gzip.compress(data) if suffix else data)
    assert list(read_lines(path)) == ["the größe", "\ufeffsat"]
    assert read_text(path) == "the größe\n\ufeffsat\n"
