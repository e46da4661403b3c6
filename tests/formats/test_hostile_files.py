"""Files that are no ELMo, damaged or made to do harm: one clear error, nothing run, nothing allocated."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from elmokit.config import MAX_LAYERS
from elmokit.errors import ConfigError, FormatError, ModelError
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from tests.conftest import random_model

TERABYTE = 10**12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound published model, to be spoilt."""
    save_model(random_model(), tmp_path / "model" / "weights.hdf5")
    return tmp_path / "model"


OPEN_IN_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from elmokit.errors import ElmoError
from elmokit.formats.open import open_model

sound, *spoilt = sys.argv[1:]
open_model(sound)
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 200_000_000,) * 2)
for path in spoilt:
    try:
        open_model(path)
    except ElmoError as error:
        print(error)
"""
"""Opens models where no more than 200 MB more than a sound one needs can be had, by Python, NumPy, torch or HDF5."""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and limits the address space")
def test_files_with_forged_sizes_are_refused_in_little_memory(folder: Path, tmp_path: Path) -> None:
    lies: dict[str, tuple[str, Any, str]] = {
        "dim": ("dim", 900_000_000, "at most"),
        "filters": ("filters", [[1, 900_000_000]], "at most"),
        "n_layers": ("n_layers", 10**7, "at most"),
        "rows": ("", None, "declares the shape"),
    }
    for name, (option, value, _) in lies.items():
        shutil.copytree(folder, tmp_path / name)
        if option:
            change_options(tmp_path / name, **{option: value})
        else:
            declare_rows(tmp_path / name, 100_000_000, (1 << 16, 8))
    ended = subprocess.run(
        [sys.executable, "-c", OPEN_IN_LITTLE_MEMORY, folder, *(tmp_path / name for name in lies)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    messages = ended.stdout.splitlines()
    assert len(messages) == len(lies), ended.stderr
    for message, (_, _, expected) in zip(messages, lies.values(), strict=True):
        assert expected in message


def change_options(folder: Path, **lstm_or_cnn: Any) -> None:
    options = json.loads((folder / "options.json").read_text())
    for name, value in lstm_or_cnn.items():
        part = options["lstm"] if name in options["lstm"] else options["char_cnn"]
        part[name] = value
    (folder / "options.json").write_text(json.dumps(options))


def declare_rows(folder: Path, n_rows: int, chunks: tuple[int, int] | None) -> None:
    """Let the character vectors say that there are so many of them, and store none."""
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        char_dim = file["char_embed"].shape[1]
        del file["char_embed"]
        file.create_dataset("char_embed", (n_rows, char_dim), "f4", chunks=chunks)


@pytest.mark.parametrize("chunks", [None, (1 << 16, 8)])
def test_a_dataset_that_declares_a_terabyte_is_not_allocated(folder: Path, chunks: tuple[int, int] | None) -> None:
    declare_rows(folder, TERABYTE // 64, chunks)
    with pytest.raises(FormatError, match=r"char_embed declares the shape .* stored"):
        open_model(folder)


def test_groups_that_are_in_themselves_and_in_others_are_read_once(folder: Path) -> None:
    expected = dict(open_model(folder).arrays)
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        file["RNN_0/RNN/again"] = file["RNN_0"]
        file["again"] = file["RNN_0"]
        group = file["CNN"]
        for number in range(30):  # two ways to each: there are 2 ** 30 to the last
            inside = group.create_group(f"{number}")
            group["too"] = inside
            group = inside
    arrays = open_model(folder).arrays
    assert all(np.array_equal(arrays[name], expected[name]) for name in expected)


def test_compressed_weights_open(folder: Path) -> None:
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        numbers = file["CNN_proj/W_proj"][()]
        del file["CNN_proj/W_proj"]
        file.create_dataset("CNN_proj/W_proj", data=numbers, compression="gzip")
    assert open_model(folder).family == "bilm-tf"


def test_a_dataset_that_reads_another_file_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(1000))
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        shape = file["char_embed"].shape
        del file["char_embed"]
        file.create_dataset("char_embed", shape, "f4", external=[(str(tmp_path / "secret"), 0, h5py.h5f.UNLIMITED)])
    with pytest.raises(FormatError, match="refers to another file"):
        open_model(folder)


def test_a_dataset_of_text_is_refused(folder: Path) -> None:
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        del file["char_embed"]
        file["char_embed"] = ["text"]
    with pytest.raises(FormatError, match="not numbers"):
        open_model(folder)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_truncated_weights_are_one_clear_error(folder: Path, share: float) -> None:
    data = (folder / "weights.hdf5").read_bytes()
    (folder / "weights.hdf5").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(FormatError, match=r"weights\.hdf5"):
        open_model(folder)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n_layers", 10**9, f"at most {MAX_LAYERS:,}"),
        ("n_highway", 10**9, f"at most {MAX_LAYERS:,}"),
        ("max_characters_per_token", 10**9, "at most"),
        ("dim", 10**12, "at most"),
        ("filters", [[1, 10**12]], "at most"),
        ("filters", "none", "wrong type"),
        ("filters", [[float("inf"), 4]], "wrong type"),
        pytest.param("cell_clip", 10**400, "wrong type", id="a clip beyond float"),
        ("max_characters_per_token", float("nan"), "whole number"),
        ("dim", "64", "whole number|wrong type"),
        ("use_skip_connections", "false", "use_skip_connections is 'false'. Expected true or false"),
        ("filters", [[1.5, 4]], "1.5 is not a whole number"),
        ("n_layers", None, "n_layers is None; it must be a whole number"),
        ("projection_dim", None, "projection_dim is None; it must be a whole number"),
    ],
)
def test_options_that_do_not_match_the_weights_are_refused(folder: Path, name: str, value: Any, message: str) -> None:
    change_options(folder, **{name: value})
    with pytest.raises((ModelError, ConfigError), match=message):
        open_model(folder)


@pytest.mark.parametrize("name", ["char_embed", "embedding"])
def test_a_table_that_is_a_single_number_is_named(folder: Path, name: str) -> None:
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        del file["char_embed"]
        file[name] = np.float32(1)
    if name == "embedding":
        options = json.loads((folder / "options.json").read_text())
        del options["char_cnn"]
        (folder / "options.json").write_text(json.dumps(options))
    with pytest.raises(ConfigError, match=f"the tensor {name} is a single number"):
        open_model(folder)


@pytest.mark.parametrize("content", ["[" * 200_000, '{"lstm": ' * 50_000, "{}", "[]", "\0", '{"lstm": 1}'])
def test_files_that_are_not_options_are_refused(folder: Path, content: str) -> None:
    (folder / "options.json").write_text(content)
    with pytest.raises(FormatError, match=r"options\.json"):
        open_model(folder)


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"<!DOCTYPE html><html>Not found", "web page"),
        (b'<?xml version="1.0"?><Error><Code>NoSuchKey', "web page"),
        (b"\xef\xbb\xbf<!-- cached --><html>", "web page"),
        (b"<head><title>Not found", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (b"GGUF\x03\x00", "GGUF"),
        (b"\x93NUMPY\x01\x00", "NumPy array"),
        (pickle.dumps({"a": 1}), "Python pickle"),
        (struct.pack("<Q", 10**18) + b"{}", "not a model that elmokit can open"),
        (b"", "not a model that elmokit can open"),
    ],
)
def test_a_file_that_is_not_an_elmo_is_recognized(tmp_path: Path, content: bytes, hint: str) -> None:
    (tmp_path / "file.bin").write_bytes(content)
    with pytest.raises(FormatError, match=hint):
        open_model(tmp_path / "file.bin")


def test_a_web_page_saved_as_weights_is_named(folder: Path) -> None:
    (folder / "weights.hdf5").write_text("<html>404</html>")
    with pytest.raises(FormatError, match="web page"):
        open_model(folder)


def test_a_pickle_with_code_is_named_and_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(FormatError, match="Python pickle"):
        open_model(tmp_path / "model.pkl")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["0", "1", "sentence_to_index"], "vectors that elmokit embed"),
        (["model_weights"], "Keras"),
        (["softmax"], "softmax of an ELMo"),
        (["train", "test"], "It holds test, train"),
        ([], "It holds nothing"),
    ],
)
def test_another_hdf5_file_is_recognized(tmp_path: Path, names: list[str], hint: str) -> None:
    with h5py.File(tmp_path / "file.hdf5", "w") as file:
        for name in names:
            file[name] = np.zeros(3)
    with pytest.raises(FormatError, match=hint):
        open_model(tmp_path / "file.hdf5")


def test_the_only_options_file_next_to_the_weights_is_used(folder: Path) -> None:
    (folder / "options.json").rename(folder / "elmo_2x_options.json")
    (folder / "weights.hdf5").rename(folder / "elmo_2x_weights_PubMed_only.hdf5")
    assert open_model(folder / "elmo_2x_weights_PubMed_only.hdf5").family == "bilm-tf"


def test_a_second_half_of_zeros_is_one_clear_error(folder: Path) -> None:
    data = (folder / "weights.hdf5").read_bytes()
    (folder / "weights.hdf5").write_bytes(data[: len(data) // 2].ljust(len(data), b"\0"))
    with pytest.raises(FormatError, match=r"weights\.hdf5"):
        open_model(folder)


def test_too_few_characters_for_all_bytes_are_refused(folder: Path) -> None:
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        numbers = file["char_embed"][:100]
        del file["char_embed"]
        file["char_embed"] = numbers
    with pytest.raises(ConfigError, match="char_embed has 100 rows"):
        open_model(folder)


def test_half_a_character_in_a_table_is_refused(folder: Path) -> None:
    (folder / "meta.json").write_text('{"name": "\\ud83d"}')
    assert "meta" not in open_model(folder).card
    (folder / "meta.json").write_text('{"name": "\\ud83d\\ude00"}')
    assert open_model(folder).card["meta"] == {"name": "\U0001f600"}
    options = json.loads((folder / "options.json").read_text())
    (folder / "options.json").write_text(json.dumps(options | {"card": {"x": "\ud83d"}}))
    with pytest.raises(FormatError, match=r"options\.json is not a readable JSON"):
        open_model(folder)
