"""What no reader of models accepts: damaged files, files that do not fit together, and files of other programs."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from elmokit.errors import ConfigError, ElmoError, FormatError, ModelNotFoundError, TensorMismatchError
from elmokit.formats.folder import save_folder
from elmokit.formats.open import open_model
from elmokit.pretrained.sentence_pooling import SentenceHead, SentencePooling
from tests.conftest import WORDS
from tests.helpers.every_format import write_model
from tests.helpers.many_langs_files import CHARS, dic_of
from tests.helpers.many_langs_files import WORDS as MANY_WORDS

Change = Callable[[Path], object]
Written = Callable[[str], Path]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Sound models, each written once."""
    paths: dict[str, Path] = {}

    def written(kind: str) -> Path:
        if kind not in paths:
            paths[kind] = write_model(kind, tmp_path_factory.mktemp("sound") / kind)
        return paths[kind]

    return written


def values(file: str, **changes: Any) -> Change:
    """Change values in a JSON file, or in a table of it; None takes a key away."""

    def change(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        for name, value in changes.items():
            tables = [content, *(table for table in content.values() if isinstance(table, dict))]
            table = next((table for table in tables if name in table), content)
            table[name] = value
        (folder / file).write_text(json.dumps(content))

    return change


def content(file: str, new: str | bytes | Callable[[bytes], bytes]) -> Change:
    """Replace the content of a file."""

    def change(folder: Path) -> None:
        made = new if isinstance(new, str | bytes) else new((folder / file).read_bytes())
        (folder / file).write_bytes(made.encode() if isinstance(made, str) else made)

    return change


def without(file: str) -> Change:
    return lambda folder: (folder / file).unlink()


def lines(file: str, *words: str) -> Change:
    return lambda folder: (folder / file).write_text("".join(f"{word}\n" for word in words), encoding="utf-8")


def dataset(value: Any) -> Change:
    """Put another dataset in the place of the character vectors."""

    def change(folder: Path) -> None:
        with h5py.File(folder / "weights.hdf5", "r+") as file:
            del file["char_embed"]
            file["char_embed"] = value

    return change


def elsewhere(folder: Path) -> None:
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        shape = file["char_embed"].shape
        del file["char_embed"]
        file.create_dataset("char_embed", shape, "f4", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])


def tensors(file: str, **changes: Any) -> Change:
    """Change tensors of a pickled state dict."""

    def change(folder: Path) -> None:
        torch.save(torch.load(folder / file) | changes, folder / file)

    return change


def with_head(weight: float) -> Change:
    """Add a sentence head whose words have this weight."""

    def change(folder: Path) -> None:
        model = open_model(folder)
        mean, projection = np.zeros((2, model.config.output_dim, 1), np.float32)
        head = SentenceHead(SentencePooling(), mean[:, 0], projection, np.full(len(WORDS), weight, np.float32))
        save_folder(model.replace(sentence_head=head), folder, overwrite=True)

    return change


def first_half(data: bytes) -> bytes:
    return data[: len(data) // 2]


HDF5: list[tuple[Change, type[ElmoError], str]] = [
    (content("options.json", "{not json"), FormatError, "options.json"),
    (content("options.json", b"\0"), FormatError, "options.json"),
    (content("options.json", '{"lstm": ' * 50_000), FormatError, "options.json"),
    (content("options.json", '{"lstm": 3}'), FormatError, "options.json.*lstm"),
    (content("options.json", '{"lstm": {}, "char_cnn": {}}'), ConfigError, "filters"),
    (content("options.json", '{"lstm": {"dim": 64}}'), ConfigError, "projection_dim"),
    (values("options.json", bidirectional=False), TensorMismatchError, "unexpected: RNN_1/RNN/MultiRNNCell/Cell0/"),
    (values("options.json", n_layers=None), ConfigError, "options.json: n_layers"),
    (values("options.json", max_characters_per_token=float("nan")), ConfigError, "max_chars"),
    (values("options.json", dim="64"), ConfigError, "hidden_dim"),
    (values("options.json", filters=[[1.5, 4]]), ConfigError, "1.5"),
    (values("options.json", use_skip_connections="false"), ConfigError, "use_skip_connections"),
    (content("weights.hdf5", first_half), FormatError, "weights.hdf5"),
    (content("weights.hdf5", lambda data: first_half(data).ljust(len(data), b"\0")), FormatError, "weights.hdf5"),
    (content("weights.hdf5", ""), FormatError, "weights.hdf5"),
    (content("weights.hdf5", "<html>404</html>"), FormatError, "web page"),
    (dataset(np.zeros((100, 8), np.float32)), ConfigError, "char_embed"),
    (dataset(["text"]), FormatError, "char_embed"),
    (dataset(np.float32(1)), TensorMismatchError, "char_embed"),
    (elsewhere, FormatError, "char_embed"),
    (without("options.json"), ModelNotFoundError, "options.json"),
]
OWN: list[tuple[Change, type[ElmoError], str]] = [
    (values("config.json", format="other"), FormatError, "model is not a model"),
    (values("config.json", format_version=99), FormatError, "config.json.*upgrade"),
    (values("config.json", storage=None), ConfigError, "config.json: storage"),
    (values("config.json", precision="int4"), ConfigError, "config.json: precision .*'int4'"),
    (values("config.json", bilm=None), ElmoError, "config.json, bilm"),
    (values("config.json", softmax=None), ElmoError, "config.json, softmax"),
    (values("config.json", lexicon=True), ModelNotFoundError, "lexicon.json"),
    (values("config.json", bilm={"hiden_dim": 3}), ConfigError, "'hiden_dim'.*'hidden_dim'"),
    (values("config.json", n_layers=3), TensorMismatchError, r"directions\.0\.layers\.2\.weight"),
    (content("model.safetensors", ""), FormatError, "model.safetensors"),
    (content("model.safetensors", lambda data: data[:-10]), FormatError, "model.safetensors"),
    (without("model.safetensors"), ModelNotFoundError, "model.safetensors"),
    (without("alignment.safetensors"), ModelNotFoundError, "alignment.safetensors"),
    (values("config.json", letters=True), ModelNotFoundError, "letters.safetensors"),
    (with_head(float("nan")), FormatError, "sentence_head.safetensors holds NaN or infinity in word_weights"),
    (without("vocab.txt"), ModelNotFoundError, "vocab.txt"),
]
MANY_LANGS: list[tuple[Change, type[ElmoError], str]] = [
    (values("sizes.json", encoder={"name": "lstm"}), FormatError, r"sizes\.json.*'lstm'"),
    (values("sizes.json", token_embedder={"name": "bert"}), FormatError, "'bert'"),
    (values("sizes.json", dim=4), ConfigError, r"encoder\.dim"),
    (values("sizes.json", dim=8), TensorMismatchError, "forward_layer_0"),
    (values("sizes.json", dim="7"), ConfigError, "hidden_dim"),
    (values("sizes.json", n_layers=3), TensorMismatchError, "forward_layer_2"),
    (values("sizes.json", cell_clip=-1), ConfigError, "cell_clip"),
    (values("sizes.json", max_characters_per_token="9"), ConfigError, "max_characters_per_token"),
    (values("sizes.json", word_dim=0), TensorMismatchError, r"token_embedder\.word_emb_layer"),
    (values("sizes.json", word_dim=0, projection_dim=9, dim=12), ConfigError, "the sum of the filters"),
    (values("sizes.json", word_dim=0, char_dim=0), ConfigError, r"sizes\.json"),
    (values("sizes.json", filters=[[1, 3], [2, 4], 3]), ConfigError, r"sizes\.json"),
    (values("sizes.json", n_highway=1), TensorMismatchError, r"highways\._layers\.1"),
    (values("sizes.json", activation="gelu"), ConfigError, "activation"),
    (content("sizes.json", '{"encoder": {}}'), ConfigError, "token_embedder"),
    *(
        (content("config.json", text), FormatError, r"config\.json")
        for text in ("{", "[]", "{}", '{"config_path": ""}')
    ),
    (lines("word.dic", "das 0"), FormatError, r"word\.dic, line 1"),
    (lines("word.dic", "das\t0", "", "ist\t1"), FormatError, "line 2"),
    (content("word.dic", "größe\t0\n".encode("latin1")), FormatError, r"word\.dic"),
    (content("word.dic", dic_of(MANY_WORDS[1:])), TensorMismatchError, rf"word\.dic names {len(MANY_WORDS) - 1} rows"),
    (content("char.dic", dic_of([*CHARS, "more"])), TensorMismatchError, rf"char\.dic names {len(CHARS) + 1} rows"),
    (content("encoder.pkl", b"\x80"), FormatError, r"encoder\.pkl"),
    (tensors("encoder.pkl", **{"backward_layer_1.bias": torch.ones(1)}), TensorMismatchError, "backward_layer_1"),
    (
        tensors("token_embedder.pkl", **{"char_emb_layer.embedding.weight": torch.tensor(1.0)}),
        TensorMismatchError,
        r"char_emb_layer\.embedding",
    ),
    *((without(file), ModelNotFoundError, file) for file in ("config.json", "word.dic", "token_embedder.pkl")),
]
CHECKPOINT: list[tuple[Change, type[ElmoError], str]] = [
    (lines("vocab.txt", *WORDS[:-1]), TensorMismatchError, r"vocab\.txt.*softmax/b"),
    (lines("vocab.txt", *WORDS[:-1], "the"), FormatError, r"vocab\.txt.*'the'"),
    (lines("vocab.txt", *WORDS[3:]), FormatError, "<S>"),
    (values("options.json", dim=128), TensorMismatchError, r"options\.json.*RNN_0"),
    (without("options.json"), ModelNotFoundError, r"options\.json"),
    (content("model.ckpt-207.index", lambda data: data[:-1]), FormatError, r"model\.ckpt-207\.index"),
    (content("model.ckpt-207.data-00000-of-00001", first_half), FormatError, r"data-00000-of-00001"),
]
WORD_INPUT: list[tuple[Change, type[ElmoError], str]] = [
    (lines("vocab.txt", *WORDS, "more"), TensorMismatchError, "12 words.*11"),
    (lines("vocab.txt", *(word.strip("<>") for word in WORDS)), FormatError, "<S>, </S>"),
]
DAMAGED = {"hdf5": HDF5, "elmokit": OWN, "many-langs": MANY_LANGS, "checkpoint": CHECKPOINT, "words": WORD_INPUT}
ROWS = [(kind, *row) for kind, rows in DAMAGED.items() for row in rows]


@pytest.mark.parametrize(("kind", "change", "error", "name"), ROWS, ids=range(len(ROWS)))
def test_a_damaged_model_is_refused_by_name(
    kind: str, change: Change, error: type[ElmoError], name: str, sound: Written, tmp_path: Path
) -> None:
    path = sound(kind)
    folder = shutil.copytree(path if path.is_dir() else path.parent, tmp_path / "model")
    change(folder)
    with pytest.raises(error, match=name) as raised:
        open_model(folder)
    assert "\n" not in str(raised.value)


Files = dict[str, bytes | str]


def zipped(files: Files, change: Callable[[bytes], bytes] = bytes) -> Change:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, inside in files.items():
                archive.writestr(name, inside)
        path.write_bytes(change(path.read_bytes()))

    return write


def tarred(files: Files, change: Callable[[bytes], bytes] = bytes, kind: bytes = tarfile.REGTYPE) -> Change:
    def write(path: Path) -> None:
        inner = path.with_name("inner")
        with tarfile.open(path, "w:gz") as archive:
            for name, inside in files.items():
                inner.write_bytes(inside.encode() if isinstance(inside, str) else inside)
                member = archive.gettarinfo(inner, name)
                member.type, member.linkname = kind, "/etc/passwd"
                with inner.open("rb") as file:
                    archive.addfile(member, file)
        inner.unlink()
        path.write_bytes(change(path.read_bytes()))

    return write


def folder_of(name: str = "", inside: object = None) -> Change:
    def write(path: Path) -> None:
        path.mkdir()
        if name:
            (path / name).write_text(inside if isinstance(inside, str) else json.dumps(inside))

    return write


def hdf5_of(*names: str) -> Change:
    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            for name in names:
                file[name] = np.zeros(3)

    return write


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


def encrypted(data: bytes) -> bytes:
    return data.replace(b"PK\x03\x04\x14\x00\x00", b"PK\x03\x04\x14\x00\x01").replace(
        b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"
    )


UNKNOWN = "not a model that elmokit can open"
TRANSFORMER = {
    "model": {"type": "language_model", "contextualizer": {"type": "bidirectional_language_model_transformer"}}
}
BROKEN: Files = {"options.json": "{", "weights.hdf5": np.random.default_rng(0).bytes(5000)}
# Files and directories of other programs, archives without a model, and what the error says.
FOREIGN: list[tuple[bytes | Change, str]] = [
    (b"<!DOCTYPE html><html>Not found", "web page"),
    (b'<?xml version="1.0"?><Error><Code>NoSuchKey', "web page"),
    (b"\xef\xbb\xbf<!-- cached --><html>", "web page"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
    (pickle.dumps({"a": 1}), "Python pickle"),
    (gzip.compress(b"the\n" * 1000), "gzip file without a tar archive"),
    (struct.pack("<QQQ", 0x112, 0, 3) + bytes(100), r"GluonNLP's ELMo.* open 'small', 'medium', 'original'"),
    (b"", UNKNOWN),
    (hdf5_of("0", "1", "sentence_to_index"), "vectors written by elmokit embed"),
    (hdf5_of("embedding"), "pass this file as token_embeddings"),
    (hdf5_of("train", "test"), "It holds test, train"),
    (hdf5_of(), "It holds nothing"),
    (folder_of(), UNKNOWN),
    (folder_of("config.json", "[" * 200_000), UNKNOWN),
    (folder_of("config.json", {"model_type": "bert"}), UNKNOWN),
    (folder_of("config.json", TRANSFORMER), r"transformer ELMo.*'original'"),
    (folder_of("encoder.pkl", ""), "an ELMoForManyLangs model"),
    (folder_of("checkpoint", ""), "a TensorFlow checkpoint"),
    (folder_of("saved_model.pb", ""), "a TensorFlow SavedModel"),
    (zipped({"a": "b"}), UNKNOWN),
    (zipped({"chinese/encoder.pkl": b""}), "ELMoForManyLangs"),
    (zipped(BROKEN), "options.json|weights.hdf5"),
    *((zipped(BROKEN, change), "is a damaged") for change in (first_half, flipped)),
    (zipped(BROKEN, encrypted), "is encrypted"),
    (zipped({f"{folder}/weights.hdf5": b"" for folder in "ab"}), "2 models, in a, b"),
    *((tarred(BROKEN, change), "is a damaged") for change in (first_half, flipped, lambda data: data[:-1])),
    *(
        (tarred({"options.json": ""}, kind=kind), UNKNOWN)
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)
    ),
    (tarred({"config.json": "{}", "weights.th": b""}), "AllenNLP model"),
    (tarred({"config.json": json.dumps(TRANSFORMER), "weights.th": b""}), "transformer ELMo.*'original'"),
]


@pytest.mark.parametrize(("write", "hint"), FOREIGN, ids=range(len(FOREIGN)))
def test_what_is_no_model_is_named_by_what_it_looks_like(write: bytes | Change, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(write) if isinstance(write, bytes) else write(path)
    with pytest.raises(FormatError, match=hint):
        open_model(path)
