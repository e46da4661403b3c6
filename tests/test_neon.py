"""The engine for Arm, built with a cross compiler and run under QEMU, equals the portable one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from elmokit.engine import c_sources, compiler
from elmokit.engine.config import BiLMConfig, CharCNNConfig, tensor_shapes
from elmokit.engine.engine import Matrix, TokenLayer
from elmokit.engine.instruction_sets import INSTRUCTION_SETS
from elmokit.engine.library import Library
from elmokit.engine.precision import NAMES, PRECISIONS
from elmokit.engine.state import Floats
from tests.helpers.engine_lstm import lstm_config, random_arrays, random_lstm, random_state

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
MAIN = Path(__file__).parent / "helpers" / "engine_main.c"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which(COMPILER) or not shutil.which(EMULATOR), reason=f"no {COMPILER} or {EMULATOR}"),
]


@pytest.fixture(params=["neon", "neon-dotprod"], scope="module")
def main(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program for Arm that computes with the engine."""
    directory = tmp_path_factory.mktemp(request.param)
    for name, content in c_sources.source_files().items():
        (directory / name).write_bytes(content)
    flags = [flag for flag in c_sources.FLAGS if flag not in ("-shared", "-fPIC")]
    command = [COMPILER, *flags, *INSTRUCTION_SETS[request.param].flags, f"-I{directory}", "-static"]
    sources = [str(MAIN), *sorted(str(path) for path in directory.glob("*.c"))]
    subprocess.run([*command, "-o", str(directory / "main"), *sources, "-lm"], check=True)
    return directory / "main"


@pytest.fixture
def portable() -> Library:
    if compiler.load_library() is None:
        pytest.skip(compiler.why_unavailable())
    return compiler.build("portable", INSTRUCTION_SETS["portable"])


def run(main: Path, what: str, precision: str, counts: list[int], arrays: list[np.ndarray]) -> Floats:
    """Run the program on some numbers; return those that it writes."""
    parts = [np.array(counts, np.int64).tobytes()]
    for array in arrays:
        parts += [np.int64(array.nbytes).tobytes(), np.ascontiguousarray(array).tobytes()]
    path = main.with_name("numbers")
    path.write_bytes(b"".join(parts))
    command = [EMULATOR, "-cpu", "max", str(main), what, str(NAMES.index(precision)), str(path)]  # type: ignore[arg-type]
    printed = subprocess.run(command, check=True, capture_output=True, timeout=120).stdout
    return np.frombuffer(printed, np.float32)


def test_products_on_arm_equal_the_portable_ones(main: Path, portable: Library) -> None:
    generator = np.random.default_rng(0)
    for precision in PRECISIONS:
        for n_rows, n_inputs, n_outputs in ((1, 70, 40), (2, 300, 33), (4, 513, 8), (21, 65, 50)):
            inputs = generator.integers(-127, 128, (n_rows, n_inputs)).astype(np.float32)
            inputs[:, 0] = 127  # inputs that are rounded keep their values
            weight = generator.normal(size=(n_outputs, n_inputs)).astype(np.float32)
            expected = Matrix(weight, precision, portable)(inputs)
            found = run(main, "product", precision, [n_rows, n_inputs, n_outputs], [inputs, weight])
            np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=2e-3, rtol=1e-5)


def test_token_vectors_on_arm_equal_the_portable_ones(main: Path, portable: Library) -> None:
    cnn = CharCNNConfig(((1, 3), (2, 40), (5, 70)), char_dim=5, n_chars=30, max_chars=12)
    config = BiLMConfig(cnn, projection_dim=9, hidden_dim=9)
    generator = np.random.default_rng(0)
    arrays = {
        name: (generator.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)
        for name, shape in tensor_shapes(config).items()
        if name.startswith("token_layer.")
    }
    ids = generator.integers(0, 31, (20, 12))
    ids[:, 7:] = 30
    widths, n_filters = (np.array(column) for column in zip(*cnn.filters, strict=True))
    counts = [*ids.shape, cnn.n_chars + 1, cnn.char_dim, len(widths), cnn.n_highway, config.projection_dim]
    for precision in PRECISIONS:
        expected = TokenLayer(config, arrays, precision, portable)(ids)
        found = run(main, "tokens", precision, counts, [widths, n_filters, *arrays.values(), ids])
        # With dot products, inputs are rounded to bytes, too.
        within = 0.1 if precision == "int8" else 1e-5
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=within, rtol=0)


def test_layers_on_arm_equal_the_portable_ones(main: Path, portable: Library) -> None:
    config = lstm_config(50, 20, 2, bidirectional=True)
    generator = np.random.default_rng(0)
    words, start = generator.integers(0, 7, 15), random_state(config, 1)
    vectors = generator.normal(size=(7, 20)).astype(np.float32)
    lstm = random_lstm(portable, "float32", config)
    (expected,), _ = lstm.layers(vectors, words, np.array([15]), start, range(3))
    arrays = [np.array(config.read_backward, np.int64), *random_arrays(config).values(), words, np.arange(3)]
    for precision in PRECISIONS:
        found = run(main, "lstm", precision, [15, 2, 2, 20, 50], [*arrays, vectors, *start])
        # Small layers are computed in float32, unless there are dot products.
        within = 0.2 if precision == "int8" else 1e-5
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=within, rtol=0)
