"""Public calls with unusual arguments, and objects that are changed, copied or stored between calls."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import (
    Elmo,
    ElmoModule,
    LanguageModel,
    SentenceEmbedder,
    SentencePooling,
    align,
    embed_file,
    open_model,
    save_model,
)
from elmokit.compat.allennlp import ELMoCharacterMapper
from elmokit.embedding.static_table import export_static
from elmokit.errors import ConfigError, OutputError, TextError
from elmokit.evaluation.occurrences import OccurrenceIndex, build_index
from elmokit.formats.model import PretrainedBiLM
from elmokit.network.scalar_mix import make_scalar_mix
from tests.conftest import random_model

SENTENCES = [["the", "cat", "sat"], ["the", "dog", "ran", "the", "mat"], ["a", "cat"]] * 4


@pytest.mark.parametrize("storage", ["fp16", None, "INT8"])
def test_an_unknown_storage_is_refused_and_the_old_model_stays(storage: Any, tmp_path: Path) -> None:
    save_model(random_model(), tmp_path / "model")
    with pytest.raises(ConfigError, match="storage"):
        save_model(random_model(), tmp_path / "model", storage, overwrite=True)
    assert open_model(tmp_path / "model").storage == "float32"


def test_weights_that_could_not_be_opened_again_are_not_saved(tmp_path: Path) -> None:
    for number, storage in ((np.nan, "float32"), (1e6, "float16"), (np.inf, "int8")):
        model = random_model()
        bias = model.bilm.state_dict()["token_layer.projection.bias"]
        bias[0] = number
        with pytest.raises(OutputError, match=r"projection\.bias holds NaN or a number that"):
            save_model(model, tmp_path / "model", storage)  # type: ignore[arg-type]
        assert not (tmp_path / "model").exists()


def test_hdf5_files_have_one_storage_and_no_card_of_what_they_cannot_hold(tmp_path: Path) -> None:
    model = random_model()
    with pytest.raises(ConfigError, match=r"storage is 'int8', and \.hdf5 files hold float32"):
        save_model(model, tmp_path / "m.hdf5", "int8")
    text = tmp_path / "text.txt"
    text.write_text("the cat sat .\n" * 5)
    aligned = align(model, random_model(), text, text, [("the", "the"), ("cat", "cat")], test_ratio=0).model
    save_model(aligned, tmp_path / "m.hdf5")
    assert "alignment" not in open_model(tmp_path / "m.hdf5").card


@pytest.fixture
def index(tmp_path: Path, model: PretrainedBiLM) -> OccurrenceIndex:
    return build_index(Elmo(model), lambda: iter(SENTENCES), tmp_path / "index")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"among": "Same"}, "among is 'Same'"),
        ({"among": None}, "among is None"),
        ({"min_count": float("nan")}, "min_count is nan"),
        ({"min_count": "2"}, "min_count is '2'"),
        ({"layers": [True]}, "The index has no layer True"),
        ({"layers": 9}, "The index has no layer 9"),
    ],
)
def test_a_search_with_an_argument_that_has_no_meaning_is_refused(
    arguments: dict[str, Any], message: str, index: OccurrenceIndex, model: PretrainedBiLM
) -> None:
    with pytest.raises(ConfigError, match=message):
        index.neighbors(Elmo(model), ["the", "cat"], 1, **arguments)


def test_a_module_of_pytorch_builds_and_searches_the_index_of_its_elmo(
    index: OccurrenceIndex, model: PretrainedBiLM, tmp_path: Path
) -> None:
    module = ElmoModule(model)
    other = build_index(module, lambda: iter(SENTENCES), tmp_path / "other")  # type: ignore[arg-type]
    found = [one.neighbors(elmo, ["the", "cat"], 1, layers=1) for one, elmo in ((index, Elmo(model)), (other, module))]  # type: ignore[arg-type]
    assert found[0].to_dict() == found[1].to_dict()


def test_word_counts_may_be_numpys_and_are_copied(model: PretrainedBiLM, tmp_path: Path) -> None:
    counts = Counter({"the": np.int64(5), "cat": np.int64(2)})
    embedder = SentenceEmbedder(Elmo(model), SentencePooling(), counts)  # type: ignore[arg-type]
    before = embedder.fingerprint()
    (tmp_path / "text.txt").write_text("the cat sat\n")
    embed_file(embedder, tmp_path / "text.txt", tmp_path / "vectors.npz")
    counts["dog"] += 1
    assert embedder.fingerprint() == before
    for given in (["a"], {"a": "3"}, {"a": True}):
        with pytest.raises(ConfigError, match="word_counts"):
            SentenceEmbedder(Elmo(model), SentencePooling(), given)  # type: ignore[arg-type]


def test_a_language_model_can_be_pickled_after_it_was_used() -> None:
    model = LanguageModel.from_pretrained("en-mini")
    before = model.perplexity([["The", "cat", "zxqv"]])
    again = pickle.loads(pickle.dumps(model))
    assert again.perplexity([["The", "cat", "zxqv"]]) == before


def test_a_whitening_does_not_depend_on_the_head_that_an_embedder_had_before() -> None:
    whitenings = []
    for has_head in (True, False):
        model = open_model("en-mini")
        embedder = SentenceEmbedder.by_name(Elmo(model), "trained")
        if not has_head:
            embedder = SentenceEmbedder(Elmo(model), embedder.pooling)
        embedder.fit([["The", "bank", "paid", "me", "."], ["A", "dog", "ran"], ["He", "sat", "by", "the", "river"]])
        assert model.whitening is not None
        whitenings.append(model.whitening)
    np.testing.assert_array_equal(whitenings[0].mean, whitenings[1].mean)


def test_a_copy_of_another_precision_leaves_the_model_as_it_is() -> None:
    model = random_model()
    model.precision = "int8"
    assert model.bilm.precision == "int8"
    for precision in ("float32", None):
        copy = model.replace(precision=precision)
        assert (copy.precision, model.precision) == (precision, "int8")
        np.testing.assert_array_equal(
            copy.arrays["token_layer.projection.bias"], model.arrays["token_layer.projection.bias"]
        )


def test_allennlps_mapper_is_called_on_the_class_and_on_an_object() -> None:
    expected = ELMoCharacterMapper().convert_word_to_char_ids("hello")
    assert ELMoCharacterMapper.convert_word_to_char_ids("hello") == expected
    added = ELMoCharacterMapper({"hello": 7})
    assert added.convert_word_to_char_ids("hello") != expected


def test_a_module_refuses_what_is_no_model_and_takes_numpys_layers(model: PretrainedBiLM) -> None:
    for given in ("en-mini", Elmo(model)):
        with pytest.raises(ConfigError, match="Expected a model as open_model returns it"):
            ElmoModule(given)  # type: ignore[arg-type]
    for layers in (np.int64(1), np.array([0, 1]), range(2)):
        ElmoModule(model, layers=layers)  # type: ignore[arg-type]
    for layers in (None, [0, True], 9, [1.5]):
        with pytest.raises(ConfigError, match="layers is"):
            make_scalar_mix(layers, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [0, 2.5, float("nan"), "5", True])
def test_sizes_of_batches_and_caches_are_whole_numbers(number: Any, model: PretrainedBiLM) -> None:
    elmo = Elmo(model)
    with pytest.raises(ConfigError, match="batch_tokens is"):
        elmo.embed(SENTENCES, batch_tokens=number)
    with pytest.raises(ConfigError, match="chunk_tokens is"):
        elmo.embed_document(SENTENCES[0], chunk_tokens=number)
    if number != 0:
        with pytest.raises(ConfigError, match="token_cache_mib is"):
            Elmo(model, token_cache_mib=number)
    assert len(elmo.embed(SENTENCES, batch_tokens=np.int64(64))) == len(SENTENCES)  # type: ignore[arg-type]


def test_a_map_of_other_vectors_and_what_is_no_embedder_are_refused(tmp_path: Path) -> None:
    elmo = Elmo(open_model("en-mini"))
    with pytest.raises(ConfigError, match="linear_map is for vectors of 384 dimensions"):
        SentenceEmbedder(elmo, SentencePooling("mean", "all"), linear_map=elmo.model.sentence_head)
    with pytest.raises(ConfigError, match="Expected a SentenceEmbedder, but got one of type Elmo"):
        export_static(elmo, tmp_path / "static")  # type: ignore[arg-type]
    with pytest.raises(TextError, match="one of them is not a string"):
        export_static(SentenceEmbedder(elmo), tmp_path / "static", ["a", 2])  # type: ignore[list-item]


def test_arguments_of_a_language_model_that_would_have_no_effect_are_refused() -> None:
    model = LanguageModel.from_pretrained("en-mini")
    with pytest.raises(ConfigError, match="raw_language is for files"):
        model.perplexity([["a", "b"]], raw_language="en")
    with pytest.raises(ConfigError, match="batch_tokens is 0"):
        model.surprisal([["a", "b"]], batch_tokens=0)
