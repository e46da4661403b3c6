from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from elmokit.nn.kernels import compiler
from elmokit.nn.kernels.packed_linear import PackedLinear


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Nothing built yet; the cache is an empty folder."""
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path))
    compiler._load.cache_clear()
    compiler.load_library.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    compiler._load.cache_clear()
    compiler.load_library.cache_clear()


@settings(max_examples=25)
@given(rows=st.integers(1, 210), n_in=st.integers(1, 600), n_out=st.integers(1, 150))
def test_the_product_is_the_product(rows: int, n_in: int, n_out: int) -> None:
    if compiler.load_library() is None:
        pytest.skip(compiler.why_unavailable())
    torch.manual_seed(n_in)
    linear = PackedLinear(n_in, n_out)
    inputs = torch.randn(rows, n_in)
    with torch.no_grad():
        torch.testing.assert_close(linear(inputs), F.linear(inputs, linear.weight, linear.bias), atol=1e-5, rtol=0)


def test_the_activations_are_good_to_a_few_units_in_the_last_place() -> None:
    library = compiler.load_library()
    if library is None:
        pytest.skip(compiler.why_unavailable())
    x = torch.cat([torch.linspace(-30, 30, 40_000), torch.logspace(-30, 1, 4_000), torch.tensor([0.0, 1e4, -1e4])])
    wide, zero = 60 * torch.ones_like(x), torch.zeros_like(x)
    # i and o open, f shut: the cell becomes tanh(g). With o at x and the cell at its bound, sigmoid(x) shows.
    cell, squashed = zero[None].clone(), zero[None].clone()
    library.inference_step(
        torch.cat([wide, x, -wide, wide])[None], torch.zeros(1, 4 * len(x)), cell, squashed, float("inf")
    )
    expected = torch.tanh(x.double())
    assert ((cell[0] - expected).abs() / expected.abs().clamp(min=1e-30)).max() < 4e-7
    library.inference_step(
        torch.cat([wide, wide, -wide, x])[None], torch.zeros(1, 4 * len(x)), cell, squashed, float("inf")
    )
    expected = torch.sigmoid(x.double()) * torch.tanh(torch.ones((), dtype=torch.float64))
    shown = expected > 1e-37
    assert ((squashed[0] - expected).abs() / expected)[shown].max() < 4e-7


def test_the_library_is_compiled_once_and_then_found(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiler.load_library() is None:
        pytest.skip(compiler.why_unavailable())
    (built,) = (fresh / "kernels").iterdir()
    written = built.stat().st_mtime_ns
    compiler._load.cache_clear()
    compiler.load_library.cache_clear()
    assert compiler.load_library() is not None
    assert built.stat().st_mtime_ns == written


@pytest.mark.parametrize("command", ["false", "no-such-compiler-anywhere", "cc '"])
def test_without_a_compiler_the_layers_still_work(command: str, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", command)
    assert compiler.load_library() is None
    assert compiler.why_unavailable()
    linear, inputs = PackedLinear(5, 3), torch.randn(4, 5)
    with torch.no_grad():
        torch.testing.assert_close(linear(inputs), F.linear(inputs, linear.weight, linear.bias))


def test_a_cache_that_cannot_be_written_is_no_error(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "file").write_text("")
    monkeypatch.setenv("ELMOKIT_CACHE", str(fresh / "file"))
    assert compiler.load_library() is None
    assert "could not be built" in compiler.why_unavailable()


def test_a_damaged_library_is_compiled_again(fresh: Path) -> None:
    place = compiler._library_path()
    place.parent.mkdir()
    place.write_bytes(b"cut short")
    if compiler.load_library() is None:
        pytest.skip(compiler.why_unavailable())
    assert place.stat().st_size > 1000


def test_without_a_home_folder_the_layers_still_work(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # what Python does for a user without a home
    for name in ("ELMOKIT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert compiler.load_library() is None
    assert "ELMOKIT_CACHE" in compiler.why_unavailable() or "Linux" in compiler.why_unavailable()
