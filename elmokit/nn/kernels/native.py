"""Call the compiled C functions of this directory on tensors, through ctypes.

Tensors must be contiguous, on the CPU and, unless stated otherwise, float32. The C functions cannot check that, nor any
size: a wrong shape would read foreign memory, so callers check first. ctypes releases the interpreter lock for the time
of each call.

Weights are packed into *panels*: ``wide`` output columns side by side, ``(panels, inputs, wide)``, so that a matrix
product reads them from the first number to the last. ``packed_product.h`` explains the layout.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Precision = Literal["float32", "bfloat16", "int8"]
GATES = 4
# Rows whose input products are computed together. Reading the weights once for many rows pays off as long as the gate
# sums of all these rows stay in the cache until the steps need them.
MAX_CHUNK_ROWS = 256
# Tokens that go through the char CNN together: enough to pay for reading the weights, and few enough for their features
# and sums to stay in the cache. A multiple of the rows that a product computes together (16 * ROWS).
MAX_TOKENS_AT_ONCE = 192
ALIGNMENT = 64  # of tiles, in bytes
_NO_CLIP = float("inf")
# The precisions of packed weights, in the order of their numbers in `packed_product.h`.
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")

# ctypes must know every type: it would otherwise pass a Python integer as a 32-bit C int and cut addresses. On 64-bit
# Linux, where alone the library is built, a C long has 64 bits, so it fits sizes and the numbers of int64 tensors.
_TYPES = {"l": ctypes.c_long, "p": ctypes.c_void_p, "f": ctypes.c_float}
# The argument types of each C function, in order; it must match the declaration in the C file.
_SIGNATURES = {
    "large_pages": "pl",
    "product": "lllplpplpp",
    "inference_step": "lllppppf",
    "run_layer": "llllpplppplplpppfflppppp",
    "training_step": "lllpppppf",
    "training_step_backward": "lllpppppppf",
    "window_bytes": "llllllp",
    "window_forward": "llllll" + "pppppp" + "ffppp",
    "window_backward": "llllll" + "pppp" + "ffpp" + "pppp",
    "linear_forward": "llll" + "ppppp",
    "linear_backward": "llll" + "pppp" + "lppp",
    "highway_forward": "llpppp",
    "highway_backward": "ll" + "pppp" + "ppp",
    "dropout": "lllfpp",
    "softmax_loss": "llll" + "pppppp" + "ppppp",
    "table_convolve": "llplplplpll" + "pp",
    "table_convolve_backward": "llplllll" + "ppp",
    "convolve": "llpllpppllpp",
    "convolve_backward": "llpllpllpppp",
    "token_layer": "llpll" + "lpp" + "ppl" + "llpp" + "lppl" + "lpppp",
    "log_sum_exp": "lllplpplpp",
    "word_scores": "lplpppp",
}


class PackedMatrix(NamedTuple):
    """A matrix and its bias, packed for ``NativeLibrary.product``."""

    precision: Precision
    panels: Tensor  # from `pack`
    bias: Tensor  # (panels * wide,)
    n_outputs: int


class PackedFilters(NamedTuple):
    """The filters of one convolution, packed for ``NativeLibrary.convolve``."""

    panels: Tensor  # (panels, width * dim, wide)
    bias: Tensor  # (panels * wide,)
    n_filters: int


class NativeLibrary:
    """The C functions of a compiled library as methods that take tensors.

    Args:
        path: The shared library, from ``compiler.load_library``.
        instructions: The instruction set that it was built for.

    Attributes:
        instructions: The same.
        is_permitted: Whether the system lets this process use these instructions.
        has_tiles: Whether bfloat16 numbers are multiplied in tiles (AMX), which the products of training need.
        wide: Columns of a panel.
    """

    def __init__(self, path: Path, instructions: str) -> None:
        library = ctypes.CDLL(str(path))
        functions = {name: getattr(library, f"elmokit_{name}") for name in _SIGNATURES}
        for name, function in functions.items():
            # A function that the file lacks raises AttributeError above; `compiler.py` then takes the file for damaged
            # and rebuilds.
            function.argtypes, function.restype = [_TYPES[code] for code in _SIGNATURES[name]], None
        self.instructions = instructions
        self.is_permitted = bool(library.elmokit_is_permitted())
        self.has_tiles = bool(library.elmokit_has_tiles())
        self.wide = int(library.elmokit_wide())
        self._panel_lanes, self._rounded_row_bytes = library.elmokit_panel_lanes, library.elmokit_rounded_row_bytes
        for function in (self._panel_lanes, self._rounded_row_bytes):
            function.argtypes, function.restype = [ctypes.c_long] * 2, ctypes.c_long
        self._linear_bytes, self._softmax_bytes = library.elmokit_linear_bytes, library.elmokit_softmax_bytes
        self._linear_bytes.argtypes, self._linear_bytes.restype = [ctypes.c_long] * 3, ctypes.c_long
        self._softmax_bytes.argtypes, self._softmax_bytes.restype = [ctypes.c_long] * 4, ctypes.c_long
        self._log_sum_exp_bytes = library.elmokit_log_sum_exp_bytes
        self._log_sum_exp_bytes.argtypes, self._log_sum_exp_bytes.restype = [ctypes.c_long] * 4, ctypes.c_long
        self._memory = threading.local()
        self._large_pages = functions["large_pages"]
        self._product = functions["product"]
        self._inference_step = functions["inference_step"]
        self._run_layer = functions["run_layer"]
        self._training_step = functions["training_step"]
        self._training_step_backward = functions["training_step_backward"]
        self._window_bytes = functions["window_bytes"]
        self._window_forward = functions["window_forward"]
        self._window_backward = functions["window_backward"]
        self._linear_forward = functions["linear_forward"]
        self._linear_backward = functions["linear_backward"]
        self._highway_forward = functions["highway_forward"]
        self._highway_backward = functions["highway_backward"]
        self._dropout = functions["dropout"]
        self._softmax_loss = functions["softmax_loss"]
        self._table_convolve = functions["table_convolve"]
        self._table_convolve_backward = functions["table_convolve_backward"]
        self._convolve = functions["convolve"]
        self._convolve_backward = functions["convolve_backward"]
        self._token_layer = functions["token_layer"]
        self._log_sum_exp = functions["log_sum_exp"]
        self._word_scores = functions["word_scores"]

    def empty(self, dtype: torch.dtype, *sizes: int) -> Tensor:
        """Return memory for packed weights, in large pages where the system has them."""
        tensor = torch.empty(*sizes, dtype=dtype)
        # Before the first write: the system chooses the page size when a page is first touched.
        self._large_pages(tensor.data_ptr(), tensor.numel() * tensor.element_size())
        return tensor

    def _scratch(self, n_bytes: int) -> Tensor:
        """Return memory for the time of one call. A thread keeps it: new pages cost as much as filling them twice."""
        memory: Tensor | None = getattr(self._memory, "scratch", None)
        if memory is None or len(memory) < n_bytes + ALIGNMENT:
            memory = self._memory.scratch = self.empty(torch.uint8, n_bytes + ALIGNMENT)
        return memory

    def panels(self, weight: Tensor) -> Tensor:
        """Pack a weight matrix ``(outputs, inputs)`` into ``(panels, inputs, wide)``, zero beyond the last output."""
        n_panels = -(-len(weight) // self.wide)
        padded = torch.nn.functional.pad(weight, (0, 0, 0, n_panels * self.wide - len(weight)))
        panels = self.empty(torch.float32, n_panels, weight.shape[1], self.wide)
        return panels.copy_(padded.view(n_panels, self.wide, -1).transpose(1, 2))

    def pack(self, weight: Tensor, precision: Precision) -> Tensor:
        """Pack a weight matrix ``(outputs, inputs)`` in a precision, for ``run_layer``.

        bfloat16 rounds every weight to 16 bits. int8 rounds it to one of 255 multiples of its output's scale, which is
        chosen for the largest weight.

        Returns:
            For float32, as ``panels``. Else ``(panels, lanes)`` in int32: `packed_product.h` explains the layout.
        """
        if precision == "float32":
            return self.panels(weight)
        group = {"bfloat16": 2, "int8": 4}[precision]  # inputs that share 32 bits
        n_panels, n_inputs = -(-len(weight) // self.wide), weight.shape[1]
        inputs_of_tile = 16 * group
        padded = torch.nn.functional.pad(weight, (0, -n_inputs % inputs_of_tile, 0, n_panels * self.wide - len(weight)))
        header = weight.new_empty(n_panels, 0, dtype=torch.int32)
        if precision == "int8":
            # A column of zeros gets any scale but 0, which would divide 0 by 0.
            scales = padded.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
            rounded = (padded / scales).round().to(torch.int8)
            sums = rounded.sum(dim=1, dtype=torch.int32)
            header = torch.cat([part.view(n_panels, self.wide) for part in (scales.view(torch.int32), sums)], dim=1)
        else:
            rounded = padded.bfloat16()
        by_group = rounded.view(n_panels, self.wide, -1, group).transpose(1, 2).contiguous()
        panels = self.empty(torch.int32, n_panels, self._panel_lanes(PRECISIONS.index(precision), n_inputs))
        return torch.cat([header, by_group.view(torch.int32).flatten(1)], dim=1, out=panels)

    def widens(self, precision: Precision) -> bool:
        """Return whether the weights of a precision are widened to float32 as they are loaded."""
        return precision != "float32" and not self._rounded_row_bytes(PRECISIONS.index(precision), 1)

    def widen(self, panels: Tensor, n_inputs: int) -> Tensor:
        """Return bfloat16 panels as those of the same weights in float32."""
        lanes = panels.view(len(panels), -1, 1, self.wide)
        # Each lane has two inputs, the first in its lower half; a bfloat16 number is the upper half of a float32.
        both = torch.cat([lanes << 16, lanes & ~0xFFFF], dim=2).flatten(1, 2)[:, :n_inputs]
        return self.empty(torch.float32, *both.shape).copy_(both.view(torch.float32))

    def product(
        self, inputs: Tensor, panels: Tensor, bias: Tensor, n_outputs: int, precision: Precision = "float32"
    ) -> Tensor:
        """Return ``inputs @ weight.T + bias``.

        Args:
            inputs: ``(rows, inputs)``.
            panels: The weight, from ``pack`` with the same precision.
            bias: ``(panels * wide,)``.
            n_outputs: Rows of the weight.
            precision: That of the weight.

        Returns:
            ``(rows, n_outputs)``
        """
        inputs = inputs.contiguous()
        outputs = inputs.new_empty(len(inputs), n_outputs)
        rounded = self._rounded_rows(precision, *inputs.shape)  # a name keeps the memory until the call has returned
        self._product(
            *(torch.get_num_threads(), PRECISIONS.index(precision), len(inputs), inputs.data_ptr(), inputs.shape[1]),
            *(panels.data_ptr(), bias.data_ptr(), n_outputs, outputs.data_ptr()),
            rounded.data_ptr(),
        )
        return outputs

    def _rounded_rows(self, precision: Precision, n_rows: int, n_inputs: int) -> Tensor:
        """Return memory for rows that C rounds to a precision; empty if it does not."""
        n_bytes = self._rounded_row_bytes(PRECISIONS.index(precision), n_inputs)
        return torch.empty(n_rows, n_bytes, dtype=torch.uint8)

    def inference_step(
        self, from_input: Tensor, from_state: Tensor, cell: Tensor, squashed: Tensor, cell_clip: float
    ) -> None:
        """Compute the elementwise part of one inference step, in place.

        Args:
            from_input: ``(rows, 4 * hidden_dim)``, the inputs' contribution to the gates i, g, f, o, bias included.
            from_state: The recurrent contribution, of the same shape.
            cell: ``(rows, hidden_dim)``, replaced by the new cell.
            squashed: ``(rows, hidden_dim)``, replaced by ``sigmoid(o) * tanh(cell)``, which the projection reads.
            cell_clip: Bound on the cell's magnitude; infinite for none.
        """
        rows, hidden_dim = cell.shape
        self._inference_step(
            *(torch.get_num_threads(), rows, hidden_dim, from_input.data_ptr(), from_state.data_ptr()),
            *(cell.data_ptr(), squashed.data_ptr(), cell_clip),
        )

    def run_layer(
        self,
        precision: Precision,
        is_exact: bool,
        batch_sizes: Tensor,
        inputs: Tensor,
        input_panels: Tensor,
        bias: Tensor,
        recurrent_panels: Tensor,
        projection_panels: Tensor | None,
        hidden: Tensor,
        cell: Tensor,
        cell_clip: float,
        projection_clip: float,
    ) -> Tensor:
        """Run one layer over all steps; the counterpart of ``lstm_inference.run_layer_torch``.

        Args:
            precision: That of the packed weights; the bias is float32.
            is_exact: Compute the activations to the last digits. False is faster, with errors of some 1e-7, which
                rounded weights make invisible.
            batch_sizes: ``(steps,)`` int64, never rising: step t reads the first ``batch_sizes[t]`` rows.
            inputs: ``(tokens, input_dim)``: the rows of step 0, then those of step 1, and so on.
            input_panels: The input weights. Units come in blocks of ``wide``, in each block i, g, f, o.
            bias: The bias in the same order.
            recurrent_panels: The recurrent weights in the same order.
            projection_panels: The projection over the padded hidden units, or None.
            hidden: ``(rows, projection_dim)``, the state before the first step.
            cell: ``(rows, padded hidden_dim)``, replaced by the cell after each row's last step.
            cell_clip: Bound on the cell's magnitude; infinite for none.
            projection_clip: Bound on the output's magnitude; infinite for none.

        Returns:
            ``(tokens, projection_dim)``
        """
        n_rows, hidden_dim = cell.shape
        outputs = inputs.new_empty(len(inputs), hidden.shape[1])
        chunk_rows = max(min(MAX_CHUNK_ROWS, len(inputs)), n_rows)  # at least one step
        # C sees this as (blocks, chunk_rows, 4 * wide), the same number of floats: each block's sums are together, so
        # that a thread writes to memory of its own.
        gates = inputs.new_empty(chunk_rows, GATES * hidden_dim)
        # For one step at a time: the projection reads it before the next step overwrites it.
        squashed = inputs.new_empty(n_rows, hidden_dim)
        rounded_rows = (
            self._rounded_rows(precision, chunk_rows, inputs.shape[1]),
            self._rounded_rows(precision, n_rows, hidden.shape[1]),
            self._rounded_rows(precision, n_rows, hidden_dim),
        )
        self._run_layer(
            *(
                torch.get_num_threads(),
                PRECISIONS.index(precision),
                is_exact,
                len(batch_sizes),
                batch_sizes.data_ptr(),
                inputs.data_ptr(),
            ),
            inputs.shape[1],
            *(input_panels.data_ptr(), bias.data_ptr(), recurrent_panels.data_ptr(), hidden.shape[1]),
            *(None if projection_panels is None else projection_panels.data_ptr(), hidden_dim, hidden.data_ptr()),
            *(cell.data_ptr(), outputs.data_ptr(), cell_clip, projection_clip, chunk_rows),
            *(gates.data_ptr(), squashed.data_ptr(), *(rows.data_ptr() for rows in rounded_rows)),
        )
        return outputs

    def training_step(
        self,
        gates: Tensor,
        cell_before: Tensor,
        cell_after: Tensor,
        squashed: Tensor,
        outputs: Tensor,
        cell_clip: float | None,
    ) -> None:
        """Compute the elementwise part of one training step.

        Args:
            gates: ``(rows, 4 * hidden_dim)``, the sums of i, g, f, o; replaced by the activations.
            cell_before: ``(rows, hidden_dim)``.
            cell_after: Written: the new cell. This and the next two have the size of ``cell_before``.
            squashed: Written: tanh of the new cell.
            outputs: Written: ``squashed`` times the activation of o.
            cell_clip: Bound on the cell's magnitude, or None.
        """
        self._training_step(
            *(torch.get_num_threads(), *cell_before.shape, gates.data_ptr(), cell_before.data_ptr()),
            *(cell_after.data_ptr(), squashed.data_ptr(), outputs.data_ptr()),
            _bound(cell_clip),
        )

    def training_step_backward(
        self,
        gradient: Tensor,
        gates: Tensor,
        cell_before: Tensor,
        cell_after: Tensor,
        squashed: Tensor,
        cell_gradient: Tensor,
        gate_gradient: Tensor,
        cell_clip: float | None,
    ) -> None:
        """Compute the gradient of ``training_step``.

        Args:
            gradient: The gradient of ``outputs``.
            gates: The activations; this and the next three as ``training_step`` left them.
            cell_before: The cell before the step.
            cell_after: The cell after it.
            squashed: tanh of the cell after it.
            cell_gradient: The gradient of ``cell_after`` from later steps; replaced by that of ``cell_before``.
            gate_gradient: ``(rows, 4 * hidden_dim)``, written: the gradient of the gate sums.
            cell_clip: As in ``training_step``.
        """
        self._training_step_backward(
            *(torch.get_num_threads(), *cell_before.shape, gradient.data_ptr(), gates.data_ptr()),
            *(cell_before.data_ptr(), cell_after.data_ptr(), squashed.data_ptr(), cell_gradient.data_ptr()),
            gate_gradient.data_ptr(),
            _bound(cell_clip),
        )

    def window_forward(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        projection: Tensor,
        hidden: Tensor,
        cell: Tensor,
        cell_clip: float | None,
        projection_clip: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run one layer over a training window, with products of bfloat16 tiles. Only with ``has_tiles``.

        Args:
            inputs: ``(rows, steps, input_dim)``.
            weight: ``(4 * hidden_dim, input_dim + projection_dim)``, blocks i, g, f, o.
            bias: ``(4 * hidden_dim,)``.
            projection: ``(projection_dim, hidden_dim)``.
            hidden: ``(rows, projection_dim)``, the state before the window.
            cell: ``(rows, hidden_dim)``, the same.
            cell_clip: Bound on the cell's magnitude, or None.
            projection_clip: Bound on the output's magnitude, or None.

        Returns:
            The outputs ``(rows, steps, projection_dim)``, the cell after the window, and what the backward pass needs.
        """
        sizes = (*inputs.shape, *reversed(projection.shape))
        kept_bytes, forward_bytes, _ = self._window_bytes_of(sizes)
        kept, memory = self.empty(torch.uint8, kept_bytes + ALIGNMENT), self._scratch(forward_bytes)
        outputs, cell = inputs.new_empty(*inputs.shape[:2], len(projection)), cell.clone()
        self._window_forward(
            *(torch.get_num_threads(), *sizes, inputs.data_ptr(), weight.data_ptr(), bias.data_ptr()),
            *(projection.data_ptr(), hidden.data_ptr(), cell.data_ptr(), _bound(cell_clip), _bound(projection_clip)),
            *(_aligned(kept), _aligned(memory), outputs.data_ptr()),
        )
        return outputs, cell, kept

    def window_backward(
        self,
        upstream: Tensor,
        inputs: Tensor,
        hidden: Tensor,
        outputs: Tensor,
        kept: Tensor,
        hidden_dim: int,
        cell_clip: float | None,
        projection_clip: float | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the gradient of ``window_forward``.

        Args:
            upstream: The gradient of the outputs.
            inputs: As in ``window_forward``, like ``hidden`` and the clips.
            hidden: The state before the window.
            outputs: From ``window_forward``, like ``kept``.
            kept: What the backward pass needs.
            hidden_dim: Number of units.
            cell_clip: Bound on the cell's magnitude, or None.
            projection_clip: Bound on the output's magnitude, or None.

        Returns:
            The gradients of inputs, weight, bias and projection.
        """
        sizes = (*inputs.shape, hidden_dim, outputs.shape[2])
        memory = self._scratch(self._window_bytes_of(sizes)[2])
        gradients = (
            torch.empty_like(inputs),
            inputs.new_empty(GATES * hidden_dim, inputs.shape[2] + outputs.shape[2]),
            inputs.new_empty(GATES * hidden_dim),
            inputs.new_empty(outputs.shape[2], hidden_dim),
        )
        self._window_backward(
            *(torch.get_num_threads(), *sizes, inputs.data_ptr(), hidden.data_ptr(), outputs.data_ptr()),
            *(upstream.data_ptr(), _bound(cell_clip), _bound(projection_clip), _aligned(kept), _aligned(memory)),
            *(gradient.data_ptr() for gradient in gradients),
        )
        return gradients

    def _window_bytes_of(self, sizes: Sequence[int]) -> list[int]:
        """Return the bytes of what a window keeps, of its forward pass and of its backward pass."""
        n_bytes = torch.zeros(3, dtype=torch.int64)
        self._window_bytes(torch.get_num_threads(), *sizes, n_bytes.data_ptr())
        return [int(size) for size in n_bytes]

    def linear_forward(self, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return ``inputs @ weight.T + bias``, with products of bfloat16 tiles. Only with ``has_tiles``.

        Args:
            inputs: ``(rows, n_inputs)``.
            weight: ``(n_outputs, n_inputs)``.
            bias: ``(n_outputs,)``.

        Returns:
            ``(rows, n_outputs)``
        """
        sizes = (*inputs.shape, len(weight))
        memory, outputs = self._scratch(self._linear_bytes(*sizes)), inputs.new_empty(len(inputs), len(weight))
        self._linear_forward(
            *(torch.get_num_threads(), *sizes, inputs.data_ptr(), weight.data_ptr(), bias.data_ptr()),
            *(_aligned(memory), outputs.data_ptr()),
        )
        return outputs

    def linear_backward(
        self, inputs: Tensor, weight: Tensor, upstream: Tensor, input_gradient: Tensor | None, adds: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradient of ``linear_forward``.

        Args:
            inputs: As in ``linear_forward``, like ``weight``.
            weight: The weight.
            upstream: The gradient of the outputs.
            input_gradient: Where to write the gradient of the inputs; None if it is not needed.
            adds: Add to ``input_gradient``.

        Returns:
            The gradients of weight and bias.
        """
        sizes = (*inputs.shape, len(weight))
        memory, weight_gradient = self._scratch(self._linear_bytes(*sizes)), torch.empty_like(weight)
        bias_gradient = weight.new_empty(len(weight))
        self._linear_backward(
            *(torch.get_num_threads(), *sizes, inputs.data_ptr(), weight.data_ptr(), upstream.data_ptr()),
            *(_aligned(memory), adds, None if input_gradient is None else input_gradient.data_ptr()),
            *(weight_gradient.data_ptr(), bias_gradient.data_ptr()),
        )
        return weight_gradient, bias_gradient

    def highway_forward(self, inputs: Tensor, transformed: Tensor, gate: Tensor) -> Tensor:
        """Return ``g * relu(transformed) + (1 - g) * inputs`` with ``g = sigmoid(gate)``, which replaces ``gate``.

        All tensors have the same size. Only with ``has_tiles``, like ``highway_backward``.
        """
        outputs = torch.empty_like(inputs)
        self._highway_forward(
            *(torch.get_num_threads(), inputs.numel(), inputs.data_ptr(), transformed.data_ptr(), gate.data_ptr()),
            outputs.data_ptr(),
        )
        return outputs

    def highway_backward(
        self, upstream: Tensor, inputs: Tensor, transformed: Tensor, gate: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the gradient of ``highway_forward``.

        Args:
            upstream: The gradient of the outputs.
            inputs: As in ``highway_forward``.
            transformed: The same.
            gate: As ``highway_forward`` left it.

        Returns:
            The gradients of ``transformed``, of the sums of the gate, and of the inputs, without what passes through
            the other two.
        """
        gradients = torch.empty_like(inputs), torch.empty_like(inputs), torch.empty_like(inputs)
        self._highway_backward(
            *(torch.get_num_threads(), inputs.numel(), upstream.data_ptr(), inputs.data_ptr()),
            *(transformed.data_ptr(), gate.data_ptr(), *(gradient.data_ptr() for gradient in gradients)),
        )
        return gradients

    def dropout(self, inputs: Tensor, probability: float, seed: int) -> Tensor:
        """Return the inputs, divided by ``1 - probability``, with zeros where the seed chooses them.

        The gradient is the same function of that of the outputs.
        """
        outputs = torch.empty_like(inputs)
        self._dropout(torch.get_num_threads(), inputs.numel(), seed, probability, inputs.data_ptr(), outputs.data_ptr())
        return outputs

    def softmax_loss(
        self, hidden: Tensor, weight: Tensor, offsets: Tensor, own_scores: Tensor, skipped: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Compute cross-entropies and the gradients of their sum. Only with ``has_tiles``.

        Args:
            hidden: ``(rows, dim)``.
            weight: ``(words, dim)``, of the words that compete with each row's right word.
            offsets: ``(words,)``, added to their scores.
            own_scores: ``(rows,)``, the scores of the right words.
            skipped: ``(rows,)`` int64, the index of a word that does not compete in a row, or a negative number.

        Returns:
            The cross-entropies ``(rows,)``, and the gradients of hidden, weight, offsets and own scores.
        """
        sizes = (*hidden.shape, len(weight))
        memory = self._scratch(self._softmax_bytes(torch.get_num_threads(), *sizes))
        losses = torch.empty_like(own_scores)
        gradients = tuple(torch.empty_like(tensor) for tensor in (hidden, weight, offsets, own_scores))
        self._softmax_loss(
            *(torch.get_num_threads(), *sizes, hidden.data_ptr(), weight.data_ptr(), offsets.data_ptr()),
            *(own_scores.data_ptr(), skipped.data_ptr(), _aligned(memory), losses.data_ptr()),
            *(gradient.data_ptr() for gradient in gradients),
        )
        return losses, gradients  # type: ignore[return-value]

    def table_convolve(
        self,
        char_ids: Tensor,
        n_windows: Tensor,
        table: Tensor,
        bias: Tensor,
        pooled: Tensor,
        winners: Tensor,
    ) -> None:
        """Compute the maximum of each filter over the positions of a convolution, by a table.

        Args:
            char_ids: ``(tokens, chars)`` int64, rows of the table.
            n_windows: ``(tokens,)`` int64, the windows of each token to consider.
            table: ``(panels, rows, width, wide)``, what a character adds to each filter at each place of its window.
            bias: ``(filters,)``.
            pooled: Written: the maxima ``(tokens, filters)``, columns of a larger matrix.
            winners: Written: the winning windows, int32, in the same way.
        """
        self._table_convolve(
            *(torch.get_num_threads(), len(char_ids), char_ids.data_ptr(), char_ids.shape[1], n_windows.data_ptr()),
            *(table.shape[2], table.data_ptr(), table.shape[1], bias.data_ptr(), len(bias), pooled.stride(0)),
            *(pooled.data_ptr(), winners.data_ptr()),
        )

    def table_convolve_backward(
        self, char_ids: Tensor, winners: Tensor, upstream: Tensor, table_gradient: Tensor
    ) -> None:
        """Add to the gradient of the table, from that of the maxima: columns of a matrix of the size of ``winners``."""
        _, n_rows, width, _ = table_gradient.shape
        self._table_convolve_backward(
            *(torch.get_num_threads(), len(char_ids), char_ids.data_ptr(), char_ids.shape[1], width, n_rows),
            *(winners.shape[1], winners.stride(0), winners.data_ptr(), upstream.data_ptr()),
            table_gradient.data_ptr(),
        )

    def filters(self, weight: Tensor, bias: Tensor) -> PackedFilters:
        """Pack the weight ``(filters, width * dim)``, the first character's numbers first, and the bias."""
        panels = self.panels(weight)
        # The kernel loads whole vectors of the bias, also for the last panel.
        padded = torch.nn.functional.pad(bias, (0, len(panels) * self.wide - len(bias)))
        return PackedFilters(panels, padded, len(bias))

    def convolve(self, characters: Tensor, n_windows: Tensor, filters: PackedFilters) -> tuple[Tensor, Tensor]:
        """Return the maximum of each filter over the positions of a convolution over characters.

        Args:
            characters: ``(tokens, chars, dim)``.
            n_windows: ``(tokens,)`` int64, the windows of each token to consider: 1 to ``chars - width + 1``.
            filters: From ``filters``.

        Returns:
            The maxima ``(tokens, filters)``, and the winning positions ``(tokens, filters)`` in int32. The gradient
            needs the positions.
        """
        n_tokens, n_chars, dim = characters.shape
        panels, bias, n_filters = filters
        pooled = characters.new_empty(n_tokens, n_filters)
        positions = characters.new_empty(n_tokens, n_filters, dtype=torch.int32)
        self._convolve(
            *(torch.get_num_threads(), n_tokens, characters.data_ptr(), n_chars * dim, dim, n_windows.data_ptr()),
            *(panels.data_ptr(), bias.data_ptr(), panels.shape[1], n_filters, pooled.data_ptr(), positions.data_ptr()),
        )
        return pooled, positions

    def convolve_backward(
        self, characters: Tensor, weight: Tensor, positions: Tensor, gradient: Tensor, character_gradient: Tensor
    ) -> Tensor:
        """Compute the gradient of ``convolve``.

        Args:
            characters: As in ``convolve``.
            weight: ``(filters, width * dim)``.
            positions: The winning positions that ``convolve`` returned.
            gradient: The gradient of the maxima, ``(tokens, filters)``.
            character_gradient: The gradient of the characters is added to it.

        Returns:
            The gradient of the weight.
        """
        n_tokens, n_chars, dim = characters.shape
        n_filters, n_inputs = weight.shape
        n_threads = torch.get_num_threads()
        # One copy per thread, summed in a fixed order: atomic additions would give other bits in every run.
        weight_gradient = weight.new_zeros(n_threads, n_filters, n_inputs)
        self._convolve_backward(
            *(n_threads, n_tokens, characters.data_ptr(), n_chars * dim, dim, weight.data_ptr(), n_inputs, n_filters),
            *(positions.data_ptr(), gradient.data_ptr(), character_gradient.data_ptr(), weight_gradient.data_ptr()),
        )
        return weight_gradient.sum(dim=0)

    def run_token_layer(
        self,
        char_ids: Tensor,
        n_rows: int,
        widths: Tensor,
        n_filters: Tensor,
        tables: Tensor,
        filter_bias: Tensor,
        uses_tanh: bool,
        n_highways: int,
        highways: PackedMatrix | None,
        projection: PackedMatrix | None,
    ) -> Tensor:
        """Compute the vectors of tokens from their characters; the counterpart of ``CharCNN.forward``.

        Args:
            char_ids: ``(tokens, chars)`` int64, from 0 to ``n_rows - 1``; at least ``max(widths)`` chars.
            n_rows: Rows of the tables.
            widths: The width of each convolution, int64.
            n_filters: The number of filters of each convolution, int64.
            tables: From ``token_layer.filter_tables``.
            filter_bias: The biases of all convolutions, each padded to whole panels.
            uses_tanh: Whether the activation is tanh; else it is relu.
            n_highways: The number of highway layers.
            highways: Their matrices and biases, one after the other; None if there are none.
            projection: The projection, or None.

        Returns:
            ``(tokens, outputs of the projection, or features)``
        """
        n_tokens, n_columns = char_ids.shape
        n_features = int(n_filters.sum())
        n_outputs = n_features if projection is None else projection.n_outputs
        at_once = min(MAX_TOKENS_AT_ONCE, n_tokens)
        outputs = tables.new_empty(n_tokens, n_outputs)
        features = tables.new_empty(at_once if projection is not None else 0, n_features)
        sums = tables.new_empty(at_once if highways is not None else 0, 2 * n_features)
        # Each precision rounds rows to another size; "int8" needs fewer bytes than "bfloat16".
        precisions = [matrix.precision for matrix in (highways, projection) if matrix is not None]
        rounded = max(
            (self._rounded_rows(each, at_once, n_features) for each in precisions),
            key=Tensor.numel,
            default=self._rounded_rows("float32", 0, 0),
        )
        self._token_layer(
            *(torch.get_num_threads(), n_tokens, char_ids.data_ptr(), n_columns, n_rows),
            *(len(widths), widths.data_ptr(), n_filters.data_ptr()),
            *(tables.data_ptr(), filter_bias.data_ptr(), int(uses_tanh)),
            *(n_highways, *_matrix_arguments(highways)),
            *(*_matrix_arguments(projection), n_outputs),
            *(at_once, features.data_ptr(), sums.data_ptr(), rounded.data_ptr(), outputs.data_ptr()),
        )
        return outputs

    def log_sum_exp(self, hidden: Tensor, weight: Tensor, bias: Tensor, precision: Precision = "float32") -> Tensor:
        """Return the logarithm of the sum of the exponentials of each row's scores, ``hidden @ weight.T + bias``.

        The scores are never stored, and the weight is not packed.

        Args:
            hidden: ``(rows, dim)``.
            weight: ``(words, dim)``.
            bias: ``(words,)``.
            precision: float32, or a lower one: bfloat16 on processors whose tiles multiply such numbers, else float32.

        Returns:
            ``(rows,)`` in float64.
        """
        n_threads = torch.get_num_threads()
        memory = torch.empty(self._log_sum_exp_bytes(n_threads, *hidden.shape, len(weight)), dtype=torch.uint8)
        result = hidden.new_empty(len(hidden), dtype=torch.float64)
        self._log_sum_exp(
            *(n_threads, PRECISIONS.index(precision), len(hidden), hidden.data_ptr(), hidden.shape[1]),
            *(weight.data_ptr(), bias.data_ptr(), len(weight), memory.data_ptr(), result.data_ptr()),
        )
        return result

    def word_scores(self, hidden: Tensor, weight: Tensor, bias: Tensor, words: Tensor) -> Tensor:
        """Return the score of one word for each row. Arguments as in ``log_sum_exp``.

        Args:
            words: ``(rows,)`` int64, rows of the weight.

        Returns:
            ``(rows,)`` in float64.
        """
        scores = hidden.new_empty(len(hidden), dtype=torch.float64)
        self._word_scores(
            *(len(hidden), hidden.data_ptr(), hidden.shape[1], weight.data_ptr(), bias.data_ptr(), words.data_ptr()),
            scores.data_ptr(),
        )
        return scores


def _matrix_arguments(matrix: PackedMatrix | None) -> tuple[int, int | None, int | None]:
    """Return the precision and the addresses of a matrix for C."""
    if matrix is None:
        return 0, None, None
    return PRECISIONS.index(matrix.precision), matrix.panels.data_ptr(), matrix.bias.data_ptr()


def _bound(clip: float | None) -> float:
    return _NO_CLIP if clip is None else clip


def _aligned(memory: Tensor) -> int:
    """Return the first address of a tensor's memory at which tiles may begin."""
    return -(-memory.data_ptr() // ALIGNMENT) * ALIGNMENT
