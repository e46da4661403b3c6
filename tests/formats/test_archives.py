"""Archives: models inside them open; unsound ones give one clear error and write nothing outside."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from elmokit.errors import FormatError, ModelError, ModelNotFoundError, OutputError
from elmokit.formats import archives
from elmokit.formats.archives import is_archive, unpacked_model
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
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def everything_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


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
    assert model.vocabulary is not None
    assert model.vocabulary.words == WORDS
    assert same_weights(model, random_model())
    assert everything_below(tmp_path) == {path}


def test_only_model_files_are_unpacked(tmp_path: Path, files: Files) -> None:
    more = files | {"weights.th": b"x" * 10, "__MACOSX/options.json": b"{}", ".hidden/model.hdf5": b""}
    with unpacked_model(zipped(tmp_path / "a.zip", more)) as archive:
        assert {path.name for path in archive.folder.iterdir()} == set(files) - {"README"}
        assert set(archive.names) == set(more)
        folder = archive.folder
    assert not folder.exists()


def test_a_link_in_a_tar_archive_is_left_out(tmp_path: Path, files: Files) -> None:
    path = tarred(tmp_path / "a.tar", files, "w")
    with tarfile.open(path, "a") as archive:
        member = tarfile.TarInfo("latest")
        member.type, member.linkname = tarfile.SYMTYPE, "model.hdf5"
        archive.addfile(member)
    assert same_weights(open_model(path), random_model())
    assert everything_below(tmp_path) == {path}


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
    with pytest.raises(FormatError, match=r"several ELMo models \(hypothesis\.weight_file, premise\.weight_file\)"):
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
    assert everything_below(tmp_path) == {path.parent, path}
    assert not Path("/tmp/evil.json").exists()


def links(path: Path, kind: bytes) -> Path:
    """A tar archive of one member that is no file."""
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("options.json")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    return path


def zipped_link(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        member = zipfile.ZipInfo("options.json")
        member.external_attr = 0o120777 << 16
        archive.writestr(member, "/etc/passwd")
    return path


def encrypted(path: Path, files: Files) -> Path:
    data = bytearray(zipped(path, files).read_bytes())
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for place in range(len(data) - 10):
            if data[place : place + 4] == signature:
                data[place + at] |= 1
    path.write_bytes(data)
    return path


def forged(path: Path, files: Files, declared: int) -> Path:
    """A zip archive whose headers give another size of the weights."""
    data = bytearray(zipped(path, files, zipfile.ZIP_STORED).read_bytes())
    true = struct.pack("<I", len(files["model.hdf5"]))
    for place in range(len(data) - 30):
        if data[place : place + 4] in (b"PK\x03\x04", b"PK\x01\x02") and b"model.hdf5" in data[place : place + 60]:
            data[place : place + 30] = data[place : place + 30].replace(true, struct.pack("<I", declared))
    path.write_bytes(data)
    return path


def changed(path: Path, change: Callable[[bytes], bytes]) -> Path:
    path.write_bytes(change(path.read_bytes()))
    return path


def cut(share: float) -> Callable[[bytes], bytes]:
    return lambda data: data[: int(len(data) * share)]


def flipped(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 0xFF]) + data[len(data) // 2 + 1 :]


def twice(files: Files) -> Files:
    return {f"{place}/{name}": content for place in ("a", "b") for name, content in files.items()}


def transformer() -> Files:
    contextualizer = {"type": "bidirectional_language_model_transformer", "input_dim": 512}
    config = {"model": {"type": "language_model", "contextualizer": contextualizer}}
    return {"config.json": json.dumps(config).encode(), "weights.th": b"", "vocabulary/tokens.txt": b"the\n"}


REFUSED: list[tuple[Callable[[Path, Files], Path], type[ModelError], str]] = [
    (lambda path, _: links(path, tarfile.SYMTYPE), FormatError, "not a model"),
    (lambda path, _: links(path, tarfile.LNKTYPE), FormatError, "not a model"),
    (lambda path, _: links(path, tarfile.FIFOTYPE), FormatError, "not a model"),
    (lambda path, _: zipped_link(path), FormatError, "archive"),
    (encrypted, FormatError, "archive.*encrypted"),
    (lambda path, files: forged(path, files, 10), FormatError, "archive"),
    (lambda path, files: forged(path, files, 10**6), FormatError, "archive"),
    (lambda path, files: changed(zipped(path, files), cut(0.02)), FormatError, "archive"),
    (lambda path, files: changed(zipped(path, files), cut(0.5)), FormatError, "archive"),
    (lambda path, files: changed(zipped(path, files), flipped), FormatError, "archive"),
    (lambda path, files: changed(tarred(path, files), flipped), FormatError, "archive"),
    (lambda path, files: changed(tarred(path, files), lambda data: data[:-1]), FormatError, "archive"),
    (lambda path, files: changed(tarred(path, files), cut(0.02)), FormatError, "archive"),
    (lambda path, files: changed(tarred(path, files), cut(0.95)), FormatError, "archive"),
    (lambda path, files: changed(tarred(path, files), lambda data: data[:5]), FormatError, "archive"),
    (lambda path, files: zipped(path, twice(files)), FormatError, "2 models, in a, b"),
    (lambda path, files: zipped(path, files | {"options.json": b"{"}), FormatError, "archive/options.json"),
    (lambda path, files: zipped(path, files, without="options.json"), ModelNotFoundError, "archive/options.json"),
    (lambda path, _: zipped(path, {"archive/data.pkl": b""}), FormatError, "PyTorch checkpoint"),
    (lambda path, _: zipped(path, {"a.npy": b""}), FormatError, "NumPy arrays"),
    (lambda path, _: zipped(path, {"chinese/encoder.pkl": b""}), FormatError, "ELMoForManyLangs"),
    (lambda path, _: tarred(path, {"config.json": b"{}", "weights.th": b""}), FormatError, "AllenNLP model"),
    (lambda path, _: tarred(path, transformer()), FormatError, "transformer ELMo.*'original'"),
]


@pytest.mark.parametrize(("write", "error", "name"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_model_is_refused(
    write: Callable[[Path, Files], Path], error: type[ModelError], name: str, files: Files, tmp_path: Path
) -> None:
    path = write(tmp_path / "archive", files)
    with pytest.raises(error, match=name):
        open_model(path)
    assert everything_below(tmp_path) == {path}


def test_a_pickle_in_an_archive_is_never_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "ran"),))  # type: ignore[return-value]

    path = zipped(tmp_path / "a.zip", {"archive/data.pkl": pickle.dumps(Evil())})
    with pytest.raises(FormatError):
        open_model(path)
    assert not (tmp_path / "ran").exists()


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


def test_a_gzip_file_without_a_tar_is_not_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt.gz"
    path.write_bytes(gzip.compress(b"the\n" * 1000))
    assert not is_archive(path)
    with pytest.raises(FormatError, match="gzip file without a tar archive"):
        open_model(path)
