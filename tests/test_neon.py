"""The kernels for Arm, built with a cross compiler and run under QEMU, equal the portable ones."""

from __future__ import annotations

import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest
import torch

from elmokit.nn.kernels import compiler
from elmokit.nn.kernels.c_sources import FLAGS
from elmokit.nn.kernels.instruction_sets import INSTRUCTION_SETS
from elmokit.nn.kernels.native import PRECISIONS

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
MAIN = Path(__file__).parent / "helpers" / "kernels_main.c"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which(COMPILER) or not shutil.which(EMULATOR), reason=f"no {COMPILER} or {EMULATOR}"),
]


@pytest.mark.parametrize("instructions", ["neon", "neon-dotprod"])
def test_products_on_arm_equal_the_portable_ones(instructions: str, tmp_path: Path) -> None:
    if compiler.load_library() is None:
        pytest.skip(compiler.why_unavailable())
    portable = compiler.build("portable", INSTRUCTION_SETS["portable"])  # it packs weights in the same layout
    folder = Path(str(resources.files("elmokit") / "nn" / "kernels"))
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
    command = [COMPILER, *flags, *INSTRUCTION_SETS[instructions].flags, "-static", "-o", str(tmp_path / "main")]
    subprocess.run([*command, str(MAIN), str(folder / "lstm_inference.c"), "-lm"], check=True)
    torch.manual_seed(0)
    for code, precision in enumerate(PRECISIONS):
        for n_rows, n_inputs, n_outputs in ((1, 70, 40), (2, 300, 33), (4, 513, 8), (21, 65, 50)):
            inputs, weight = torch.randint(-127, 128, (n_rows, n_inputs)).float(), torch.randn(n_outputs, n_inputs)
            inputs[:, 0] = 127  # inputs that are rounded keep their values
            panels = portable.pack(weight, precision)
            bias = torch.zeros(len(panels) * portable.wide)
            expected = portable.product(inputs, panels, bias, n_outputs, precision)
            content = b"".join(part.contiguous().numpy().tobytes() for part in (inputs, panels, bias))
            (tmp_path / "numbers").write_bytes(content)
            sizes = map(str, (code, n_rows, n_inputs, n_outputs))
            run = [EMULATOR, "-cpu", "max", str(tmp_path / "main"), *sizes, str(tmp_path / "numbers")]
            printed = subprocess.run(run, check=True, capture_output=True).stdout
            outputs = torch.frombuffer(bytearray(printed), dtype=torch.float32).view(n_rows, n_outputs)
            torch.testing.assert_close(outputs, expected, atol=2e-3, rtol=1e-5)
