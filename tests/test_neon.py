"""The kernels for Arm, built with a cross compiler and run under QEMU, equal the portable ones."""

from __future__ import annotations

import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest
import torch

from elmokit.nn.char_cnn import CharCNN
from elmokit.nn.kernels import compiler
from elmokit.nn.kernels.c_sources import FLAGS
from elmokit.nn.kernels.instruction_sets import INSTRUCTION_SETS
from elmokit.nn.kernels.native import PRECISIONS, NativeLibrary
from elmokit.nn.kernels.token_layer import pack_token_layer, run_token_layer

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
HELPERS = Path(__file__).parent / "helpers"
KERNELS = Path(str(resources.files("elmokit") / "nn" / "kernels"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which(COMPILER) or not shutil.which(EMULATOR), reason=f"no {COMPILER} or {EMULATOR}"),
]


def build(directory: Path, instructions: str, *sources: Path) -> Path:
    """Compile a program for Arm."""
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
    command = [COMPILER, *flags, *INSTRUCTION_SETS[instructions].flags, "-static", "-o", str(directory / "main")]
    subprocess.run([*command, *map(str, sources), "-lm"], check=True)
    return directory / "main"


def run(main: Path, *arguments: object) -> torch.Tensor:
    """Run a program for Arm; return the floats that it writes."""
    command = [EMULATOR, "-cpu", "max", str(main), *map(str, arguments)]
    printed = subprocess.run(command, check=True, capture_output=True).stdout
    return torch.frombuffer(bytearray(printed), dtype=torch.float32)


@pytest.fixture
def portable() -> NativeLibrary:
    """The library that packs weights in the same layout."""
    if compiler.load_library() is None:
        pytest.skip(compiler.why_unavailable())
    return compiler.build("portable", INSTRUCTION_SETS["portable"])


def content(*tensors: torch.Tensor) -> bytes:
    return b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)


@pytest.mark.parametrize("instructions", ["neon", "neon-dotprod"])
def test_products_on_arm_equal_the_portable_ones(instructions: str, tmp_path: Path, portable: NativeLibrary) -> None:
    main = build(tmp_path, instructions, HELPERS / "kernels_main.c", KERNELS / "lstm_inference.c")
    torch.manual_seed(0)
    for code, precision in enumerate(PRECISIONS):
        for n_rows, n_inputs, n_outputs in ((1, 70, 40), (2, 300, 33), (4, 513, 8), (21, 65, 50)):
            inputs, weight = torch.randint(-127, 128, (n_rows, n_inputs)).float(), torch.randn(n_outputs, n_inputs)
            inputs[:, 0] = 127  # inputs that are rounded keep their values
            panels = portable.pack(weight, precision)
            bias = torch.zeros(len(panels) * portable.wide)
            expected = portable.product(inputs, panels, bias, n_outputs, precision)
            (tmp_path / "numbers").write_bytes(content(inputs, panels, bias))
            outputs = run(main, code, n_rows, n_inputs, n_outputs, tmp_path / "numbers").view(n_rows, n_outputs)
            torch.testing.assert_close(outputs, expected, atol=2e-3, rtol=1e-5)


@pytest.mark.parametrize("instructions", ["neon", "neon-dotprod"])
def test_token_vectors_on_arm_equal_the_portable_ones(
    instructions: str, tmp_path: Path, portable: NativeLibrary
) -> None:
    main = build(
        tmp_path, instructions, HELPERS / "token_layer_main.c", KERNELS / "token_layer.c", KERNELS / "lstm_inference.c"
    )
    torch.manual_seed(0)
    cnn = CharCNN(30, 5, [(1, 3), (2, 40), (5, 70)], "relu", 2, 9)
    cnn.reset_parameters()
    ids = torch.randint(0, 31, (20, 12))
    ids[:, 7:] = 30
    for code, precision in enumerate(PRECISIONS):
        layer = pack_token_layer(portable, precision, cnn.weights())
        assert layer is not None
        assert layer.tables is not None
        assert layer.highways is not None
        assert layer.projection is not None
        counts = torch.tensor([code, *ids.shape, len(layer.char_embedding), 3, layer.n_highways, 9])
        arrays = [layer.tables, layer.filter_bias, layer.highways.panels, layer.highways.bias]
        arrays += [layer.projection.panels, layer.projection.bias]
        sized = [part for array in arrays for part in (torch.tensor(array.numel()), array)]
        (tmp_path / "numbers").write_bytes(content(counts, layer.sizes, ids, *sized))
        expected = run_token_layer(portable, layer, ids)
        # With dot products, inputs are rounded to bytes, too.
        within = 0.08 if precision == "int8" else 1e-5
        torch.testing.assert_close(run(main, tmp_path / "numbers").view(20, 9), expected, atol=within, rtol=0)
