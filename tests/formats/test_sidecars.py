"""Several models in one directory: each keeps its own options and words."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from elmokit.embedding.computer import Computer
from elmokit.embedding.elmo import Elmo
from elmokit.engine.architecture import PRESETS, BiLMConfig
from elmokit.engine.token_cache import TokenCache
from elmokit.errors import FormatError, ModelError, ModelNotFoundError, OutputError, TensorMismatchError, TextError
from elmokit.formats.bilm_tf_hdf5 import write_hdf5
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.formats.sidecars import read_embeddings
from elmokit.network.char_cnn import CachedCharCNN
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.vocabulary import Vocabulary, read_words
from tests.conftest import WORDS, random_model
from tests.helpers.every_format import write_model
from tests.helpers.weights import same_weights

OTHER = dataclasses.replace(PRESETS["tiny"], n_layers=1, cell_clip=None, dropout=0.0)


def word_model(words: list[str]) -> PretrainedBiLM:
    model = random_model(dataclasses.replace(PRESETS["tiny"], char_cnn=None, n_words=len(words)))
    return model.replace(softmax=None, vocabulary=Vocabulary(words, strict=False))


@pytest.mark.parametrize(
    ("weights", "options"),
    [
        ("b.hdf5", "b_options.json"),
        ("b.h5", "b_options.json"),
        ("elmo_2x_weights.hdf5", "elmo_2x_options.json"),
        ("weights.hdf5", "options.json"),
        ("model.hdf5", "model_options.json"),
        ("v1.5.hdf5", "v1.5_options.json"),
    ],
)
def test_options_are_named_after_the_weights(tmp_path: Path, weights: str, options: str) -> None:
    model = random_model()
    assert save_model(model, tmp_path / weights) == [tmp_path / weights, tmp_path / options]
    assert {path.name for path in tmp_path.iterdir()} == {weights, options}
    assert same_weights(open_model(tmp_path / weights), model)


@pytest.mark.parametrize("name", ["weights.hdf5", "new.hdf5", "old_weights.h5"])
def test_overwriting_touches_only_files_of_the_same_name(tmp_path: Path, name: str) -> None:
    old = random_model()
    write_hdf5(old, tmp_path / "options.json", tmp_path / "old.hdf5")  # as bilm-tf writes it
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    is_refused = name != "new.hdf5"  # old.hdf5 would read the options of the others as its own
    with pytest.raises(OutputError, match=r"belongs to .*old\.hdf5") if is_refused else contextlib.nullcontext():
        save_model(random_model(OTHER), tmp_path / name, overwrite=True)
    assert {path: path.read_bytes() for path in before} == before
    assert same_weights(open_model(tmp_path / "old.hdf5"), old)


@pytest.mark.parametrize("pair", [("b.hdf5", "b_weights.hdf5"), ("b.h5", "b.hdf5"), ("x/b_weights.h5", "x/b.h5")])
def test_two_weights_that_would_share_their_options_are_refused(tmp_path: Path, pair: tuple[str, str]) -> None:
    first = random_model()
    save_model(first, tmp_path / pair[0])
    with pytest.raises(OutputError, match=rf"needs the file b_options\.json, which belongs to .*{pair[0]}"):
        save_model(random_model(OTHER), tmp_path / pair[1], overwrite=True)
    assert same_weights(open_model(tmp_path / pair[0]), first)
    assert not (tmp_path / pair[1]).exists()


@pytest.mark.parametrize(
    ("others_options", "name"),
    [("options.json", "options.json"), ("options262.json", "options.json"), ("other_options.json", "vocab.txt")],
)
def test_plain_names_that_another_model_reads_are_not_written(tmp_path: Path, others_options: str, name: str) -> None:
    old, new = random_model(), random_model(OTHER)
    if name == "vocab.txt":
        old, new = word_model(["<S>", "</S>", "a"]), word_model(["<S>", "</S>", "x"])
        save_model(old, tmp_path / "weights.hdf5")
    else:  # once with an options.json that the other model would read only if it existed
        write_hdf5(old, tmp_path / others_options, tmp_path / "weights.hdf5")
    write_hdf5(old, tmp_path / others_options, tmp_path / "other.hdf5", overwrite=True)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(OutputError, match=rf"weights\.hdf5 needs the file {name}, which belongs to .*other\.hdf5"):
        save_model(new, tmp_path / "weights.hdf5", overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert same_weights(open_model(tmp_path / "other.hdf5"), old)


def test_vectors_next_to_weights_do_not_keep_their_options(tmp_path: Path) -> None:
    save_model(random_model(), tmp_path / "weights.hdf5")
    with h5py.File(tmp_path / "vectors.hdf5", "w") as vectors:
        vectors["0"] = np.zeros((3, 8), np.float32)
    save_model(random_model(OTHER), tmp_path / "weights.hdf5", overwrite=True)
    assert same_weights(open_model(tmp_path / "weights.hdf5"), random_model(OTHER))


@pytest.mark.parametrize(
    ("kind", "name"),
    [("checkpoint", "options.json"), ("module", "options.json"), ("words", "vocab.txt")],
)
def test_weights_in_the_directory_of_another_format_leave_it_its_files(tmp_path: Path, kind: str, name: str) -> None:
    folder = write_model(kind, tmp_path / "model")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    other = random_model(OTHER) if kind != "words" else word_model(["<S>", "</S>", "x"])
    with pytest.raises(OutputError, match=rf"weights\.hdf5 needs the file {name}, which belongs to .* in "):
        save_model(other, folder / "weights.hdf5", overwrite=True)
    assert not (folder / "weights.hdf5").exists()
    save_model(other, folder / "other.hdf5")
    assert {path: path.read_bytes() for path in before} == before
    assert same_weights(open_model(folder / "other.hdf5"), other)


def test_published_names_still_open(tmp_path: Path) -> None:
    model = random_model()
    for options, weights in (("options.json", "elmo_pt_weights.hdf5"), ("options262.json", "en_weights.hdf5")):
        folder = tmp_path / options
        folder.mkdir()
        write_hdf5(model, folder / options, folder / weights)
        assert same_weights(open_model(folder), model)
        save_model(random_model(OTHER), folder / "new.hdf5")  # its options are not those of the others
        assert same_weights(open_model(folder / weights), model)


def test_a_file_with_its_own_options_is_the_model_beside_vectors(tmp_path: Path) -> None:
    model = random_model()
    save_model(model, tmp_path / "elmo.hdf5")
    with h5py.File(tmp_path / "vectors.hdf5", "w") as file:
        file["0"] = np.zeros((3, 4), np.float32)
    assert same_weights(open_model(tmp_path), model)


def test_options_of_another_model_are_never_used(tmp_path: Path) -> None:
    save_model(random_model(OTHER), tmp_path / "a.hdf5")
    write_hdf5(random_model(), tmp_path / "elsewhere.json", tmp_path / "b.hdf5")
    with pytest.raises(ModelNotFoundError, match=r"/options\.json"):
        open_model(tmp_path / "b.hdf5")
    for pair in (("a.hdf5", "b.hdf5"), ("a_weights.hdf5", "b.hdf5")):
        folder = tmp_path / pair[0].replace(".", "-")
        for number, name in enumerate(pair):
            save_model(random_model(seed=number), folder / name)
        with pytest.raises(FormatError, match=rf"{folder.name} has several HDF5 files \({', '.join(pair)}\)"):
            open_model(folder)


def test_a_directory_of_another_program_is_not_overwritten(tmp_path: Path) -> None:
    bert = tmp_path / "bert"
    bert.mkdir()
    (bert / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (bert / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(OutputError, match="is not an elmokit directory, so it is not overwritten"):
        save_model(random_model(), bert, overwrite=True)
    assert (bert / "vocab.txt").read_text() == "[PAD]\n"
    save_model(random_model(), tmp_path / "ours")
    save_model(random_model(OTHER), tmp_path / "ours", overwrite=True)


@pytest.mark.parametrize("name", ["mini.onnx", "m.npy", "m.HDF5", "m.tar.gz", "m.json", "m.pt"])
def test_an_extension_of_another_format_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match=r"Use \.hdf5 or \.h5, or a name without an extension for an elmokit dir"):
        save_model(random_model(), tmp_path / name)
    assert not list(tmp_path.iterdir())


SENTENCES = [["the", "cat", "sat", "."], ["the", "zebra"], []]
WORD_CONFIG = BiLMConfig(char_cnn=None, n_words=len(WORDS), projection_dim=8, hidden_dim=16)


@pytest.fixture
def word_input(tmp_path: Path) -> Path:
    """A word-input model as bilm-tf leaves it: ``embedding`` in the weights, the words beside."""
    folder = tmp_path / "words"
    save_model(random_model(WORD_CONFIG), folder / "weights.hdf5")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return folder


def char_input(folder: Path) -> Path:
    save_model(random_model(), folder / "weights.hdf5")
    return folder


def write_table(path: Path, model: PretrainedBiLM, words: list[str]) -> Path:
    """A table as bilm-tf's dump writes it: every word alone through the char CNN, in the order of the list."""
    layer = model.build_bilm().token_layer
    with torch.no_grad(), h5py.File(path, "w") as file:
        file["embedding"] = torch.cat([layer(torch.from_numpy(model.encode([word]))) for word in words]).numpy()
    path.with_name("vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return path


def all_layers(model: PretrainedBiLM, sentences: list[list[str]] = SENTENCES) -> list[np.ndarray]:
    return Elmo(model, start="zero").embed(sentences)


def test_a_word_input_model_reads_words_and_unk_for_the_others(word_input: Path) -> None:
    model = open_model(word_input)
    np.testing.assert_array_equal(model.encode(["the", "<UNK>"]), [WORDS.index("the") + 1, WORDS.index("<UNK>") + 1])
    zebra, unknown = all_layers(model, [["the", "zebra"], ["the", "<UNK>"]])
    np.testing.assert_allclose(zebra, unknown, atol=1e-6, rtol=0)  # the last bits may depend on a row's position
    expected = random_model(WORD_CONFIG)
    for ours, theirs in zip(all_layers(model), all_layers(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


def test_a_given_word_list_that_differs_from_the_stored_one_is_reported(word_input: Path, tmp_path: Path) -> None:
    save_model(open_model(word_input), tmp_path / "ours")
    h5py_table = write_table(tmp_path / "table.hdf5", random_model(), WORDS)
    (tmp_path / "same.txt").write_text("\n".join(WORDS), encoding="utf-8")
    other = tmp_path / "other.txt"
    other.write_text("\n".join([*WORDS[:4], *WORDS[:3:-1]]), encoding="utf-8")
    difference = r"other.txt differs from .*vocab.txt, which is stored with the model: line 5 is 'ran'"
    for source, table in ((word_input, None), (tmp_path / "ours", None), (char_input(tmp_path / "chars"), h5py_table)):
        open_model(source, token_embeddings=table, vocabulary=tmp_path / "same.txt")  # a warning is an error here
        with pytest.warns(UserWarning, match=difference):
            open_model(source, token_embeddings=table, vocabulary=other)


def test_a_word_list_without_unk_survives_conversion_and_refuses_unlisted_words(
    word_input: Path, tmp_path: Path
) -> None:
    listed = [word if word != "<UNK>" else "other" for word in WORDS]
    (word_input / "vocab.txt").write_text("\n".join(listed), encoding="utf-8")
    model = open_model(word_input)
    save_model(model, tmp_path / "ours")
    again = open_model(tmp_path / "ours")
    listed_words = [["the", "other", "cat"]]
    for ours, theirs in zip(all_layers(model, listed_words), all_layers(again, listed_words), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)
    for opened in (model, again):
        with pytest.raises(TextError, match="zebra"):
            opened.encode(["zebra"])


def test_a_word_input_model_without_words_says_what_is_missing(word_input: Path, tmp_path: Path) -> None:
    (word_input / "vocab.txt").rename(tmp_path / "list.txt")
    with pytest.raises(ModelNotFoundError, match="vocab"):
        open_model(word_input).encode(["the"])
    assert open_model(word_input, vocabulary=tmp_path / "list.txt").encode(["the"]).tolist() == [4]


def test_a_word_list_is_read_as_bilm_tf_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("<S>\n</S>\n<UNK>\n cat \n\ncat\n!!!MAXTERMID\ndog\n", encoding="utf-8")
    assert read_words(path) == ["<S>", "</S>", "<UNK>", "cat", "", "cat", "dog"]


def test_a_character_model_does_not_need_a_valid_word_list(tmp_path: Path) -> None:
    folder = char_input(tmp_path / "chars")
    (folder / "vocab.txt").write_text("the\ncat\n", encoding="utf-8")
    model = open_model(folder)
    assert model.vocabulary is None
    assert "left out" in model.card["vocabulary"]
    (folder / "vocab.txt").write_bytes("größe\n".encode("latin1"))
    assert "utf-8" in open_model(folder).card["vocabulary"]
    (folder / "vocab.txt").write_text("\n".join([*WORDS, "", "more"]), encoding="utf-8")
    assert "empty" in open_model(folder).card["vocabulary"]
    (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    assert open_model(folder).vocabulary is not None


def test_cached_vectors_equal_the_plain_path_exactly(tmp_path: Path) -> None:
    folder = char_input(tmp_path / "chars")
    plain = open_model(folder)
    table = write_table(tmp_path / "table.hdf5", plain, WORDS)
    cached = open_model(folder, token_embeddings=table)
    with_table, without = cached.build_bilm().token_layer, plain.build_bilm().token_layer
    assert isinstance(with_table, CachedCharCNN)
    with torch.no_grad():
        for word in [*WORDS, "zebra"]:  # the plain path, one token at a time as the dump does it
            ours = with_table(torch.from_numpy(cached.encode([word])))
            np.testing.assert_array_equal(ours, without(torch.from_numpy(plain.encode([word]))))
    for ours, theirs in zip(all_layers(cached), all_layers(plain), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


def test_a_table_gives_the_same_vectors_with_and_without_pytorch(tmp_path: Path) -> None:
    folder = char_input(tmp_path / "chars")
    table = write_table(tmp_path / "table.hdf5", open_model(folder), WORDS)
    with h5py.File(table, "r+") as file:
        file["embedding"][WORDS.index("cat")] = 7.0
    model, plain = open_model(folder, token_embeddings=table), Computer(open_model(folder))
    cached = Computer(model)
    words = ["zebra", "cat", "the", "zebras"]
    for cache in (None, TokenCache()):
        for _ in range(2):
            vectors = cached.word_vectors(words, cache)
            assert (vectors[1] == 7.0).all()
            np.testing.assert_array_equal(vectors[[0, 3]], plain.word_vectors(["zebra", "zebras"]))
    np.testing.assert_array_equal(cached.word_vectors(["cat"]), vectors[1:2])
    assert isinstance(cached.use_module().token_layer, CachedCharCNN)
    np.testing.assert_allclose(cached.word_vectors(words), vectors, atol=1e-6)
    np.testing.assert_array_equal(Computer(model.replace(card={})).word_vectors(words), vectors)
    # A table belongs to the weights that computed it.
    other = Computer(model.replace(weights=plain.use_module()))
    np.testing.assert_allclose(other.word_vectors(words), plain.word_vectors(words), atol=1e-6)


@pytest.mark.parametrize("kind", ["link to a file", "no rows", "narrow", "flat", "part", "NaN"])
def test_another_table_is_refused(tmp_path: Path, kind: str) -> None:
    dim = PRESETS["tiny"].projection_dim
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        other["embedding"] = np.ones((3, dim), np.float32)
    with h5py.File(tmp_path / "table.hdf5", "w") as file:
        if kind == "link to a file":
            file["embedding"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "/embedding")
        elif kind == "part":
            file.create_dataset("embedding", (3, dim), "f4", chunks=(1, dim), compression="gzip")[:2] = 1.0
        else:
            shape = {"no rows": (0, dim), "narrow": (3, 5), "flat": (dim,), "NaN": (3, dim)}[kind]
            file["embedding"] = np.full(shape, np.nan if kind == "NaN" else 1.0, np.float32)
    with pytest.raises(ModelError, match=r"embedding.*table\.hdf5|table\.hdf5.*(embedding|another file)"):
        read_embeddings(tmp_path / "table.hdf5", dim)


def test_a_table_needs_its_words_and_they_its_rows(tmp_path: Path) -> None:
    folder = char_input(tmp_path / "chars")
    table = write_table(tmp_path / "table.hdf5", open_model(folder), WORDS)
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(ModelNotFoundError, match=r"table\.hdf5.*table_vocab\.txt"):
        open_model(folder, token_embeddings=table)
    (tmp_path / "short.txt").write_text("<S>\n</S>\n")
    with pytest.raises(TensorMismatchError, match=r"short\.txt lists 2 words"):
        open_model(folder, token_embeddings=table, vocabulary=tmp_path / "short.txt")
    with pytest.raises(ModelNotFoundError, match=r"none\.hdf5"):
        open_model(folder, token_embeddings=tmp_path / "none.hdf5", vocabulary=tmp_path / "v")


def test_a_word_input_model_takes_another_table(word_input: Path, tmp_path: Path) -> None:
    words = ["<S>", "</S>", "cat"]
    with h5py.File(tmp_path / "table.hdf5", "w") as file:
        file["embedding"] = np.ones((3, WORD_CONFIG.projection_dim), np.float32)
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    model = open_model(word_input, token_embeddings=tmp_path / "table.hdf5")
    assert model.config.n_words == 3
    np.testing.assert_array_equal(model.arrays["token_layer.embedding.weight"], [[0.0] * 8, *[[1.0] * 8] * 3])
    assert all_layers(model, [["cat"]])[0].shape == (3, 1, 2 * WORD_CONFIG.projection_dim)
    with pytest.raises(TextError, match="dog"):
        model.encode(["dog"])


def test_the_published_run_gives_the_same_vectors_from_its_own_cached_table(shared: Path, tmp_path: Path) -> None:
    golden = shared / "golden" / "bilm-tf-tiny"
    weights, options = golden / "lm_weights.hdf5", golden / "options.json"
    plain = open_model(weights, options=options)
    table = write_table(tmp_path / "table.hdf5", plain, read_words(golden / "vocab_test.txt"))
    cached = open_model(weights, options=options, token_embeddings=table)
    sentences = [["the", "zebraish", "words"], ["Pierre", "Vinken"]]
    for ours, theirs in zip(all_layers(cached, sentences), all_layers(plain, sentences), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)
