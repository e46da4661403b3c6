"""Weights are read from their files when they are needed, without PyTorch; an open model stays what it is."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.engine.state import Floats
from elmokit.formats.open import open_model
from elmokit.formats.tensor_rows import FileArrays
from elmokit.pretrained.model import describe
from tests.helpers.every_format import FORMATS, write_model
from tests.helpers.weights import numbers, same_numbers

# One format for each way to read a file; the others take as long.
KINDS = [
    kind if kind in ("elmokit", "hdf5", "checkpoint", "many-langs") else pytest.param(kind, marks=pytest.mark.slow)
    for kind in FORMATS
]


@pytest.mark.parametrize("kind", KINDS)
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


@pytest.mark.parametrize("kind", KINDS)
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
        assert np.shares_memory(made.softmax.weight, made.arrays["token_layer.embedding.weight"])


def test_a_tied_softmax_has_the_table_of_the_weights_that_a_model_gets(tmp_path: Path) -> None:
    model = open_model(write_model("tied", tmp_path / "model"))
    bilm, softmax = model.build_modules()
    with torch.no_grad():
        bilm.get_parameter("token_layer.embedding.weight").fill_(2.0)
    trained = model.replace(weights=bilm, softmax=softmax)
    for changed in (trained, model.replace(weights=bilm), model.view_of(bilm, softmax)):
        assert (changed.softmax.weight == 2.0).all()
    assert not (model.softmax.weight == 2.0).any()


@pytest.mark.parametrize("kind", KINDS)
def test_what_changes_a_module_changes_no_model(kind: str, tmp_path: Path) -> None:
    path = write_model(kind, tmp_path / "model")
    read = open_model(path)
    for model in (read, copy.deepcopy(read), read.replace(weights=read.build_bilm())):
        bilm, softmax = model.build_modules()
        made, seen = model.replace(weights=bilm, softmax=softmax), model.view_of(bilm, softmax)
        with torch.no_grad():
            for parameter in [*bilm.parameters(), *([] if softmax is None else softmax.parameters())]:
                parameter.zero_()
        expected = open_model(path)
        assert same_numbers(model.replace(start_state=expected.start_state), expected)
        assert same_numbers(made, expected)
        assert not any(array.any() for array in seen.arrays.values())
        assert seen.softmax is None or not seen.softmax.weight.any()


@pytest.mark.parametrize("kind", KINDS)
def test_threads_may_read_at_the_same_time(kind: str, tmp_path: Path) -> None:
    path = write_model(kind, tmp_path / "model")
    model, expected = open_model(path), copy.deepcopy(open_model(path))
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: same_numbers(model, expected), range(8)))


@pytest.mark.parametrize("kind", ["elmokit", "tied", "hdf5", "checkpoint", "module"])
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


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc")
def test_an_open_file_is_closed_with_its_model(tmp_path: Path) -> None:
    def is_open(path: Path) -> bool:
        return any(os.path.realpath(link) == str(path) for link in Path("/proc/self/fd").iterdir())

    path = write_model("hdf5", tmp_path / "model")
    model = open_model(path)
    assert is_open(path)
    bilm = model.build_bilm()  # which owns what it read
    del model
    assert not is_open(path)
    assert bilm.config.n_layers
