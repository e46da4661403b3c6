"""What the classes of the old programs refuse: wrong arguments, and files that do not fit together."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from elmokit.compat import allennlp, bilm, tfhub
from elmokit.compat.allennlp import (
    ConfigurationError,
    Elmo,
    ElmoEmbedder,
    ElmoTokenEmbedder,
    ScalarMix,
    _ElmoBiLm,
    batch_to_ids,
    cached_path,
)
from elmokit.compat.allennlp import ElmoTokenEmbedderMultiLang as MultiLang
from elmokit.compat.allennlp import LstmCellWithProjection as LstmCell
from elmokit.compat.allennlp import add_sentence_boundary_token_ids as bounded
from elmokit.compat.allennlp_embedder import check_for_gpu
from elmokit.compat.bilm import (
    Batcher,
    BidirectionalLanguageModel,
    LMDataset,
    TokenBatcher,
    UnicodeCharsVocabulary,
    Vocabulary,
    weight_layers,
)
from elmokit.compat.many_langs import Embedder
from elmokit.compat.simple_elmo import ElmoModel
from elmokit.errors import ConfigError, FormatError, ModelNotFoundError, OutputError, TensorMismatchError, TextError
from elmokit.formats.folder import save_folder
from tests.conftest import random_model
from tests.helpers.allennlp_files import CONFIG, DIM, write_files
from tests.helpers.many_langs_files import toy_model

WORDS = ["<S>", "</S>", "<UNK>", "the", ".", "cat"]


class Given(NamedTuple):
    """A model's two files in a directory of its own, and where others can be written."""

    options: str
    weights: str
    folder: Path

    @property
    def both(self) -> tuple[str, str]:
        return self.options, self.weights

    def file(self, name: str, *lines: str) -> Path:
        path = self.folder / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    def other(self, **changes: Any) -> tuple[str, str]:
        """The files of a model of another kind."""
        options, weights, _ = write_files(self.folder / "other", dataclasses.replace(CONFIG, **changes))
        return options, weights

    def saved(self, name: str, tensor: object) -> dict[str, Path]:
        torch.save(tensor, self.folder / name)
        return {"en": self.folder / name}

    def hdf5(self, name: str, *arguments: Any, **settings: Any) -> Path:
        with h5py.File(self.folder / name, "w") as file:
            file.create_dataset("embedding", *arguments, **settings)
        return self.folder / name


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's two files, to be copied."""
    folder = tmp_path_factory.mktemp("written")
    write_files(folder)
    return folder


@pytest.fixture
def given(written: Path, tmp_path: Path) -> Given:
    shutil.copytree(written, tmp_path / "model")
    return Given(str(tmp_path / "model/options.json"), str(tmp_path / "model/weights.hdf5"), tmp_path)


Row = tuple[Callable[[Given], object], type[Exception], str]


def check(given: Given, row: Row) -> None:
    call, error, mention = row
    with pytest.raises(error) as raised:
        call(given)
    assert mention in str(raised.value)
    assert "\n" not in str(raised.value)


def indexed(text: object) -> object:
    return allennlp.ELMoTokenCharactersIndexer().tokens_to_indices([SimpleNamespace(text=text)])


def gap() -> torch.Tensor:
    ids = batch_to_ids([["First", "x", "."]])
    ids[0, 1] = 0
    return ids


def by_language(given: Given, **more: Any) -> MultiLang:
    return MultiLang({"en": given.options}, {"en": given.weights}, **more)


def two_sizes(given: Given) -> object:
    files = zip(given.both, given.other(projection_dim=9), strict=True)
    return MultiLang(*({"en": one, "fr": two} for one, two in files))


def script(given: Given, *lines: str, folder: str = "out", **switches: Any) -> None:
    words = given.file("words.txt", *lines)
    allennlp.create_elmo_embeddings_from_vocab(words, *given.both, given.folder / folder, **switches)


ALLENNLP: list[Row] = [
    (lambda of: Elmo(None, None, 2), ConfigurationError, "weight_file is empty"),
    (lambda of: Elmo("", of.weights, 2), ConfigurationError, "options_file is empty"),
    (lambda of: Elmo(of.weights, of.options, 2), FormatError, "swapped"),
    (
        lambda of: Elmo(*of.both, 2, module=nn.Identity()),  # type: ignore[arg-type]
        ConfigurationError,
        "or a module",
    ),
    (lambda of: Elmo(*of.both, 0), ConfigurationError, "num_output_representations is 0"),
    (lambda of: Elmo(*of.both, 1)(gap()), ValueError, "between tokens"),
    (lambda of: Elmo(*of.both, 1)(batch_to_ids([["a"]], 20)), ValueError, "(batch, time, 50)"),
    (lambda of: _ElmoBiLm(*of.other(char_cnn=None, n_words=5)), ConfigError, "reads words"),
    (lambda of: _ElmoBiLm(*of.other(bidirectional=False)), ConfigError, "in one"),
    (lambda of: Elmo(str(of.folder / "a"), str(of.folder / "b"), 1), ModelNotFoundError, "b"),
    (lambda of: ElmoTokenEmbedder.from_params({"do_layernorm": True}), TypeError, "do_layernorm"),
    (lambda of: ElmoTokenEmbedder.from_params({"type": "embedding"}), ConfigurationError, "type is 'embedding'"),
    (lambda of: ElmoEmbedder(*of.both, cuda_device=99), ConfigurationError, "cuda:99"),
    (lambda of: check_for_gpu([99]), ConfigurationError, "cuda:99"),
    (lambda of: ElmoEmbedder(*of.both).embed_sentences([], 0), ConfigurationError, "batch_size is 0"),
    (lambda of: batch_to_ids(["abc", "de"]), TextError, "list of tokens"),
    (lambda of: indexed(None), ConfigurationError, "Token 0 has no text"),
    (lambda of: allennlp.Token().ensure_text(), ValueError, "no text"),
    (lambda of: cached_path(of.folder / "none.json"), ModelNotFoundError, "none.json"),
    (lambda of: cached_path(of.folder / "a.tar.gz", None, True), ConfigurationError, "a.tar.gz"),
    (lambda of: ScalarMix(3)([torch.zeros(1)] * 2), ConfigurationError, "Expected 3 tensors"),
    (lambda of: ScalarMix(3, False, [0.0] * 4), ConfigurationError, "Expected 3 initial"),
    (lambda of: bounded(torch.eye(3), torch.tensor([[1, 0, 1]] * 3), 1, 2), ValueError, "between tokens"),
    (lambda of: LstmCell(7, 7, 7)(torch.rand(2, 3, 7), [1, 3]), ValueError, "longest first"),
    (lambda of: MultiLang({"en": of.options}, {"fr": of.weights}), KeyError, "fr"),
    (lambda of: by_language(of)(batch_to_ids([["a"]]), "de"), ConfigurationError, "'de'"),
    (lambda of: two_sizes(of), ConfigurationError, "different sizes"),
    (
        lambda of: by_language(of, aligning_files=of.saved("bad.pth", {"weight": torch.eye(DIM)})),
        FormatError,
        "bad.pth",
    ),
    (lambda of: by_language(of, aligning_files=of.saved("small.pth", torch.eye(3))), FormatError, f"({DIM}, {DIM})"),
    (lambda of: by_language(of, aligning_files={"en": of.folder / "no"}), ModelNotFoundError, "no"),
    (lambda of: script(of, "the", "cat"), ConfigurationError, "@@UNKNOWN@@"),
    (lambda of: script(of, "@@UNKNOWN@@", "", "cat"), ConfigurationError, "Line 2 of"),
    (lambda of: script(of, "@@UNKNOWN@@", batch_size=0), ConfigurationError, "batch_size is 0"),
    (lambda of: script(of, "@@UNKNOWN@@", folder="."), OutputError, "would replace"),
]


@pytest.mark.parametrize("row", ALLENNLP, ids=lambda row: row[-1])
def test_classes_of_allennlp_refuse(row: Row, given: Given) -> None:
    check(given, row)
    assert not (given.folder / "out").exists()


@pytest.mark.parametrize(
    ("lines", "switches", "mention"),
    [
        (["a", " ", "b", ""], {}, "Lines [1, 3]"),
        (["a", "a"], {"use_sentence_keys": True}, "Sentence 1, 'a'"),
        (["."], {"use_sentence_keys": True}, "Sentence 0"),
        (["a/b", "a"], {"use_sentence_keys": True}, "Sentence 1"),
        (["a", "a/b"], {"use_sentence_keys": True}, "Sentence 1"),
        (["a"], {"output_format": "mean"}, "'mean'"),
        (["a"], {"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_embed_file_refuses_and_leaves_an_existing_file(
    given: Given, lines: list[str], switches: dict[str, Any], mention: str
) -> None:
    output = given.file("out.hdf5", "precious")
    before = sorted(given.folder.iterdir())
    row = lambda of: ElmoEmbedder(*of.both).embed_file(lines, output, **switches), ConfigurationError, mention
    check(given, row)
    assert output.read_text(encoding="utf-8") == "precious\n"
    assert sorted(given.folder.iterdir()) == before


def of_words(given: Given, path: Path | None) -> BidirectionalLanguageModel:
    return BidirectionalLanguageModel(*given.both, use_character_inputs=False, embedding_weight_file=path)


def embedded(given: Given, shift: int = 0, *, n_chars: int = 50, n_sentences: int = 1, zero: int = -1) -> object:
    """Call a model of characters on ids that may be wrong."""
    ids = Batcher(None, n_chars).batch_sentences([["the", "cat"]] * n_sentences) + shift
    if zero >= 0:
        ids[0, zero] = 0
    return BidirectionalLanguageModel(*given.both, max_batch_size=2)(ids)


def few_words(given: Given) -> object:
    bilm.dump_token_embeddings(given.file("few", *WORDS[:4]), *given.both, given.folder / "few.hdf5")
    return of_words(given, given.folder / "few.hdf5")(TokenBatcher(given.file("v", *WORDS)).batch_sentences([["cat"]]))


def used_twice(given: Given) -> object:
    ops = BidirectionalLanguageModel(*given.both)(Batcher(None, 50).batch_sentences([["the"]]))
    return [weight_layers("input", ops, use_top_only=top) for top in (False, True)]


def elsewhere(given: Given) -> BidirectionalLanguageModel:
    (given.folder / "secret").write_bytes(bytes(3 * CONFIG.projection_dim * 4))
    places = [(str(given.folder / "secret"), 0, h5py.h5f.UNLIMITED)]
    return of_words(given, given.hdf5("outside.hdf5", (3, CONFIG.projection_dim), "f4", external=places))


BILM: list[Row] = [
    (lambda of: BidirectionalLanguageModel(of.weights, of.options), FormatError, "swapped"),
    (lambda of: Vocabulary(of.file("v", "<S>", "cat"), validate_file=True), FormatError, "lacks </S>, <UNK>"),
    (lambda of: Vocabulary(of.file("v", "the 5", "a 3"), validate_file=True), FormatError, "<UNK>. The lines have"),
    (lambda of: UnicodeCharsVocabulary(of.file("v", "the"), 2), ConfigError, "at least 3"),
    (
        lambda of: TokenBatcher(of.file("v", "<S>", "</S>", "the")).batch_sentences([["the", "zebra"]]),
        TextError,
        "'zebra'",
    ),
    (lambda of: TokenBatcher(of.file("v", "the", "cat")), FormatError, "lacks <S>, </S>"),
    (lambda of: Batcher(None, 50).batch_sentences([]), TextError, "no sentence"),
    (lambda of: Batcher(None, 50).batch_sentences(["the cat"]), TextError, "list of tokens"),
    (lambda of: embedded(of, n_sentences=3), ConfigError, "max_batch_size is 2"),
    (lambda of: embedded(of, n_chars=20), ValueError, "(sentences, time, 50)"),
    (lambda of: BidirectionalLanguageModel(*of.both)(np.ones((1, 3), np.int64)), ValueError, "(sentences, time, 50)"),
    (lambda of: embedded(of, zero=2), ValueError, "then zeros"),
    (lambda of: embedded(of, zero=0), ValueError, "then zeros"),
    (lambda of: embedded(of, 1), TextError, "to 262, but this model knows 0 to 261"),
    (lambda of: embedded(of, -258), TextError, "this model knows 0 to 261"),
    (
        lambda of: BidirectionalLanguageModel(*of.other(char_cnn=None, n_words=6))(np.ones((1, 3, 50), np.int64)),
        ValueError,
        "(sentences, time)",
    ),
    (
        lambda of: bilm.dump_token_embeddings(
            of.file("v", *WORDS), *of.other(char_cnn=None, n_words=6), of.folder / "out"
        ),
        ConfigError,
        "embedding_weight_file",
    ),
    (lambda of: of_words(of, None), ConfigError, "dump_token_embeddings"),
    (lambda of: of_words(of, of.folder / "gone.hdf5"), ModelNotFoundError, "gone.hdf5"),
    (lambda of: of_words(of, of.file("text.hdf5", "not HDF5")), FormatError, "text.hdf5"),
    (lambda of: of_words(of, Path(of.weights)), TensorMismatchError, "'embedding'"),
    (lambda of: of_words(of, of.hdf5("narrow.hdf5", data=np.zeros((3, 6), np.float32))), TensorMismatchError, "(3, 6)"),
    (elsewhere, FormatError, "outside.hdf5"),
    (few_words, TextError, "but this model knows 0 to 4"),
    (used_twice, ConfigError, "'input'"),
    (lambda of: LMDataset(str(of.folder / "none*"), Vocabulary(words=WORDS)), TextError, "none*"),
    (lambda of: LMDataset(str(of.file("t", "a")), Vocabulary(words=WORDS[:2])), FormatError, "lacks <UNK>"),
    (lambda of: next(LMDataset(str(of.file("empty")), Vocabulary(words=WORDS)).iter_batches(1, 1)), TextError, "empty"),
    (lambda of: bilm.load_options_latest_checkpoint(of.folder), ModelNotFoundError, "no checkpoint"),
]


@pytest.mark.parametrize("row", BILM, ids=lambda row: row[-1])
def test_classes_of_bilm_tf_refuse(row: Row, given: Given) -> None:
    check(given, row)
    assert not (given.folder / "out").exists()


def loaded(given: Given, full: bool = False) -> ElmoModel:
    model = ElmoModel()
    if full:
        save_folder(random_model(), given.folder / "full")
    model.load(given.folder / "full" if full else given.weights)
    return model


def many_langs(given: Given, sentences: Any, output_layer: int) -> object:
    return Embedder(toy_model().write(given.folder / "toy")).sents2elmo(sentences, output_layer)


def module(inputs: Any, signature: str) -> object:
    return tfhub.Module(random_model())(inputs, signature)


def of_tokens(tokens: Any, lengths: list[int]) -> object:
    return module({"tokens": tokens, "sequence_len": lengths}, "tokens")


OTHERS: list[Row] = [
    (lambda of: ElmoModel().get_elmo_vectors([["a"]]), ModelNotFoundError, "load(directory)"),
    (lambda of: loaded(of).get_elmo_vectors([["a"]], layers="mix"), ConfigError, "layers is 'mix'"),
    (lambda of: ElmoModel().load(of.weights, max_batch_size=0), ConfigError, "max_batch_size is 0"),
    (lambda of: loaded(of).get_elmo_vectors(["the cat"]), TextError, "list of tokens"),
    (lambda of: ElmoModel().load(of.weights, full=True), ModelNotFoundError, "no softmax"),
    (lambda of: loaded(of).get_elmo_substitutes(["a"]), ModelNotFoundError, "no softmax"),
    (lambda of: loaded(of, True).get_elmo_substitutes("the cat"), TextError, "'the cat'"),
    (lambda of: loaded(of, True).get_elmo_substitutes(["a"], topn=0), ConfigError, "topn is 0"),
    (lambda of: many_langs(of, [["das"]], -3), ConfigError, "-3"),
    (lambda of: many_langs(of, [["das"]], 3), ConfigError, "3"),
    (lambda of: many_langs(of, ["das Haus"], -1), TextError, "list of tokens"),
    (lambda of: module("one string", "default"), TextError, "the string 'one string'"),
    (lambda of: module(np.array("a"), "default"), TextError, "the string 'a'"),
    (lambda of: module([["a", "list"]], "default"), TextError, "Expected a string"),
    (lambda of: module([], "default"), TextError, "batch is empty"),
    (lambda of: module(["a"], "tokens"), TextError, "expects a dictionary"),
    (lambda of: module({"tokens": [["a"]]}, "tokens"), TextError, "expects a dictionary"),
    (lambda of: of_tokens(["a b"], [1]), TextError, "matrix of strings"),
    (lambda of: of_tokens([["a", "b"], ["c"]], [2, 1]), TextError, "rows of [1, 2] tokens"),
    (lambda of: of_tokens([["a", "b"]], [2, 1]), TextError, "sequence_len is [2, 1]"),
    (lambda of: of_tokens([["a", "b"]], [3]), TextError, "sequence_len is [3]"),
    (lambda of: of_tokens([["a", "b"]], [-1]), TextError, "sequence_len is [-1]"),
    (lambda of: module(["a"], "words"), ConfigError, "'words'"),
    (lambda of: tfhub.Module("no/such/model"), ModelNotFoundError, "no/such/model"),
    (lambda of: tfhub.KerasLayer("elmo/3"), ConfigError, "load('elmo/3')"),
]


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: row[-1])
def test_classes_of_other_programs_refuse(row: Row, given: Given) -> None:
    check(given, row)
