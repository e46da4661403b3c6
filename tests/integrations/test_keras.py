"""``ElmoEmbedding`` inside Keras: models are trained, saved and loaded, on every backend that is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import Elmo
from elmokit.errors import ConfigError, ModelNotFoundError, TextError
from elmokit.formats.save import save_model
from tests.conftest import random_model
from tests.helpers.hosts import need_host

os.environ.setdefault("KERAS_BACKEND", "torch")
need_host("keras")
pytestmark = pytest.mark.filterwarnings("default")  # backends warn on import

import keras  # noqa: E402

from elmokit.integrations.keras import ElmoEmbedding, encode_texts  # noqa: E402

BACKEND = keras.backend.backend()
TOKENS = [["the", "cat", "sat", "on", "the", "mat", "."], ["dogs"], [], ["Zürich", "猫", "😀" * 60]]
trains = pytest.mark.skipif(BACKEND == "numpy", reason="the numpy backend of Keras does not train")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("keras") / "model"
    save_model(random_model(), path)
    return str(path)


def numbers(tensor: Any) -> Any:
    return keras.ops.convert_to_numpy(tensor)


def classifier(layer: Any) -> Any:
    inputs = keras.Input((None, 50), dtype="int32")
    pooled = keras.layers.GlobalAveragePooling1D()(layer(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(pooled))
    if BACKEND != "numpy":
        model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    return model


@pytest.mark.parametrize("layers", ["top", "mix"])
def test_vectors_are_where_the_tokens_are_if_padding_is_in_front(path: str, layers: Any) -> None:
    layer, codes = ElmoEmbedding(path, layers=layers), encode_texts([["the", "cat"], ["dogs"]], 4)
    moved = np.roll(codes, 2, axis=1)
    np.testing.assert_array_equal(numbers(layer(moved)), np.roll(numbers(layer(codes)), 2, axis=1))


@pytest.mark.parametrize("layers", ["top", "average", 0, 1])
@pytest.mark.parametrize("start", ["warm", "zero"])
def test_vectors_are_those_of_elmo_and_zero_on_padding(path: str, layers: Any, start: Any) -> None:
    vectors = numbers(ElmoEmbedding(path, layers=layers, start=start)(encode_texts(TOKENS)))
    expected = Elmo.from_pretrained(path, start=start).embed(TOKENS, layers=layers)
    assert vectors.shape == (4, 7, 64)
    for row, array in zip(vectors, expected, strict=True):
        np.testing.assert_allclose(row[: len(array)], array, atol=1e-6)
        assert not row[len(array) :].any()


def test_mix_starts_as_the_mean_and_is_a_weighted_sum(path: str) -> None:
    layer = ElmoEmbedding(path)
    (vectors,) = numbers(layer(encode_texts(TOKENS[:1])))
    (layers,) = Elmo.from_pretrained(path).embed(TOKENS[:1])
    np.testing.assert_allclose(vectors, layers.mean(axis=0), atol=1e-5)
    layer.set_weights([np.log(np.array([1.0, 2.0, 5.0])), np.array(3.0)])
    (vectors,) = numbers(layer(encode_texts(TOKENS[:1])))
    np.testing.assert_allclose(vectors, 3 * np.einsum("l,ltd->td", [1 / 8, 2 / 8, 5 / 8], layers), atol=1e-5)


def test_texts_are_encoded_as_code_points() -> None:
    codes = encode_texts(["The cat.", ["😀", "b"]], tokenize=str.split)
    assert codes.dtype == np.int32
    assert codes.shape == (2, 2, 50)
    assert codes[0, 1, :5].tolist() == [*map(ord, "cat."), 0]
    assert codes[1, :, 0].tolist() == [0x1F600, ord("b")]
    assert encode_texts(["a b c", "d"], 2, tokenize=str.split).shape == (2, 2, 50)
    assert encode_texts([]).shape == (0, 1, 50)
    assert encode_texts([""]).shape == (1, 1, 50)
    assert encode_texts(["It's fine."]).shape[1] == 4  # Penn Treebank tokens


def test_later_layers_get_the_mask(path: str) -> None:
    codes = encode_texts(TOKENS[:2])
    mask = numbers(ElmoEmbedding(path).compute_mask(codes))
    assert mask.tolist() == [[True] * 7, [True] + [False] * 6]
    pooled = keras.layers.GlobalAveragePooling1D()(ElmoEmbedding(path, layers="top")(codes))
    means = [array.mean(axis=0) for array in Elmo.from_pretrained(path).embed(TOKENS[:2], layers="top")]
    np.testing.assert_allclose(numbers(pooled), means, atol=1e-5)


@pytest.mark.parametrize("texts", [[["the", "cat"], []], [[], []]])
def test_the_mean_of_a_text_without_tokens_is_zero(path: str, texts: list[list[str]]) -> None:
    pooled = keras.layers.GlobalAveragePooling1D()(ElmoEmbedding(path)(encode_texts(texts)))
    assert not numbers(pooled)[1].any()


@trains
def test_a_text_without_tokens_does_not_spoil_the_training(path: str) -> None:
    model = classifier(ElmoEmbedding(path))
    history = model.fit(encode_texts([["the", "cat"], []]), np.array([0.0, 1.0]), epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()


def test_symbolic_shape_is_that_of_the_output(path: str) -> None:
    output = ElmoEmbedding(path)(keras.Input((9, 50), dtype="int32"))
    assert output.shape == (None, 9, 64)
    assert output.dtype == "float32"


@trains
@pytest.mark.parametrize("trainable", [True, False])
def test_fit_learns_the_mix_but_not_the_bilm(path: str, trainable: bool) -> None:
    keras.utils.set_random_seed(0)
    layer = ElmoEmbedding(path, trainable=trainable)
    model = classifier(layer)
    before = layer.elmo.embed(TOKENS[:1])[0]
    codes, labels = encode_texts([["the", "cat"], ["dogs", "ran"]] * 4), np.array([0.0, 1.0] * 4)
    loss = model.evaluate(codes, labels, verbose=0)
    model.fit(codes, labels, batch_size=4, epochs=8, verbose=0)
    assert model.evaluate(codes, labels, verbose=0) < loss
    assert len(model.trainable_weights) == (4 if trainable else 2)
    assert numbers(layer.scalars).any() == trainable
    np.testing.assert_array_equal(layer.elmo.embed(TOKENS[:1])[0], before)


def test_saved_model_computes_the_same_when_it_is_loaded(path: str, tmp_path: Path) -> None:
    layer = ElmoEmbedding(path, start="zero", name="elmo")
    model = classifier(layer)
    layer.set_weights([np.array([0.1, 0.5, 0.9]), np.array(1.5)])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    codes = encode_texts(TOKENS[:2])
    np.testing.assert_array_equal(numbers(loaded(codes)), numbers(model(codes)))
    assert loaded.get_layer("elmo").get_config() == layer.get_config()
    assert (tmp_path / "model.keras").stat().st_size < 60_000  # the weights of the biLM are not in it


@trains
def test_it_is_the_first_layer_of_a_sequential_model(path: str) -> None:
    lstm = keras.layers.Bidirectional(keras.layers.LSTM(3))
    model = keras.Sequential([ElmoEmbedding(path, layers="top"), lstm, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    codes = encode_texts(TOKENS[:2])
    model.fit(codes, np.zeros(2), verbose=0)
    assert model.predict(codes, verbose=0).shape == (2, 1)


def test_mixed_precision_rounds_the_output_and_not_the_input(path: str) -> None:
    codes = encode_texts(TOKENS)
    expected = numbers(ElmoEmbedding(path)(codes))
    for given in (codes, codes.astype(np.float32)):
        vectors = ElmoEmbedding(path, dtype="mixed_float16")(given)
        assert keras.backend.standardize_dtype(vectors.dtype) == "float16"
        np.testing.assert_allclose(numbers(vectors), expected, atol=0.02)
    with pytest.raises(ValueError, match="rounds characters"):
        ElmoEmbedding(path)(keras.ops.cast(codes, "float16"))


def test_mistakes_are_errors(path: str) -> None:
    with pytest.raises(ConfigError, match="start is"):
        ElmoEmbedding(path, start="stateful")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        ElmoEmbedding(path, layers=7)
    for layers in ([0, 1], "all"):
        with pytest.raises(ConfigError, match="Choose 'mix', 'top', 'average' or the number of a layer"):
            ElmoEmbedding(path, layers=layers)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected ndim=3, found ndim=2"):
        ElmoEmbedding(path)(encode_texts(TOKENS)[0])
    with pytest.raises(ModelNotFoundError):
        ElmoEmbedding(f"{path}-elsewhere")
    with pytest.raises(TextError, match="Wrap it in a list"):
        encode_texts("the cat")
    with pytest.raises(TextError, match="Token 1 of text 0 is empty"):
        encode_texts([["the", ""]])
    for token in ("\0", "cat\0"):
        with pytest.raises(TextError, match="Token 1 of text 0 has the character NUL"):
            encode_texts([["the", token, "sat"]])
    with pytest.raises(ConfigError, match="n_tokens is -1; it must be at least 0"):
        encode_texts(TOKENS, -1)
    with pytest.raises(TextError, match="got None of type NoneType"):
        encode_texts([None])  # type: ignore[list-item]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow", "numpy"])
def test_every_installed_backend_passes_these_tests(backend: str) -> None:
    if backend == BACKEND:
        pytest.skip("it has just passed them")
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", __file__, "-m", "not slow"]
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:]


@pytest.mark.slow
def test_backend_that_is_not_installed_is_reported_in_one_line(tmp_path: Path) -> None:
    # A module of this name that is not there, as in an environment without the backend.
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "from elmokit.errors import ConfigError\n"
        "try:\n    import elmokit.integrations.keras\n"
        "except ConfigError as error:\n    print(error)\n"
    )
    environment = os.environ | {"KERAS_BACKEND": "tensorflow"}
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert printed.stdout.startswith("Keras cannot import its backend")
    assert printed.stdout.count("\n") == 1
