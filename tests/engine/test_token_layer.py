"""The char CNN in C, for every instruction set and precision, against PyTorch's operations.

``emulated`` has plain C in place of the special instructions and runs everywhere.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elmokit.engine.architecture import Activation, BiLMConfig, CharCNNConfig
from elmokit.engine.library import Library, choose_kernels
from elmokit.engine.precision import PRECISIONS, VARIABLE, Precision
from elmokit.engine.token_layer import TokenLayer
from elmokit.network.char_cnn import CharCNN
from tests.helpers import rounding
from tests.helpers.instruction_sets import most_precise, rounds_inputs
from tests.helpers.rounding import assert_rounded

N_CHARS = 30
MAX_TABLE = 2**25
"""Numbers of the tables of all characters, above which ``token_layer.c`` makes those of each call's characters."""


def random_char_cnn(
    filters: list[tuple[int, int]],
    activation: Activation = "relu",
    n_highway: int = 2,
    output_dim: int = 9,
    n_chars: int = N_CHARS,
) -> CharCNN:
    cnn = CharCNN(n_chars, 5, filters, activation, n_highway, output_dim)
    cnn.reset_parameters(torch.Generator().manual_seed(0))
    for parameter in cnn.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.1)
    torch.nn.init.normal_(cnn.char_embedding.weight)
    return cnn


def random_ids(n_tokens: int, n_chars: int = 20) -> torch.Tensor:
    """Tokens of any length, padded with the last character; the first fills all columns, the second is all padding."""
    ids = torch.full((n_tokens, n_chars), N_CHARS)
    for row, length in zip(ids, [n_chars, 0, *torch.randint(0, n_chars + 1, (n_tokens,)).tolist()], strict=False):
        row[:length] = torch.randint(0, N_CHARS, (length,))
    return ids


def pack(library: Library, cnn: CharCNN, precision: Precision) -> TokenLayer:
    filters = tuple((layer.weight.shape[2], len(layer.weight)) for layer in cnn.convolutions)
    n_rows, dim = cnn.char_embedding.weight.shape
    sizes = CharCNNConfig(filters, dim, len(cnn.highways), cnn.activation, 50, n_rows - 1)
    config = BiLMConfig(sizes, projection_dim=cnn.output_dim, hidden_dim=cnn.output_dim)
    arrays = {f"token_layer.{name}": weight.detach().numpy() for name, weight in cnn.named_parameters()}
    return TokenLayer(config, arrays, precision, library)


def compute(library: Library, cnn: CharCNN, ids: torch.Tensor, precision: Precision, threads: int = 1) -> torch.Tensor:
    return torch.from_numpy(pack(library, cnn, precision)(ids.numpy(), threads))


@torch.no_grad()
def reference(cnn: CharCNN, ids: torch.Tensor) -> torch.Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "reference")
        vectors: torch.Tensor = cnn(ids)
        return vectors


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_vectors_equal_those_of_pytorch(library: Library, precision: Precision) -> None:
    @settings(max_examples=10)  # for each case
    @given(
        filters=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 80)), min_size=1, max_size=5),
        activation=st.sampled_from(["relu", "tanh"]),
        n_highway=st.integers(0, 2),
        is_projected=st.booleans(),
        n_tokens=st.one_of(st.integers(1, 40), st.just(200)),  # 192 are computed at once
        has_tables=st.booleans(),
        seed=st.integers(0, 1000),
    )
    @example([(1, 80)] * 3, "tanh", 1, False, 6, False, 225)  # 1.9e-6 from PyTorch's, with emulated instructions
    def check(
        filters: list[tuple[int, int]],
        activation: Activation,
        n_highway: int,
        is_projected: bool,
        n_tokens: int,
        has_tables: bool,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        n_features = sum(count for _, count in filters)
        per_character = sum(width * count for width, count in filters)
        # With few filters, there would have to be too many characters.
        n_chars = N_CHARS if has_tables or per_character < 300 else MAX_TABLE // per_character + 1
        cnn = random_char_cnn(filters, activation, n_highway, 9 if is_projected else n_features, n_chars)
        ids = random_ids(n_tokens)
        vectors = compute(library, cnn, ids, precision)
        assert_rounded(vectors, rounding.char_cnn(cnn, ids, precision))
        assert_rounded(reference(cnn, ids), rounding.char_cnn(cnn, ids))

    check()


@torch.no_grad()
@pytest.mark.parametrize("filters", [[(1, 5)], [(1, 3), (2, 40), (5, 70)], [(3, 33), (7, 64)]])
def test_convolutions_and_linear_layers_of_pytorch_modules_give_the_bits_of_the_engine(
    filters: list[tuple[int, int]], library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.network.backends.native_library", lambda: library)
    torch.manual_seed(0)
    for output_dim in (9, 64, sum(count for _, count in filters)):  # the last has no projection
        cnn = random_char_cnn(filters, n_highway=0, output_dim=output_dim)
        layer = pack(library, cnn, "float32")
        for n_tokens in (1, 2, 7, 64, 193):
            ids = random_ids(n_tokens)
            assert torch.equal(cnn(ids), torch.from_numpy(layer(ids.numpy())))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_bits_of_a_token_do_not_depend_on_the_others(library: Library, precision: Precision) -> None:
    torch.manual_seed(0)
    cnn, ids = random_char_cnn([(1, 3), (2, 40), (5, 70)]), random_ids(250)
    together = compute(library, cnn, ids, precision)
    for n_tokens in (1, 2, 3, 7, 13, 17, 33, 64, 193):
        first = len(ids) - n_tokens
        assert torch.equal(compute(library, cnn, ids[first:], precision), together[first:])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_threads_do_not_change_a_bit(library: Library, precision: Precision) -> None:
    torch.manual_seed(0)
    cnn, ids = random_char_cnn([(1, 3), (2, 40), (5, 70)]), random_ids(50)
    alone = compute(library, cnn, ids, precision)
    for threads in (2, 3, 64):  # the last are more than tokens
        assert torch.equal(compute(library, cnn, ids, precision, threads), alone)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_threads_that_share_the_columns_of_large_matrices_do_not_change_a_bit(
    library: Library, precision: Precision
) -> None:
    # Above 4 MiB of packed weights, threads share columns; below, each has tokens of its own.
    n_filters = {"float32": 520, "bfloat16": 800, "int8": 1100, "int7": 1100}[precision]
    torch.manual_seed(0)
    cnn, ids = random_char_cnn([(1, n_filters), (3, 200)]), random_ids(20)
    layer = pack(library, cnn, precision)
    alone = layer(ids.numpy())
    for threads in (2, 3):
        assert (layer(ids.numpy(), threads) == alone).all()
        assert (layer(ids[-1:].numpy(), threads) == alone[-1:]).all()


def test_tables_of_a_batch_give_the_same_bits_as_those_of_all_characters(library: Library) -> None:
    filters = [(1, 3), (2, 40), (5, 70)]
    few, many = random_char_cnn(filters), random_char_cnn(filters, n_chars=MAX_TABLE // 400)
    state = few.state_dict()
    table = torch.randn(MAX_TABLE // 400 + 1, 5)
    table[: N_CHARS + 1] = few.char_embedding.weight.detach()
    many.load_state_dict({**state, "char_embedding.weight": table})
    ids = random_ids(250)
    for threads in (1, 3):
        assert torch.equal(
            compute(library, many, ids, "float32", threads), compute(library, few, ids, "float32", threads)
        )


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_stays_in_the_tokens_that_have_it(library: Library, precision: Precision) -> None:
    cnn = random_char_cnn([(2, 40), (3, 8)], n_highway=1)
    ids = torch.randint(0, N_CHARS - 1, (30, 12))
    ids[:, 6:] = N_CHARS
    ids[4, 3] = N_CHARS - 1
    with torch.no_grad():
        cnn.char_embedding.weight[N_CHARS - 1] = torch.nan
    is_nan = compute(library, cnn, ids, precision).isnan()
    assert is_nan[4].all()
    assert not is_nan[[row for row in range(30) if row != 4]].any()


def test_weights_that_are_widened_are_not_used(library: Library) -> None:
    for precision in PRECISIONS:
        expected = most_precise(library, precision) if rounds_inputs(library, precision) else "float32"
        assert choose_kernels(library, precision, 4_000_000).token_layer == expected


# What follows does not depend on the instruction set.


@pytest.mark.parametrize("character", [-1, N_CHARS + 1])
def test_an_id_outside_the_table_is_an_error(character: int) -> None:
    ids = random_ids(3)
    ids[1, 4] = character
    with pytest.raises(IndexError), torch.no_grad():
        random_char_cnn([(2, 4)])(ids)
