"""Tensors in safetensors files."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from elmokit.network.tensors import distinct_rows, save_tensors


def test_tensors_are_written_with_the_bytes_of_the_package(tmp_path: Path) -> None:
    matrix = torch.randn(3, 4, generator=torch.manual_seed(0))
    tensors = {
        "parameter": torch.nn.Parameter(matrix),
        "transposed": matrix.T,
        "bfloat16": matrix.to(torch.bfloat16).T,
        "step": torch.tensor(7),
    }
    save_tensors(tensors, tmp_path / "ours")
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert torch.equal(load_file(tmp_path / "ours")["bfloat16"], matrix.to(torch.bfloat16).T)


@given(
    n_rows=st.integers(0, 9), width=st.integers(1, 4), most=st.sampled_from([1, 300, 2**40]), seed=st.integers(0, 99)
)
def test_distinct_rows_are_those_of_pytorch(n_rows: int, width: int, most: int, seed: int) -> None:
    rows = torch.randint(0, most + 1, (n_rows, width), generator=torch.Generator().manual_seed(seed))
    for found, expected in zip(distinct_rows(rows), torch.unique(rows, dim=0, return_inverse=True), strict=True):
        assert torch.equal(found, expected)
