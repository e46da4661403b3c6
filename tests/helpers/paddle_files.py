"""Tiny directories of Baidu's PaddlePaddle ELMo: one file per variable, as ``save_persistables`` of Paddle 1 writes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WORDS = ["<S>", "</S>", "<UNK>", "das", "Haus", "ist", "北"]
Array = NDArray[np.float32]


def variable(values: Array) -> bytes:
    """A variable: version, no levels of detail, version, a protocol buffer (dtype 5, dimensions), the numbers."""
    description = b"\x08\x05" + b"".join(b"\x10" + varint(size) for size in values.shape)
    head = struct.pack("<IQIi", 0, 0, 0, len(description))
    return head + description + values.astype("<f4").tobytes()


def varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


@dataclass
class ToyModel:
    """The variables by their names."""

    variables: dict[str, Array]

    def write(self, folder: Path, words: bool = True) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, values in self.variables.items():
            (folder / name).write_bytes(variable(values))
        if words:
            (folder / "vocabulary_min5k.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
        return folder


def toy_model(projection_dim: int = 4, hidden_dim: int = 7, n_layers: int = 2) -> ToyModel:
    """A model of random variables, large enough that the clips of 3 are at work."""
    generator = np.random.RandomState(0)

    def random(*shape: int, scale: float = 1.5) -> Array:
        return (generator.standard_normal(shape) * scale).astype(np.float32)

    found = {"embedding_para": random(len(WORDS), projection_dim)}
    for d, direction in enumerate(("fw", "bw")):
        for k in range(n_layers):
            lstm = f"lstmp_{d * n_layers + k}"
            found[f"{direction}_layer{k + 1}_gate_w"] = random(projection_dim, 4 * hidden_dim)
            found[f"{lstm}.w_0"] = random(projection_dim, 4 * hidden_dim)
            found[f"{lstm}.w_1"] = random(hidden_dim, projection_dim)
            found[f"{lstm}.b_0"] = random(1, 4 * hidden_dim)
    found["softmax_weight"] = random(len(WORDS), projection_dim)
    found["softmax_bias"] = random(len(WORDS))
    # What the optimizer leaves in the directory.
    found["embedding_para_moment_0"] = np.ones((len(WORDS), projection_dim), dtype=np.float32)
    found["learning_rate_0"] = np.ones(1, dtype=np.float32)
    return ToyModel(found)
