"""Models that read characters and words: layer 0 is a word's spelling plus its row in the softmax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmokit import Elmo, LanguageModel, finetune, open_model, save_model, train
from elmokit.embedding.computer import Computer
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.engine.token_layer import TokenLayer
from elmokit.errors import ConfigError, OutputError
from elmokit.formats.allennlp_weights import char_cnn_of
from elmokit.network.softmax_module import TiedSoftmax
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.losses import WindowLosses
from elmokit.training.results import TrainingResult
from tests.helpers.instruction_sets import machine_library
from tests.helpers.tiny_training import Reports, newest_checkpoint
from tests.helpers.weights import softmax_of

TEXT = "the cat sat on the mat .\nthe dog ran .\na cat and a dog ran on .\nthe mat sat .\n" * 30
SIZES = {"preset": "tiny", "max_words": 9, "batch_size": 4, "window_length": 5, "input": "both", "n_samples": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    text = folder / "text.txt"
    text.write_text(TEXT)
    train(text, held_out=text, out=folder / "run", tokens=200, report=lambda _: None, **SIZES)
    return folder / "run"


@pytest.fixture
def model(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PretrainedBiLM:
    """A trained model, as its directory holds it, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return open_model(run)


def model_of(result: TrainingResult) -> PretrainedBiLM:
    assert result.model is not None
    return result.model


@pytest.mark.slow
def test_the_softmax_shares_the_rows_of_the_table(model: PretrainedBiLM) -> None:
    table = model.arrays["token_layer.word_embedding.weight"]
    assert model.softmax.config.kind == "tied"
    assert np.array_equal(model.softmax.weight, table[1:])
    assert isinstance(softmax_of(model), TiedSoftmax)
    assert not table[0].any()


def test_a_word_outside_the_vocabulary_is_its_spelling_alone(model: PretrainedBiLM) -> None:
    known, unknown = model.encode(["cat", "zebra"])
    assert (known[0], unknown[0]) == (model.vocabulary.ids["cat"] + 1, 0)
    vectors = Computer(model).word_vectors(["cat", "zebra"])
    spelled = Computer(model).network.token_vectors(np.stack([np.concatenate([[0], known[1:]]), unknown]))
    row = model.arrays["token_layer.word_embedding.weight"][known[0]]
    dim = model.config.projection_dim
    expected = spelled[0] + model.arrays["token_layer.projection.weight"][:, :dim] @ row
    np.testing.assert_allclose(vectors[0], expected, atol=1e-5)
    assert np.array_equal(vectors[1], spelled[1])


def test_another_vocabulary_gives_the_words_other_rows_at_once(model: PretrainedBiLM) -> None:
    elmo, reordered = Elmo(model), Vocabulary([*model.vocabulary.words[:3], *model.vocabulary.words[:2:-1]])
    before = elmo.embed([["the", "cat"]], layers=0)[0]
    model = model.replace(vocabulary=reordered)
    elmo.computer = elmo.computer.with_model(model)
    after = elmo.embed([["the", "cat"]], layers=0)[0]
    assert abs(after - before).max() > 1e-3
    assert np.array_equal(after, Elmo(model).embed([["the", "cat"]], layers=0)[0])


@pytest.mark.parametrize("storage", ["float32", "int8"])
def test_a_saved_model_computes_the_same_and_stores_the_table_once(model: PretrainedBiLM, storage: str) -> None:
    save_model(model, "model", storage=storage)  # type: ignore[arg-type]
    opened = open_model("model")
    assert "weight" not in opened.softmax.arrays  # type: ignore[union-attr]
    sentence = ["the", "cat", "sat", "on", "a", "zebra", "."]
    given, again = (Elmo(one).embed([sentence])[0] for one in (model, opened))
    np.testing.assert_allclose(again, given, atol=1e-6 if storage == "float32" else 0.05)
    np.testing.assert_allclose(ElmoModule(opened).embed([sentence], layers="all")[0], again, atol=1e-5)
    given, again = (LanguageModel(one).surprisal([sentence])[0].nats for one in (model, opened))
    np.testing.assert_allclose(again, given, atol=1e-5 if storage == "float32" else 0.05)


def test_a_table_of_integers_stays_so_in_memory_and_gives_the_bits_of_its_numbers(model: PretrainedBiLM) -> None:
    library = machine_library()
    save_model(model, "model", storage="int8")
    stored = open_model("model")
    ids = stored.encode(["the", "cat", "zebra", "</S>"])
    integers, numbers = (
        TokenLayer(stored.config, arrays, "float32", library) for arrays in (stored.arrays, dict(stored.arrays))
    )
    assert np.array_equal(integers(ids), numbers(ids))
    n_words, dim = stored.arrays["token_layer.word_embedding.weight"].shape
    assert numbers.n_bytes - integers.n_bytes == n_words * (4 * dim - dim - 4)


def test_dropped_words_are_read_by_their_characters(model: PretrainedBiLM) -> None:
    bilm, softmax = model.build_modules()
    assert softmax is not None
    tokens = torch.from_numpy(model.encode(["the", "cat", "zebra"]))
    spelled = tokens.clone()
    spelled[:, 0] = 0
    losses = WindowLosses(bilm, softmax, 0, word_dropout=0.999999)
    with torch.no_grad():
        assert torch.equal(losses.train()._token_vectors(tokens), bilm.token_layer(spelled))
        assert torch.equal(losses.eval()._token_vectors(tokens), bilm.token_layer(tokens))


def test_fine_tuning_on_other_words_keeps_the_rows_of_known_ones(model: PretrainedBiLM) -> None:
    Path("new.txt").write_text("a new cat sat on a new mat .\n" * 20)
    harmless = {"batch_size": 2, "window_length": 5, "tokens": 10, "learning_rate": 1e-9, "eval_every": 100}
    tuned = finetune(model, "new.txt", held_out="new.txt", out="tuned", max_words=9, report=lambda _: None, **harmless)
    new = model_of(tuned)
    assert model.vocabulary is not None
    assert new.vocabulary is not None
    name = "token_layer.word_embedding.weight"
    rows = [one.arrays[name][one.vocabulary.ids["cat"] + 1] for one in (model, new)]  # type: ignore[union-attr]
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-6)
    assert len(new.arrays[name]) == len(new.vocabulary) + 1


def test_what_knows_no_word_table_says_so(model: PretrainedBiLM, run: Path) -> None:
    with pytest.raises(OutputError, match="word table"):
        save_model(model, "weights.hdf5")
    with pytest.raises(ConfigError, match="AllenNLP's ELMo reads only characters"):
        char_cnn_of(model.config)
    with pytest.raises(ConfigError, match="has its own word table"):
        open_model(run, token_embeddings="table.hdf5")


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"max_words": 8}, {"softmax_inner_dim": 4}])
def test_the_optimizer_is_kept_over_other_words_and_without_an_inner_layer(
    changes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("text.txt", TEXT), ("other.txt", "a cat and a dog ran .\nthe mat sat .\n" * 20)):
        Path(name).write_text(text)
    settings = {**SIZES, "softmax_inner_dim": 8, "n_samples": 0, "tokens": 60}
    train("text.txt", held_out="text.txt", out="run", report=Reports(), **settings)
    fine: dict[str, Any] = {"batch_size": 2, "window_length": 5, "tokens": 20, "keep_optimizer": True, **changes}
    reports = Reports()
    source = newest_checkpoint("run").path / "model"
    finetune(source, "other.txt", held_out="text.txt", out="tuned", report=reports, **fine)
    assert any("The optimizer continues with the state of" in notice for notice in reports.notices)
