"""The format of Baidu's ELMo in PaddlePaddle: a directory with one file per variable, without extension.

=============================  ===========================================================================
``embedding_para``             the word table; rows are the lines of ``vocabulary_min5k.txt``
``fw_layerL_gate_w``, ``bw_``  input weights of layer L, counted from 1, ``(input, 4 * hidden)``
``lstmp_N.w_0``                recurrent weights, ``(projection, 4 * hidden)``
``lstmp_N.w_1``                the projection, ``(hidden, projection)``
``lstmp_N.b_0``                the bias, ``(1, 4 * hidden)``, without the 1 that bilm-tf adds to the forget gate
``softmax_weight``, ``_bias``  the softmax, shared by both directions
other names                    the optimizer's variables; not read
=============================  ===========================================================================

N counts the layers of the forward direction, then those of the backward one, from 0. The blocks of the gates are the
candidate, input, forget and output gate. A file is a header (see ``_shape``) and the numbers in float32.

This was inferred from the training code in PaddlePaddle/models and from PaddlePaddle 1.4; the published archive,
``baike_elmo_checkpoint.tar.gz``, was unreachable. The sizes are in the tensors; clips of 3 and skip connections are the
defaults of the training script. The script for use in other models forgets to pass the output of the first layer to the
second one. Vectors here are those of the network that was trained, with the skip connections of bilm-tf in layer 2.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from elmokit.engine.config import FORGET_OFFSET, BiLMConfig, Shape, tensor_shapes
from elmokit.engine.softmax import SoftmaxConfig, WordSoftmax
from elmokit.engine.state import Floats
from elmokit.errors import ConfigError, reading
from elmokit.formats.bilm_tf import TRANSPOSED, WITHOUT_ZERO_ROW, config_errors
from elmokit.formats.format import Format
from elmokit.formats.model import PretrainedBiLM, Weights
from elmokit.formats.sidecars import given_or_found, visible_files
from elmokit.formats.tensor_rows import Array, Layout, TensorRow, raised_forget, read_through
from elmokit.formats.tf_bundle import proto_fields
from elmokit.text.vocabulary import row_vocabulary

TABLE = "embedding_para"
CLIP = 3.0
_SOFTMAX = {"weight": "softmax_weight", "bias": "softmax_bias"}
WORD_LISTS = ("*vocab*.txt", "*vocab*.txt.gz")
_FLOAT32 = 5  # ``VarType.FP32`` in Paddle's framework.proto
_MAX_HEADER = 1 << 12


def _swapped(array: Array) -> Array:
    """Swap the first two gate blocks: candidate, input, forget, output becomes our i, g, f, o, and back."""
    first, second, third, fourth = np.split(array, 4)
    return np.concatenate([second, first, third, fourth])


WEIGHT = Layout(lambda theirs: _swapped(theirs.T), lambda ours: _swapped(ours).T, lambda shape: shape[::-1])
BIAS = Layout(
    lambda theirs: raised_forget(_swapped(theirs[0]), -FORGET_OFFSET),
    lambda ours: _swapped(raised_forget(ours, FORGET_OFFSET))[None],
)


class Paddle(Format):
    """A directory of Baidu's PaddlePaddle ELMo. Without its word list, it has no softmax and cannot encode tokens."""

    name = "paddle"
    description = "a directory of Baidu's PaddlePaddle ELMo"
    reads_options = False
    files = (TABLE, "*_gate_w", "lstmp_*.w_[01]", "lstmp_*.b_0", *_SOFTMAX.values(), *WORD_LISTS)

    def recognizes(self, path: Path) -> bool:
        return (path / TABLE).is_file() and (path / "fw_layer1_gate_w").is_file()

    def load(self, path: Path, options: Path | None = None, words: Path | None = None) -> PretrainedBiLM:
        # The largest number, not how many there are: with a file of a layer missing, it would be another model.
        layers = [re.fullmatch(r"[fb]w_layer(\d{1,3})_gate_w", file.name) for file in path.iterdir()]
        n_layers = max(int(layer[1]) for layer in layers if layer)
        table, gates = (_Variable(path / name).shape for name in (TABLE, "fw_layer1_gate_w"))
        with config_errors(str(path)):
            config = BiLMConfig(
                char_cnn=None,
                n_words=table[0],
                projection_dim=table[1],
                hidden_dim=gates[1] // 4,
                n_layers=n_layers,
                cell_clip=CLIP,
                projection_clip=CLIP,
            )
        if config.hidden_dim == config.projection_dim:
            raise ConfigError(
                f"{path}: the LSTM and its projection have the same size ({config.hidden_dim}), which is not supported."
            )
        rows = _rows(config)
        # Input and recurrent weights are two files, and one matrix of ours.
        variables = {row.theirs: [_Variable(path / name) for name in row.theirs.split(" and ")] for row in rows}
        shapes = {names: _joined_shape(joined) for names, joined in variables.items()}
        arrays = read_through(
            rows,
            tensor_shapes(config),
            shapes,
            lambda name: np.concatenate([variable.read() for variable in variables[name]]),
            str(path),
        )
        model = PretrainedBiLM(Weights(config, arrays), self.name, source=path)
        words = given_or_found(words, _word_list(path))
        if words is None:
            model.card["softmax"] = "left out: no vocabulary was given or found"
            return model
        model.vocabulary = row_vocabulary(words, table[0], f"{TABLE} of {path}")
        if all((path / name).is_file() for name in _SOFTMAX.values()):
            model.softmax = _softmax(path, config)
        return model


def _rows(config: BiLMConfig) -> list[TensorRow]:
    rows = [TensorRow("token_layer.embedding.weight", TABLE, WITHOUT_ZERO_ROW)]
    for d, direction in enumerate(("fw", "bw")):
        for k in range(config.n_layers):
            ours, lstm = f"directions.{d}.layers.{k}", f"lstmp_{d * config.n_layers + k}"
            rows.append(TensorRow(f"{ours}.weight", f"{direction}_layer{k + 1}_gate_w and {lstm}.w_0", WEIGHT))
            rows.append(TensorRow(f"{ours}.bias", f"{lstm}.b_0", BIAS))
            rows.append(TensorRow(f"{ours}.projection", f"{lstm}.w_1", TRANSPOSED))
    return rows


def _joined_shape(variables: list[_Variable]) -> Shape:
    shapes = [variable.shape for variable in variables]
    if len(shapes) == 1:
        return shapes[0]
    if any(len(shape) != 2 or shape[1] != shapes[0][1] for shape in shapes):
        return sum(shapes, ())  # which no matrix of ours has, so the error shows it
    return (sum(shape[0] for shape in shapes), shapes[0][1])


def _softmax(folder: Path, config: BiLMConfig) -> WordSoftmax:
    assert config.n_words is not None
    variables = {name: _Variable(folder / name) for name in _SOFTMAX.values()}
    shapes = {name: variable.shape for name, variable in variables.items()}
    rows = [TensorRow(ours, theirs) for ours, theirs in _SOFTMAX.items()]
    kind = SoftmaxConfig()
    wanted = kind.tensor_shapes(config.n_words, config.projection_dim)
    arrays = read_through(rows, wanted, shapes, lambda name: variables[name].read(), str(folder))
    return WordSoftmax(kind, arrays, config.n_words)


def _word_list(folder: Path) -> Path | None:
    word_lists = [path for pattern in WORD_LISTS for path in visible_files(folder, pattern)]
    return word_lists[0] if len(word_lists) == 1 else None


class _Variable:
    """The file of a variable, memory-mapped, so that one that is replaced keeps its content."""

    def __init__(self, path: Path) -> None:
        self.shape, self._start = _shape(path)
        self._octets = np.memmap(path, np.uint8, "r").view(np.ndarray)

    def read(self) -> Floats:
        # A copy, because the numbers begin at any byte.
        return np.array(self._octets[self._start :].view("<f4").reshape(self.shape), np.float32)


def _shape(path: Path) -> tuple[Shape, int]:
    """Read the header of a variable's file: the shape, and where the numbers begin."""
    # The header is a version (4 bytes), the number of levels of detail (8 bytes), for which parameters have none,
    # another version (4 bytes), and a protocol buffer with its size in front (4 bytes): the dtype and the dimensions.
    with reading(path, "variable of PaddlePaddle 1 in float32", LookupError), path.open("rb") as file:
        fixed = file.read(20)
        description = file.read(min(int.from_bytes(fixed[16:], "little"), _MAX_HEADER))
        n_bytes, start = file.seek(0, 2), len(fixed) + len(description)
        fields = list(proto_fields(description))
        shape = tuple(value for field, value in fields if field == 2 and isinstance(value, int))
        if any(fixed[:16]) or (1, _FLOAT32) not in fields or n_bytes - start != 4 * math.prod(shape):
            raise ValueError(f"it has {n_bytes:,} bytes, and its header gives it the shape {shape}")
    return shape, start


FORMAT = Paddle()
