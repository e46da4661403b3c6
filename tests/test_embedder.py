"""``Elmo``: vectors that depend on the sentence alone, and a module for use inside a model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.bilm import BiLM
from elmokit.embedder import Elmo
from elmokit.engine.config import BiLMConfig
from elmokit.errors import ConfigError, FormatError, ModelNotFoundError, TextError
from elmokit.initial_state import boundary_state
from elmokit.nn.layer_selection import Layers
from elmokit.nn.scalar_mix import ScalarMix
from elmokit.scoring.language_model import LanguageModel
from elmokit.weights.model import PretrainedBiLM
from tests.conftest import random_model

ELMOS = {start: Elmo(random_model(), start=start) for start in ("warm", "zero", "stateful")}  # type: ignore[arg-type]
TOKENS = st.text(max_size=12)
SENTENCES = st.lists(st.lists(TOKENS, max_size=9), min_size=1, max_size=12)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    sentences=SENTENCES,
    start=st.sampled_from(["warm", "zero"]),
    batch_tokens=st.integers(1, 80),
    data=st.data(),
)
def test_vectors_do_not_depend_on_batch_order_or_neighbours(
    sentences: list[list[str]], start: str, batch_tokens: int, data: st.DataObject
) -> None:
    elmo = ELMOS[start]
    order = data.draw(st.permutations(range(len(sentences))))
    together = elmo.embed(sentences)
    shuffled = elmo.embed([sentences[place] for place in order], batch_tokens=batch_tokens)
    for place, vectors in zip(order, shuffled, strict=True):
        np.testing.assert_allclose(vectors, together[place], atol=1e-5, rtol=0)
    chosen = data.draw(st.integers(0, len(sentences) - 1))
    np.testing.assert_allclose(elmo.embed([sentences[chosen]])[0], together[chosen], atol=1e-5, rtol=0)


def test_stateful_embedding_continues_each_row_from_the_previous_batch() -> None:
    elmo = ELMOS["stateful"]
    sentence = ["the", "cat", "sat"]
    first, second = elmo.embed([sentence, sentence], batch_size=1)
    assert np.abs(first - second).max() > 1e-3
    two_rows = elmo.embed([sentence, ["dog"], sentence, ["dog"]], batch_size=2)
    np.testing.assert_allclose(two_rows[0], first, atol=1e-5)
    np.testing.assert_allclose(two_rows[2], second, atol=1e-5)


def test_carried_rows_grow_and_unused_rows_keep_their_state() -> None:
    elmo = ELMOS["stateful"]
    a, b = ["the", "cat"], ["a", "dog", "ran"]
    one, state = elmo.embed_batch([a, b], elmo.bilm.zero_state(2))
    _, after_a = elmo.embed_batch([a], state.first_rows(1))
    merged = state.with_first_rows(after_a)
    torch.testing.assert_close(merged.hidden[:, :, 1], state.hidden[:, :, 1])
    assert len(one) == 2


def test_arrays_come_in_the_order_given_without_boundaries() -> None:
    sentences = [["a"] * n for n in (5, 0, 30, 1)]
    vectors = ELMOS["warm"].embed(sentences, batch_tokens=16)
    assert [array.shape for array in vectors] == [(3, 5, 64), (3, 0, 64), (3, 30, 64), (3, 1, 64)]
    assert all(array.dtype == np.float32 and array.base is None for array in vectors)


def test_layers_are_chosen_by_name_and_number() -> None:
    elmo, sentence = ELMOS["warm"], ["the", "cat"]
    (full,) = elmo.embed([sentence])

    def layers(which: object) -> np.ndarray:
        return elmo.embed([sentence], layers=which)[0]  # type: ignore[call-overload, no-any-return]

    np.testing.assert_array_equal(layers("top"), full[2])
    np.testing.assert_array_equal(layers(1), full[1])
    np.testing.assert_array_equal(layers([2, 0]), full[[2, 0]])
    np.testing.assert_allclose(layers("average"), full.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(layers("mix"), full.mean(axis=0), atol=1e-6)
    for which in (3, -1, [0, 7], "bottom", "allx"):
        with pytest.raises(ConfigError, match="has layers 0 to 2"):
            layers(which)


def test_an_iterator_is_read_only_a_little_ahead() -> None:
    n_read = itertools.count()

    def endless() -> Iterator[list[str]]:
        while True:
            next(n_read)
            yield ["the", "cat"]

    vectors = ELMOS["warm"].embed(endless(), batch_tokens=40)
    assert next(vectors).shape == (3, 2, 64)
    assert next(n_read) <= 8 * 40 // 4 + 1


@pytest.mark.parametrize(
    "sentence",
    [
        [],
        [""],
        ["the"] * 10_000,
        ["x" * 1000],
        ["🙂", "👩‍👩‍👧", "Ā", "\u200b", "\x00", "漢字"],
        ["\ud800", "a\udfffb"],
        ["<S>", "</S>", "<UNK>"],
        [" ", "a b", "\n"],
    ],
    ids=["empty", "empty token", "10,000 tokens", "1,000 characters", "unicode", "surrogates", "specials", "spaces"],
)
def test_any_text_gives_finite_vectors(sentence: list[str]) -> None:
    for elmo in ELMOS.values():
        (vectors,) = elmo.embed([sentence])
        assert vectors.shape == (3, len(sentence), 64)
        assert np.isfinite(vectors).all()


def test_sentences_that_are_not_lists_of_tokens_are_refused() -> None:
    elmo = ELMOS["warm"]
    with pytest.raises(TextError, match="Expected a sentence as a list of tokens, but got the string 'the cat'"):
        elmo.embed(["the cat"])
    with pytest.raises(TextError, match="Expected a list of tokenized sentences, but got the string 't"):
        elmo.embed("the cat")
    with pytest.raises(TextError, match="Expected tokens to be strings, but got 3"):
        elmo.embed([["the", 3]])  # type: ignore[list-item]
    assert elmo.embed([]) == []
    assert list(elmo.embed(iter([]))) == []


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch_tokens is 0"):
        ELMOS["warm"].embed([["a"]], batch_tokens=0)
    with pytest.raises(ConfigError, match="start is 'cold'"):
        Elmo(random_model(), start="cold")  # type: ignore[arg-type]
    with pytest.raises(ModelNotFoundError, match="neither a file or directory nor the name of a model"):
        Elmo.from_pretrained("no/such/model")


def test_the_initial_state_is_the_stored_one_or_that_after_an_empty_sentence(model: PretrainedBiLM) -> None:
    torch.testing.assert_close(Elmo(model).start_state(1), boundary_state(model))
    model.initial_state = model.bilm.zero_state(1)._replace(hidden=torch.ones(2, 2, 1, 32))
    assert torch.equal(Elmo(model).start_state(2).hidden, torch.ones(2, 2, 2, 32))


def test_the_model_to_save_has_the_initial_state_that_sentences_started_from(model: PretrainedBiLM) -> None:
    elmo, sentences = Elmo(model, trainable=True), [["the", "cat", "sat"]]
    with torch.no_grad():
        for parameter in elmo.bilm.parameters():
            parameter.mul_(1.1)
    saved = elmo.model_with_initial_state()
    np.testing.assert_array_equal(Elmo(saved).embed(sentences)[0], elmo.embed(sentences)[0])
    assert model.initial_state is None
    assert Elmo(model, start="zero").model_with_initial_state() is model


def test_the_model_to_save_does_not_read_a_deferred_softmax(model: PretrainedBiLM) -> None:
    model.defer_softmax(lambda: pytest.fail("the softmax was read"))
    Elmo(model).model_with_initial_state()


# As a module.


def test_module_mixes_equal_the_embedded_layers() -> None:
    model = random_model()
    elmo = Elmo(model, n_mixes=2)
    sentences = [["the", "cat", "sat"], [], ["dog"]]
    mixes, mask, _ = elmo(elmo.ids(sentences))
    assert mask.tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    for row, vectors in enumerate(Elmo(model).embed(sentences, layers="average")):
        for mix in mixes:
            np.testing.assert_allclose(mix[row, : len(vectors)].detach(), vectors, atol=1e-6)
            assert not mix[row, len(vectors) :].any()
    torch.testing.assert_close(elmo(elmo.ids(sentences)).mixes[0], mixes[0])


@pytest.mark.parametrize("keep", [False, True])
def test_layer_norm_is_over_the_vectors_that_are_returned(keep: bool) -> None:
    sentences = [["the", "cat", "sat", "on"], [], ["dog"]]
    elmo = Elmo(random_model(), layer_norm=True, keep_boundaries=keep)
    mixes, mask, _ = elmo(elmo.ids(sentences))
    single = [Elmo(random_model(), layers=number, keep_boundaries=keep) for number in range(3)]
    layers = torch.stack([one(one.ids(sentences)).mixes[0] for one in single])
    real = layers[:, mask]  # (layers, tokens, dim)
    mean = real.mean(dim=(1, 2), keepdim=True)
    expected = ((real - mean) / real.var(dim=(1, 2), correction=0, keepdim=True).sqrt()).mean(dim=0)
    torch.testing.assert_close(mixes[0][mask], expected, atol=1e-5, rtol=1e-5)
    if not keep:
        vectors = elmo.embed(sentences, layers="mix", batch_tokens=1000)
        np.testing.assert_allclose(np.concatenate(vectors), expected.detach(), atol=1e-5)


def test_layer_norm_of_a_batch_without_a_token_is_no_nan() -> None:
    elmo = Elmo(random_model(), layer_norm=True)
    (vectors,) = elmo.embed([[]], layers="mix")
    assert vectors.shape == (0, 64)
    assert ScalarMix(3, layer_norm=True)(torch.ones(3, 1, 2, 4), torch.zeros(1, 2, dtype=torch.bool)).isfinite().all()


def test_boundaries_are_kept_on_request() -> None:
    model = random_model()
    ids = Elmo(model).ids([["the", "cat"], ["dog"]])
    inner, kept = Elmo(model)(ids), Elmo(model, keep_boundaries=True)(ids)
    assert kept.mixes[0].shape == (2, 4, 64)
    assert kept.mask.sum(dim=1).tolist() == [4, 3]
    torch.testing.assert_close(kept.mixes[0][0, 1:3], inner.mixes[0][0])


@pytest.mark.parametrize("trainable", [False, True])
def test_gradients_reach_the_bilm_only_if_it_is_trainable(trainable: bool) -> None:
    elmo = Elmo(random_model(), trainable=trainable).train()
    elmo(elmo.ids([["the", "cat"], ["dog"]])).mixes[0].square().sum().backward()
    assert elmo.mixes[0].weight.grad is not None
    reached = {name for name, parameter in elmo.bilm.named_parameters() if parameter.grad is not None}
    assert reached == ({name for name, _ in elmo.bilm.named_parameters()} if trainable else set())


@pytest.mark.parametrize("trainable", [False, True])
def test_mixed_vectors_and_their_gradients_are_those_of_forward(trainable: bool) -> None:
    sentences = [["the", "cat"], [], ["the", "dog", "ran", "."], ["mat"]]
    elmos = [Elmo(random_model(), layers=[0, 2], trainable=trainable) for _ in range(2)]
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


def test_mixed_vectors_of_a_stateful_elmo_are_refused() -> None:
    with pytest.raises(ConfigError, match="start is 'stateful'"):
        ELMOS["stateful"].mixed_vectors([["the"]])


def test_dropout_falls_on_each_mix_in_training_only() -> None:
    elmo = Elmo(random_model(), n_mixes=2, dropout=0.5).train()
    ids = elmo.ids([["the", "cat"] * 20])
    first, second = elmo(ids).mixes
    assert 0.3 < (first == 0).float().mean() < 0.7
    assert not torch.equal(first == 0, second == 0)
    elmo.eval()
    assert (elmo(ids).mixes[0] == 0).float().mean() < 0.1


def test_state_is_an_argument_and_a_result() -> None:
    elmo = Elmo(random_model(), start="zero")
    ids = elmo.ids([["the", "cat"]])
    once = elmo(ids)
    again = elmo(ids, once.state)
    assert not torch.allclose(once.mixes[0], again.mixes[0], atol=1e-3)
    torch.testing.assert_close(elmo(ids).mixes[0], once.mixes[0])


def test_padding_between_tokens_is_refused() -> None:
    elmo = Elmo(random_model())
    ids = elmo.ids([["the", "cat", "sat"]])
    ids[0, 2] = 0
    with pytest.raises(ValueError, match="padding before or between tokens"):
        elmo(ids)


def test_a_saved_state_dict_restores_mixes_and_initial_state() -> None:
    model = random_model()
    elmo = Elmo(model)
    with torch.no_grad():
        elmo.mixes[0].weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
    other = Elmo(random_model(seed=9))
    other.load_state_dict(elmo.state_dict())
    sentence = [["the", "cat"]]
    np.testing.assert_allclose(other.embed(sentence, layers="mix")[0], elmo.embed(sentence, layers="mix")[0], atol=1e-6)


def test_a_word_input_model_embeds_unknown_words_as_unk() -> None:
    config = BiLMConfig(char_cnn=None, n_words=11, projection_dim=4, hidden_dim=6)
    elmo = Elmo(random_model(config))
    known, unknown, listed = elmo.embed([["the", "<UNK>"], ["the", "zebra"], ["the", "cat"]])
    np.testing.assert_allclose(known, unknown, atol=1e-5)
    assert np.abs(known - listed).max() > 1e-4
    mixes, mask, _ = elmo(elmo.ids([["the", "zebra"], ["cat"]]))
    np.testing.assert_allclose(mixes[0][0].detach(), unknown.mean(axis=0), atol=1e-6)
    assert mask.tolist() == [[True, True], [True, False]]


def test_a_word_input_model_without_its_vocabulary_says_so() -> None:
    model = random_model(BiLMConfig(char_cnn=None, n_words=11, projection_dim=4, hidden_dim=6))
    model.vocabulary = None
    with pytest.raises(ModelNotFoundError, match="has no vocabulary"):
        Elmo(model, start="zero").embed([["the"]])


def test_it_computes_where_and_in_what_it_was_moved_to() -> None:
    elmo = Elmo(random_model()).double()
    assert elmo.bilm.zero_state(1).hidden.dtype == torch.float64
    (vectors,) = elmo.embed([["the", "cat"]])
    np.testing.assert_allclose(vectors, ELMOS["warm"].embed([["the", "cat"]])[0], atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "chosen"), [("all", [0, 1, 2]), ("top", [2]), ("average", [0, 1, 2]), (1, [1]), ([0, 1], [0, 1])]
)
def test_mixes_weigh_the_layers_asked_for(layers: Layers, chosen: list[int]) -> None:
    elmo = Elmo(random_model(), layers=layers)  # type: ignore[arg-type]
    sentence = ["the", "cat"]
    (mixed,), _, _ = elmo(elmo.ids([sentence]))
    (expected,) = elmo.embed([sentence], layers=chosen)
    np.testing.assert_allclose(mixed[0].detach().numpy(), expected.mean(axis=0), atol=1e-5)
    learned = [name for name, weight in elmo.named_parameters() if weight.requires_grad]
    with_weights = layers in ("all", [0, 1])
    assert learned == (["mixes.0.weight", "mixes.0.gamma"] if with_weights else ["mixes.0.gamma"])


def test_mixes_of_layers_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="layers 0 to 2"):
        Elmo(random_model(), layers=[0, 3])


def test_the_penalty_is_the_sum_over_the_mixes_raw_weights() -> None:
    elmo = Elmo(random_model(), n_mixes=2)
    with torch.no_grad():
        elmo.mixes[0].weight.copy_(torch.tensor([1.0, 2.0, 0.0]))
        elmo.mixes[1].weight.copy_(torch.tensor([0.0, 0.0, 3.0]))
    assert elmo.penalty().item() == 14.0
    assert Elmo(random_model(), n_mixes=0).penalty().item() == 0.0


@pytest.mark.parametrize("sentences", ["The cat", ["The", "cat"], None, [None], [["The"], 3]])
def test_what_is_not_a_list_of_sentences_is_refused(sentences: object) -> None:
    for start in ("warm", "stateful"):
        with pytest.raises(TextError, match="Expected a"):
            Elmo(random_model(), start=start).embed(sentences)  # type: ignore[call-overload]
    with pytest.raises(TextError, match="Expected a"):
        Elmo(random_model()).ids(sentences)  # type: ignore[arg-type]


def test_layers_are_numbers_and_at_least_one() -> None:
    elmo = Elmo(random_model())
    for layers in ([], True, [True], "bottom", 2.5):
        with pytest.raises(ConfigError, match="layers is"):
            elmo.embed([["The"]], layers=layers)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"^Layer 7 does not exist: this model has layers 0 to 2\.$"):
        elmo.embed([["The"]], layers=[0, 7])
    with pytest.raises(ConfigError, match="layers is True"):
        Elmo(random_model(), layers=True)


def test_the_dropout_of_an_elmo_is_a_fraction() -> None:
    for dropout in (3, -0.5):
        with pytest.raises(ConfigError, match=f"dropout is {dropout}; it must be at least 0 and at most 1"):
            Elmo(random_model(), dropout=dropout)


def test_forward_names_the_function_that_makes_its_input() -> None:
    with pytest.raises(TypeError, match=r"ids of Elmo\.ids"):
        Elmo(random_model())([["The"]])


@pytest.mark.parametrize("change", [torch.Tensor.float, torch.Tensor.bool, lambda ids: ids[0], lambda ids: ids[None]])
def test_ids_of_another_type_or_shape_are_refused(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    elmo = Elmo(random_model())
    with pytest.raises((TypeError, ValueError), match=r"forward expects the ids of Elmo\.ids.*but got a tensor of"):
        elmo(change(elmo.ids([["The", "cat"]])))


@pytest.mark.parametrize("number", [100_000, -1])
def test_ids_of_no_character_are_refused(number: int) -> None:
    elmo = Elmo(random_model())
    ids = elmo.ids([["The", "cat"]])
    ids[0, 1, 0] = number
    with pytest.raises(ValueError, match="ids contains numbers that the model has no character or word for"):
        elmo(ids)


def test_a_text_in_place_of_sentences_is_answered_with_its_tokens() -> None:
    elmo = Elmo(random_model())
    message = (
        r"got the string 'The cat'\. Pass \[\['The', 'cat'\]\], or split raw text with elmokit\.tokenize\(text\)\."
    )
    with pytest.raises(TextError, match=message):
        elmo.embed("The cat")  # type: ignore[call-overload]
    with pytest.raises(TextError, match=r"Pass \['The', 'cat'\], or split raw text"):
        elmo.embed(["The cat"])


def test_a_device_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match=r"There is no device 'gpu'\. Choose 'cpu' or 'cuda'"):
        Elmo.from_pretrained(device="gpu")


def test_layer_0_alone_is_computed_without_the_lstm_and_is_the_same(
    model: PretrainedBiLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    elmo = Elmo(model)
    sentences = [["the", "cat", "sat"], [], ["on"]]
    expected = [vectors[0] for vectors in elmo.embed(sentences)]
    monkeypatch.setattr(BiLM, "contextualize", None)  # any call of it would fail
    for vectors, again, listed in zip(
        expected, elmo.embed(sentences, layers=0), elmo.embed(sentences, layers=[0]), strict=True
    ):
        np.testing.assert_array_equal(again, vectors)
        np.testing.assert_array_equal(listed, vectors[None])


def test_its_text_names_the_model_the_start_and_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELMOKIT_BACKEND", raising=False)
    first_lines = repr(Elmo.from_pretrained()).splitlines()[:2]
    assert first_lines == ["Elmo(", "  model='en-mini', start='warm', precision='int8'"]
    exact = Elmo.from_pretrained(start="zero", precision="float32")
    assert exact.extra_repr() == "model='en-mini', start='zero', precision='float32'"


@pytest.mark.parametrize(("part", "factor"), [("token_layer", 1e30), ("directions", 1e38)])
def test_finite_weights_that_overflow_are_an_error_and_not_nan(part: str, factor: float) -> None:
    model = random_model()
    with torch.no_grad():
        for parameter in model.bilm.get_submodule(part).parameters():
            parameter.mul_(factor)
            assert parameter.isfinite().all()
    elmo = Elmo(model, start="zero")
    expected = "The model computes NaN or infinity: its weights are finite, but so large that sums overflow"
    with pytest.raises(FormatError, match=expected):
        elmo.embed([["the", "cat"]])
    with pytest.raises(FormatError, match=expected):
        elmo.embed_batch([["the", "cat"]], elmo.start_state(1))
    with pytest.raises(FormatError, match=expected):
        list(elmo.embed_document(["the"] * 20, chunk_tokens=5))
    with pytest.raises(FormatError, match=expected):
        LanguageModel(model, start="zero").surprisal([["the", "cat"]])


def test_large_vectors_whose_sum_overflows_are_no_error() -> None:
    model = random_model()
    model.check_finite(torch.full((4,), 3e38))
    with pytest.raises(FormatError, match="computes NaN or infinity"):
        model.check_finite(torch.tensor([torch.inf, -torch.inf]))
