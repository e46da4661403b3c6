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
from pathlib import Path
from types import SimpleNamespace
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
# The precisions of packed weights, in the order of their numbers in `packed_product.h`.
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")

# ctypes must know every type: it would otherwise pass a Python integer as a 32-bit C int and cut addresses. On 64-bit
# Linux, where alone the library is built, a C long has 64 bits, so it fits sizes and the numbers of int64 tensors.
_TYPES = {"l": ctypes.c_long, "i": ctypes.c_int, "p": ctypes.c_void_p, "f": ctypes.c_float}
# The argument types of each C function, in order, and the type of its result if it has one. They must match the
# declaration in the C file.
_SIGNATURES = {
    "wide": "->i",
    "is_permitted": "->i",
    "has_bfloat16": "->i",
    "large_pages": "pl",
    "panel_lanes": "ll->l",
    "rounded_row_bytes": "ll->l",
    "product": "lllplpplpp",
    "inference_step": "lllppppf",
    "run_layer": "llllpplppplplpppfflppppp",
    "training_step": "lllpppppf",
    "training_step_backward": "lllpppppppf",
    "window_bytes": "llllllp",
    "window_forward": "llllll" + "pppppp" + "ffppp",
    "window_backward": "llllll" + "pppp" + "ffpp" + "pppp",
    "linear_bytes": "lll->l",
    "linear_forward": "llll" + "ppppp",
    "linear_backward": "llll" + "pppp" + "lppp",
    "highway_forward": "llpppp",
    "highway_backward": "ll" + "pppp" + "ppp",
    "dropout": "lllfpp",
    "softmax_bytes": "llll->l",
    "softmax_loss": "llll" + "pppppp" + "ppppp",
    "table_convolve": "llplplplpll" + "pp",
    "table_convolve_backward": "llplllll" + "ppp",
    "convolve": "llpllpppllpp",
    "convolve_backward": "llpllpllpppp",
    "token_layer": "llpll" + "lpp" + "ppl" + "llpp" + "lppl" + "lpppp",
    "log_sum_exp_bytes": "llll->l",
    "log_sum_exp": "lllplpplpp",
    "word_scores": "lplpppp",
}


class PackedMatrix(NamedTuple):
    """A matrix and its bias, packed for ``NativeLibrary.product``."""

    precision: Precision
    panels: Tensor  # from `pack`
    bias: Tensor  # (panels * wide,)
    n_outputs: int


class NativeLibrary:
    """A compiled library: the C functions of inference as methods that take tensors, and the packing of weights.

    ``native_training.py`` has those of training.

    Args:
        path: The shared library, from ``compiler.load_library``.
        instructions: The instruction set that it was built for.

    Attributes:
        functions: The C functions by their names, as ctypes calls them.
        instructions: As given.
        is_permitted: Whether the system lets this process use these instructions.
        has_bfloat16: Whether it can multiply bfloat16 numbers (AMX, AVX-512 BF16), as training in bfloat16 needs.
        wide: Columns of a panel.
    """

    def __init__(self, path: Path, instructions: str) -> None:
        library = ctypes.CDLL(str(path))
        self.functions = SimpleNamespace()
        for name, signature in _SIGNATURES.items():
            # A function that the file lacks raises AttributeError; `compiler.py` then takes the file for damaged and
            # rebuilds.
            function = getattr(library, f"elmokit_{name}")
            arguments, _, result = signature.partition("->")
            function.argtypes, function.restype = [_TYPES[code] for code in arguments], _TYPES.get(result)
            setattr(self.functions, name, function)
        self.instructions = instructions
        self.is_permitted = bool(self.functions.is_permitted())
        self.has_bfloat16 = bool(self.functions.has_bfloat16())
        self.wide = int(self.functions.wide())
        self._memory = threading.local()

    def empty(self, dtype: torch.dtype, *sizes: int) -> Tensor:
        """Return memory for packed weights, in large pages where the system has them."""
        tensor = torch.empty(*sizes, dtype=dtype)
        # Before the first write: the system chooses the page size when a page is first touched.
        self.functions.large_pages(tensor.data_ptr(), tensor.numel() * tensor.element_size())
        return tensor

    def scratch(self, n_bytes: int) -> Tensor:
        """Return memory for the time of one call, with room to begin at a multiple of ``ALIGNMENT``.

        A thread keeps it: new pages cost as much as filling them twice.
        """
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
        panels = self.empty(torch.int32, n_panels, self.functions.panel_lanes(PRECISIONS.index(precision), n_inputs))
        return torch.cat([header, by_group.view(torch.int32).flatten(1)], dim=1, out=panels)

    def widens(self, precision: Precision) -> bool:
        """Return whether the weights of a precision are widened to float32 as they are loaded."""
        return precision != "float32" and not self.functions.rounded_row_bytes(PRECISIONS.index(precision), 1)

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
        self.functions.product(
            *(torch.get_num_threads(), PRECISIONS.index(precision), len(inputs), inputs.data_ptr(), inputs.shape[1]),
            *(panels.data_ptr(), bias.data_ptr(), n_outputs, outputs.data_ptr()),
            rounded.data_ptr(),
        )
        return outputs

    def _rounded_rows(self, precision: Precision, n_rows: int, n_inputs: int) -> Tensor:
        """Return memory for rows that C rounds to a precision; empty if it does not."""
        n_bytes = self.functions.rounded_row_bytes(PRECISIONS.index(precision), n_inputs)
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
        self.functions.inference_step(
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
        self.functions.run_layer(
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
        self.functions.token_layer(
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
            precision: float32, or a lower one: bfloat16 if the processor multiplies such numbers, else float32.

        Returns:
            ``(rows,)`` in float64.
        """
        n_threads = torch.get_num_threads()
        memory = torch.empty(self.functions.log_sum_exp_bytes(n_threads, *hidden.shape, len(weight)), dtype=torch.uint8)
        result = hidden.new_empty(len(hidden), dtype=torch.float64)
        self.functions.log_sum_exp(
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
        self.functions.word_scores(
            *(len(hidden), hidden.data_ptr(), hidden.shape[1], weight.data_ptr(), bias.data_ptr(), words.data_ptr()),
            scores.data_ptr(),
        )
        return scores


def _matrix_arguments(matrix: PackedMatrix | None) -> tuple[int, int | None, int | None]:
    """Return the precision and the addresses of a matrix for C."""
    if matrix is None:
        return 0, None, None
    return PRECISIONS.index(matrix.precision), matrix.panels.data_ptr(), matrix.bias.data_ptr()
