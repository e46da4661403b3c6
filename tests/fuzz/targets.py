"""Readers of foreign files, and the server's bodies, as functions of bytes: what fuzzing calls.

Each either reads the bytes, or refuses them with one of :data:`REFUSALS`. Anything else is a finding.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from elmokit.embedding.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.formats import tf_bundle
from elmokit.formats.archives import unpacked_model
from elmokit.formats.bilm_tf_hdf5 import read_hdf5
from elmokit.formats.folder import load_folder
from elmokit.formats.many_langs_weights import read_entries
from elmokit.formats.tf_checkpoint import TFCheckpoint
from elmokit.formats.tf_hub import TFHub
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.tensor_file import StoredTensors
from elmokit.text.vocabulary import Vocabulary, read_words
from tests.helpers.http_client import AppClient

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
FIXED = HERE / "fixed"
"""Files that a fuzzed one needs next to it."""
REFUSALS: tuple[type[Exception], ...] = (ElmoError,)
SERVER = "http-bodies"


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        read: Gets the path of a file with the bytes, alone in its directory.
        name: The name of that file.
        fixed: The directory in ``FIXED`` with further files to put there.
    """

    read: Callable[[Path], object]
    name: str
    fixed: str | None = None

    def __call__(self, data: bytes, folder: Path) -> None:
        """Write the bytes to an empty directory, and read them or see them refused."""
        path = folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        try:
            self.read(path)
        except REFUSALS:
            pass
        finally:
            path.unlink()

    def prepare(self, folder: Path) -> None:
        """Put the further files into a directory."""
        if self.fixed is not None:
            shutil.copytree(FIXED / self.fixed, folder, dirs_exist_ok=True)


def _arrays(model: PretrainedBiLM) -> None:
    """Read every tensor of a model: those of a file are read when they are asked for."""
    for _ in model.arrays.items():
        pass
    if model.softmax is not None:
        for _ in model.softmax.arrays.items():
            pass


def _bundle(path: Path) -> None:
    bundle = tf_bundle.TensorBundle(path.with_suffix(""))
    for name in bundle.entries:
        bundle.read(name)


def _checkpoint(path: Path) -> None:
    _arrays(TFCheckpoint().load(path.with_suffix("")))


def _archive(path: Path) -> None:
    with unpacked_model(path) as unpacked:
        sum(1 for _ in unpacked.folder.rglob("*"))


def _safetensors(path: Path) -> None:
    tensors = StoredTensors(path)
    for name in tensors.shapes:
        tensors.read(name)


def _vocabulary(path: Path) -> None:
    words = read_words(path)
    Vocabulary(words, strict=False).word_ids(words[:100])


PATHS = ("embeddings", "tokens", "surprisal", "substitutes", "neighbors")


@functools.cache
def _client() -> AppClient:
    from elmokit.serve.app import application
    from elmokit.serve.serve_config import ServeConfig
    from elmokit.serve.served_model import ServedModel

    config = ServeConfig(batch_wait_ms=0.0, max_request_tokens=2000, timeout_seconds=20)
    folder = Path(tempfile.mkdtemp())  # for the index of neighbors
    atexit.register(shutil.rmtree, folder)
    client = AppClient(application(ServedModel(Elmo.from_pretrained(FIXED / "served"), config), config))
    atexit.register(client.close)
    return client


def _body(path: Path) -> None:
    """Ask the server without HTTP: the first byte chooses the path, the rest is the body."""
    data = path.read_bytes()
    url = PATHS[data[0] % len(PATHS)] if data else "tokens"
    status = _client().post(f"/v1/{url}", data[1:]).status
    # 503 is a request that takes long on a busy machine; nothing else may be the server's fault.
    if status >= 500 and status != 503:
        raise AssertionError(f"the status is {status}")


TARGETS: dict[str, Target] = {
    "tf-bundle": Target(_bundle, "bundle.index", "tf-bundle"),
    "tf-checkpoint": Target(_checkpoint, "model.ckpt-1.index", "tf-checkpoint"),
    "saved-model": Target(
        lambda path: _arrays(TFHub().load(path.parent.parent)), "variables/variables.index", "saved-model"
    ),
    "archive": Target(_archive, "model.zip"),
    "safetensors": Target(_safetensors, "model.safetensors"),
    "model-directory": Target(lambda path: _arrays(load_folder(path.parent)), "config.json", "model-directory"),
    "hdf5": Target(lambda path: _arrays(read_hdf5(path.with_name("options.json"), path)), "weights.hdf5", "hdf5"),
    "options": Target(lambda path: _arrays(read_hdf5(path, path.with_name("weights.hdf5"))), "options.json", "options"),
    "vocabulary": Target(_vocabulary, "words.txt"),
    "compressed-vocabulary": Target(_vocabulary, "words.txt.gz"),
    "entries": Target(lambda path: read_entries(path, 5), "word.dic"),
    SERVER: Target(_body, "body"),
}


def let_checksums_be_right() -> None:
    """Let every checksum of a bundle count as right in this process: chance does not find right ones."""
    tf_bundle.VERIFIES = False
