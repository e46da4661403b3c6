"""ELMo in ONNX: :func:`export_onnx` exports a model as a graph for ONNX Runtime and other runtimes.

The graph is built node by node. ONNX's own LSTM has no projection, and clips the gates but not the cell, so each LSTM
layer is a ``Scan``: a small graph for one step, which the runtime repeats over time. The products with the inputs are
outside of it. They do not depend on the state, and one large product is faster than one per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.start_state import StartName, check_start_name
from elmokit.engine.architecture import FORGET_OFFSET, BiLMConfig, CharCNNConfig
from elmokit.engine.state import Floats, State
from elmokit.errors import OutputError, needs_extra
from elmokit.formats.open import open_to_export
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.atomic import atomic_write, check_extension, check_output_path
from elmokit.storage.text_files import expand_user

with needs_extra("elmokit.integrations.onnx", "onnx"):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 17, 8
"""Versions of the operators and the file format, from ONNX 1.13 and ONNX Runtime 1.14."""
LAST = np.iinfo(np.int64).max  # as the end of a slice: to the end


def export_onnx(
    model: str | Path | PretrainedBiLM | None,
    path: str | Path,
    *,
    start: StartName = "warm",
    overwrite: bool = False,
) -> Path:
    """Export a model as an ONNX graph that computes all layers from char ids.

    The input of the graph is ``char_ids`` ``(batch, time, chars)``, int64, as returned by :meth:`elmokit.Elmo.ids`. For
    a model with a word table, such as ``en-mini``, a word's row precedes its characters. The output is ``layers``
    ``(layers, batch, time, dim)``, float32, with boundaries, layer 0 first, and zero on padding.

    Args:
        model: A path, URL or name, as in :func:`elmokit.open_model`, or an opened model. None for the small included
            English model.
        path: The output file, which must end in ``.onnx``.
        start: The initial LSTM state of each sentence, as in :class:`elmokit.Elmo`. It becomes part of the graph.
        overwrite: Replace an existing file.

    Returns:
        The path.

    Raises:
        ModelError: No model was found, or it cannot be opened.
        ConfigError: The model does not read characters or has an alignment, or the start is invalid.
        OutputError: The file exists and ``overwrite`` is False, cannot be written, or does not end in ``.onnx``.

    Example:
        >>> path = export_onnx("en-mini", "en-mini.onnx")
        >>> session = onnxruntime.InferenceSession(path)
        >>> (layers,) = session.run(["layers"], {"char_ids": Elmo.from_pretrained().ids([["The", "bank"]])})
    """
    path = expand_user(path, OutputError)
    check_extension(path, [".onnx"])
    check_output_path(path, overwrite)
    check_start_name(start)
    opened = open_to_export(model, "the graph")
    config, arrays = opened.config, opened.arrays
    assert config.char_cnn is not None
    graph = _Graph()
    # For padding, all char ids are 0.
    largest = graph.add("ReduceMax", "char_ids", axes=[2], keepdims=1)
    is_token = graph.add("Greater", largest, graph.constant(np.int64(0)))
    mask = graph.add("Cast", is_token, to=TensorProto.FLOAT)
    vectors = graph.add("Mul", _token_layer(graph, config, arrays), mask)
    state = Elmo(opened, start=start).start_state
    layers = [[vectors] * config.n_directions]
    # Scan iterates over the first axis, so time comes first inside the stacks.
    inputs = graph.add("Transpose", vectors, perm=[1, 0, 2])
    real = graph.add("Transpose", mask, perm=[1, 0, 2])
    outputs = []
    for direction in range(config.n_directions):
        outputs.append(_lstm_stack(graph, config, arrays, inputs, real, state, direction))
    layers += [list(directions) for directions in zip(*outputs, strict=True)]
    joined = []
    for directions in layers:
        layer = graph.add("Concat", *directions, axis=2)
        joined.append(graph.add("Unsqueeze", layer, graph.ints(0)))
    graph.add("Concat", *joined, axis=0, output="layers")
    with atomic_write(path, overwrite) as temporary:
        n_ids = config.char_cnn.max_chars + (config.word_features is not None)
        onnx.save(graph.to_model(n_ids, config.output_dim, len(layers)), temporary)
    return path


class _Graph:
    """Nodes and constants, with generated names that start with a prefix."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        output = output or f"{self.prefix}{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, value: Any) -> str:
        """Add a constant, and return its name."""
        name = f"{self.prefix}constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def ints(self, *values: int) -> str:
        """Add a constant list of integers, and return its name."""
        return self.constant(np.array(values, dtype=np.int64))

    def slice(self, name: str, start: int, stop: int, axis: int) -> str:
        """Add ``name[start:stop]`` on one axis."""
        return self.add("Slice", name, self.ints(start), self.ints(stop), self.ints(axis))

    def sizes(self, name: str, start: int, stop: int) -> str:
        """Add the sizes of a tensor's axes ``start`` to ``stop - 1``, which are known when the graph runs."""
        return self.slice(self.add("Shape", name), start, stop, 0)

    def linear(self, inputs: str, weight: Floats, bias: Floats | None = None) -> str:
        """Add ``inputs @ weight.T + bias``."""
        product = self.add("MatMul", inputs, self.constant(weight.T))
        return product if bias is None else self.add("Add", product, self.constant(bias))

    def to_model(self, n_ids: int, dim: int, n_layers: int) -> Any:
        """Return the checked model."""
        inputs = [helper.make_tensor_value_info("char_ids", TensorProto.INT64, ["batch", "time", n_ids])]
        outputs = [helper.make_tensor_value_info("layers", TensorProto.FLOAT, [n_layers, "batch", "time", dim])]
        graph = helper.make_graph(self.nodes, "elmo", inputs, outputs, self.constants)
        model = helper.make_model(
            graph, producer_name="elmokit", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
        onnx.checker.check_model(model)
        return model


def _token_layer(graph: _Graph, config: BiLMConfig, arrays: Mapping[str, Floats]) -> str:
    """Add the token layer, and return its output ``(batch, time, projection_dim)``."""
    assert config.char_cnn is not None
    prefix, words = "token_layer.", config.word_features
    if words is None:
        features = _char_cnn(graph, config.char_cnn, arrays, prefix, "char_ids")
    else:
        word_ids = graph.slice("char_ids", 0, 1, axis=2)
        char_ids = graph.slice("char_ids", 1, LAST, axis=2)
        rows = graph.add("Gather", graph.constant(arrays[f"{prefix}word_embedding.weight"]), word_ids)
        rows = graph.add("Reshape", rows, graph.ints(-1, words.word_dim))
        features = _char_cnn(graph, config.char_cnn, arrays, f"{prefix}chars.", char_ids)
        features = graph.add("Concat", rows, features, axis=1)
    if f"{prefix}projection.weight" in arrays:
        features = _linear(graph, features, arrays, f"{prefix}projection")
    by_sentence = graph.add("Concat", graph.sizes("char_ids", 0, 2), graph.ints(-1), axis=0)
    return graph.add("Reshape", features, by_sentence)


def _char_cnn(graph: _Graph, config: CharCNNConfig, arrays: Mapping[str, Floats], prefix: str, char_ids: str) -> str:
    """Add the convolutions and highways, and return their output ``(batch * time, features)``."""
    embedded = graph.add("Gather", graph.constant(arrays[f"{prefix}char_embedding.weight"]), char_ids)
    # One row per token, for the convolutions: (batch * time, char_dim, chars).
    n_chars = graph.sizes(char_ids, 2, 3)
    by_token = graph.add("Concat", graph.ints(-1, config.char_dim), n_chars, axis=0)
    transposed = graph.add("Transpose", embedded, perm=[0, 1, 3, 2])
    flat = graph.add("Reshape", transposed, by_token)
    pooled = []
    for number in range(len(config.filters)):
        weight = graph.constant(arrays[f"{prefix}convolutions.{number}.weight"])
        bias = graph.constant(arrays[f"{prefix}convolutions.{number}.bias"])
        responses = graph.add("Conv", flat, weight, bias)
        pooled.append(graph.add("ReduceMax", responses, axes=[2], keepdims=0))
    activation = "Relu" if config.activation == "relu" else "Tanh"
    features = graph.add(activation, graph.add("Concat", *pooled, axis=1))
    for number in range(config.n_highway):
        layer = f"{prefix}highways.{number}"
        gate = graph.add("Sigmoid", _linear(graph, features, arrays, f"{layer}.gate"))
        new = graph.add("Relu", _linear(graph, features, arrays, f"{layer}.transform"))
        # gate * new + (1 - gate) * old, with one product fewer.
        change = graph.add("Mul", gate, graph.add("Sub", new, features))
        features = graph.add("Add", features, change)
    return features


def _linear(graph: _Graph, inputs: str, arrays: Mapping[str, Floats], name: str) -> str:
    return graph.linear(inputs, arrays[f"{name}.weight"], arrays[f"{name}.bias"])


def _lstm_stack(
    graph: _Graph,
    config: BiLMConfig,
    arrays: Mapping[str, Floats],
    inputs: str,  # (time, batch, projection_dim)
    mask: str,  # (time, batch, 1): 1 on a token
    state: State,
    direction: int,
) -> list[str]:
    """Add the layers of one direction, and return their outputs ``(batch, time, projection_dim)``."""
    outputs = []
    for index in range(config.n_layers):
        prefix = f"directions.{direction}.layers.{index}."
        weights = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
        hidden, cell = (tensor[direction, index] for tensor in state)
        output = _lstm(graph, config, weights, inputs, mask, hidden, cell, config.read_backward[direction])
        inputs = graph.add("Add", output, inputs) if config.skip_connections and index > 0 else output
        outputs.append(graph.add("Transpose", inputs, perm=[1, 0, 2]))
    return outputs


def _lstm(
    graph: _Graph,
    config: BiLMConfig,
    weights: Mapping[str, Floats],
    inputs: str,
    mask: str,
    hidden: Floats,
    cell: Floats,
    reverse: bool,
) -> str:
    bias = weights["bias"].copy()
    bias[2 * config.hidden_dim : 3 * config.hidden_dim] += FORGET_OFFSET
    from_input = graph.linear(inputs, weights["weight"][:, : config.projection_dim], bias)
    n_rows = graph.sizes(inputs, 1, 2)
    starts = []
    for row in (hidden, cell):
        shape = graph.add("Concat", n_rows, graph.ints(row.shape[-1]), axis=0)
        starts.append(graph.add("Expand", graph.constant(row), shape))
    output = f"scan_{len(graph.nodes)}"
    graph.nodes.append(
        helper.make_node(
            "Scan",
            [*starts, from_input, mask],
            [f"{output}_hidden", f"{output}_cell", output],
            body=_step(config, weights, output),
            num_scan_inputs=2,
            scan_input_directions=[int(reverse)] * 2,
            scan_output_directions=[int(reverse)],
        )
    )
    return output


def _step(config: BiLMConfig, weights: Mapping[str, Floats], name: str) -> Any:
    """Build the graph of one LSTM step."""
    # ONNX requires names that differ from the surrounding graph's. Runtimes accept equal names, but shape inference,
    # which quantization needs, confuses them.
    step = _Graph("step_")
    from_state = step.linear("hidden", weights["weight"][:, config.projection_dim :])
    gates = step.add("Add", "from_input", from_state)
    blocks = [f"gate_{index}" for index in range(4)]
    step.nodes.append(helper.make_node("Split", [gates], blocks, axis=1))
    i = step.add("Sigmoid", blocks[0])
    g = step.add("Tanh", blocks[1])
    f = step.add("Sigmoid", blocks[2])
    o = step.add("Sigmoid", blocks[3])
    kept, added = step.add("Mul", f, "cell"), step.add("Mul", i, g)
    new_cell = _clip(step, step.add("Add", kept, added), config.cell_clip)
    new_hidden = step.add("Mul", o, step.add("Tanh", new_cell))
    if "projection" in weights:
        new_hidden = _clip(step, step.linear(new_hidden, weights["projection"]), config.projection_clip)
    # On padding, the state is kept and the output is zero.
    for old, new in (("hidden", new_hidden), ("cell", new_cell)):
        change = step.add("Mul", "real", step.add("Sub", new, old))
        step.add("Add", old, change, output=f"new_{old}")
    step.add("Mul", "real", new_hidden, output="output")
    dim, n_units = config.projection_dim, config.hidden_dim
    inputs = _by_row(hidden=dim, cell=n_units, from_input=4 * n_units, real=1)
    outputs = _by_row(new_hidden=dim, new_cell=n_units, output=dim)
    return helper.make_graph(step.nodes, f"step_of_{name}", inputs, outputs, step.constants)


def _by_row(**sizes: int) -> list[Any]:
    """Describe tensors ``(batch, size)`` by name."""
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size]) for name, size in sizes.items()]


def _clip(graph: _Graph, values: str, bound: float | None) -> str:
    if bound is None:
        return values
    lowest, highest = graph.constant(np.float32(-bound)), graph.constant(np.float32(bound))
    return graph.add("Clip", values, lowest, highest)
