"""Archives: models inside them open; unsound ones give one clear error and write nothing outside."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from elmokit.errors import FormatError, OutputError
from elmokit.formats import archives
from elmokit.formats.archives import unpacked_model
from elmokit.formats.bilm_tf_hdf5 import write_hdf5
from elmokit.formats.open import open_model
from tests.conftest import WORDS, random_model
from tests.helpers.weights import same_weights

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A small model in the layout of the NLPL repository."""
    folder = tmp_path_factory.mktemp("model")
    write_hdf5(random_model(), folder / "options.json", folder / "model.hdf5")
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    meta = {"id": 210, "corpus": "Norwegian Wikipedia", "algorithm": "ELMo"}
    return found | {"vocab.txt": "\n".join(WORDS).encode(), "meta.json": json.dumps(meta).encode(), "README": b"hello"}


def zipped(path: Path, files: Files, compression: int = zipfile.ZIP_DEFLATED, without: str = "") -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            if name != without:
                archive.writestr(name, content)
    return path


def tarred(path: Path, files: Files, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("prefix", ["", "210/"])
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("210.zip", zipped),
        ("210.tar", lambda path, files: tarred(path, files, "w")),
        ("210.tar.gz", tarred),
        ("210.tar.xz", lambda path, files: tarred(path, files, "w:xz")),
    ],
)
def test_a_model_of_the_nlpl_repository_opens_from_its_archive(
    tmp_path: Path, files: Files, name: str, write: Callable[[Path, Files], Path], prefix: str
) -> None:
    path = write(tmp_path / name, {prefix + member: content for member, content in files.items()})
    model = open_model(path)
    assert model.source == path
    assert model.family == "bilm-tf"
    assert model.card["meta"]["corpus"] == "Norwegian Wikipedia"
    assert model.vocabulary.words == WORDS
    assert same_weights(model, random_model())
    assert set(tmp_path.rglob("*")) == {path}


def test_only_model_files_are_unpacked(tmp_path: Path, files: Files) -> None:
    more = files | {"weights.th": b"x" * 10, "__MACOSX/options.json": b"{}", ".hidden/model.hdf5": b""}
    with unpacked_model(zipped(tmp_path / "a.zip", more)) as archive:
        assert {path.name for path in archive.folder.iterdir()} == set(files) - {"README"}
        assert set(archive.names) == set(more)
        folder = archive.folder
    assert not folder.exists()


def test_the_elmo_inside_an_allennlp_archive_opens(tmp_path: Path, files: Files) -> None:
    key = "model.text_field_embedder.token_embedders.elmo."
    content = {
        "config.json": b"{}",
        "weights.th": b"",
        "files_to_archive.json": b"{}",
        f"fta/{key}options_file": files["options.json"],
        f"fta/{key}weight_file": files["model.hdf5"],
    }
    assert open_model(tarred(tmp_path / "model.tar.gz", content)).n_parameters == random_model().n_parameters


def test_an_allennlp_archive_with_one_elmo_twice_opens_and_one_with_two_is_refused(
    tmp_path: Path, files: Files
) -> None:
    other = tmp_path / "other"
    write_hdf5(random_model(seed=1), other / "options.json", other / "model.hdf5")
    content = {"config.json": b"{}", "weights.th": b""}
    for name in ("premise", "hypothesis"):
        content |= {f"fta/{name}.options_file": files["options.json"], f"fta/{name}.weight_file": files["model.hdf5"]}
    assert open_model(tarred(tmp_path / "same.tar.gz", content)).n_parameters == random_model().n_parameters
    content["fta/premise.weight_file"] = (other / "model.hdf5").read_bytes()
    with pytest.raises(FormatError, match=r"has several HDF5 files .*hypothesis\.weight_file, premise\.weight_file"):
        open_model(tarred(tmp_path / "two.tar.gz", content))


@pytest.mark.parametrize(
    "name", ["../evil.json", "/tmp/evil.json", "a/../../evil.json", "C:evil.json", "..\\evil.json"]
)
@pytest.mark.parametrize("write", [zipped, tarred])
def test_a_member_that_leads_outside_is_never_written_there(
    tmp_path: Path, files: Files, name: str, write: Callable[[Path, Files], Path]
) -> None:
    (tmp_path / "inner").mkdir()
    path = write(tmp_path / "inner" / "a", files | {name: b"{}"})
    assert same_weights(open_model(path), random_model())
    assert set(tmp_path.rglob("*")) == {path.parent, path}
    assert not Path("/tmp/evil.json").exists()


@pytest.mark.parametrize("write", [zipped, tarred])
def test_a_disk_without_room_for_the_files_is_named(
    tmp_path: Path, files: Files, write: Callable[[Path, Files], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "archive", files)
    with monkeypatch.context() as patch:
        patch.setattr(archives.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
        with pytest.raises(OutputError, match=r"archive unpacks to .* room for 1,000: set TMPDIR"):
            open_model(path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(OutputError, match=r"archive .*No such file or directory"):
        open_model(path)
