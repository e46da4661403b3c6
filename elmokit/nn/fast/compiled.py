"""``kernels.c``, built once for the processor at hand and called through ctypes; absent where there is no C compiler.

The built library is kept in the cache folder (``ELMOKIT_CACHE``, else the usual place), under a name made from the
source, the compiler's flags and the processor. ``CC`` names the compiler; ``CC=false`` keeps anything from being built.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.files import cache_folder

FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")
BUILD_SECONDS = 60
GATES = 4
ROWS_AT_ONCE = 256  # rows whose input products are taken together: the gate sums then stay in the cache

_long, _pointer, _float = ctypes.c_long, ctypes.c_void_p, ctypes.c_float


class Library:
    """The functions of ``kernels.c`` on tensors."""

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


@functools.cache
def library() -> Library | None:
    """The library, built if need be; None where it cannot be had (``why_not`` says why)."""
    return _built()[0]


def why_not() -> str:
    """Why there is no library; empty where there is one."""
    library()
    return _built()[1]


@functools.cache
def _built() -> tuple[Library | None, str]:
    if platform.system() != "Linux":
        return None, "kernels.c is built on Linux only"  # elsewhere it would bring a second pool of threads along
    try:
        try:
            return Library(_build()), ""
        except (OSError, AttributeError):  # a damaged file, such as a full disk leaves behind
            _place().unlink(missing_ok=True)
            return Library(_build()), ""
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        return None, f"the C compiler refused kernels.c: {lines[0] if lines else error.returncode}"
    # ValueError: CC cannot be taken apart into words.
    except (OSError, ElmoError, AttributeError, ValueError, subprocess.TimeoutExpired) as error:
        return None, f"kernels.c could not be built: {error}"


def _build() -> Path:
    """The built library in the cache, made if it is not there yet.

    OpenMP is PyTorch's: the library asks for ``libgomp.so.1``, which is loaded by then, so that both share threads.
    """
    path = _place()
    folder = path.parent
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as workshop:
            (beside := Path(workshop) / "kernels.c").write_bytes(_source())
            built = Path(workshop) / "kernels.so"
            subprocess.run(
                [*_command(), "-o", str(built), str(beside), "-lm"],
                check=True,
                capture_output=True,
                timeout=BUILD_SECONDS,
            )
            built.replace(path)
    return path


def _place() -> Path:
    parts = [_source(), " ".join(_command()).encode(), _processor().encode()]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return cache_folder() / "kernels" / f"{key}.so"


def _source() -> bytes:
    return (resources.files("elmokit") / "nn" / "fast" / "kernels.c").read_bytes()


def _command() -> list[str]:
    return [*shlex.split(os.environ.get("CC") or "cc"), *FLAGS]


def _processor() -> str:
    """What ``-march=native`` depends on: a cache folder may be shared by unlike machines."""
    lines = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.split(":")[0].strip() in ("flags", "Features", "model name"):
                lines.append(line)
            elif not line and lines:
                break
    return "\n".join([platform.machine(), *lines])
