"""Weights are read from their files when they are needed, without PyTorch; an open model stays what it is."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from elmokit.engine.state import Floats
from elmokit.formats.model import describe
from elmokit.formats.open import open_model
from elmokit.formats.tensor_rows import FileArrays
from tests.helpers.every_format import FORMATS, write_model
from tests.helpers.weights import numbers, same_numbers


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_is_replaced_does_not_change_an_open_model(kind: str, tmp_path: Path) -> None:
    path = write_model(kind, tmp_path / "model")
    expected = copy.deepcopy(open_model(path))
    model = open_model(path)
    other = write_model(kind, tmp_path / "other", seed=1)
    folder, new = (one if one.is_dir() else one.parent for one in (path, other))
    for file in new.rglob("*"):
        if file.is_file():
            shutil.copy(file, tmp_path / "new")
            (tmp_path / "new").replace(folder / file.relative_to(new))
    assert same_numbers(model, expected)
    assert same_numbers(open_model(path), open_model(other))


@pytest.mark.parametrize("kind", FORMATS)
def test_copies_hold_the_numbers_themselves(kind: str, tmp_path: Path) -> None:
    path = write_model(kind, tmp_path / "model")
    model = open_model(path)
    if model.softmax is not None:
        _ = model.softmax.weight
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.replace(card={})]
    for made in copies:
        assert same_numbers(made, model)
    for made in copies[:2]:
        assert isinstance(made.arrays, dict)
        if made.softmax is not None:
            assert isinstance(made.softmax.arrays, dict)
            n_bytes = sum(array.nbytes for name, array in numbers(made) if name != "softmax")
            assert len(pickle.dumps(made)) < 1.1 * n_bytes + 20_000


def test_a_copy_of_a_tied_softmax_shares_the_table_of_its_own_model(tmp_path: Path) -> None:
    model = open_model(write_model("tied", tmp_path / "model"))
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert made.softmax is not None
        assert np.shares_memory(made.softmax.weight, made.arrays["token_layer.embedding.weight"])


def test_a_tied_softmax_follows_the_table_that_pytorch_trains(tmp_path: Path) -> None:
    model = open_model(write_model("tied", tmp_path / "model"))
    with torch.no_grad():
        model.bilm.get_parameter("token_layer.embedding.weight").fill_(2.0)
    assert model.softmax is not None
    assert (model.softmax.weight == 2.0).all()


@pytest.mark.parametrize("kind", FORMATS)
def test_threads_may_read_at_the_same_time(kind: str, tmp_path: Path) -> None:
    path = write_model(kind, tmp_path / "model")
    model, expected = open_model(path), copy.deepcopy(open_model(path))
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: same_numbers(model, expected), range(16)))


@pytest.mark.parametrize("kind", ["elmokit", "tied", "hdf5", "checkpoint", "module", "paddle"])
def test_a_model_that_is_only_described_is_not_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(kind, tmp_path / "model")
    read: list[str] = []
    get = FileArrays.__getitem__

    def noting(self: FileArrays, name: str) -> Floats:
        read.append(name)
        return get(self, name)

    monkeypatch.setattr(FileArrays, "__getitem__", noting)
    facts = describe(open_model(path))
    assert facts["parameters"] != "0"
    assert set(read) <= {"hidden", "cell", "matrices", "offsets"}


def test_an_open_file_is_closed_with_its_model(tmp_path: Path) -> None:
    path = write_model("hdf5", tmp_path / "model")
    model = open_model(path)
    assert is_open(path)
    _ = model.bilm  # it owns the weights from now on
    assert not is_open(path)
    model = open_model(path)
    del model
    assert not is_open(path)


def is_open(path: Path) -> bool:
    links = Path("/proc/self/fd")
    if not links.is_dir():
        pytest.skip("no /proc")
    return any(os.path.realpath(link) == str(path) for link in links.iterdir())


def test_tables_and_alignments_are_read_without_pytorch(tmp_path: Path) -> None:
    path = write_model("hdf5", tmp_path / "model")
    dim = open_model(path).config.projection_dim
    with h5py.File(tmp_path / "table.hdf5", "w") as file:
        file["embedding"] = np.ones((1, dim), np.float32)
    (tmp_path / "vocab.txt").write_text("cat\n")
    torch.save(torch.eye(2 * dim), tmp_path / "matrix.pth")
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from elmokit.formats.alignment import read_alignment\n"
        "from elmokit.formats.open import open_model\n"
        "path, table, matrix = sys.argv[1:]\n"
        "model = open_model(path, token_embeddings=table)\n"
        "print(model.word_vectors(['dog', 'cat'])[1].sum(), read_alignment([matrix], model.config).matrices.sum())\n"
    )
    arguments = [path, tmp_path / "table.hdf5", tmp_path / "matrix.pth"]
    ended = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert ended.stdout.split() == [f"{dim:.1f}", f"{3 * 2 * dim:.1f}"], ended.stderr


def test_every_format_opens_without_pytorch(tmp_path: Path) -> None:
    paths = [write_model(kind, tmp_path / kind) for kind in FORMATS]
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from elmokit.formats.model import describe\n"
        "from elmokit.formats.open import open_model\n"
        "from elmokit.formats.save import save_model\n"
        "for path in [None, *sys.argv[1:]]:\n"
        "    model = open_model(path)\n"
        "    describe(model)\n"
        "    assert sum(array.size for array in model.arrays.values())\n"
        "    assert model.softmax is None or model.softmax.weight.size\n"
        "    save_model(model, path.replace('.', '-') + '-saved' if path else sys.argv[1] + '-included')\n"
        "    print(model.family)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, *paths], capture_output=True, text=True)
    assert len(ended.stdout.split()) == len(paths) + 1, ended.stderr
    for path in paths:
        assert same_numbers(open_model(str(path).replace(".", "-") + "-saved"), open_model(path))
