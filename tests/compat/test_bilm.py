"""The facts that bilm-tf's own tests check, and its fixed defects."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from elmokit.compat.bilm import (
    Batcher,
    BidirectionalLanguageModel,
    TokenBatcher,
    UnicodeCharsVocabulary,
    Vocabulary,
    WeightLayers,
    dump_bilm_embeddings,
    dump_token_embeddings,
    weight_layers,
)
from elmokit.engine.architecture import PRESETS, BiLMConfig
from elmokit.formats.bilm_tf_hdf5 import write_hdf5
from elmokit.network.bilm import BiLM
from tests.conftest import edited_model, fixture_sentences, random_model

WORDS = ["<S>", "</S>", "<UNK>", "the", ".", "cat", "sat", "zebra"]
SENTENCES = [["the", "cat", "sat", "."], ["the", "zebra"], ["cat"]]


def file_of(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def vocab_file(tmp_path: Path) -> Path:
    return file_of(tmp_path / "vocab.txt", *WORDS)


def write_model(folder: Path, config: BiLMConfig = PRESETS["tiny"], seed: int = 0) -> tuple[Path, Path]:
    """A small random model in published files: options and weights."""
    files = folder / "options.json", folder / "weights.hdf5"
    write_hdf5(edited_model(random_model(config, seed), _draw_biases), *files)
    return files


def _draw_biases(bilm: BiLM) -> None:
    """Draw the biases: they are zero in a fresh model, so that the vector of no characters would be zero too."""
    for name, parameter in bilm.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(len(name)))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_model(tmp_path)


# The vocabularies


def test_a_sentence_is_encoded_between_boundaries(tmp_path: Path) -> None:
    vocabulary = Vocabulary(file_of(tmp_path / "v", "<S>", "</S>", "<UNK>", "the", "."))
    ids = vocabulary.encode("the unknown .")
    assert ids.dtype == np.int32
    assert ids.tolist() == [0, 3, 2, 4, 1]
    assert vocabulary.encode(["the", "unknown", "."], split=False).tolist() == [0, 3, 2, 4, 1]
    assert vocabulary.size == 5
    assert vocabulary.decode([3, 2, 4]) == "the <UNK> ."


def test_blank_lines_count_and_the_end_mark_does_not(tmp_path: Path) -> None:
    vocabulary = Vocabulary(file_of(tmp_path / "v", "<S>", "", "cat", "!!!MAXTERMID", "cat "))
    assert [vocabulary.id_to_word(index) for index in range(vocabulary.size)] == ["<S>", "", "cat", "cat"]
    assert vocabulary.word_to_id("cat") == 3
    assert (vocabulary.bos, vocabulary.eos, vocabulary.unk) == (0, -1, -1)


def test_a_string_is_split_at_any_white_space(tmp_path: Path) -> None:
    vocabulary = Vocabulary(file_of(tmp_path / "v", "<S>", "</S>", "<UNK>", "10", "cats"))
    assert vocabulary.encode("10\u00a0cats\u300010\tcats\n").tolist() == [0, 3, 4, 3, 4, 1]


CHARACTERS = {
    "th": [258, 116, 104, 259, 260],
    "thhhhh": [258, 116, 104, 104, 259],
    "Āt": [258, 196, 128, 116, 259],
    "<S>": [258, 256, 259, 260, 260],
    "</S>": [258, 257, 259, 260, 260],
}


def test_words_become_bytes_between_marks_cut_to_length(tmp_path: Path) -> None:
    vocabulary = UnicodeCharsVocabulary(file_of(tmp_path / "v", "the", "Āt", "<S>", "</S>", "<UNK>"), 5)
    for word, chars in CHARACTERS.items():
        assert vocabulary.word_to_char_ids(word).tolist() == chars
    assert vocabulary.word_char_ids.shape == (5, 5)
    assert vocabulary.word_char_ids[1:4].tolist() == [CHARACTERS[word] for word in ("Āt", "<S>", "</S>")]
    assert (vocabulary.bos_chars.tolist(), vocabulary.eos_chars.tolist()) == (CHARACTERS["<S>"], CHARACTERS["</S>"])
    without = UnicodeCharsVocabulary(file_of(tmp_path / "w", "the", "cat"), 5)  # the last word is no boundary
    assert without.word_char_ids[-1].tolist() == [258, 99, 97, 116, 259]
    assert without.word_to_char_ids("<S>").tolist() == CHARACTERS["<S>"]


def test_characters_of_a_sentence_and_of_its_reverse(tmp_path: Path) -> None:
    vocabulary = UnicodeCharsVocabulary(file_of(tmp_path / "v", "<S>", "</S>", "<UNK>", "the", "."), 5)
    forward = vocabulary.encode_chars("th thhhhh Āt")
    assert forward.tolist() == [CHARACTERS[word] for word in ("<S>", "th", "thhhhh", "Āt", "</S>")]
    reverse = vocabulary.encode_chars(["Āt", "thhhhh", "th"], reverse=True, split=False)
    assert reverse.tolist() == forward[::-1].tolist()


# The batchers


def test_character_ids_are_shifted_by_one_and_zero_on_padding(vocab_file: Path) -> None:
    ids = Batcher(vocab_file, 50).batch_sentences([["The", "first", "sentence"], ["Second", "."]])
    assert ids.shape == (2, 5, 50)
    assert ids.dtype == np.int64
    assert ids[0, 0].tolist() == [259, 257, 260] + [261] * 47
    assert ids[0, 1].tolist() == [259, 85, 105, 102, 260] + [261] * 45
    assert ids[1, 2].tolist() == [259, 47, 260] + [261] * 47
    assert ids[1, 3].tolist() == [259, 258, 260] + [261] * 47
    assert not ids[1, 4].any()


def test_token_ids_are_shifted_by_one_and_zero_on_padding(tmp_path: Path) -> None:
    lines = [f"word{number}" for number in range(100)]
    places = {"</S>": 0, "<S>": 1, "<UNK>": 2, "sentence": 5, "The": 17, ".": 20, "Second": 66, "first": 74}
    for word, place in places.items():
        lines[place] = word
    ids = TokenBatcher(file_of(tmp_path / "v", *lines)).batch_sentences([["The", "first", "sentence"], ["Second", "."]])
    assert ids.dtype == np.int64
    assert ids.tolist() == [[2, 18, 75, 6, 1], [2, 67, 21, 1, 0]]


# The model


def test_shapes_of_what_a_model_returns(files: tuple[Path, Path], vocab_file: Path) -> None:
    model = BidirectionalLanguageModel(*files)
    ops = model(Batcher(vocab_file, 50).batch_sentences(SENTENCES))
    assert set(ops) == {"lm_embeddings", "lengths", "token_embeddings", "mask"}
    assert ops["lm_embeddings"].shape == (3, 3, 4, 64)
    assert ops["token_embeddings"].shape == (3, 6, 32)
    assert ops["lengths"].tolist() == [4, 2, 1]
    assert ops["mask"].tolist() == [[True] * 4, [True, True, False, False], [True, False, False, False]]
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_layer_0_is_the_token_vector_twice_and_padding_is_zero_above_it(
    files: tuple[Path, Path], vocab_file: Path
) -> None:
    ops = BidirectionalLanguageModel(*files)(Batcher(vocab_file, 50).batch_sentences(SENTENCES))
    layers, tokens, mask = ops["lm_embeddings"], ops["token_embeddings"], ops["mask"]
    torch.testing.assert_close(layers[0, 0], torch.cat([tokens[0, 1:-1]] * 2, dim=-1), rtol=0, atol=0)
    assert not layers[:, 1:].transpose(1, 2)[~mask].any()
    padding = layers[:, 0][~mask]
    assert padding.abs().max() > 0
    torch.testing.assert_close(padding, padding[:1].expand_as(padding), rtol=0, atol=0)


def test_state_is_carried_row_by_row_and_other_rows_keep_theirs(files: tuple[Path, Path], vocab_file: Path) -> None:
    batcher = Batcher(vocab_file, 50)
    model = BidirectionalLanguageModel(*files, max_batch_size=4)
    first = model(batcher.batch_sentences(SENTENCES))["lm_embeddings"]
    before = model.states[""]
    assert before.n_rows == 4
    assert all(not part[:, :, 3].any() for part in before)
    again = model(batcher.batch_sentences(SENTENCES[:2]))["lm_embeddings"]
    after = model.states[""]
    assert (again[0] - first[0])[1:].abs().max() > 1e-3
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new[:, :, 2:], old[:, :, 2:], rtol=0, atol=0)
        assert (new[:, :, :2] - old[:, :, :2]).abs().max() > 1e-3
    model.reset_states()
    torch.testing.assert_close(model(batcher.batch_sentences(SENTENCES))["lm_embeddings"], first, rtol=0, atol=0)


def test_each_stream_has_its_own_state(files: tuple[Path, Path], vocab_file: Path) -> None:
    ids = Batcher(vocab_file, 50).batch_sentences(SENTENCES)
    model = BidirectionalLanguageModel(*files)
    context, question = (model(ids, stream)["lm_embeddings"] for stream in ("context", "question"))
    torch.testing.assert_close(context, question, rtol=0, atol=0)
    assert (model(ids, "context")["lm_embeddings"] - context).abs().max() > 1e-3


@pytest.mark.parametrize("change", [{"n_layers": 1}, {"bidirectional": False}])
def test_models_of_one_layer_or_one_direction_open(change: dict[str, Any], tmp_path: Path, vocab_file: Path) -> None:
    config = dataclasses.replace(PRESETS["tiny"], **change)
    ops = BidirectionalLanguageModel(*write_model(tmp_path, config))(Batcher(vocab_file, 50).batch_sentences(SENTENCES))
    assert ops["lm_embeddings"].shape == (3, config.n_layers + 1, 4, config.output_dim)


def test_options_may_say_261_characters_and_leave_the_skip_key_out(files: tuple[Path, Path], vocab_file: Path) -> None:
    ids = Batcher(vocab_file, 50).batch_sentences(SENTENCES)
    options = json.loads(files[0].read_text(encoding="utf-8"))
    options["char_cnn"]["n_characters"] = 261
    options["lstm"]["use_skip_connections"] = False
    files[0].write_text(json.dumps(options), encoding="utf-8")
    expected = BidirectionalLanguageModel(*files)(ids)["lm_embeddings"]
    del options["lstm"]["use_skip_connections"]
    files[0].write_text(json.dumps(options), encoding="utf-8")
    torch.testing.assert_close(BidirectionalLanguageModel(*files)(ids)["lm_embeddings"], expected, rtol=0, atol=0)


# The token flow


def test_token_flow_equals_character_flow(files: tuple[Path, Path], vocab_file: Path, tmp_path: Path) -> None:
    cached = tmp_path / "tokens.hdf5"
    dump_token_embeddings(vocab_file, *files, cached)
    by_chars = BidirectionalLanguageModel(*files)
    by_words = BidirectionalLanguageModel(*files, use_character_inputs=False, embedding_weight_file=cached)
    for _ in range(3):
        one = by_chars(Batcher(vocab_file, 50).batch_sentences(SENTENCES))
        two = by_words(TokenBatcher(vocab_file).batch_sentences(SENTENCES))
        assert two["mask"].equal(one["mask"])
        lstm_layers = [ops["lm_embeddings"][:, 1:] for ops in (two, one)]
        torch.testing.assert_close(*lstm_layers, rtol=0, atol=1e-5)
        layer_0 = [ops["lm_embeddings"][:, 0][ops["mask"]] for ops in (two, one)]
        torch.testing.assert_close(*layer_0, rtol=0, atol=1e-6)


def test_a_model_trained_on_words_reads_words_by_its_own_table(tmp_path: Path, vocab_file: Path) -> None:
    config = dataclasses.replace(PRESETS["tiny"], char_cnn=None, n_words=len(WORDS))
    files = write_model(tmp_path, config)
    ids = TokenBatcher(vocab_file).batch_sentences(SENTENCES)
    one = BidirectionalLanguageModel(*files, use_character_inputs=False)(ids)
    two = BidirectionalLanguageModel(*files, use_character_inputs=False, embedding_weight_file=files[1])(ids)
    torch.testing.assert_close(one["lm_embeddings"], two["lm_embeddings"], rtol=0, atol=0)


# The cached flow


def test_dumped_embeddings_are_one_dataset_a_line(files: tuple[Path, Path], vocab_file: Path, tmp_path: Path) -> None:
    text = file_of(tmp_path / "text.txt", "the cat sat .", "", "the zebra")
    dump_bilm_embeddings(vocab_file, text, *files, tmp_path / "vectors.hdf5")
    model = BidirectionalLanguageModel(*files, max_batch_size=1)
    batcher = Batcher(vocab_file, 50)
    with h5py.File(tmp_path / "vectors.hdf5") as file:
        assert sorted(file) == ["0", "1", "2"]
        assert file["1"].shape == (3, 0, 64)
        for number, sentence in enumerate((["the", "cat", "sat", "."], [], ["the", "zebra"])):
            assert file[str(number)].dtype == np.float32
            expected = model(batcher.batch_sentences([sentence]))["lm_embeddings"][0]
            np.testing.assert_allclose(file[str(number)][()], expected.numpy(), atol=1e-6)


def test_dumped_without_state_lines_do_not_depend_on_each_other(
    files: tuple[Path, Path], vocab_file: Path, tmp_path: Path
) -> None:
    lines = ["the cat sat .", "", "the zebra"]
    out = [tmp_path / name for name in ("one.hdf5", "two.hdf5")]
    dump_bilm_embeddings(vocab_file, file_of(tmp_path / "one", *lines), *files, out[0], stateful=False)
    dump_bilm_embeddings(vocab_file, file_of(tmp_path / "two", *lines[::-1]), *files, out[1], stateful=False)
    with h5py.File(out[0]) as one, h5py.File(out[1]) as two:
        for number in range(3):
            np.testing.assert_allclose(one[str(number)][()], two[str(2 - number)][()], atol=1e-5)


# The weighted layers

MIXES = {"one": ([0.1, 0.3, 0.5], 1.1), "two": ([0.2, 0.4, 0.6], 0.88)}


@pytest.fixture
def ops(files: tuple[Path, Path], vocab_file: Path) -> Any:
    sentences = [["the", "cat", "sat", "."], ["the", "zebra"], ["cat"]]
    return BidirectionalLanguageModel(*files)(Batcher(vocab_file, 50).batch_sentences(sentences))


def numpy_mix(layers: np.ndarray, mask: np.ndarray, weights: list[float], gamma: float, norm: bool) -> np.ndarray:
    """``(sentences, layers, time, dim)`` to ``(sentences, time, dim)``, by the formulas."""
    scores = np.exp(np.array(weights) + 1 / len(weights))
    mixed = np.zeros_like(layers[:, 0])
    for k, weight in enumerate(scores / scores.sum()):
        layer = layers[:, k]
        if norm:
            real = layer[mask]
            layer = (layer - real.mean()) / np.sqrt(((real - real.mean()) ** 2).mean() + 1e-12)
        mixed += weight * layer
    return gamma * mixed


@pytest.mark.parametrize("norm", [True, False])
def test_weighted_layers_equal_the_formula(ops: Any, norm: bool) -> None:
    layers, mask = ops["lm_embeddings"].double().numpy(), ops["mask"].numpy()
    assert mask.tolist() == [[True] * 4, [True, True, False, False], [True, False, False, False]]
    for name, (weights, gamma) in MIXES.items():
        plain = weight_layers(name, ops, l2_coef=1.0, do_layer_norm=norm)
        np.testing.assert_allclose(
            plain["weighted_op"].detach(), numpy_mix(layers, mask, [0.0] * 3, 1.0, norm), atol=1e-6
        )
        module = ops.mixes[f"{name}_ELMo"]
        with torch.no_grad():
            module.W.copy_(torch.tensor(weights))
            module.gamma.fill_(gamma)
        mixed = weight_layers(name, ops, l2_coef=1.0, do_layer_norm=norm)
        np.testing.assert_allclose(
            mixed["weighted_op"].detach(), numpy_mix(layers, mask, weights, gamma, norm), atol=1e-6
        )
        (penalty,) = mixed["regularization_op"]
        assert penalty.item() == pytest.approx(sum(weight**2 for weight in weights))
    assert len([parameter for parameter in ops.mixes.parameters() if parameter.requires_grad]) == 4


def test_the_top_layer_alone_is_scaled_by_gamma(ops: Any) -> None:
    for name, (_, gamma) in MIXES.items():
        weight_layers(name, ops, use_top_only=True)
        with torch.no_grad():
            ops.mixes[f"{name}_ELMo"].gamma.fill_(gamma)
        top = weight_layers(name, ops, l2_coef=1.0, use_top_only=True)
        torch.testing.assert_close(top["weighted_op"], gamma * ops["lm_embeddings"][:, -1], rtol=0, atol=1e-6)
        assert top["regularization_op"] == 0.0
    assert len([parameter for parameter in ops.mixes.parameters() if parameter.requires_grad]) == 2


def test_one_name_is_one_set_of_variables_that_learns(files: tuple[Path, Path], vocab_file: Path) -> None:
    model = BidirectionalLanguageModel(*files)
    ids = Batcher(vocab_file, 50).batch_sentences(SENTENCES)
    weight_layers("input", model(ids, "context"), l2_coef=0.0)
    optimizer = torch.optim.SGD(model.mixes.parameters(), lr=0.1)
    for _ in range(2):
        context = weight_layers("input", model(ids, "context"), l2_coef=0.0)["weighted_op"]
        question = weight_layers("input", model(ids, "question"), l2_coef=0.0)["weighted_op"]
        optimizer.zero_grad()
        (context.square().mean() + question.square().mean()).backward()
        optimizer.step()
    assert len(model.mixes) == 1
    module = model.mixes["input_ELMo"]
    assert isinstance(module, WeightLayers)
    assert module.W.abs().min() > 0
    assert module.gamma.item() != 1.0
    assert all(parameter.grad is None for parameter in model.bilm.parameters())


def test_cached_vectors_can_be_mixed_with_variables_of_your_own(ops: Any) -> None:
    mixes = nn.ModuleDict()
    plain = {"lm_embeddings": ops["lm_embeddings"], "mask": ops["mask"]}
    mixed = weight_layers("input", plain, mixes=mixes)["weighted_op"]
    torch.testing.assert_close(mixed, ops["lm_embeddings"].mean(dim=1))
    assert list(mixes) == ["input_ELMo"]
    assert not ops.mixes


# The published tiny model


def published(bilm_tf_fixture: Path) -> tuple[Path, Path, Path]:
    folder = bilm_tf_fixture
    return folder / "vocab_test.txt", folder / "options.json", folder / "lm_weights.hdf5"


def published_batches(bilm_tf_fixture: Path) -> list[list[list[str]]]:
    return [list(batch) for batch in zip(*fixture_sentences(bilm_tf_fixture), strict=True)]


def assert_published_vectors(
    bilm_tf_fixture: Path, model: BidirectionalLanguageModel, batcher: Batcher | TokenBatcher
) -> None:
    """Ten batches of three sentences, state carried: lengths, and the top layer to 1e-6."""
    for number, sentences in enumerate(published_batches(bilm_tf_fixture)):
        ops = model(batcher.batch_sentences(sentences))
        assert ops["lengths"].tolist() == [len(sentence) for sentence in sentences]
        for row, sentence in enumerate(sentences):
            with h5py.File(bilm_tf_fixture / f"lm_embeddings_{row}.hdf5") as file:
                forward, backward = file[str(number)][()]
            top = ops["lm_embeddings"][row, -1, : len(sentence)].numpy()
            np.testing.assert_allclose(top, np.concatenate([forward, backward], axis=-1), rtol=0, atol=1e-6)


def test_published_vectors_come_out_of_characters(bilm_tf_fixture: Path) -> None:
    vocab_file, *files = published(bilm_tf_fixture)
    model = BidirectionalLanguageModel(*files, max_batch_size=4)
    batcher = Batcher(vocab_file, 50)
    assert_published_vectors(bilm_tf_fixture, model, batcher)
    before = model.states[""]
    assert sum(float(part[:, :, 3].abs().sum()) for part in before) < 1e-7
    model(batcher.batch_sentences([["Hello", "world"], ["again"]]))
    for old, new in zip(before, model.states[""], strict=True):
        torch.testing.assert_close(new[:, :, 2], old[:, :, 2], rtol=0, atol=1e-6)


def test_published_vectors_come_out_of_dumped_token_embeddings(bilm_tf_fixture: Path, tmp_path: Path) -> None:
    _, *files = published(bilm_tf_fixture)
    tokens = {token for batch in published_batches(bilm_tf_fixture) for sentence in batch for token in sentence}
    vocab_file = file_of(tmp_path / "vocab_small.txt", *sorted({"<S>", "</S>"} | tokens))
    dump_token_embeddings(vocab_file, *files, tmp_path / "tokens.hdf5")
    model = BidirectionalLanguageModel(*files, False, tmp_path / "tokens.hdf5", max_batch_size=4)
    assert_published_vectors(bilm_tf_fixture, model, TokenBatcher(vocab_file))


def test_an_export_of_one_layer_that_no_old_loader_reads_opens(bilm_tf_run: Path) -> None:
    folder = bilm_tf_run  # its options say 261 characters, too
    model = BidirectionalLanguageModel(folder / "options.json", folder / "weights.hdf5")
    ops = model(Batcher(folder / "vocab.txt", 20).batch_sentences(SENTENCES))
    assert ops["lm_embeddings"].shape == (3, 2, 4, 24)
    assert ops["lm_embeddings"][:, 1][ops["mask"]].abs().max() > 0


TRACE = [["The", "first", "sentence", "."], ["The", "second"], ["Third"]]
TRACE_SUMS = [  # per call and sentence: the sum of each layer's values
    [(2.086852, -2.077477, -2.852303), (1.015546, -0.833889, -1.297139), (0.331603, -0.301557, -0.581812)],
    [(2.086852, -4.885759, -3.340260), (1.015546, -1.986974, -1.620730), (0.331603, -0.748610, -0.789164)],
    [(2.086852, -6.015997, -3.420132), (1.015546, -2.696180, -1.689868), (0.331603, -1.087843, -0.826542)],
]


def test_the_published_model_gives_the_numbers_of_a_trace_in_tensorflow(bilm_tf_fixture: Path) -> None:
    vocab_file, *files = published(bilm_tf_fixture)
    model = BidirectionalLanguageModel(*files)
    ids = Batcher(vocab_file, 50).batch_sentences(TRACE)
    for call, expected in enumerate(TRACE_SUMS):
        ops = model(ids)
        layers, mask = ops["lm_embeddings"], ops["mask"]
        sums = (layers * mask[:, None, :, None]).sum(dim=(2, 3))
        np.testing.assert_allclose(sums.numpy(), expected, atol=2e-5)
        if call == 0:
            np.testing.assert_allclose(layers[0, 0, 0, :4], [0.237952, 0.149279, 0.159122, -0.037983], atol=1e-6)
            np.testing.assert_allclose(layers[0, 1, 0, :4], [0.177705, -0.077756, -0.075363, 0.045935], atol=1e-6)
            np.testing.assert_allclose(layers[0, 2, 0, :4], [0.026273, -0.408804, -0.386576, 0.193287], atol=1e-6)
            backward = layers[0, 2, 0, 16:20]
            np.testing.assert_allclose(backward, [0.039795, 0.010686, -0.664422, 0.600988], atol=1e-6)
            padding = layers.transpose(1, 2)[~mask]
            assert padding[:, 0].abs().max().item() == pytest.approx(0.064598, abs=1e-6)
            assert not padding[:, 1:].any()


def test_the_published_model_gives_the_token_vectors_of_a_trace_in_tensorflow(
    bilm_tf_fixture: Path, tmp_path: Path
) -> None:
    _, *files = published(bilm_tf_fixture)
    vocab_file = file_of(tmp_path / "v", "<S>", "</S>", "The", "second")
    dump_token_embeddings(vocab_file, *files, tmp_path / "tokens.hdf5")
    with h5py.File(tmp_path / "tokens.hdf5") as file:
        table = file["embedding"][:, :3]
    expected = [
        [0.266147, 0.095156, 0.137369],
        [0.254890, 0.127126, 0.144967],
        [0.237952, 0.149279, 0.159122],
        [0.206591, 0.172765, 0.227230],
    ]
    np.testing.assert_allclose(table, expected, atol=1e-6)


def test_forcing_skip_connections_adds_layer_1_to_layer_2_as_in_tensorflow(
    bilm_tf_fixture: Path, tmp_path: Path
) -> None:
    vocab_file, options_file, weight_file = published(bilm_tf_fixture)
    options = json.loads(options_file.read_text(encoding="utf-8"))
    options["lstm"]["use_skip_connections"] = True
    forced = tmp_path / "options.json"
    forced.write_text(json.dumps(options), encoding="utf-8")
    ops = BidirectionalLanguageModel(forced, weight_file)(Batcher(vocab_file, 50).batch_sentences(TRACE))
    top = (ops["lm_embeddings"][:, 2] * ops["mask"][..., None]).sum(dim=(1, 2))
    np.testing.assert_allclose(top.numpy(), [-4.929780, -2.131028, -0.883369], atol=2e-5)
