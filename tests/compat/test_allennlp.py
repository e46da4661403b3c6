"""AllenNLP's ELMo under its old names: what its own tests check, its numbers, its checkpoints, its fixed defects."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from elmokit.compat.allennlp import (
    ConfigurationError,
    Elmo,
    ElmoEmbedder,
    ELMoTokenCharactersIndexer,
    ElmoTokenEmbedder,
    Params,
    _ElmoBiLm,
    _ElmoCharacterEncoder,
    batch_to_ids,
)
from elmokit.errors import TensorMismatchError
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.network.bilm import BiLM, BiLMState
from tests.conftest import fixture_sentences
from tests.helpers.allennlp_files import CONFIG, DIM, Files, write_files

SENTENCES = [["The", "sentence", "."], ["ELMo", "helps", "disambiguate", "ELMo", "from", "Elmo", "."]]
BATCHES = [[["The", "cat", "sat", "."], ["A"], ["the", "dog"]], [["On", "a", "mat"]], [["The", "cat"], ["ran", "."]]]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_files(tmp_path / "model")


def layers_of_ours(bilm: BiLM, sentences: list[list[str]], state: BiLMState) -> tuple[Tensor, BiLMState]:
    """All layers ``(layers, batch, time + 2, dim)`` by our own network, and the state after."""
    ids = batch_to_ids([["<S>", *sentence, "</S>"] for sentence in sentences])
    return bilm(ids, (ids > 0).any(-1), state)


# --- the numbers


@torch.no_grad()
def test_layers_are_those_of_our_network_with_state_carried_by_row(files: Files) -> None:
    theirs = _ElmoBiLm(files.options, files.weights)
    state = files.bilm.zero_state(3)
    for batch in BATCHES:
        output = theirs(batch_to_ids(batch))
        expected, after = layers_of_ours(files.bilm, batch, state.first_rows(len(batch)))
        state = state.with_first_rows(after)
        torch.testing.assert_close(torch.stack(output["activations"]), expected, atol=1e-5, rtol=1e-5)
        assert output["mask"].sum(dim=1).tolist() == [len(sentence) + 2 for sentence in batch]
    assert theirs.num_layers == 3
    assert theirs.get_output_dim() == DIM


@torch.no_grad()
def test_published_vectors_are_met_with_state_carried_over_ten_batches(bilm_tf_fixture: Path, tmp_path: Path) -> None:
    golden = bilm_tf_fixture
    options = json.loads((golden / "options.json").read_text(encoding="utf-8"))
    with pytest.raises(ConfigurationError, match="skip connections"):
        _ElmoBiLm(str(golden / "options.json"), str(golden / "lm_weights.hdf5"))
    options["lstm"]["use_skip_connections"] = True
    (tmp_path / "options.json").write_text(json.dumps(options), encoding="utf-8")
    model = _ElmoBiLm(str(tmp_path / "options.json"), str(golden / "lm_weights.hdf5"))
    rows = fixture_sentences(golden)
    for number in range(10):
        batch = [row[number] for row in rows]
        layers = model(batch_to_ids(batch))["activations"]
        for k, sentence in enumerate(batch):
            with h5py.File(golden / f"lm_embeddings_{k}.hdf5") as file:
                expected = np.concatenate(list(file[str(number)][...]), axis=-1)
            # Published without the skip, which this class needs: it adds layer 1 to layer 2 and touches nothing else.
            without_skip = (layers[2] - layers[1])[k, 1 : len(sentence) + 1]
            np.testing.assert_allclose(without_skip, expected, atol=1e-5)


@torch.no_grad()
def test_published_sums_are_met_when_one_batch_is_read_three_times(bilm_tf_fixture: Path, tmp_path: Path) -> None:
    golden = bilm_tf_fixture
    options = json.loads((golden / "options.json").read_text(encoding="utf-8"))
    options["lstm"]["use_skip_connections"] = True
    (tmp_path / "options.json").write_text(json.dumps(options), encoding="utf-8")
    embedder = ElmoEmbedder(str(tmp_path / "options.json"), str(golden / "lm_weights.hdf5"))
    batch = [sentence.split() for sentence in ("The first sentence .", "The second", "Third")]
    layer_0 = [2.086852, 1.015546, 0.331603]
    layer_1 = [(-2.077477, -0.833889, -0.301557), (-4.885759, -1.986974, -0.748610), (-6.015997, -2.696180, -1.087843)]
    top = [(-2.852303, -1.297139, -0.581812), (-3.340260, -1.620730, -0.789164), (-3.420132, -1.689868, -0.826542)]
    for call in range(3):
        sums = np.array([vectors.sum(axis=(1, 2)) for vectors in embedder.embed_batch(batch)])
        np.testing.assert_allclose(sums[:, 0], layer_0, atol=1e-5)
        np.testing.assert_allclose(sums[:, 1], layer_1[call], atol=2e-5)
        np.testing.assert_allclose(sums[:, 2], np.add(layer_1[call], top[call]), atol=4e-5)  # the skip adds layer 1
    encoder = _ElmoCharacterEncoder(str(tmp_path / "options.json"), str(golden / "lm_weights.hdf5"))
    vectors = encoder(batch_to_ids([["The", "second"]]))["token_embedding"][0, :, :3]
    expected = [
        [0.266147, 0.095156, 0.137369],
        [0.237952, 0.149279, 0.159122],
        [0.206591, 0.172765, 0.227230],
        [0.254890, 0.127126, 0.144967],
    ]
    np.testing.assert_allclose(vectors, expected, atol=2e-6)


# --- Elmo


def test_elmo_gives_as_many_mixes_as_requested(files: Files) -> None:
    output = Elmo(files.options, files.weights, 2, dropout=0.0)(batch_to_ids(SENTENCES))
    first, second = output["elmo_representations"]
    assert first.shape == second.shape == (2, 7, DIM)
    assert torch.equal(first, second)
    assert output["mask"].sum(dim=1).tolist() == [3, 7]
    assert output["mask"].dtype == torch.bool
    assert not first[0, 3:].any()


def test_elmo_mixes_the_layers_of_a_given_module(files: Files) -> None:
    ids = batch_to_ids(SENTENCES)
    given = Elmo(None, None, 1, dropout=0.0, module=_ElmoBiLm(files.options, files.weights))
    torch.testing.assert_close(given(ids), Elmo(files.options, files.weights, 1, dropout=0.0)(ids))


def test_boundaries_can_be_kept_for_inputs_of_any_rank(files: Files) -> None:
    elmo = Elmo(files.options, files.weights, 2, dropout=0.0, keep_sentence_boundaries=True)
    output = elmo(batch_to_ids(SENTENCES))
    assert output["elmo_representations"][1].shape == (2, 9, DIM)
    assert output["mask"].sum(dim=1).tolist() == [5, 9]
    assert elmo(batch_to_ids(SENTENCES)[:, None])["elmo_representations"][0].shape == (2, 1, 9, DIM)


def test_inputs_of_four_axes_equal_three_runs_from_reset_states(files: Files) -> None:
    elmo = Elmo(files.options, files.weights, 1, dropout=0.0)
    parts = [batch_to_ids([sentence[k:] + ["."] * k for sentence in SENTENCES]) for k in range(3)]
    together = elmo(torch.stack(parts, dim=1))
    assert together["mask"].shape == (2, 3, 7)
    for k, part in enumerate(parts):
        elmo._elmo_lstm._elmo_lstm.reset_states()  # AllenNLP's path
        alone = elmo(part)
        torch.testing.assert_close(together["elmo_representations"][0][:, k], alone["elmo_representations"][0])
        assert torch.equal(together["mask"][:, k], alone["mask"])


@pytest.mark.parametrize("requires_grad", [True, False])
def test_gradients_reach_every_weight_of_the_bilm_or_none(files: Files, requires_grad: bool) -> None:
    elmo = Elmo(files.options, files.weights, 1, requires_grad=requires_grad)
    ids = torch.randint(0, 262, (3, 4, 50), generator=torch.Generator().manual_seed(0))
    elmo(ids)["elmo_representations"][0].sum().backward()
    assert all((parameter.grad is not None) == requires_grad for parameter in elmo._elmo_lstm.parameters())
    assert all(parameter.grad is not None for parameter in elmo.scalar_mix_0.parameters())
    elmo(ids)["elmo_representations"][0].sum().backward()  # the carried state holds no old graph


def test_mix_weights_can_be_given_and_are_frozen(files: Files) -> None:
    ids = batch_to_ids(SENTENCES)
    elmo = Elmo(files.options, files.weights, 2, dropout=0, scalar_mix_parameters=[-9e10, 1, -9e10])
    layer_1 = _ElmoBiLm(files.options, files.weights)(ids)["activations"][1]
    output = elmo(ids)["elmo_representations"]
    assert torch.equal(output[0][1], layer_1[1, 1:8])
    assert torch.equal(output[1], output[0])
    assert not any(parameter.requires_grad for parameter in elmo.parameters())


def test_stateful_false_and_reset_states_make_sentences_independent(files: Files) -> None:
    ids = batch_to_ids(SENTENCES)
    carried = Elmo(files.options, files.weights, 1, dropout=0)
    free = Elmo(files.options, files.weights, 1, dropout=0, stateful=False)
    first = carried(ids)["elmo_representations"][0]
    assert not torch.allclose(carried(ids)["elmo_representations"][0], first, atol=1e-3)
    carried.reset_states()
    for elmo in (carried, free, free):
        torch.testing.assert_close(elmo(ids)["elmo_representations"][0], first)
    alone = free(ids[:1, :3])["elmo_representations"][0]
    torch.testing.assert_close(alone[0], first[0, :3], atol=1e-6, rtol=1e-5)


# --- the cache


def with_word_ids(vocabulary: list[str], sentences: list[list[str]]) -> tuple[Tensor, Tensor]:
    ids = batch_to_ids(sentences)
    words = torch.zeros(ids.shape[:2], dtype=torch.long)
    for row, sentence in zip(words, sentences, strict=True):
        row[: len(sentence)] = torch.tensor([vocabulary.index(word) for word in sentence])
    return ids, words


VOCABULARY = ["@@PADDING@@", *dict.fromkeys(word for sentence in SENTENCES for word in sentence)]


@torch.no_grad()
def test_cached_words_give_the_same_layers(files: Files) -> None:
    ids, words = with_word_ids(VOCABULARY, SENTENCES)
    plain = _ElmoBiLm(files.options, files.weights)(ids)
    for inputs in (ids, None):
        cached = _ElmoBiLm(files.options, files.weights, vocab_to_cache=VOCABULARY)(inputs, words)
        assert torch.equal(cached["mask"], plain["mask"])
        for ours, theirs in zip(cached["activations"], plain["activations"], strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_a_word_outside_the_cache_is_read_by_its_characters(files: Files) -> None:
    elmo = Elmo(files.options, files.weights, 1, dropout=0, vocab_to_cache=VOCABULARY)
    ids, words = with_word_ids(VOCABULARY, SENTENCES)
    expected = Elmo(files.options, files.weights, 1, dropout=0)(ids)["elmo_representations"][0]
    words[1, 2] = len(VOCABULARY)
    torch.testing.assert_close(elmo(ids, words)["elmo_representations"][0], expected)
    with pytest.raises(ValueError, match="Pass inputs"):
        elmo(None, words)
    elmo.reset_states()
    words[1, 2] = -1
    torch.testing.assert_close(elmo(ids, words)["elmo_representations"][0], expected)
    with pytest.raises(ValueError, match="Pass inputs"):
        elmo(None, words)


def test_a_cache_that_begins_with_a_word_is_refused(files: Files) -> None:
    for token in ("The", ",", "...", "__", "pad", "<s>", "@@UNKNOWN@@", "<", "[]"):
        with pytest.raises(ConfigurationError, match=f"begins with {re.escape(repr(token))}"):
            _ElmoBiLm(files.options, files.weights, vocab_to_cache=[token, "cat"])
    for padding in ("", "<pad>", "[PAD]", "@@PADDING@@", "@@pad@@", "<|padding|>"):
        _ElmoBiLm(files.options, files.weights, vocab_to_cache=[padding, "The"])


def test_training_changes_only_the_cached_vectors_with_a_warning(files: Files) -> None:
    with pytest.warns(UserWarning, match="cached vectors are trained"):
        model = _ElmoBiLm(files.options, files.weights, requires_grad=True, vocab_to_cache=VOCABULARY)
    for _ in range(2):
        sum(layer.sum() for layer in model(*with_word_ids(VOCABULARY, SENTENCES))["activations"]).backward()
    assert model._word_embedding.weight.grad is not None
    assert all(parameter.grad is None for parameter in model._token_embedder.parameters())
    with pytest.warns(UserWarning, match="is ignored"):
        Elmo(files.options, files.weights, 1)(*with_word_ids(VOCABULARY, SENTENCES))


# --- checkpoints


def test_parameters_have_allennlp_s_names_shapes_and_order(files: Files) -> None:
    # An optimizer stores its state by position and shape. This is the order of AllenNLP 2.10.1's parameters().
    with pytest.warns(UserWarning, match="cached vectors"):
        elmo = Elmo(files.options, files.weights, 2, requires_grad=True, vocab_to_cache=VOCABULARY)
    cnn, lstm = "_elmo_lstm._token_embedder", "_elmo_lstm._elmo_lstm"
    expected: dict[str, tuple[int, ...]] = {f"{cnn}._char_embedding_weights": (262, 4)}
    for k, (width, count) in enumerate(((1, 4), (2, 8), (3, 12))):
        expected |= {f"{cnn}.char_conv_{k}.weight": (count, 4, width), f"{cnn}.char_conv_{k}.bias": (count,)}
    for k in range(2):
        expected |= {f"{cnn}._highways._layers.{k}.weight": (48, 24), f"{cnn}._highways._layers.{k}.bias": (48,)}
    expected |= {f"{cnn}._projection.weight": (8, 24), f"{cnn}._projection.bias": (8,)}
    expected |= {"_elmo_lstm._word_embedding.weight": (len(VOCABULARY), 8)}
    for cell in (f"{lstm}.{direction}_layer_{k}" for k in range(2) for direction in ("forward", "backward")):
        expected |= {f"{cell}.input_linearity.weight": (56, 8), f"{cell}.state_linearity.weight": (56, 8)}
        expected |= {f"{cell}.state_linearity.bias": (56,), f"{cell}.state_projection.weight": (8, 14)}
    for mix in ("scalar_mix_0", "scalar_mix_1"):
        expected |= {f"{mix}.gamma": (1,)} | {f"{mix}.scalar_parameters.{layer}": (1,) for layer in range(3)}
    found = {name: tuple(parameter.shape) for name, parameter in elmo.named_parameters()}
    assert list(found.items()) == list(expected.items())
    assert elmo.state_dict().keys() == expected.keys()


def test_parameters_carry_allennlp_s_values(files: Files) -> None:
    state = {name: tensor.numpy() for name, tensor in _ElmoBiLm(files.options, files.weights).state_dict().items()}
    with h5py.File(files.weights) as file:
        for direction, d in (("forward", 0), ("backward", 1)):
            published = file[f"RNN_{d}/RNN/MultiRNNCell/Cell1/LSTMCell"]
            i, g, f, o = np.split(published["W_0"][...].T, 4)
            ours = f"_elmo_lstm.{direction}_layer_1"
            matrices = [state[f"{ours}.{name}_linearity.weight"] for name in ("input", "state")]
            np.testing.assert_array_equal(np.hstack(matrices), np.vstack([i, f, g, o]))
            i, g, f, o = np.split(published["B"][...], 4)
            np.testing.assert_array_equal(state[f"{ours}.state_linearity.bias"], np.hstack([i, f + 1, g, o]))
            np.testing.assert_array_equal(state[f"{ours}.state_projection.weight"], published["W_P_0"][...].T)
        for part, layout in (("weight", "W"), ("bias", "b")):
            both = [file[f"CNN_high_1/{layout}_transform"][...].T, -file[f"CNN_high_1/{layout}_carry"][...].T]
            np.testing.assert_array_equal(state[f"_token_embedder._highways._layers.1.{part}"], np.concatenate(both))
        table = state["_token_embedder._char_embedding_weights"]
        assert not table[0].any()
        np.testing.assert_array_equal(table[1:], file["char_embed"][...])


@pytest.mark.slow
def test_a_trained_checkpoint_loads_strictly_and_gives_the_same_vectors(files: Files, tmp_path: Path) -> None:
    trained = ElmoTokenEmbedder(files.options, files.weights, requires_grad=True, dropout=0, projection_dim=5)
    optimizer = torch.optim.Adam(trained.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        trained(batch_to_ids(SENTENCES)).square().sum().backward()
        optimizer.step()
    torch.save(trained.state_dict(), tmp_path / "best.th")
    other = write_files(tmp_path / "other", seed=1)
    loaded = ElmoTokenEmbedder(other.options, other.weights, requires_grad=True, dropout=0, projection_dim=5)
    loaded.load_state_dict(torch.load(tmp_path / "best.th", weights_only=True), strict=True)
    trained._elmo.reset_states()
    ids = batch_to_ids(SENTENCES)
    torch.testing.assert_close(loaded(ids), trained(ids))
    torch.testing.assert_close(copy.deepcopy(loaded)(ids), trained(ids))  # the carried state is copied along


def test_a_cached_checkpoint_brings_its_own_boundary_vectors(files: Files, tmp_path: Path) -> None:
    other = write_files(tmp_path / "other", seed=1)
    models = [
        _ElmoBiLm(each.options, each.weights, vocab_to_cache=VOCABULARY, stateful=False) for each in (files, other)
    ]
    models[1].load_state_dict(models[0].state_dict())
    outputs = [model(*with_word_ids(VOCABULARY, SENTENCES))["activations"] for model in models]
    torch.testing.assert_close(outputs[1], outputs[0])


@torch.no_grad()
def test_a_fine_tuned_bilm_is_saved_as_a_published_model(files: Files, tmp_path: Path) -> None:
    model = _ElmoBiLm(files.options, files.weights, stateful=False)
    for parameter in model.parameters():
        parameter.add_(0.01)
    save_model(model.to_model(), tmp_path / "tuned_weights.hdf5")
    again = _ElmoBiLm(str(tmp_path / "tuned_options.json"), str(tmp_path / "tuned_weights.hdf5"), stateful=False)
    ids = batch_to_ids(SENTENCES)
    torch.testing.assert_close(again(ids)["activations"], model(ids)["activations"], atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(("projection_dim", "hidden_dim"), [(14, 14), (24, 30)])
def test_files_that_leave_out_a_projection_open_too(tmp_path: Path, projection_dim: int, hidden_dim: int) -> None:
    config = dataclasses.replace(CONFIG, projection_dim=projection_dim, hidden_dim=hidden_dim, projection_clip=0.1)
    files = write_files(tmp_path, config)
    model = _ElmoBiLm(files.options, files.weights)
    expected, _ = layers_of_ours(files.bilm, SENTENCES, files.bilm.zero_state(2))
    torch.testing.assert_close(torch.stack(model(batch_to_ids(SENTENCES))["activations"]), expected)
    back = model.to_model().build_bilm().state_dict()
    torch.testing.assert_close(back, dict(files.bilm.state_dict()))
    name = next(name for name, tensor in model.named_parameters() if torch.equal(tensor, torch.eye(len(tensor))))
    model.get_parameter(name).mul_(2)
    outputs = []  # of C functions, and of PyTorch, which computes where there is a gradient
    for needs_gradient in (False, True):
        model.reset_states()
        with torch.set_grad_enabled(needs_gradient):
            outputs.append(model.requires_grad_(needs_gradient)(batch_to_ids(SENTENCES))["activations"])
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)
    with pytest.raises(TensorMismatchError, match=r"no longer the identity"):
        model.to_model()


def test_an_elmokit_directory_opens_too(files: Files, tmp_path: Path) -> None:
    save_model(open_model(files.weights), tmp_path / "ours")
    output = Elmo(None, str(tmp_path / "ours"), 1, dropout=0)(batch_to_ids(SENTENCES))
    expected = Elmo(files.options, files.weights, 1, dropout=0)(batch_to_ids(SENTENCES))
    torch.testing.assert_close(output, expected)


# --- ElmoTokenEmbedder


# --- from_params


@torch.no_grad()
def test_from_params_passes_a_table_of_a_config_to_the_constructor(files: Files) -> None:
    table = {"options_file": files.options, "weight_file": files.weights, "dropout": 0.0}
    ids = batch_to_ids([["a", "b"]])
    expected = Elmo(files.options, files.weights, 1, dropout=0.0)(ids)["elmo_representations"][0]
    elmo = Elmo.from_params(params=Params({**table, "num_output_representations": 1}))
    torch.testing.assert_close(elmo(ids)["elmo_representations"][0], expected)
    embedder = ElmoTokenEmbedder.from_params(vocab=None, params={"type": "elmo_token_embedder", **table})
    torch.testing.assert_close(embedder(ids), expected)
    assert ElmoTokenEmbedder.from_params({**table, "projection_dim": 20}).get_output_dim() == 20
    assert "dropout" in table
    indexer = ELMoTokenCharactersIndexer.from_params(Params({"type": "elmo_characters", "tokens_to_add": {"<S>": 30}}))
    assert indexer.tokens_to_indices(["<S>"], None)["elmo_tokens"][0][:3] == [259, 31, 260]


def test_from_params_takes_the_words_of_a_namespace_of_the_vocabulary(files: Files) -> None:
    class Vocabulary:
        def get_token_to_index_vocabulary(self, namespace: str) -> dict[str, int]:
            return {"tokens": {"@@PADDING@@": 0, "cat": 1}}[namespace]

    table = {"options_file": files.options, "weight_file": files.weights, "namespace_to_cache": "tokens"}
    embedder = ElmoTokenEmbedder.from_params(vocab=Vocabulary(), params=table)
    assert embedder(None, torch.tensor([[1, 1]])).shape == (1, 2, DIM)


# --- ElmoEmbedder


def test_embedder_gives_owned_float32_arrays_of_each_sentence_s_own_length(files: Files) -> None:
    embedder = ElmoEmbedder(files.options, files.weights)
    state = files.bilm.zero_state(3)
    for batch in BATCHES:
        vectors = embedder.embed_batch(batch)
        expected, after = layers_of_ours(files.bilm, batch, state.first_rows(len(batch)))
        state = state.with_first_rows(after)
        for k, sentence in enumerate(batch):
            assert vectors[k].shape == (3, len(sentence), DIM)
            assert vectors[k].dtype == np.float32
            assert vectors[k].flags.owndata
            np.testing.assert_allclose(vectors[k], expected[:, k, 1 : len(sentence) + 1].detach(), atol=1e-5)
    layers, mask = embedder.batch_to_embeddings(SENTENCES)
    assert layers.shape == (2, 3, 7, DIM)
    assert mask.sum(dim=1).tolist() == [3, 7]


def test_empty_sentences_have_the_model_s_own_shape(files: Files) -> None:
    embedder = ElmoEmbedder(files.options, files.weights)
    assert embedder.embed_sentence([]).shape == (3, 0, DIM)
    assert embedder.embed_sentence([]).dtype == np.float32
    assert [array.shape for array in embedder.embed_batch([["This"], []])] == [(3, 1, DIM), (3, 0, DIM)]
    assert [array.shape for array in embedder.embed_batch([[], []])] == [(3, 0, DIM)] * 2
    assert embedder.embed_batch([]) == []


LINES = ["The cat sat .", "a / b and/or :", "The cat sat .", "fin :"]


@pytest.mark.parametrize("output_format", ["all", "top", "average"])
def test_embed_file_writes_datasets_by_line_and_the_map(files: Files, tmp_path: Path, output_format: str) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "new" / "out.hdf5"
    source.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    with source.open(encoding="utf-8") as lines:
        ElmoEmbedder(files.options, files.weights).embed_file(lines, output, output_format, batch_size=3)  # type: ignore[arg-type]
    fresh = ElmoEmbedder(files.options, files.weights).embed_sentences([line.split() for line in LINES], 3)
    with h5py.File(output) as file:
        assert set(file) == {"0", "1", "2", "3", "sentence_to_index"}
        sentences = json.loads(file["sentence_to_index"].asstr()[0])
        assert sentences == {"The cat sat .": "2", "a / b and/or :": "1", "fin :": "3"}
        for number, layers in enumerate(fresh):
            expected = {"all": layers, "top": layers[2], "average": layers.mean(axis=0)}[output_format]
            np.testing.assert_allclose(file[str(number)][...], expected, rtol=1e-5, atol=1e-6)
            assert file[str(number)].dtype == np.float32


def test_embed_file_can_forget_sentences_or_use_them_as_keys(files: Files, tmp_path: Path) -> None:
    embedder = ElmoEmbedder(files.options, files.weights)
    embedder.embed_file(LINES, tmp_path / "a.hdf5", forget_sentences=True)
    embedder.embed_file(LINES[1:], tmp_path / "b.hdf5", use_sentence_keys=True)
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert set(file) == {"0", "1", "2", "3"}
    with h5py.File(tmp_path / "b.hdf5") as file:
        assert "sentence_to_index" not in file
        assert [file[line].shape for line in LINES[1:]] == [(3, len(line.split()), DIM) for line in LINES[1:]]
