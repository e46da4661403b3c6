"""The table of weight formats, and what all of them have."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from elmokit.errors import FormatError
from elmokit.formats.format import FORMATS, find_format, open_path
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from tests.helpers.every_format import FORMATS as KINDS
from tests.helpers.every_format import write_model
from tests.helpers.weights import same_numbers


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_recognizes_its_own_models(kind: str, tmp_path: Path) -> None:
    path = write_model(kind, tmp_path / "model")
    weight_format = find_format(path)
    assert weight_format.name in (open_path(path).family, "archive")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "zip"])
def test_every_format_opens_from_an_archive_of_its_directory_and_can_be_saved(kind: str, tmp_path: Path) -> None:
    path = write_model(kind, tmp_path / "model")
    folder = path if path.is_dir() else path.parent
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(folder, "published")
    model, packed = open_model(path), open_model(tmp_path / "model.tar.gz")
    save_model(packed, tmp_path / "saved")
    for again in (packed, open_model(tmp_path / "saved")):
        assert same_numbers(again, model)
        assert (again.config, again.lexicon, again.card) == (model.config, model.lexicon, model.card)
        assert (again.vocabulary is None) == (model.vocabulary is None)
        assert again.vocabulary is None or again.vocabulary.words == model.vocabulary.words
    assert (packed.family, packed.source) == (model.family, tmp_path / "model.tar.gz")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "zip"])
def test_hidden_files_of_a_mac_beside_the_files_of_a_model_change_nothing(kind: str, tmp_path: Path) -> None:
    path = write_model(kind, tmp_path / "model")
    folder = path if path.is_dir() else path.parent
    expected = {name: array.copy() for name, array in open_model(folder).arrays.items()}
    for file in [file for file in folder.rglob("*") if file.is_file()]:
        file.with_name(f"._{file.name}").write_bytes(b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X")
    opened = open_model(folder).arrays
    assert opened.keys() == expected.keys()
    assert all((opened[name] == expected[name]).all() for name in expected)


def test_the_error_about_another_path_lists_every_format(tmp_path: Path) -> None:
    with pytest.raises(FormatError) as error:
        open_model(tmp_path)
    assert all(weight_format.description in str(error.value) for weight_format in FORMATS)


def test_odd_paths_are_of_no_format() -> None:
    for name in ("x" * 5000, "a\0b", "/"):
        assert find_format(Path(name)) is None


def test_the_included_model_opens_without_the_modules_of_other_formats() -> None:
    code = "import sys; from elmokit import open_model; open_model(); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "elmokit.formats.folder" in ran.stdout.split()
    others = {f"elmokit.formats.{module}" for module in FORMATS.modules} - {"elmokit.formats.folder"}
    assert not others & set(ran.stdout.split())
