"""``ElmoModule``: learned mixes of the layers inside a PyTorch model."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.engine.layer_selection import Layers
from elmokit.pretrained.model import PretrainedBiLM
from tests.conftest import aligned_model, random_model


def test_the_model_to_save_has_the_start_state_that_sentences_started_from(model: PretrainedBiLM) -> None:
    elmo, sentences = ElmoModule(model, trainable=True), [["the", "cat", "sat"]]
    with torch.no_grad():
        for parameter in elmo.bilm.parameters():
            parameter.mul_(1.1)
    saved = elmo.to_model()
    np.testing.assert_allclose(Elmo(saved).embed(sentences)[0], elmo.embed(sentences, layers="all")[0], atol=1e-5)
    assert model.start_state is None
    assert ElmoModule(model, start="zero").to_model().start_state is None


@pytest.mark.parametrize("keep", [False, True])
def test_layer_norm_is_over_the_vectors_that_are_returned(keep: bool) -> None:
    sentences = [["the", "cat", "sat", "on"], [], ["dog"]]
    elmo = ElmoModule(random_model(), layer_norm=True, keep_boundaries=keep)
    mixes, mask, _ = elmo(elmo.ids(sentences))
    single = [ElmoModule(random_model(), layers=number, keep_boundaries=keep) for number in range(3)]
    layers = torch.stack([one(one.ids(sentences)).mixes[0] for one in single])
    real = layers[:, mask]  # (layers, tokens, dim)
    mean = real.mean(dim=(1, 2), keepdim=True)
    expected = ((real - mean) / real.var(dim=(1, 2), correction=0, keepdim=True).sqrt()).mean(dim=0)
    torch.testing.assert_close(mixes[0][mask], expected, atol=1e-5, rtol=1e-5)
    if not keep:
        vectors = elmo.embed(sentences, layers="mix", batch_tokens=1000)
        np.testing.assert_allclose(np.concatenate(vectors), expected.detach(), atol=1e-5)


def test_boundaries_are_kept_on_request() -> None:
    model = random_model()
    ids = ElmoModule(model).ids([["the", "cat"], ["dog"]])
    inner, kept = ElmoModule(model)(ids), ElmoModule(model, keep_boundaries=True)(ids)
    assert kept.mixes[0].shape == (2, 4, 64)
    assert kept.mask.sum(dim=1).tolist() == [4, 3]
    torch.testing.assert_close(kept.mixes[0][0, 1:3], inner.mixes[0][0])


@pytest.mark.parametrize("trainable", [False, True])
def test_gradients_reach_the_bilm_only_if_it_is_trainable(trainable: bool) -> None:
    elmo = ElmoModule(random_model(), trainable=trainable).train()
    elmo(elmo.ids([["the", "cat"], ["dog"]])).mixes[0].square().sum().backward()
    assert elmo.mixes[0].weight.grad is not None
    reached = {name for name, parameter in elmo.bilm.named_parameters() if parameter.grad is not None}
    assert reached == ({name for name, _ in elmo.bilm.named_parameters()} if trainable else set())


@pytest.mark.parametrize("trainable", [False, True])
def test_mixed_vectors_and_their_gradients_are_those_of_forward(trainable: bool) -> None:
    sentences = [["the", "cat"], [], ["the", "dog", "ran", "."], ["mat"]]
    elmos = [ElmoModule(random_model(), layers=[0, 2], trainable=trainable) for _ in range(2)]
    # Two batches, so that the order has to be restored.
    vectors = torch.cat(elmos[0].mixed_vectors(sentences, batch_tokens=8))
    (mix,), mask, _ = elmos[1](elmos[1].ids(sentences))
    torch.testing.assert_close(vectors, mix[mask])
    for result in (vectors, mix[mask]):
        (result**2).sum().backward()
    for (name, one), (_, other) in zip(elmos[0].named_parameters(), elmos[1].named_parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        without = elmos[0].mixed_vectors(sentences)
    assert [len(part) for part in without] == [2, 0, 4, 1]
    torch.testing.assert_close(torch.cat(without), vectors.detach())


def test_dropout_is_applied_to_each_mix_in_training_only() -> None:
    elmo = ElmoModule(random_model(), n_mixes=2, dropout=0.5).train()
    ids = elmo.ids([["the", "cat"] * 20])
    first, second = elmo(ids).mixes
    assert 0.3 < (first == 0).float().mean() < 0.7
    assert not torch.equal(first == 0, second == 0)
    elmo.eval()
    assert (elmo(ids).mixes[0] == 0).float().mean() < 0.1


def test_state_is_an_argument_and_a_result() -> None:
    elmo = ElmoModule(random_model(), start="zero")
    ids = elmo.ids([["the", "cat"]])
    once = elmo(ids)
    again = elmo(ids, once.state)
    assert not torch.allclose(once.mixes[0], again.mixes[0], atol=1e-3)
    torch.testing.assert_close(elmo(ids).mixes[0], once.mixes[0])


def test_a_saved_state_dict_restores_mixes_and_start_state() -> None:
    model = random_model()
    elmo = ElmoModule(model)
    with torch.no_grad():
        elmo.mixes[0].weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
    other = ElmoModule(random_model(seed=9))
    other.load_state_dict(elmo.state_dict())
    sentence = [["the", "cat"]]
    np.testing.assert_allclose(other.embed(sentence, layers="mix")[0], elmo.embed(sentence)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("layers", "chosen"), [("all", [0, 1, 2]), ("top", [2]), ("average", [0, 1, 2]), (1, [1]), ([0, 1], [0, 1])]
)
def test_mixes_combine_the_layer_selection(layers: Layers, chosen: list[int]) -> None:
    elmo = ElmoModule(random_model(), layers=layers)  # type: ignore[arg-type]
    sentence = ["the", "cat"]
    (mixed,), _, _ = elmo(elmo.ids([sentence]))
    (expected,) = elmo.embed([sentence], layers=chosen)
    np.testing.assert_allclose(mixed[0].detach().numpy(), expected.mean(axis=0), atol=1e-5)
    learned = [name for name, weight in elmo.named_parameters() if weight.requires_grad]
    with_weights = layers in ("all", [0, 1])
    assert learned == (["mixes.0.weight", "mixes.0.gamma"] if with_weights else ["mixes.0.gamma"])


def test_the_penalty_is_the_sum_over_the_mixes_raw_weights() -> None:
    elmo = ElmoModule(random_model(), n_mixes=2)
    with torch.no_grad():
        elmo.mixes[0].weight.copy_(torch.tensor([1.0, 2.0, 0.0]))
        elmo.mixes[1].weight.copy_(torch.tensor([0.0, 0.0, 3.0]))
    assert elmo.penalty().item() == 14.0
    assert ElmoModule(random_model(), n_mixes=0).penalty().item() == 0.0


def test_embed_returns_the_first_mix_by_default_and_any_layers_as_elmo_does() -> None:
    elmo, sentences = ElmoModule(random_model(), n_mixes=2), [["the", "cat", "sat"], [], ["dog"]]
    with torch.no_grad():
        elmo.mixes[0].weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
        elmo.mixes[0].gamma.fill_(2.0)
    (mix, _), _, _ = elmo(elmo.ids(sentences))
    for row, vectors, mixed in zip(mix, elmo.embed(sentences), elmo.embed(sentences, layers="mix"), strict=True):
        np.testing.assert_allclose(vectors, row[: len(vectors)].detach(), atol=1e-6)
        np.testing.assert_array_equal(mixed, vectors)
    for ours, expected in zip(elmo.embed(sentences, layers="all"), Elmo(random_model()).embed(sentences), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_its_elmo_computes_with_weights_and_start_states_that_were_loaded_or_trained() -> None:
    elmo, other, sentences = ElmoModule(aligned_model(), trainable=True), ElmoModule(aligned_model()), [["the", "cat"]]
    before = elmo.elmo.embed(sentences)[0]
    with torch.no_grad():
        for tensor in (*elmo.bilm.parameters(), elmo.start_hidden, *elmo.alignment.buffers()):
            tensor.mul_(1.1)
    after = elmo.elmo.embed(sentences)[0]
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, elmo.padded_layers(sentences)[0][:, 0].detach(), rtol=1e-5, atol=1e-5)
    other.load_state_dict(elmo.state_dict())
    np.testing.assert_array_equal(other.elmo.embed(sentences)[0], after)


def test_it_can_be_copied_and_pickled() -> None:
    elmo, sentences = ElmoModule(random_model()), [["the", "cat"]]
    for other in (copy.deepcopy(elmo), pickle.loads(pickle.dumps(elmo))):
        with torch.no_grad():
            other.mixes[0].gamma.fill_(2.0)
        np.testing.assert_allclose(other.embed(sentences)[0], 2 * elmo.embed(sentences)[0], rtol=1e-5)


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_has_the_dtype_of_the_bilm(default: torch.dtype, dtype: torch.dtype) -> None:
    model, sentences = aligned_model(), [["the", "cat"], ["dog"]]
    expected = Elmo(model).embed(sentences, layers="average")
    torch.set_default_dtype(default)
    try:
        elmo = ElmoModule(model).to(dtype)
        mix = elmo(elmo.ids(sentences)).mixes[0]
        embedded = elmo.embed(sentences)
    finally:
        torch.set_default_dtype(torch.float32)
    assert mix.dtype == dtype
    for row, vectors in enumerate(expected):
        np.testing.assert_allclose(mix[row, : len(vectors)].detach(), vectors, atol=1e-5)
        np.testing.assert_allclose(embedded[row], vectors, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch's compiler, which errors instead would end
def test_a_model_that_contains_it_can_be_compiled(model: PretrainedBiLM) -> None:
    elmo = ElmoModule(model, trainable=True)
    ids = elmo.ids([["the", "cat"], ["dog"]])

    def loss(given: Tensor) -> Tensor:
        return elmo(given).mixes[0].square().sum()

    wanted = loss(ids)
    wanted.backward()
    gradients = {name: weight.grad for name, weight in elmo.named_parameters() if weight.grad is not None}
    elmo.zero_grad()
    found = torch.compile(loss, backend="eager")(ids)
    found.backward()
    assert found.item() == pytest.approx(wanted.item())
    assert gradients.keys() >= {"mixes.0.gamma"}
    for name, weight in elmo.named_parameters():
        if name in gradients:
            torch.testing.assert_close(weight.grad, gradients[name])
    with torch.no_grad():
        assert torch.compile(loss, backend="eager")(ids).item() == pytest.approx(wanted.item())
