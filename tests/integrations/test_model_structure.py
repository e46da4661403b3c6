"""The structure of a model without its weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from elmokit import ElmoModule
from elmokit.config import from_dict, to_dict
from elmokit.engine.architecture import PRESETS
from elmokit.errors import FormatError
from elmokit.formats.open import open_model
from elmokit.integrations.model_structure import ModelStructure
from elmokit.pretrained.model import PretrainedBiLM
from tests.conftest import TABLE, aligned_model, random_model
from tests.helpers.many_langs_files import toy_model

SENTENCES = [["the", "cat", "sat"], ["a", "dog"]]


def models(folder: Path) -> dict[str, PretrainedBiLM]:
    return {
        "characters": random_model(),
        "words": random_model(replace(PRESETS["tiny"], char_cnn=None, n_words=11)),
        "table": random_model(TABLE),
        "lexicon": open_model(toy_model().write(folder / "many-langs")),
        "aligned": aligned_model(),
    }


@pytest.mark.parametrize("kind", ["characters", "words", "table", "lexicon", "aligned"])
@pytest.mark.parametrize("start", ["warm", "zero"])
def test_structure_and_state_dict_restore_the_vectors(tmp_path: Path, kind: str, start: str) -> None:
    model = models(tmp_path)[kind]
    elmo = ElmoModule(model, start=start)  # type: ignore[arg-type]
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(to_dict(ModelStructure.of(model))))
    restored = ElmoModule(from_dict(ModelStructure, stored, "").build(), start=start)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="NaN"):  # the weights are not there yet
        restored.embed(SENTENCES)
    restored.load_state_dict(elmo.state_dict())
    for given, expected in zip(restored.embed(SENTENCES), elmo.embed(SENTENCES), strict=True):
        np.testing.assert_array_equal(given, expected)
    assert restored.model.card == model.card
