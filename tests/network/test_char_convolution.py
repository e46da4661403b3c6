"""Native convolutions: the maxima, and a gradient for the winning windows only."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from elmokit.engine.library import Library
from elmokit.network.char_cnn import CharCNN
from elmokit.network.char_convolution import CharConvolution, convolve, convolve_rows, read_characters
from elmokit.network.native_training import convolve as native_convolve
from elmokit.network.native_training import convolve_backward, pack_filters
from tests.helpers.instruction_sets import machine_library
from tests.helpers.rounding import DEVIATIONS, Rounded, assert_rounded


@pytest.fixture(scope="module")
def library() -> Library:
    return machine_library()


def responses(characters: Tensor, weight: Tensor, n_positions: Tensor) -> Tensor:
    """What every window gives, ``(tokens, positions, filters)``; minus infinity beyond a token's windows."""
    dim = characters.shape[2]
    width = weight.shape[1] // dim
    windows = characters.unfold(1, width, 1).transpose(2, 3).flatten(2)  # (tokens, positions, width * dim)
    beyond = torch.arange(windows.shape[1]) >= n_positions[:, None]
    return (windows @ weight.t()).masked_fill(beyond[..., None], float("-inf"))


def in_pytorch(weight: Tensor, dim: int) -> Tensor:
    """The weight ``(filters, width * dim)`` as ``nn.Conv1d`` has it, ``(filters, dim, width)``."""
    return weight.unflatten(1, (-1, dim)).transpose(1, 2).contiguous()


def pooled_convolutions(ids: Tensor, embedding: nn.Embedding, layers: Iterable[nn.Module]) -> Tensor:
    layers = list(layers)
    widest = max(layer.weight.shape[2] for layer in layers)  # type: ignore[union-attr]
    characters = read_characters(ids, embedding, embedding.num_embeddings, widest)
    return torch.cat([layer(characters) for layer in layers], dim=1)


@given(
    n_tokens=st.integers(1, 150),
    n_chars=st.integers(1, 60),
    width=st.integers(1, 7),
    dim=st.integers(1, 17),
    n_filters=st.integers(1, 40),
    n_threads=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 1000),
)
def test_the_native_convolution_is_the_maximum_and_has_its_gradient(
    n_tokens: int, n_chars: int, width: int, dim: int, n_filters: int, n_threads: int, seed: int, library: Library
) -> None:
    torch.manual_seed(seed)
    width = min(width, n_chars)
    characters = torch.randn(n_tokens, n_chars, dim)
    weight, bias = torch.randn(n_filters, width * dim), torch.randn(n_filters)
    n_positions = torch.randint(1, n_chars - width + 2, (n_tokens,))
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        filters = pack_filters(library, in_pytorch(weight, dim), bias)
        pooled, places = native_convolve(library, characters, n_positions, filters)
        gradient = torch.randn(n_tokens, n_filters).relu()
        to_characters = torch.ones_like(characters)
        to_weight = convolve_backward(library, characters, weight, places, gradient, to_characters)
    finally:
        torch.set_num_threads(before)

    def of_winners(power: int) -> tuple[Tensor, Tensor, Tensor]:
        """The winning responses and the gradients, where every factor is raised to a power."""
        factors = [(part.double() ** power).requires_grad_() for part in (characters, weight)]
        won = responses(*factors, n_positions).gather(1, places.long()[:, None])[:, 0]
        return won.detach(), *torch.autograd.grad((won * gradient**power).sum(), factors)

    terms = (width * dim, 1 + n_filters * width, n_tokens)  # of each sum
    won, *gradients = (
        Rounded.sum_of(n_terms, value, squares, torch.finfo(torch.float32).eps / 2)
        for n_terms, value, squares in zip(terms, of_winners(1), of_winners(2), strict=True)
    )
    assert_rounded(pooled, won + Rounded.exact(bias))
    assert_rounded(to_characters, gradients[0] + Rounded.exact(torch.ones_like(characters)))
    assert_rounded(to_weight, gradients[1])
    every = responses(characters.double(), weight.double(), n_positions)
    # Of two windows that are equal but for rounding, either may win.
    assert (every.amax(dim=1) - won.value <= 2 * DEVIATIONS * won.error).all()


def test_the_maximum_keeps_nan(library: Library) -> None:
    characters = torch.randn(3, 20, 4)
    characters[1, 7] = float("nan")
    filters = pack_filters(library, torch.randn(5, 4, 3), torch.zeros(5))
    pooled, _ = native_convolve(library, characters, torch.full((3,), 18), filters)
    assert pooled.isnan().all(dim=1).tolist() == [False, True, False]


def test_native_and_reference_convolutions_are_equal(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(30, 6, padding_idx=0)
    layers = nn.ModuleList([CharConvolution(6, 5, 1), CharConvolution(6, 20, 3), CharConvolution(6, 3, 7)])
    ids = torch.full((200, 16), 29)
    for row, length in zip(ids, torch.randint(0, 17, (200,)).tolist(), strict=True):
        row[:length] = torch.randint(1, 29, (length,))
    found, gradients = [], []
    for backend in ("auto", "reference"):
        monkeypatch.setenv("ELMOKIT_BACKEND", backend)
        pooled = pooled_convolutions(ids, embedding, layers)
        wanted = [*embedding.parameters(), *layers.parameters()]
        gradients.append(torch.autograd.grad(pooled.square().sum(), wanted))
        found.append(pooled)
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=0)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-4)


def layers_and_ids() -> tuple[nn.Embedding, list[CharConvolution], Tensor]:
    torch.manual_seed(0)
    return nn.Embedding(9, 4), [CharConvolution(4, 5, 2), CharConvolution(4, 3, 3)], torch.randint(1, 9, (6, 8))


@pytest.mark.parametrize("frozen", ["embedding", "convolutions", "one convolution"])
def test_frozen_parameters_get_no_gradient_and_others_do(frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    embedding, layers, ids = layers_and_ids()
    for part in {"embedding": [embedding], "convolutions": layers, "one convolution": layers[:1]}[frozen]:
        part.requires_grad_(False)
    trained = [weight for part in (embedding, *layers) for weight in part.parameters() if weight.requires_grad]
    gradients = []
    for backend in ("auto", "reference"):
        monkeypatch.setenv("ELMOKIT_BACKEND", backend)
        pooled = pooled_convolutions(ids, embedding, layers)
        gradients.append(torch.autograd.grad(pooled.square().sum(), trained))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_have_the_same_maxima_and_gradients(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    characters, n_windows = torch.randn(5, 9, 4), torch.tensor([1, 7, 3, 2, 6])
    parts = [characters, torch.randn(6, 4, 3), torch.randn(6)]
    found, wanted = ([part.to(of).requires_grad_() for part in parts] for of in (dtype, torch.float32))
    upstream = torch.randn(5, 6)
    maxima = [convolve(of[0], n_windows, *of[1:]) for of in (found, wanted)]
    gradients = [
        torch.autograd.grad((one.float() * upstream).sum(), of) for one, of in zip(maxima, (found, wanted), strict=True)
    ]
    tolerance = 1e-5 if dtype == torch.float64 else 0.2
    for ours, theirs in zip((maxima[0], *gradients[0]), (maxima[1], *gradients[1]), strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.float(), theirs, atol=tolerance, rtol=0)


def test_sizes_that_do_not_fit_are_refused() -> None:
    characters, weight, bias = torch.randn(2, 5, 4), torch.randn(6, 4, 3), torch.zeros(6)
    for wrong in (
        (characters, torch.tensor([1, 4]), weight, bias),
        (characters, torch.tensor([0, 1]), weight, bias),
        (characters, torch.tensor([1, 1, 1]), weight, bias),
        (characters[:, :2], torch.tensor([1, 1]), weight, bias),
        (characters, torch.tensor([1, 1]), weight, bias[:5]),
        (characters[..., :3], torch.tensor([1, 1]), weight, bias),
    ):
        with pytest.raises(RuntimeError):
            convolve(*wrong)


@torch.no_grad()
def test_without_gradients_a_token_has_the_same_bits_in_any_batch_and_on_any_number_of_threads() -> None:
    embedding, layers, ids = layers_and_ids()
    ids = torch.cat([ids, ids.clone().index_fill_(1, torch.arange(3, 8), 0), torch.zeros(1, 8, dtype=torch.int64)])
    exact = pooled_convolutions(ids, embedding.double(), nn.ModuleList(layers).double())
    embedding.float(), nn.ModuleList(layers).float()
    found = pooled_convolutions(ids, embedding, layers)
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=0)
    assert torch.equal(torch.cat([pooled_convolutions(row[None], embedding, layers) for row in ids]), found)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    assert torch.equal(pooled_convolutions(ids, embedding, layers), found)
    torch.set_num_threads(before)


@torch.no_grad()
def test_without_gradients_wrong_ids_and_sizes_are_refused() -> None:
    embedding, layers, ids = layers_and_ids()
    for wrong in (-1, 9):
        with pytest.raises(IndexError, match="index out of range"):
            pooled_convolutions(torch.full((2, 8), wrong), embedding, layers)
        with pytest.raises(IndexError, match="index out of range"):
            convolve_rows(torch.full((2, 8), wrong), embedding.weight, layers[0].weight, torch.zeros(5))
    for wrong_sizes in (
        (ids[:, :1], embedding.weight, layers[0].weight, torch.zeros(5)),
        (ids, embedding.weight[:, 1:], layers[0].weight, torch.zeros(5)),
        (ids, embedding.weight, layers[0].weight, torch.zeros(4)),
    ):
        with pytest.raises(RuntimeError):
            convolve_rows(*wrong_sizes)


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_module_in_the_place_of_a_convolution_is_called_like_conv1d(dtype: torch.dtype, needs_gradient: bool) -> None:
    torch.manual_seed(0)
    cnn = CharCNN(30, 4, [(1, 5), (3, 6)], "relu", 1, 8).to(dtype)
    ids = torch.randint(1, 31, (7, 12))
    ids[0, 3:] = ids[1, 9:] = 30
    with torch.set_grad_enabled(needs_gradient):
        expected = cnn(ids)
        cnn.convolutions[1] = nn.Sequential(cnn.convolutions[1])
        torch.testing.assert_close(cnn(ids), expected)
