"""What commands do with files that are there, and what they say about what they left out or wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from elmokit.cli.main import _format_warning
from elmokit.formats.save import save_model
from tests.conftest import random_model
from tests.helpers.paths import ROOT
from tests.helpers.shell import Shell

EXAMPLES = ROOT / "examples"


def test_an_output_over_a_link_replaces_the_file_behind_it_and_keeps_its_mode(shell: Shell) -> None:
    Path("elsewhere").mkdir()
    for number, name in enumerate(("elsewhere/table.tsv", "elsewhere/vectors.hdf5")):
        Path(name).write_text("old")
        Path(name).chmod(0o640)
        Path(f"link-{number}").symlink_to(name)
    assert shell("surprisal", "text.txt", "--model", "model", "--out", "link-0", "--overwrite").code == 0
    assert shell("embed", "text.txt", "link-1", "--model", "model", "--overwrite").code == 0
    assert Path("link-0").is_symlink()
    assert Path("elsewhere/table.tsv").read_text().startswith("sentence_index\t")
    assert Path("link-1").is_symlink()
    with h5py.File("elsewhere/vectors.hdf5") as file:
        assert "0" in file
    for name in ("elsewhere/table.tsv", "elsewhere/vectors.hdf5"):
        assert Path(name).stat().st_mode & 0o777 == 0o640


def test_a_carriage_return_in_a_token_ends_no_row(shell: Shell) -> None:
    Path("inside.txt").write_bytes(b"The ca\rt sat .\nA dog ran .\n")
    ran = shell("surprisal", "inside.txt", "--model", "model")
    assert [line.count("\t") for line in ran.out.splitlines()] == [6] * 13
    assert "ca\\rt" in ran.out


def test_words_that_a_vocabulary_file_cannot_hold_are_named(shell: Shell) -> None:
    Path("french.txt").write_text("Oui\u00a0! dit \u00a0: il\n", encoding="utf-8")
    ran = shell("vocab", "french.txt", "words.txt")
    assert ran.code == 0
    assert r"Left out 1 word with white space at the beginning or end, such as '\xa0:'" in ran.err
    ran = shell("vocab", "words.txt", "same.txt", "--repair")
    assert "wrote same.txt, with the same words" in ran.err


def test_an_index_reads_annotated_files_of_a_directory_and_warns_of_raw_text(shell: Shell) -> None:
    ran = shell("neighbors", "index", str(EXAMPLES / "understand"), "index", "--model", "model")
    assert ran.code == 0, ran.err
    n_tokens = int(ran.err.split(" sentences, ")[1].split(" tokens")[0].replace(",", ""))
    assert n_tokens > 50
    Path("raw.txt").write_text("The cat sat on the mat.\nThe dog ran away.\nHe saw it, too.\n")
    with pytest.warns(UserWarning, match=r"raw\.txt looks like raw text"):
        assert shell("neighbors", "index", "raw.txt", "other", "--model", "model").code == 0


def test_dumped_weights_replace_hdf5_files_alone(shell: Shell, bilm_tf_run: Path) -> None:
    Path("notes.txt").write_text("mine")
    ran = shell("bilm-tf", "dump_weights", "--save_dir", str(bilm_tf_run), "--outfile", "notes.txt")
    assert ran.code == 2
    assert "notes.txt" in ran.err
    assert Path("notes.txt").read_text() == "mine"
    for _ in range(2):
        ran = shell("bilm-tf", "dump_weights", "--save_dir", str(bilm_tf_run), "--outfile", "w.hdf5")
        assert ran.code == 0, ran.err
    assert "wrote w.hdf5 and w_options.json" in ran.err


def test_empty_texts_are_reported(shell: Shell) -> None:
    Path("empty.txt").touch()
    ran = shell("embed", "empty.txt", "x.hdf5", "--model", "model")
    assert ran.code == 0
    assert "empty.txt is empty, so x.hdf5 has no vectors." in ran.err


def test_commands_work_with_a_closed_standard_error(tmp_path: Path) -> None:
    save_model(random_model(), tmp_path / "model")
    (tmp_path / "text.txt").write_text("the cat sat .\n")
    command = f"{sys.executable} -m elmokit embed text.txt x.hdf5 --model model 2>&-"
    ran = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert (tmp_path / "x.hdf5").exists()


def test_a_warning_is_shown_once() -> None:
    shown: set[str] = set()
    texts = ("shown once", "other", "shown once")
    lines = [_format_warning(UserWarning(text), UserWarning, "", 0, shown=shown) for text in texts]
    assert lines == ["elmokit: warning: shown once\n", "elmokit: warning: other\n", ""]
