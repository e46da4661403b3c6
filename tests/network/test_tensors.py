"""Tensors in safetensors files."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from elmokit.network.tensors import save_tensors


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
