"""Weights stored as integers with one scale per row: round trips, sizes, damaged scales."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from elmokit.embedding.computer import Computer
from elmokit.embedding.start_state import boundary_state
from elmokit.errors import ConfigError, ElmoError, FormatError, TensorMismatchError
from elmokit.formats.folder import load_folder, save_folder
from elmokit.pretrained.model import PretrainedBiLM, describe
from elmokit.storage.tensor_file import to_int8

LSTM = "directions.0.layers.0.weight"


def stored(model: PretrainedBiLM, tmp_path: Path) -> Path:
    save_folder(model, tmp_path / "int8", storage="int8")
    return tmp_path / "int8"


def weights(model: PretrainedBiLM) -> dict[str, Tensor]:
    arrays = {**model.arrays, **{f"softmax.{name}": part for name, part in model.softmax.arrays.items()}}
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def test_int8_storage_rounds_to_255_steps_of_each_row(model: PretrainedBiLM, tmp_path: Path) -> None:
    loaded = load_folder(stored(model, tmp_path))
    for name, tensor in weights(model).items():
        found = weights(loaded)[name]
        assert found.dtype == torch.float32
        if tensor.dim() < 2:
            assert torch.equal(found, tensor)
            continue
        largest = tensor.abs().flatten(1).amax(1)
        # Scales are rounded down to bfloat16, so the largest weight of a row may be cut by up to one step.
        assert ((found - tensor).abs().flatten(1).amax(1) <= 1.01 * largest / 127).all(), name
        assert (found - tensor).abs().mean() < 0.004 * tensor.abs().amax(), name


def test_storing_again_changes_nothing(model: PretrainedBiLM, tmp_path: Path) -> None:
    first = stored(model, tmp_path)
    save_folder(load_folder(first), tmp_path / "again", storage="int8")
    for name in ("model.safetensors", "softmax.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (first / name).read_bytes()


def test_loaded_weights_are_sums_of_two_bfloat16_numbers(model: PretrainedBiLM, tmp_path: Path) -> None:
    for name, tensor in weights(load_folder(stored(model, tmp_path))).items():
        if tensor.dim() > 1:
            rest = tensor
            for _ in range(2):
                rest = rest - (rest.view(torch.int32) & -(1 << 16)).view(torch.float32)
            assert not rest.any(), name


def float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The numbers of bits of bfloat16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_the_integers_are_those_of_the_int8_kernels() -> None:
    rows = to_int8({"weight": np.random.default_rng(0).standard_normal((50, 40), np.float32)}, "warm")
    loaded = rows["weight"] * float32(rows["weight.scale"])[:, None]
    scales = np.abs(loaded).max(axis=1, keepdims=True) / np.float32(127)  # as `pack_panel` of `matrix.c` computes them
    np.testing.assert_array_equal(np.rint(loaded / scales).astype(np.int8), rows["weight"])


def test_rows_of_zeros_stay_zeros() -> None:
    rows = to_int8({"weight": np.zeros((2, 3), np.float32)}, "warm")
    assert not rows["weight"].any()
    assert not rows["weight.scale"].any()


def test_the_start_state_is_kept_exactly(model: PretrainedBiLM, tmp_path: Path) -> None:
    model = model.replace(start_state=boundary_state(Computer(model)))
    again = load_folder(stored(model, tmp_path)).start_state
    assert again is not None
    assert all(map(np.array_equal, again, model.start_state))


def test_int8_storage_takes_little_more_than_a_byte_per_weight(model: PretrainedBiLM, tmp_path: Path) -> None:
    matrices = sum(tensor.numel() for tensor in weights(model).values() if tensor.dim() > 1)
    rows = sum(len(tensor) for tensor in weights(model).values() if tensor.dim() > 1)
    others = sum(tensor.numel() for tensor in weights(model).values() if tensor.dim() < 2)
    folder = stored(model, tmp_path)
    files = [load_file(folder / f"{name}.safetensors") for name in ("model", "softmax")]
    n_bytes = sum(tensor.nbytes for file in files for tensor in file.values())
    assert n_bytes == matrices + 2 * rows + 4 * others


def test_the_storage_is_described(model: PretrainedBiLM, tmp_path: Path) -> None:
    assert describe(load_folder(stored(model, tmp_path)))["storage"] == "int8"
    assert describe(model)["storage"] == "float32"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda scales: None, TensorMismatchError),
        (lambda scales: scales[:-1], TensorMismatchError),
        (lambda scales: scales[:, None], TensorMismatchError),
        (lambda scales: -scales, FormatError),
        (lambda scales: torch.full_like(scales, 3e38), FormatError),
        (lambda scales: scales * float("nan"), FormatError),
        (lambda scales: scales * float("inf"), FormatError),
    ],
)
def test_damaged_scales_are_refused(
    change: Callable[[Tensor], Tensor | None], error: type[ElmoError], model: PretrainedBiLM, tmp_path: Path
) -> None:
    path = stored(model, tmp_path) / "model.safetensors"
    tensors = load_file(path)
    scales = change(tensors.pop(f"{LSTM}.scale"))
    save_file(tensors if scales is None else {**tensors, f"{LSTM}.scale": scales.contiguous()}, path)
    with pytest.raises(error, match=r"model\.safetensors.*layers.0.weight"):
        dict(load_folder(path.parent).arrays)


def test_scales_without_integers_are_unexpected_tensors(model: PretrainedBiLM, tmp_path: Path) -> None:
    save_folder(model, tmp_path / "float32")
    path = tmp_path / "float32" / "model.safetensors"
    save_file({**load_file(path), f"{LSTM}.scale": torch.ones(3)}, path)
    with pytest.raises(TensorMismatchError, match=r"unexpected: .*\.scale"):
        load_folder(path.parent)


def test_a_storage_of_another_version_is_refused(model: PretrainedBiLM, tmp_path: Path) -> None:
    config = stored(model, tmp_path) / "config.json"
    config.write_text(config.read_text().replace('"storage": "int8"', '"storage": "int4"'))
    with pytest.raises(ConfigError, match="int4"):
        load_folder(config.parent)


def test_weights_with_nan_are_refused(model: PretrainedBiLM, tmp_path: Path) -> None:
    model.arrays[LSTM][3, 1] = float("nan")
    loaded = load_folder(stored(model, tmp_path))
    with pytest.raises(FormatError, match="NaN"):
        dict(loaded.arrays)
