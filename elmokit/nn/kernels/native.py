"""The functions of the C files beside this one, on tensors, through ctypes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

GATES = 4
ROWS_AT_ONCE = 256  # rows whose input products are taken together: the gate sums then stay in the cache
_NOTHING = float("inf")  # a clip that clips nothing

_long, _pointer, _float = ctypes.c_long, ctypes.c_void_p, ctypes.c_float


class Filters(NamedTuple):
    """A convolution as ``Library.convolve`` reads it."""

    panels: Tensor  # (panels, width * dim, wide)
    bias: Tensor  # (panels * wide,)
    n_filters: int


class Library:
    """The C functions on tensors: contiguous, on the CPU, float32 unless said otherwise."""

    def __init__(self, path: Path) -> None:
        functions = ctypes.CDLL(str(path))
        self.wide = int(functions.elmokit_wide())
        self._large_pages = functions.elmokit_large_pages
        self._large_pages.argtypes, self._large_pages.restype = [_pointer, ctypes.c_size_t], None
        self._product = functions.elmokit_product
        self._product.argtypes = [_long, _long, _pointer, _long, _pointer, _pointer, _long, _pointer]
        self._product.restype = None
        self._step = functions.elmokit_step
        self._step.argtypes = [_long, _long, _long, _pointer, _pointer, _pointer, _pointer, _float]
        self._step.restype = None
        self._read_layer = functions.elmokit_read_layer
        self._read_layer.argtypes = [
            *(_long, _long, _pointer, _pointer, _long, _pointer, _pointer, _pointer),
            *(_long, _pointer, _long, _pointer, _pointer, _pointer, _float, _float, _long, _pointer, _pointer),
        ]
        self._read_layer.restype = None
        self._window_step = functions.elmokit_window_step
        self._window_step.argtypes = [_long, _long, _long, *[_pointer] * 5, _float]
        self._window_step.restype = None
        self._window_step_back = functions.elmokit_window_step_back
        self._window_step_back.argtypes = [_long, _long, _long, *[_pointer] * 7, _float]
        self._window_step_back.restype = None
        self._convolve = functions.elmokit_convolve
        self._convolve.argtypes = [
            *(_long, _long, _pointer, _long, _long, _pointer, _pointer, _pointer),
            *(_long, _long, _pointer, _pointer),
        ]
        self._convolve.restype = None
        self._convolve_back = functions.elmokit_convolve_back
        self._convolve_back.argtypes = [
            *(_long, _long, _pointer, _long, _long, _pointer, _long, _long),
            *[_pointer] * 4,
        ]
        self._convolve_back.restype = None

    def panels(self, weight: Tensor) -> Tensor:
        """Pack a weight matrix ``(outputs, inputs)``: ``(panels, inputs, wide)``, zero beyond the last output."""
        n_panels = -(-len(weight) // self.wide)
        padded = torch.nn.functional.pad(weight, (0, 0, 0, n_panels * self.wide - len(weight)))
        panels = weight.new_empty(n_panels, weight.shape[1], self.wide)
        self._large_pages(panels.data_ptr(), panels.numel() * panels.element_size())
        return panels.copy_(padded.view(n_panels, self.wide, -1).transpose(1, 2))

    def product(self, inputs: Tensor, panels: Tensor, bias: Tensor, n_outputs: int) -> Tensor:
        """``inputs @ weight.T + bias``.

        Args:
            inputs: ``(rows, inputs)``.
            panels: from ``panels``.
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

    def step(self, from_input: Tensor, from_state: Tensor, cell: Tensor, squashed: Tensor, cell_clip: float) -> None:
        """The elementwise part of one step; ``cell`` and ``squashed`` ``(rows, hidden_dim)`` are written.

        Args:
            from_input, from_state: ``(rows, 4 * hidden_dim)``, whose sum is the gates' i, g, f, o.
        """
        rows, hidden_dim = cell.shape
        self._step(
            *(torch.get_num_threads(), rows, hidden_dim, from_input.data_ptr(), from_state.data_ptr()),
            *(cell.data_ptr(), squashed.data_ptr(), cell_clip),
        )

    def read_layer(
        self,
        n_active: Tensor,
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
        """Read all steps of one layer; ``reader.read_in_torch`` is its twin.

        Args:
            n_active: ``(steps,)`` int64, never rising: step t reads the first ``n_active[t]`` rows.
            inputs: ``(tokens, input_dim)``, the rows of step 0, then those of step 1, ...
            input_panels, recurrent_panels, bias: of the gates; block after block of ``wide`` units, in each i, g, f, o.
            projection_panels: over the padded hidden units, or None.
            hidden: ``(rows, projection_dim)``, the state before the first step.
            cell: ``(rows, padded hidden_dim)``; becomes the cell after each row's last step.

        Returns:
            ``(tokens, projection_dim)``
        """
        n_rows, hidden_dim = cell.shape
        outputs = inputs.new_empty(len(inputs), hidden.shape[1])
        rows_at_once = max(min(ROWS_AT_ONCE, len(inputs)), n_rows)
        gates = inputs.new_empty(rows_at_once, GATES * hidden_dim)
        squashed = inputs.new_empty(n_rows, hidden_dim)
        self._read_layer(
            *(torch.get_num_threads(), len(n_active), n_active.data_ptr(), inputs.data_ptr(), inputs.shape[1]),
            *(input_panels.data_ptr(), bias.data_ptr(), recurrent_panels.data_ptr(), hidden.shape[1]),
            *(None if projection_panels is None else projection_panels.data_ptr(), hidden_dim, hidden.data_ptr()),
            *(cell.data_ptr(), outputs.data_ptr(), cell_clip, projection_clip, rows_at_once),
            *(gates.data_ptr(), squashed.data_ptr()),
        )
        return outputs

    def window_step(
        self,
        gates: Tensor,
        cell_before: Tensor,
        cell_after: Tensor,
        squashed: Tensor,
        outputs: Tensor,
        cell_clip: float | None,
    ) -> None:
        """The elementwise part of a step in training.

        Args:
            gates: ``(rows, 4 * hidden_dim)``, sums of i, g, f, o; become the activations.
            cell_before: ``(rows, hidden_dim)``.
            cell_after, squashed, outputs: of that size; written: the new cell, its tanh, and that times o.
        """
        self._window_step(
            *(torch.get_num_threads(), *cell_before.shape, gates.data_ptr(), cell_before.data_ptr()),
            *(cell_after.data_ptr(), squashed.data_ptr(), outputs.data_ptr()),
            _NOTHING if cell_clip is None else cell_clip,
        )

    def window_step_back(
        self,
        gradient: Tensor,
        gates: Tensor,
        cell_before: Tensor,
        cell_after: Tensor,
        squashed: Tensor,
        later_cell: Tensor,
        to_gates: Tensor,
        cell_clip: float | None,
    ) -> None:
        """The gradient of ``window_step``.

        Args:
            gradient: of ``outputs``.
            gates, cell_before, cell_after, squashed: as ``window_step`` left them.
            later_cell: the gradient of ``cell_after`` from later steps; becomes that of ``cell_before``.
            to_gates: ``(rows, 4 * hidden_dim)``, written: the gradient of the gate sums.
        """
        self._window_step_back(
            *(torch.get_num_threads(), *cell_before.shape, gradient.data_ptr(), gates.data_ptr()),
            *(cell_before.data_ptr(), cell_after.data_ptr(), squashed.data_ptr(), later_cell.data_ptr()),
            to_gates.data_ptr(),
            _NOTHING if cell_clip is None else cell_clip,
        )

    def filters(self, weight: Tensor, bias: Tensor) -> Filters:
        """Pack ``weight`` ``(filters, width * dim)``, the first character's numbers first, and ``bias``."""
        panels = self.panels(weight)
        padded = torch.nn.functional.pad(bias, (0, len(panels) * self.wide - len(bias)))
        return Filters(panels, padded, len(bias))

    def convolve(
        self, characters: Tensor, n_positions: Tensor, filters: Filters, with_places: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The maximum over positions of a convolution over characters.

        Args:
            characters: ``(tokens, chars, dim)``.
            n_positions: ``(tokens,)`` int64: windows of each token, 1 to ``chars - width + 1``.
            with_places: whether the winning positions are wanted too.

        Returns:
            ``(tokens, filters)``, and the places ``(tokens, filters)`` int32 or None.
        """
        n_tokens, n_chars, dim = characters.shape
        panels, bias, n_filters = filters
        pooled = characters.new_empty(n_tokens, n_filters)
        places = characters.new_empty(n_tokens, n_filters, dtype=torch.int32) if with_places else None
        self._convolve(
            *(torch.get_num_threads(), n_tokens, characters.data_ptr(), n_chars * dim, dim, n_positions.data_ptr()),
            *(panels.data_ptr(), bias.data_ptr(), panels.shape[1], n_filters, pooled.data_ptr()),
            None if places is None else places.data_ptr(),
        )
        return pooled, places

    def convolve_back(
        self, characters: Tensor, weight: Tensor, places: Tensor, gradient: Tensor, to_characters: Tensor
    ) -> Tensor:
        """The gradient of ``convolve``; that of the characters is added to ``to_characters``.

        Args:
            characters: as there; ``places``: what it gave.
            weight: ``(filters, width * dim)``.
            gradient: of the maxima, ``(tokens, filters)``.

        Returns:
            the weight's gradient.
        """
        n_tokens, n_chars, dim = characters.shape
        n_filters, n_inputs = weight.shape
        n_threads = torch.get_num_threads()
        to_weight = weight.new_zeros(n_threads, n_filters, n_inputs)
        self._convolve_back(
            *(n_threads, n_tokens, characters.data_ptr(), n_chars * dim, dim, weight.data_ptr(), n_inputs, n_filters),
            *(places.data_ptr(), gradient.data_ptr(), to_characters.data_ptr(), to_weight.data_ptr()),
        )
        return to_weight.sum(dim=0)
