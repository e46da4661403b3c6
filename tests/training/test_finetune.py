"""A trained model gets a softmax over the words of a new text, and keeps what it knows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from elmokit.engine.architecture import PRESETS, BiLMConfig
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.errors import ConfigError, ElmoError, FormatError, ModelError
from elmokit.formats import many_langs_weights
from elmokit.formats.folder import load_folder, save_folder
from elmokit.network.bilm import BiLM
from elmokit.network.softmax_module import FullSoftmax, TiedSoftmax, build_softmax
from elmokit.pretrained.model import PretrainedBiLM, Weights
from elmokit.text.vocabulary import SPECIALS, Vocabulary
from elmokit.training import transfer
from elmokit.training.results import compare_models
from elmokit.training.transfer import describe_transfer, softmax_words, with_dropout, with_softmax_over
from tests.conftest import WORDS, random_model
from tests.helpers.many_langs_files import toy_model
from tests.helpers.weights import same_weights, softmax_of

NEW = Vocabulary([*SPECIALS, "zebra", *WORDS[3:], "yak"])  # all old words, in other places, and two new ones
COUNTS = {"zebra": 6, "yak": 1, "the": 10, "unlisted": 2}
WORD_INPUT = dataclasses.replace(PRESETS["tiny"], char_cnn=None, n_words=len(WORDS))
SOFTMAXES = {
    "full": SoftmaxConfig(),
    "tied": SoftmaxConfig("tied"),
    "with an inner layer": SoftmaxConfig("tied", inner_dim=6),
}


def model_with(kind: str, config: BiLMConfig = WORD_INPUT) -> PretrainedBiLM:
    """A random word-input model with a softmax of that kind."""
    model = random_model(config)
    bilm = model.build_bilm()
    softmax = build_softmax(SOFTMAXES[kind], len(WORDS), model.config.projection_dim, bilm.token_layer)
    generator = torch.Generator().manual_seed(1)
    softmax.reset_parameters(generator)
    with torch.no_grad():
        for parameter in softmax.parameters():
            parameter += torch.randn(parameter.shape, generator=generator)
    return model.replace(softmax=softmax)


def probabilities(model: PretrainedBiLM) -> Tensor:
    """Of every word, at some positions."""
    assert model.softmax is not None
    hidden = torch.randn(9, model.config.projection_dim, generator=torch.Generator().manual_seed(2))
    return softmax_of(model).scores(hidden).detach().softmax(dim=1)


def rows_of(words: Vocabulary, of: Vocabulary) -> list[int]:
    return [words.ids[word] for word in of.words]


@pytest.mark.parametrize("kind", SOFTMAXES)
def test_over_the_same_words_the_model_stays_unchanged(kind: str) -> None:
    model = model_with(kind)
    assert with_softmax_over(model, Vocabulary(WORDS), COUNTS, 3) is model


@pytest.mark.parametrize("kind", ["full", "tied", "with an inner layer"])
def test_old_words_keep_their_probability_and_unk_shares_its_own_with_the_new(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "NOISE", 0.0)
    model = model_with(kind)
    carried = with_softmax_over(model, NEW, COUNTS, 3)
    assert carried.softmax.config == SOFTMAXES[kind]
    before, after = probabilities(model), probabilities(carried)
    old_words = Vocabulary(WORDS)
    kept = [word for word in WORDS if word != "<UNK>"]
    torch.testing.assert_close(
        after[:, [NEW.ids[word] for word in kept]], before[:, [old_words.ids[word] for word in kept]]
    )
    zebra, yak, unknown = (after[:, NEW.ids[word]] for word in ("zebra", "yak", "<UNK>"))
    torch.testing.assert_close(zebra + yak + unknown, before[:, old_words.unknown_id])
    # 6, 1 and 2 times in the text, one added to each.
    torch.testing.assert_close(zebra / yak, torch.full_like(zebra, 7 / 2))
    torch.testing.assert_close(unknown / yak, torch.full_like(zebra, 3 / 2))


def test_noise_separates_new_words_and_barely_changes_their_probability() -> None:
    model = random_model()
    carried = with_softmax_over(model, NEW, COUNTS, 3)
    assert isinstance(softmax_of(carried), FullSoftmax)
    weight = softmax_of(carried).weight
    assert not torch.equal(weight[NEW.ids["zebra"]], weight[NEW.ids["yak"]])
    new = [NEW.ids[word] for word in ("zebra", "yak", "<UNK>")]
    shared, before = probabilities(carried)[:, new].sum(dim=1), probabilities(model)[:, 2]
    assert (shared / before - 1).abs().max() < 0.3
    again = with_softmax_over(model, NEW, COUNTS, 3)
    assert isinstance(softmax_of(again), FullSoftmax)
    assert torch.equal(softmax_of(again).weight, weight)
    other = with_softmax_over(model, NEW, COUNTS, 3, seed=1)
    assert isinstance(softmax_of(other), FullSoftmax)
    assert not torch.equal(softmax_of(other).weight, weight)


def test_removed_words_do_not_change_the_ratios_of_the_others() -> None:
    model, fewer = random_model(), Vocabulary([*SPECIALS, "mat", "the"])
    carried = with_softmax_over(model, fewer, {"the": 2, "cat": 5}, 1)
    before, after = probabilities(model), probabilities(carried)
    old_words = Vocabulary(WORDS)
    ratio = after / before[:, rows_of(old_words, fewer)]
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))


def test_a_new_softmax_over_more_words_begins_near_the_old_perplexity() -> None:
    model = random_model()
    text = [["the", "cat", "sat"], ["zebra", "yak", "the", "zebra"], ["the", "dog", "ran"]] * 3
    counts = {word: sum(sentence.count(word) for sentence in text) for sentence in text for word in sentence}
    carried = with_softmax_over(model, NEW, counts, len(text))
    fresh = with_softmax_over(model.replace(softmax=None, vocabulary=None), NEW, counts, len(text))
    found = compare_models(model, carried, text)[0]
    assert len(found["before"]) == len(found["after"]) == 2
    # Unknown words are now distinguished, which costs at most the entropy of their shares.
    for before, after in zip(found["before"], found["after"], strict=True):
        assert before * 0.95 < after < before * 2
    assert compare_models(model, fresh, text)[0]["after"][0] < len(NEW) * 3


def test_without_a_softmax_words_begin_with_their_frequency() -> None:
    published = random_model().replace(softmax=None, vocabulary=None)
    carried = with_softmax_over(published, NEW, COUNTS, 4)
    assert isinstance(softmax_of(carried), FullSoftmax)
    shares = softmax_of(carried).bias.detach().exp()
    torch.testing.assert_close(shares.sum(), torch.tensor(1.0))
    expected = {"the": 11, "zebra": 7, "<UNK>": 3, "</S>": 3, "<S>": 3, "cat": 1}
    for word, count in expected.items():  # each direction ends 4 times, and half of the predictions are its
        assert shares[NEW.ids[word]] / shares[NEW.ids["cat"]] == pytest.approx(count), word
    forward_only = published.replace(weights=BiLM(dataclasses.replace(PRESETS["tiny"], bidirectional=False)))
    carried = with_softmax_over(forward_only, NEW, COUNTS, 4)
    assert isinstance(softmax_of(carried), FullSoftmax)
    shares = softmax_of(carried).bias.detach().exp()
    assert shares[NEW.ids["</S>"]] / shares[NEW.ids["<S>"]] == pytest.approx(5)


def test_another_kind_of_softmax_can_be_chosen() -> None:
    tied, words = model_with("tied"), Vocabulary(WORDS)
    full = with_softmax_over(tied, words, COUNTS, 3, SoftmaxConfig())
    assert isinstance(softmax_of(full), FullSoftmax)
    torch.testing.assert_close(probabilities(full)[:, 3:], probabilities(tied)[:, 3:])


def test_a_new_inner_layer_changes_no_probability_and_losing_one_is_said() -> None:
    words = Vocabulary(WORDS)
    with_layer, without = SOFTMAXES["with an inner layer"], SOFTMAXES["tied"]
    model = model_with("tied")
    added = with_softmax_over(model, words, COUNTS, 3, with_layer)
    assert added.softmax.config == with_layer
    torch.testing.assert_close(probabilities(added), probabilities(model))
    assert describe_transfer(model, added)[1].endswith("from the word table; its inner layer of 6 units is new")
    trained = model_with("with an inner layer")
    removed = with_softmax_over(trained, words, COUNTS, 3, without)
    assert describe_transfer(trained, removed)[1].endswith("its inner layer is left out")


@pytest.mark.parametrize("kind", ["full", "tied"])
def test_a_word_input_model_gets_a_table_of_the_new_words(kind: str) -> None:
    model = model_with(kind)
    carried = with_softmax_over(model, NEW, COUNTS, 3)
    assert carried.config.n_words == len(NEW)
    old, new = (torch.from_numpy(one.arrays["token_layer.embedding.weight"]) for one in (model, carried))
    assert torch.equal(new[0], torch.zeros_like(new[0]))
    for word in WORDS:
        assert torch.equal(new[1 + NEW.ids[word]], old[1 + WORDS.index(word)]), word
    apart = (new[1 + NEW.ids["zebra"]] - old[1 + WORDS.index("<UNK>")]).norm()
    assert 0 < apart < 0.2
    name = "directions.1.layers.0.weight"
    assert np.array_equal(carried.arrays[name], model.arrays[name])
    if kind == "tied":
        bilm, softmax = carried.build_modules()
        assert isinstance(softmax, TiedSoftmax)
        assert softmax.weight.data_ptr() == bilm.get_parameter("token_layer.embedding.weight")[1:].data_ptr()


def test_a_published_table_without_unk_lends_new_words_its_mean_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "NOISE", 0.0)
    words = [word for word in WORDS if word != "<UNK>"]
    model = random_model(dataclasses.replace(WORD_INPUT, n_words=len(words)))
    model = model.replace(softmax=None, vocabulary=Vocabulary(words, strict=False))
    carried = with_softmax_over(model, NEW, COUNTS, 3)
    old, new = (torch.from_numpy(one.arrays["token_layer.embedding.weight"]) for one in (model, carried))
    torch.testing.assert_close(new[1 + NEW.unknown_id], old[1:].mean(dim=0))
    assert torch.equal(new[1 + NEW.ids["mat"]], old[1 + words.index("mat")])


def test_elmo_for_many_langs_gets_a_softmax_and_keeps_its_lexicon(tmp_path: Path) -> None:
    model = many_langs_weights.FORMAT.load(toy_model().write(tmp_path / "zh"))
    carried = with_softmax_over(model, NEW, COUNTS, 3)
    assert isinstance(softmax_of(carried), FullSoftmax)
    save_folder(carried, tmp_path / "ours")
    again = load_folder(tmp_path / "ours")
    assert again.lexicon == model.lexicon
    assert compare_models(carried, again, [["das", "Haus"]])[0]["after"][0] > 1


@pytest.mark.parametrize("kind", SOFTMAXES)
def test_dropout_changes_and_no_weight_does(kind: str) -> None:
    model = model_with(kind)
    other = with_dropout(model, 0.4)
    assert other.config.dropout == 0.4
    assert other.build_bilm().directions[0].get_submodule("dropout").p == 0.4
    assert same_weights(other.replace(weights=Weights(model.config, other.arrays)), model)
    assert other.softmax is not None
    torch.testing.assert_close(probabilities(other), probabilities(model))


@pytest.mark.parametrize(
    ("model", "words", "softmax", "error", "name"),
    [
        (random_model(), NEW.words, SoftmaxConfig("tied"), ConfigError, "tied"),
        (random_model(WORD_INPUT).replace(softmax=None, vocabulary=None), NEW.words, None, ModelError, "vocabulary"),
    ],
)
def test_a_softmax_that_does_not_fit_is_refused(
    model: PretrainedBiLM, words: list[str], softmax: SoftmaxConfig | None, error: type[ElmoError], name: str
) -> None:
    with pytest.raises(error, match=name):
        with_softmax_over(model, Vocabulary(words), COUNTS, 3, softmax)


def test_published_words_that_are_no_vocabulary_are_refused() -> None:
    model = random_model()
    model = model.replace(vocabulary=Vocabulary([*WORDS[:-1], WORDS[0]], strict=False))
    with pytest.raises(FormatError, match="max_words"):
        softmax_words(model)
