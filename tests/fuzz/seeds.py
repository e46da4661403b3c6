"""Write the corpora: small sound files of each format, and what is next to them: ``python -m tests.fuzz.seeds``."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
import zipfile
from pathlib import Path

import h5py
import numpy as np

from elmokit.formats.save import save_model
from tests.conftest import random_model
from tests.fuzz.targets import CORPUS, FIXED, PATHS, SERVER
from tests.helpers.many_langs_files import dic_of
from tests.helpers.tf_bundle_writer import write_bundle
from tests.helpers.tf_hub_files import pack_module, write_module
from tests.helpers.tf_names import checkpoint_tensors, module_tensors
from tests.helpers.wave_model import CONFIG

BODIES = (
    (0, {"input": ["the cat sat .", "a"], "encoding_format": "base64", "user": "u"}),
    (1, {"input": [["the", "cat"]], "layers": [0, 2], "model": "served"}),
    (2, {"input": "the cat", "n_expected": 2}),
    (3, {"sentence": "the cat sat", "position": 1, "n": 3}),
    (4, {"sentence": ["the", "cat"], "position": 0, "layers": [1], "n": 2, "among": "other", "min_count": 1}),
)


def add(target: str, name: str, content: bytes) -> None:
    """Add a file to a corpus."""
    (CORPUS / target).mkdir(parents=True, exist_ok=True)
    (CORPUS / target / name).write_bytes(content)


def fix(target: str, name: str, content: bytes) -> None:
    """Add a file that fuzzed ones need next to them."""
    path = FIXED / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def tf_bundles(work: Path) -> None:
    """Write bundles, a checkpoint and a SavedModel; the index is fuzzed, the data is fixed."""
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b/c": np.ones(4, np.float16), "step": np.array(7)}
    write_bundle(work / "bundle", tensors, n_shards=1, entries_per_block=2)
    add("tf-bundle", "small", (work / "bundle.index").read_bytes())
    fix("tf-bundle", "bundle.data-00000-of-00001", (work / "bundle.data-00000-of-00001").read_bytes())
    module = write_module(work / "module", module_tensors(random_model(CONFIG)))
    add("saved-model", "module", (module / "variables" / "variables.index").read_bytes())
    for path in module.rglob("*"):
        if path.is_file() and path.suffix != ".index":
            fix("saved-model", str(path.relative_to(module)), path.read_bytes())
    pack_module(module, work / "module.tar.gz")
    write_bundle(work / "checkpoint" / "model.ckpt-1", checkpoint_tensors(random_model(CONFIG)))
    add("tf-checkpoint", "checkpoint", (work / "checkpoint" / "model.ckpt-1.index").read_bytes())
    data = "model.ckpt-1.data-00000-of-00001"
    fix("tf-checkpoint", data, (work / "checkpoint" / data).read_bytes())


def models(work: Path) -> None:
    """Write models in our own format and in the published one, and archives of them."""
    model = random_model(CONFIG)
    for storage in ("float32", "int8"):
        save_model(model, work / storage, storage)  # type: ignore[arg-type]
        add("safetensors", storage, (work / storage / "model.safetensors").read_bytes())
    for path in sorted((work / "float32").iterdir()):
        if path.name == "config.json":
            add("model-directory", "config", path.read_bytes())
        else:
            fix("model-directory", path.name, path.read_bytes())
        fix("served", path.name, path.read_bytes())
    save_model(model, work / "published" / "weights.hdf5")
    weights, options = ((work / "published" / name).read_bytes() for name in ("weights.hdf5", "options.json"))
    add("hdf5", "weights", weights)
    fix("hdf5", "options.json", options)
    fix("tf-checkpoint", "options.json", options)
    add("options", "options", options)
    fix("options", "weights.hdf5", weights)
    with h5py.File(work / "chunked.hdf5", "w", libver="latest") as file:
        file.create_dataset("CNN_high_0/W_carry", data=np.eye(4), chunks=(2, 2), compression="gzip", shuffle=True)
        file["text"] = ["a", "b"]
    add("hdf5", "chunked", (work / "chunked.hdf5").read_bytes())
    small = {"options.json": options, "weights.hdf5": b"\x89HDF\r\n\x1a\n" + bytes(64), "readme.txt": b"text"}
    with zipfile.ZipFile(work / "small.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in small.items():
            archive.writestr(name, content)
    add("archive", "zip", (work / "small.zip").read_bytes())
    (work / "small").mkdir()
    for name, content in small.items():
        (work / "small" / name).write_bytes(content)
    pack_module(work / "small", work / "small.tar.gz")
    add("archive", "tar-gz", (work / "small.tar.gz").read_bytes())
    add("archive", "tar", gzip.decompress((work / "small.tar.gz").read_bytes()))


def texts() -> None:
    """Write word lists and bodies."""
    words = "<S>\n</S>\n<UNK>\nthe\n.\ncat\n Überläufer \n漢\n".encode()
    add("vocabulary", "words", words)
    add("vocabulary", "bom", b"\xef\xbb\xbf" + words.replace(b"\n", b"\r\n") + b"!!!MAXTERMID\n")
    add("compressed-vocabulary", "words", gzip.compress(words, mtime=0))
    add("entries", "words", dic_of(["<oov>", "<bos>", "<eos>", "das", "\u3000"]).encode())
    for number, (path, body) in enumerate(BODIES):
        add(SERVER, f"{PATHS[path]}-{number}", bytes([path]) + json.dumps(body).encode())


def main() -> None:
    """Write all corpora anew."""
    shutil.rmtree(CORPUS, ignore_errors=True)
    shutil.rmtree(FIXED, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        tf_bundles(work)
        models(work)
    texts()


if __name__ == "__main__":
    main()
