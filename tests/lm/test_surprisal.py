from __future__ import annotations

import math
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from elmokit.errors import ModelNotFoundError
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.lm.perplexity import perplexity
from elmokit.lm.surprisal import softmax_vocabulary, surprisals
from elmokit.pretrained.model import PretrainedBiLM
from tests.conftest import edited_model
from tests.helpers import trace_b

TEXT = [["the", "cat", "sat"], ["dog"], [], ["the", "zebra", "ran", "."]]


def test_each_direction_predicts_every_token_but_its_first(model: PretrainedBiLM) -> None:
    found = list(surprisals(model, TEXT))
    assert [sentence.tokens for sentence in found] == [["<S>", *words, "</S>"] for words in TEXT]
    for sentence in found:
        assert sentence.nats.shape == (2, len(sentence.tokens))
        assert np.isnan(sentence.nats[0]).nonzero()[0].tolist() == [0]
        assert np.isnan(sentence.nats[1]).nonzero()[0].tolist() == [len(sentence.tokens) - 1]
    assert [sentence.is_unknown.nonzero()[0].tolist() for sentence in found] == [[], [], [], [2]]


def test_probabilities_of_all_words_add_up_to_one(model: PretrainedBiLM) -> None:
    found = surprisals(model, [["the", word] for word in model.vocabulary.words])
    assert sum(math.exp(-sentence.nats[0, 2]) for sentence in found) == pytest.approx(1)


def test_an_export_gets_its_softmax_from_the_checkpoint_next_to_it(tmp_path: Path) -> None:
    run = trace_b.write_checkpoint(tmp_path, trace_b.CHARS)
    checkpoint = open_model(run)
    save_model(checkpoint, run / "dump_weights.hdf5")
    opened = open_model(run)
    assert opened.family == "bilm-tf"
    assert perplexity(opened, TEXT) == perplexity(checkpoint, TEXT)
    with pytest.raises(ModelNotFoundError, match="has no softmax"):
        softmax_vocabulary(open_model(run / "dump_weights.hdf5"))


def test_an_export_from_another_point_of_the_training_gets_no_softmax(tmp_path: Path) -> None:
    run = trace_b.write_checkpoint(tmp_path, trace_b.CHARS)
    model = open_model(run)
    model = edited_model(model, lambda bilm: bilm.get_parameter("token_layer.projection.bias").add_(1))
    save_model(model, run / "dump_weights.hdf5")
    with pytest.raises(ModelNotFoundError, match="another point of the training"):
        softmax_vocabulary(open_model(run))


def test_a_deferred_softmax_survives_pickling_and_is_read_before_an_archive_is_gone(tmp_path: Path) -> None:
    run = trace_b.write_checkpoint(tmp_path / "run", trace_b.CHARS)
    checkpoint = open_model(run)
    save_model(checkpoint, run / "dump_weights.hdf5")
    assert perplexity(pickle.loads(pickle.dumps(open_model(run))), TEXT) == perplexity(checkpoint, TEXT)
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", run)
    assert perplexity(open_model(archive), TEXT) == perplexity(checkpoint, TEXT)
