"""The inner layer of a softmax, which helps to predict words: the same in PyTorch, in the engine and in every loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit import LanguageModel, save_model
from elmokit.engine.softmax import ROWS_AT_ONCE, SoftmaxConfig, WordSoftmax
from elmokit.network.softmax_losses import Sample, sampled_softmax_loss, soft_target_loss
from elmokit.network.softmax_module import FullSoftmax, TiedSoftmax, WordSoftmaxModule, build_softmax
from tests.conftest import WORDS, random_model

N_WORDS, DIM, INNER_DIM = 40, 6, 9
N_POSITIONS = ROWS_AT_ONCE + 3  # more than one block


def random_softmax(kind: str = "full", seed: int = 0) -> WordSoftmaxModule:
    """One with large weights in its inner layer."""
    table = nn.Embedding(N_WORDS + 1, DIM)
    made = FullSoftmax(N_WORDS, DIM, INNER_DIM) if kind == "full" else TiedSoftmax(table, INNER_DIM)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (*made.parameters(), table.weight):
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made


def positions() -> tuple[Tensor, Tensor]:
    """Outputs of an LSTM, and the word at each position."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(N_POSITIONS, DIM, generator=generator)
    return hidden, torch.randint(N_WORDS, (N_POSITIONS,), generator=generator)


def plain_scores(softmax: WordSoftmaxModule, hidden: Tensor) -> Tensor:
    """The definition, in float64."""
    tensors = {name: tensor.double() for name, tensor in softmax.state_dict().items()}
    units = (hidden.double() @ tensors["inner.expand.weight"].T + tensors["inner.expand.bias"]).clamp(min=0)
    rows = hidden.double() + units @ tensors["inner.reduce.weight"].T + tensors["inner.reduce.bias"]
    scores: Tensor = rows @ softmax.weight.detach().double().T + tensors["bias"]
    return scores


@pytest.mark.parametrize("kind", ["full", "tied"])
def test_scores_surprisals_and_the_loss_are_those_of_the_definition(kind: str) -> None:
    softmax, (hidden, words) = random_softmax(kind), positions()
    scores = plain_scores(softmax, hidden)
    nats = F.cross_entropy(scores, words, reduction="none")
    torch.testing.assert_close(softmax.scores(hidden).detach().double(), scores, atol=1e-3, rtol=1e-5)
    torch.testing.assert_close(softmax.nats(hidden, words).double(), nats, atol=1e-3, rtol=1e-5)
    torch.testing.assert_close(softmax(hidden, words).detach().double(), nats.mean(), atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("kind", ["full", "tied"])
def test_the_engine_computes_the_same(
    kind: Literal["full", "tied"], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "reference":
        monkeypatch.setenv("ELMOKIT_BACKEND", backend)
    module, (hidden, words) = random_softmax(kind), positions()
    arrays = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    table = {"table": np.concatenate([np.zeros((1, DIM), np.float32), module.weight.detach().numpy()])}
    config = SoftmaxConfig(kind, inner_dim=INNER_DIM)
    softmax = WordSoftmax(config, arrays, N_WORDS, (table, "table") if kind == "tied" else None)
    assert {name: array.shape for name, array in arrays.items()} == config.tensor_shapes(N_WORDS, DIM)
    scores = plain_scores(module, hidden)
    np.testing.assert_allclose(softmax.scores(hidden.numpy()), scores, atol=1e-3, rtol=1e-5)
    nats = F.cross_entropy(scores, words, reduction="none")
    np.testing.assert_allclose(softmax.nats(hidden.numpy(), words.numpy()), nats, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("computes", ["PyTorch's module", "the engine"])
def test_a_row_gets_the_same_bits_in_any_batch(computes: str) -> None:
    module, (hidden, words) = random_softmax(), positions()

    def nats(rows: slice) -> list[float]:
        if computes == "the engine":
            arrays = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
            softmax = WordSoftmax(SoftmaxConfig(inner_dim=INNER_DIM), arrays, N_WORDS)
            return list(softmax.nats(hidden[rows].numpy(), words[rows].numpy()))
        return list(module.nats(hidden[rows], words[rows]).numpy())

    together = nats(slice(None))
    assert nats(slice(50, 90)) == together[50:90]
    assert nats(slice(7, 8)) == together[7:8]


LOSSES: dict[str, Callable[[WordSoftmaxModule, Tensor, Tensor], Tensor]] = {
    "full": lambda softmax, hidden, words: softmax(hidden, words),
    # Every word is in the sample, after so many draws that no score is corrected.
    "sampled": lambda softmax, hidden, words: sampled_softmax_loss(
        softmax, hidden, words, Sample(torch.arange(N_WORDS), 1_000_000)
    ),
    "distilled": lambda softmax, hidden, words: soft_target_loss(
        softmax, random_softmax(seed=1).double(), hidden, hidden.detach(), 1.0, None, words, 1.0, 0.0
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains_the_inner_layer_with_the_gradient_of_the_scores(loss: str) -> None:
    softmax, (hidden, words) = random_softmax().double(), positions()
    inputs = hidden.double().requires_grad_()
    variables = [inputs, *softmax.parameters()]
    expected = torch.autograd.grad(F.cross_entropy(softmax.scores(inputs), words), variables)
    found = torch.autograd.grad(LOSSES[loss](softmax, inputs, words), variables)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


def test_a_student_learns_what_its_teacher_predicts_after_the_inner_layer() -> None:
    student, teacher, (hidden, _) = random_softmax(seed=1), random_softmax(seed=2), positions()
    wanted = plain_scores(teacher, hidden).log_softmax(1)
    given = plain_scores(student, hidden).log_softmax(1)
    expected = F.kl_div(given, wanted, reduction="batchmean", log_target=True)
    found = soft_target_loss(student, teacher, hidden, hidden).detach().double()
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)


def test_a_new_inner_layer_changes_nothing() -> None:
    softmax, (hidden, words) = FullSoftmax(N_WORDS, DIM, INNER_DIM), positions()
    softmax.reset_parameters(torch.Generator().manual_seed(0))
    plain = F.linear(hidden, softmax.weight, softmax.bias)
    assert torch.equal(softmax.scores(hidden), plain)
    (gradient,) = torch.autograd.grad(softmax(hidden, words), softmax.inner.reduce.weight)
    assert gradient.abs().min() > 0, "it learns from the first step on"


@pytest.mark.parametrize("storage", ["float32", "int8"])
def test_a_saved_model_predicts_as_before(storage: Literal["float32", "int8"], tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = random_model()
    softmax = build_softmax(
        SoftmaxConfig(inner_dim=INNER_DIM), len(WORDS), model.config.projection_dim, model.build_bilm().token_layer
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in softmax.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    model = model.replace(softmax=softmax)
    save_model(model, tmp_path / "saved", storage=storage)
    again = LanguageModel.from_pretrained(tmp_path / "saved")
    sentences = [["the", "cat", "sat"], ["the", "dog"]]
    for before, after in zip(LanguageModel(model).surprisal(sentences), again.surprisal(sentences), strict=True):
        np.testing.assert_allclose(before.nats, after.nats, atol=1e-5 if storage == "float32" else 0.1)
