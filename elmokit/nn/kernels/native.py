"""Call the compiled C functions of this directory on tensors, through ctypes.

Tensors must be contiguous, on the CPU and, unless stated otherwise, float32. The C functions cannot check that, nor any
size: a wrong shape would read foreign memory, so callers check first. ctypes releases the interpreter lock for the time
of each call.

Weights are packed into *panels*: ``wide`` output columns side by side, ``(panels, inputs, wide)``, so that a matrix
product reads them from the first number to the last. ``packed_product.h`` explains the layout.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

GATES = 4
# Rows whose input products are computed together. Reading the weights once for many rows pays off as long as the gate
# sums of all these rows stay in the cache until the steps need them.
MAX_CHUNK_ROWS = 256
_NO_CLIP = float("inf")

# ctypes must know every type: it would otherwise pass a Python integer as a 32-bit C int and cut addresses. On 64-bit
# Linux, where alone the library is built, a C long has 64 bits, so it fits sizes and the numbers of int64 tensors.
_TYPES = {"l": ctypes.c_long, "p": ctypes.c_void_p, "f": ctypes.c_float}
# The argument types of each C function, in order; it must match the declaration in the C file.
_SIGNATURES = {
    "large_pages": "pl",
    "product": "llplpplp",
    "inference_step": "lllppppf",
    "run_layer": "llpplppplplpppfflpp",
    "training_step": "lllpppppf",
    "training_step_backward": "lllpppppppf",
    "convolve": "llpllpppllpp",
    "convolve_backward": "llpllpllpppp",
}


class PackedFilters(NamedTuple):
    """The filters of one convolution, packed for ``NativeLibrary.convolve``."""

    panels: Tensor  # (panels, width * dim, wide)
    bias: Tensor  # (panels * wide,)
    n_filters: int


class NativeLibrary:
    """The C functions of a compiled library as methods that take tensors.

    Args:
        path: The shared library, from ``compiler.load_library``.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        functions = {name: getattr(library, f"elmokit_{name}") for name in _SIGNATURES}
        for name, function in functions.items():
            # A function that the file lacks raises AttributeError above; `compiler.py` then takes the file for damaged
            # and rebuilds.
            function.argtypes, function.restype = [_TYPES[code] for code in _SIGNATURES[name]], None
        self.wide = int(library.elmokit_wide())
        self._large_pages = functions["large_pages"]
        self._product = functions["product"]
        self._inference_step = functions["inference_step"]
        self._run_layer = functions["run_layer"]
        self._training_step = functions["training_step"]
        self._training_step_backward = functions["training_step_backward"]
        self._convolve = functions["convolve"]
        self._convolve_backward = functions["convolve_backward"]

    def panels(self, weight: Tensor) -> Tensor:
        """Pack a weight matrix ``(outputs, inputs)`` into ``(panels, inputs, wide)``, zero beyond the last output."""
        n_panels = -(-len(weight) // self.wide)
        padded = torch.nn.functional.pad(weight, (0, 0, 0, n_panels * self.wide - len(weight)))
        panels = weight.new_empty(n_panels, weight.shape[1], self.wide)
        # Before the first write: the system chooses the page size when a page is first touched.
        self._large_pages(panels.data_ptr(), panels.numel() * panels.element_size())
        return panels.copy_(padded.view(n_panels, self.wide, -1).transpose(1, 2))

    def product(self, inputs: Tensor, panels: Tensor, bias: Tensor, n_outputs: int) -> Tensor:
        """Return ``inputs @ weight.T + bias``.

        Args:
            inputs: ``(rows, inputs)``.
            panels: The weight, from ``panels``.
            bias: ``(panels * wide,)``.

        Returns:
            ``(rows, n_outputs)``
        """
        inputs = inputs.contiguous()
        outputs = inputs.new_empty(len(inputs), n_outputs)
        self._product(
            *(torch.get_num_threads(), len(inputs), inputs.data_ptr(), inputs.shape[1]),
            *(panels.data_ptr(), bias.data_ptr(), n_outputs, outputs.data_ptr()),
        )
        return outputs

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
        self._run_layer(
            *(torch.get_num_threads(), len(batch_sizes), batch_sizes.data_ptr(), inputs.data_ptr(), inputs.shape[1]),
            *(input_panels.data_ptr(), bias.data_ptr(), recurrent_panels.data_ptr(), hidden.shape[1]),
            *(None if projection_panels is None else projection_panels.data_ptr(), hidden_dim, hidden.data_ptr()),
            *(cell.data_ptr(), outputs.data_ptr(), cell_clip, projection_clip, chunk_rows),
            *(gates.data_ptr(), squashed.data_ptr()),
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
            _NO_CLIP if cell_clip is None else cell_clip,
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
            _NO_CLIP if cell_clip is None else cell_clip,
        )

    def filters(self, weight: Tensor, bias: Tensor) -> PackedFilters:
        """Pack the weight ``(filters, width * dim)``, the first character's numbers first, and the bias."""
        panels = self.panels(weight)
        # The kernel loads whole vectors of the bias, also for the last panel.
        padded = torch.nn.functional.pad(bias, (0, len(panels) * self.wide - len(bias)))
        return PackedFilters(panels, padded, len(bias))

    def convolve(
        self, characters: Tensor, n_windows: Tensor, filters: PackedFilters, with_positions: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the maximum of each filter over the positions of a convolution over characters.

        Args:
            characters: ``(tokens, chars, dim)``.
            n_windows: ``(tokens,)`` int64, the windows of each token to consider: 1 to ``chars - width + 1``.
            filters: From ``filters``.
            with_positions: Whether to return the winning positions too; the gradient needs them.

        Returns:
            The maxima ``(tokens, filters)``, and the winning positions ``(tokens, filters)`` in int32 or None.
        """
        n_tokens, n_chars, dim = characters.shape
        panels, bias, n_filters = filters
        pooled = characters.new_empty(n_tokens, n_filters)
        positions = characters.new_empty(n_tokens, n_filters, dtype=torch.int32) if with_positions else None
        self._convolve(
            *(torch.get_num_threads(), n_tokens, characters.data_ptr(), n_chars * dim, dim, n_windows.data_ptr()),
            *(panels.data_ptr(), bias.data_ptr(), panels.shape[1], n_filters, pooled.data_ptr()),
            None if positions is None else positions.data_ptr(),
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
