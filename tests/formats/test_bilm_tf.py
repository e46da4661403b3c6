"""The published format: golden vectors, odd names, round trips, bad files."""

from __future__ import annotations

import codecs
import dataclasses
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit.embedding.computer import Computer
from elmokit.embedding.elmo import Elmo
from elmokit.engine.architecture import PRESETS, BiLMConfig, CharCNNConfig
from elmokit.errors import TensorMismatchError
from elmokit.formats import bilm_tf
from elmokit.formats.bilm_tf_hdf5 import placeholders, read_hdf5, write_hdf5
from elmokit.formats.open import open_model
from elmokit.pretrained.model import PretrainedBiLM
from tests.conftest import fixture_sentences, random_model
from tests.helpers.weights import same_weights
from tests.reference.bilm_numpy import layers_of_sentence

CONFIGS = {
    "two layers": PRESETS["tiny"],
    "one layer": dataclasses.replace(PRESETS["tiny"], n_layers=1),
    "forward only": dataclasses.replace(PRESETS["tiny"], bidirectional=False),
    "forward only, one layer": dataclasses.replace(PRESETS["tiny"], bidirectional=False, n_layers=1),
    "word input": BiLMConfig(char_cnn=None, n_words=9, projection_dim=4, hidden_dim=6),
    "no clips, no skip": dataclasses.replace(
        PRESETS["tiny"], cell_clip=None, projection_clip=None, skip_connections=False
    ),
    "no LSTM projection": dataclasses.replace(PRESETS["tiny"], hidden_dim=32),
    "no CNN projection, no highway": dataclasses.replace(
        PRESETS["tiny"], char_cnn=CharCNNConfig(((1, 8), (3, 24)), 4, 0, "tanh", max_chars=20)
    ),
}


def saved(model: PretrainedBiLM, folder: Path) -> tuple[Path, Path]:
    options, weights = folder / "options.json", folder / "weights.hdf5"
    write_hdf5(model, options, weights)
    return options, weights


def datasets(path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[...]}) if isinstance(item, h5py.Dataset) else None)
    return found


def rewrite(path: Path, content: dict[str, np.ndarray]) -> None:
    with h5py.File(path, "w") as file:
        for name, value in content.items():
            file[name] = value


@pytest.mark.parametrize("kind", CONFIGS)
def test_hdf5_round_trip_keeps_every_tensor(kind: str, tmp_path: Path) -> None:
    model = random_model(CONFIGS[kind])
    again = read_hdf5(*saved(model, tmp_path))
    assert same_weights(again, model)


def test_datasets_have_the_published_names_shapes_and_type(tmp_path: Path) -> None:
    _, weights = saved(random_model(), tmp_path)
    found = datasets(weights)
    assert {name: value.shape for name, value in found.items() if "1" not in name} == {
        "char_embed": (261, 8),
        "CNN/W_cnn_0": (1, 1, 8, 8),
        "CNN/b_cnn_0": (8,),
        "CNN/W_cnn_2": (1, 3, 8, 32),
        "CNN/b_cnn_2": (32,),
        "CNN_high_0/W_carry": (56, 56),
        "CNN_high_0/b_carry": (56,),
        "CNN_high_0/W_transform": (56, 56),
        "CNN_high_0/b_transform": (56,),
        "CNN_proj/W_proj": (56, 32),
        "CNN_proj/b_proj": (32,),
        "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0": (64, 256),
        "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/B": (256,),
        "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_P_0": (64, 32),
    }
    assert {value.dtype for value in found.values()} == {np.dtype("float32")}


@pytest.mark.parametrize(
    ("kind", "regular", "odd"),
    [
        ("one layer", "RNN_{d}/RNN/MultiRNNCell/Cell0/LSTMCell", "RNN_{d}/RNN/LSTMCell"),
        ("forward only", "RNN_{d}/RNN/MultiRNNCell/Cell{k}/LSTMCell", "rnn/MultiRNNCell/Cell{k}/LSTMCell"),
        ("forward only, one layer", "RNN_{d}/RNN/MultiRNNCell/Cell0/LSTMCell", "rnn/LSTMCell"),
    ],
)
def test_irregular_names_of_bilm_tfs_dump_are_read(kind: str, regular: str, odd: str, tmp_path: Path) -> None:
    model = random_model(CONFIGS[kind])
    options, weights = saved(model, tmp_path)
    content = {name: value for name, value in datasets(weights).items() if name not in placeholders(model.config)}
    for d in range(2):
        for k in range(2):
            for tensor, untranslated in (("W_0", "kernel"), ("B", "bias"), ("W_P_0", "projection/kernel")):
                name = f"{regular.format(d=d, k=k)}/{tensor}"
                if name in content:
                    odd_tensor = untranslated if odd.startswith("rnn") else tensor
                    content[f"{odd.format(d=d, k=k)}/{odd_tensor}"] = content.pop(name)
    assert not any(name.startswith("RNN_0/RNN/MultiRNNCell") for name in content)
    rewrite(weights, content)
    again = read_hdf5(options, weights)
    assert same_weights(again, model)


@pytest.mark.parametrize("kind", [kind for kind, config in CONFIGS.items() if config.char_cnn is not None])
def test_old_loaders_find_all_that_they_ask_for_and_the_same_vectors(kind: str, tmp_path: Path) -> None:
    """They know two directions, each with a projection, after a char CNN with one; as AllenNLP 2.10.1 reads them."""
    config = CONFIGS[kind]
    model = random_model(config)
    options, weights = saved(model, tmp_path)
    content, found = json.loads(options.read_text()), datasets(weights)
    lstm, cnn = content["lstm"], content["char_cnn"]
    assert cnn["n_characters"] == 262
    dim, hidden_dim = lstm["projection_dim"], lstm["dim"]
    wanted = {"CNN_proj/W_proj": (sum(count for _, count in cnn["filters"]), dim), "CNN_proj/b_proj": (dim,)}
    for d in range(2):
        for k in range(lstm["n_layers"]):
            cell = f"RNN_{d}/RNN/MultiRNNCell/Cell{k}/LSTMCell"
            wanted |= {f"{cell}/W_0": (2 * dim, 4 * hidden_dim), f"{cell}/B": (4 * hidden_dim,)}
            wanted[f"{cell}/W_P_0"] = (hidden_dim, dim)
    for name, shape in wanted.items():
        assert found[name].shape == shape, name
    sentences = [["the", "cat", "sat"], ["on"], [], ["the", "mat"]]
    states = [[(np.zeros(dim), np.zeros(hidden_dim))] * lstm["n_layers"]] * 2
    for sentence, ours in zip(sentences, Elmo(read_hdf5(options, weights), start="zero").embed(sentences), strict=True):
        ids = model.encode(["<S>", *sentence, "</S>"])
        theirs = layers_of_sentence(found, content, ids, states)[0][:, 1:-1]
        np.testing.assert_allclose(ours[..., :dim], theirs[..., :dim], atol=1e-5)
        if config.bidirectional:
            np.testing.assert_allclose(ours[..., dim:], theirs[..., dim:], atol=1e-5)
        else:
            np.testing.assert_allclose(theirs[1:, :, dim:], 0, atol=1e-6)


@pytest.mark.parametrize("n_characters", [261, 262])
def test_a_byte_order_mark_both_counts_of_characters_and_what_training_leaves_change_nothing(
    n_characters: int, tmp_path: Path
) -> None:
    options, weights = saved(random_model(), tmp_path)
    content = json.loads(options.read_text())
    content |= {"n_epochs": 10, "all_clip_norm_val": 10.0, "n_tokens_vocab": 793471, "reverse": True}
    content["char_cnn"] |= {"n_characters": n_characters, "projection_after_highway": True}
    options.write_bytes(codecs.BOM_UTF8 + json.dumps(content).encode())
    with h5py.File(weights, "a") as file:
        file["softmax/W"] = np.zeros((5, 32))
        file["global_step"] = 7.0
        file["RNN_0/Adagrad"] = np.zeros(8)
    assert read_hdf5(options, weights).config == PRESETS["tiny"]


def test_options_without_optional_keys_take_bilm_tfs_defaults(tmp_path: Path) -> None:
    options, weights = saved(random_model(dataclasses.replace(PRESETS["tiny"], n_layers=1)), tmp_path)
    content = json.loads(options.read_text())
    for key in ("bidirectional", "dropout"):
        del content[key]
    for key in ("n_layers", "use_skip_connections", "cell_clip", "proj_clip"):
        del content["lstm"][key]
    options.write_text(json.dumps(content))
    config = read_hdf5(options, weights).config
    assert (config.n_layers, config.skip_connections, config.bidirectional) == (1, False, True)
    assert config.cell_clip is config.projection_clip is None


def test_a_clip_of_zero_means_no_clip_and_that_of_an_absent_projection_is_not_written() -> None:
    options = bilm_tf.options_from_config(PRESETS["tiny"])
    options["lstm"] |= {"cell_clip": 0, "proj_clip": 0}
    config = bilm_tf.config_from_options(options, {}, "here")
    assert config.cell_clip is config.projection_clip is None
    config = dataclasses.replace(PRESETS["tiny"], hidden_dim=32, projection_clip=0.5)
    assert bilm_tf.options_from_config(config)["lstm"]["proj_clip"] is None


def test_all_tensors_that_do_not_fit_are_reported_together_by_both_names(tmp_path: Path) -> None:
    options, weights = saved(random_model(), tmp_path)
    with h5py.File(weights, "a") as file:
        del file["CNN_proj/b_proj"]
        del file["CNN/b_cnn_1"]
        file["CNN/b_cnn_1"] = np.zeros(17, dtype=np.float32)
        file["CNN_high_7/W_carry"] = np.zeros((2, 2), dtype=np.float32)
    with pytest.raises(TensorMismatchError) as caught:
        read_hdf5(options, weights)
    message = str(caught.value)
    assert "missing: CNN_proj/b_proj (32,) (elmokit: token_layer.projection.bias)" in message
    assert "unexpected: CNN_high_7/W_carry" in message
    assert "wrong shape: CNN/b_cnn_1 (elmokit: token_layer.convolutions.1.bias) is (17,), expected (16,)" in message
    assert "\n" not in message


def test_groups_that_are_in_themselves_are_read_once_and_compressed_weights_open(tmp_path: Path) -> None:
    _, weights = saved(random_model(), tmp_path)
    with h5py.File(weights, "r+") as file:
        file["RNN_0/RNN/again"] = file["RNN_0"]
        numbers = file["CNN_proj/W_proj"][()]
        del file["CNN_proj/W_proj"]
        file.create_dataset("CNN_proj/W_proj", data=numbers, compression="gzip")
    assert same_weights(open_model(tmp_path), random_model())


# The golden model that bilm-tf published for its own tests.


def test_golden_vectors_come_out_with_state_carried(bilm_tf_fixture: Path) -> None:
    elmo = Elmo.from_pretrained(bilm_tf_fixture / "lm_weights.hdf5", start="stateful")
    rows = fixture_sentences(bilm_tf_fixture)
    in_order = [rows[row][batch] for batch in range(10) for row in range(3)]
    vectors = elmo.embed(in_order, layers="top", batch_size=3)
    expected = []
    for batch in range(10):
        for row in range(3):
            with h5py.File(bilm_tf_fixture / f"lm_embeddings_{row}.hdf5") as file:
                expected.append(np.concatenate(file[str(batch)][...], axis=-1))
    for ours, theirs in zip(vectors, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0)


APPENDIX_A = [
    [(2.086852, -2.077477, -2.852303), (1.015546, -0.833889, -1.297139), (0.331603, -0.301557, -0.581812)],
    [(2.086852, -4.885759, -3.340260), (1.015546, -1.986974, -1.620730), (0.331603, -0.748610, -0.789164)],
    [(2.086852, -6.015997, -3.420132), (1.015546, -2.696180, -1.689868), (0.331603, -1.087843, -0.826542)],
]


def test_inference_trace_of_three_calls_is_reproduced(bilm_tf_fixture: Path) -> None:
    model = read_hdf5(bilm_tf_fixture / "options.json", bilm_tf_fixture / "lm_weights.hdf5")
    elmo = Elmo(model, start="stateful")
    batch = [["The", "first", "sentence", "."], ["The", "second"], ["Third"]]
    state = elmo.zero_state(3)
    for call, expected in enumerate(APPENDIX_A):
        vectors, state = elmo.embed_batch(batch, state)
        sums = [[float(layer.sum(dtype=np.float64)) for layer in sentence] for sentence in vectors]
        np.testing.assert_allclose(sums, expected, atol=3e-6, rtol=0)
        if call == 0:
            np.testing.assert_allclose(
                [layer[0, :4] for layer in vectors[0]],
                [
                    [0.237952, 0.149279, 0.159122, -0.037983],
                    [0.177705, -0.077756, -0.075363, 0.045935],
                    [0.026273, -0.408804, -0.386576, 0.193287],
                ],
                atol=1e-6,
            )
            np.testing.assert_allclose(
                vectors[0][2, 0, 16:20], [0.039795, 0.010686, -0.664422, 0.600988], atol=1e-6, rtol=0
            )
    tokens = Computer(model).word_vectors(["<S>", "</S>", "The", "second"])
    np.testing.assert_allclose(
        tokens[:, :3],
        [
            [0.266147, 0.095156, 0.137369],
            [0.254890, 0.127126, 0.144967],
            [0.237952, 0.149279, 0.159122],
            [0.206591, 0.172765, 0.227230],
        ],
        atol=1e-6,
    )


def test_inference_trace_with_skip_connections_is_reproduced(bilm_tf_fixture: Path, tmp_path: Path) -> None:
    options = json.loads((bilm_tf_fixture / "options.json").read_text())
    options["lstm"]["use_skip_connections"] = True
    (tmp_path / "options.json").write_text(json.dumps(options))
    elmo = Elmo(read_hdf5(tmp_path / "options.json", bilm_tf_fixture / "lm_weights.hdf5"), start="zero")
    vectors = elmo.embed([["The", "first", "sentence", "."], ["The", "second"], ["Third"]], layers=2)
    sums = [float(top.sum(dtype=np.float64)) for top in vectors]
    np.testing.assert_allclose(sums, [-4.929780, -2.131028, -0.883369], atol=3e-6, rtol=0)


def test_a_real_one_layer_dump_opens(bilm_tf_run: Path) -> None:
    folder = bilm_tf_run
    model = read_hdf5(folder / "options.json", folder / "weights.hdf5")
    assert (model.config.n_layers, model.config.bidirectional) == (1, True)
    with h5py.File(folder / "weights.hdf5") as file:
        expected = file["RNN_1/RNN/LSTMCell/W_0"][...]
    np.testing.assert_array_equal(model.arrays["directions.1.layers.0.weight"].T, expected)
