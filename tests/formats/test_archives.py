"""Archives: models inside them open; unsound ones give one clear error and write nothing outside."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import subprocess
import sys
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


def zipped(path: Path, files: Files, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
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


def test_an_allennlp_archive_without_an_elmo_is_reported(tmp_path: Path) -> None:
    path = tarred(tmp_path / "model.tar.gz", {"config.json": b"{}", "weights.th": b""})
    with pytest.raises(FormatError, match="AllenNLP model"):
        open_model(path)


@pytest.mark.parametrize("is_archive", [True, False])
def test_the_transformer_elmo_of_allennlp_is_named_with_what_to_use_instead(tmp_path: Path, is_archive: bool) -> None:
    contextualizer = {"type": "bidirectional_language_model_transformer", "input_dim": 512}
    config = json.dumps({"model": {"type": "language_model", "contextualizer": contextualizer}}).encode()
    path = tmp_path / "model"
    if is_archive:
        tarred(path, {"config.json": config, "weights.th": b"", "vocabulary/tokens.txt": b"the\n"})
    else:
        path.mkdir()
        (path / "config.json").write_bytes(config)
        (path / "weights.th").touch()
    with pytest.raises(
        FormatError, match=r"AllenNLP's transformer ELMo.* Use AllenNLP 0\.9 for it, or open 'original'"
    ):
        open_model(path)


def test_the_parameters_of_gluonnlp_are_named_with_what_to_open_instead(tmp_path: Path) -> None:
    path = tmp_path / "elmo_2x1024_128_2048cnn_1xhighway-gbw.params"
    path.write_bytes(struct.pack("<QQQ", 0x112, 0, 3) + bytes(100))
    with pytest.raises(FormatError, match=r"GluonNLP's ELMo.* open 'small', 'medium', 'original'"):
        open_model(path)


@pytest.mark.parametrize(
    "name", ["../evil.json", "/tmp/evil.json", "a/../../evil.json", "C:evil.json", "..\\evil.json"]
)
@pytest.mark.parametrize("write", [zipped, tarred])
def test_a_member_that_leads_outside_is_refused(
    tmp_path: Path, files: Files, name: str, write: Callable[[Path, Files], Path]
) -> None:
    (tmp_path / "inner").mkdir()
    path = write(tmp_path / "inner" / "a", files | {name: b"{}"})
    with pytest.raises(FormatError, match="outside the directory"):
        open_model(path)
    assert everything_below(tmp_path) == {path.parent, path}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_a_link_or_device_in_a_tar_is_refused(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("options.json")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(FormatError, match="link or a device"):
        open_model(path)


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        member = zipfile.ZipInfo("options.json")
        member.external_attr = 0o120777 << 16
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(FormatError, match="is a link"):
        open_model(tmp_path / "a.zip")


@pytest.mark.parametrize("write", [zipped, tarred])
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, write: Callable[[Path, Files], Path]) -> None:
    path = write(tmp_path / "a", {"model.hdf5": bytes(8 << 20), "options.json": b"{}"})
    assert path.stat().st_size < 40_000
    with pytest.raises(FormatError, match="more than an archive of weights can"):
        open_model(path)


def test_a_tar_member_that_declares_a_terabyte_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("model.hdf5")
    member.size = 10**12
    (tmp_path / "a.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(FormatError, match="more than an archive of weights can"):
        open_model(tmp_path / "a.tar")


def test_a_zip_member_without_a_name_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x", "text")
    (tmp_path / "a.zip").write_bytes((tmp_path / "a.zip").read_bytes().replace(b"x", b"\0"))  # the name ends there
    with pytest.raises(FormatError, match="has no name"):
        open_model(tmp_path / "a.zip")


def test_a_tar_header_whose_text_has_a_huge_length_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("x")
    text = b"%d path=x\n" % 10**30
    member.type, member.size = tarfile.XHDTYPE, len(text)
    (tmp_path / "a.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + text.ljust(512, b"\0") + bytes(1024))
    with pytest.raises(FormatError):
        open_model(tmp_path / "a.tar")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_tar_header_that_declares_a_terabyte_of_text_is_refused(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, 10**12
    (tmp_path / "a.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(FormatError, match="bytes of text"):
        open_model(tmp_path / "a.tar")


def sparse_tar(kind: str) -> bytes:
    """The start of a tar whose first member is a sparse file with a million holes, in one of the four layouts."""
    member = tarfile.TarInfo("model.hdf5")
    if kind == "old":
        member.type, member.size = tarfile.GNUTYPE_SPARSE, 512
        block = b"%011o\0%011o\0" % (1, 1) * 21
        header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
        header[482] = 1  # more of the list follows
        header[148:156] = b"%06o\0 " % (sum(header[:148]) + 256 + sum(header[156:512]))
        return bytes(header) + (block + b"\1" + bytes(7)) * 48_000
    headers = {
        "0.0": {"GNU.sparse.size": "1"},
        "0.1": {"GNU.sparse.map": "0,1"},
        "1.0": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"},
    }
    member.pax_headers = headers[kind]
    member.size = 16 << 20
    return member.tobuf(tarfile.PAX_FORMAT) + b"8000000\n" + b"1\n" * (8 << 20)


@pytest.mark.parametrize("kind", ["old", "0.0", "0.1", "1.0"])
def test_a_sparse_file_in_a_tar_is_refused_before_its_holes_are_listed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(sparse_tar(kind)))
    assert path.stat().st_size < 150_000
    script = (
        "import pathlib, sys; from elmokit.formats.archives import unpacked_model; "
        "unpacked_model(pathlib.Path(sys.argv[1])).__enter__()"
    )
    ended = subprocess.run([sys.executable, "-c", script, path], timeout=20, capture_output=True, text=True)
    assert "FormatError: The member" in ended.stderr
    assert "is stored as a sparse file" in ended.stderr


@pytest.mark.parametrize("declared", [10, 10**6])
def test_a_zip_member_with_a_forged_size_is_refused(tmp_path: Path, files: Files, declared: int) -> None:
    path = zipped(tmp_path / "a.zip", files, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    true = struct.pack("<I", len(files["model.hdf5"]))
    for place in range(len(data) - 30):
        if data[place : place + 4] in (b"PK\x03\x04", b"PK\x01\x02") and b"model.hdf5" in data[place : place + 60]:
            data[place : place + 30] = data[place : place + 30].replace(true, struct.pack("<I", declared))
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"a\.zip"):
        open_model(path)


@pytest.mark.parametrize("write", [zipped, tarred])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.95])
def test_a_truncated_archive_is_one_clear_error(
    tmp_path: Path, files: Files, write: Callable[[Path, Files], Path], share: float
) -> None:
    path = write(tmp_path / "a", files)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(FormatError, match=str(path)):
        open_model(path)


def test_a_flipped_byte_in_a_zip_is_found(tmp_path: Path, files: Files) -> None:
    path = zipped(tmp_path / "a.zip", files)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ModelError):
        open_model(path)


def test_a_duplicate_name_is_refused(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for _ in range(2):
            member = tarfile.TarInfo("options.json")
            member.size = len(files["options.json"])
            archive.addfile(member, io.BytesIO(files["options.json"]))
    with pytest.raises(FormatError, match="occurs twice"):
        open_model(path)


def test_several_models_in_one_archive_are_named(tmp_path: Path, files: Files) -> None:
    twice = {f"{place}/{name}": content for place in ("a", "b") for name, content in files.items()}
    with pytest.raises(FormatError, match="2 models, in a, b"):
        open_model(zipped(tmp_path / "two.zip", twice))


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    with pytest.raises(FormatError, match="more than 3 members"):
        open_model(zipped(tmp_path / "a.zip", {f"{i}.json": b"{}" for i in range(5)}))


def test_errors_inside_an_archive_name_the_archive(tmp_path: Path, files: Files) -> None:
    path = zipped(tmp_path / "a.zip", files | {"options.json": b"not json"})
    with pytest.raises(FormatError, match=r"a\.zip/options\.json is not a readable JSON"):
        open_model(path)
    path = zipped(tmp_path / "b.zip", {name: content for name, content in files.items() if name != "options.json"})
    with pytest.raises(ModelNotFoundError, match=r"b\.zip/options\.json"):
        open_model(path)


@pytest.mark.parametrize(
    ("content", "hint"),
    [({"archive/data.pkl": b"", "archive/version": b"3"}, "PyTorch checkpoint"), ({"a.npy": b""}, "NumPy arrays")],
)
def test_a_zip_of_something_else_says_what_it_looks_like(tmp_path: Path, content: Files, hint: str) -> None:
    with pytest.raises(FormatError, match=hint):
        open_model(zipped(tmp_path / "a.zip", content))


def test_a_pickle_in_an_archive_is_never_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "ran"),))  # type: ignore[return-value]

    path = zipped(tmp_path / "a.zip", {"archive/data.pkl": pickle.dumps(Evil())})
    with pytest.raises(FormatError):
        open_model(path)
    assert not (tmp_path / "ran").exists()


def test_an_encrypted_zip_says_so(tmp_path: Path, files: Files) -> None:
    path = zipped(tmp_path / "a.zip", files)
    data = bytearray(path.read_bytes())
    for place in range(len(data) - 10):
        if data[place : place + 4] == b"PK\x03\x04":
            data[place + 6] |= 1
        elif data[place : place + 4] == b"PK\x01\x02":
            data[place + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match="encrypted"):
        open_model(path)


def test_an_archive_on_a_machine_without_room_for_its_files_is_no_unreadable_one(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = zipped(tmp_path / "x.zip", files)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(OutputError, match=r"^Unpacking .*x\.zip for reading failed: No such file or directory\.$"):
        open_model(path)


def test_a_gzip_file_without_a_tar_is_not_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt.gz"
    path.write_bytes(gzip.compress(b"the\n" * 1000))
    assert not is_archive(path)
    with pytest.raises(FormatError, match="gzip file without a tar archive"):
        open_model(path)


@pytest.mark.parametrize("n_bytes", range(2, 10))
def test_a_file_that_ends_in_its_gzip_header_is_one_clear_error(tmp_path: Path, n_bytes: int) -> None:
    path = tmp_path / "model.tar.gz"
    path.write_bytes(gzip.compress(b"")[:n_bytes])
    with pytest.raises(FormatError):
        open_model(path)
