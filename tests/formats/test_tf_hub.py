from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit.embedding.elmo import Elmo
from elmokit.engine.architecture import PRESETS
from elmokit.errors import ConfigError, ElmoError, FormatError, TensorMismatchError
from elmokit.formats import bilm_tf
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.formats.tf_hub import MIX, stored_mix
from tests.conftest import random_model
from tests.helpers.tf_hub_files import write_module
from tests.helpers.tf_names import module_tensors
from tests.helpers.weights import same_weights

TINY = replace(PRESETS["tiny"], dropout=0.0)
GOOGLE_MIX: dict[str, Any] = {
    "aggregation/weights": np.array([0.5, -1.0, 2.0], dtype=np.float32),
    "aggregation/scaling": np.float32(1.5) * np.ones((), dtype=np.float32),
}
DEEPPAVLOV_MIX: dict[str, Any] = {
    "aggregation/elmo_output_ELMo_W": np.array([0.5, -1.0, 2.0], dtype=np.float32),
    "aggregation/elmo_output_ELMo_gamma": np.array([1.5], dtype=np.float32),
}
STATES: dict[str, Any] = {f"bilm/Variable{end}": np.zeros((8, 4), dtype=np.float32) for end in ("", "_1", "_2")}


@pytest.mark.parametrize("graph", ["saved_model.pb", "tfhub_module.pb"])
@pytest.mark.parametrize("mix", [GOOGLE_MIX, DEEPPAVLOV_MIX], ids=["google", "deeppavlov"])
@pytest.mark.parametrize("zero_row", [False, True], ids=["261 rows", "262 rows"])
def test_a_module_gives_back_the_model_and_its_mix(
    tmp_path: Path, zero_row: bool, mix: dict[str, Any], graph: str
) -> None:
    model = random_model(TINY)
    opened = open_model(write_module(tmp_path, module_tensors(model, zero_row) | mix | STATES, graph))
    assert opened.family == "tf-hub"
    assert same_weights(opened, model)
    assert opened.card["mix"] == {"weights": [0.5, -1.0, 2.0], "gamma": 1.5}
    assert opened.card["skipped"] == ["bilm/Variable", "bilm/Variable_1", "bilm/Variable_2"]


@pytest.mark.parametrize(
    "config",
    [replace(TINY, n_layers=1), replace(TINY, hidden_dim=32), replace(TINY, bidirectional=False)],
    ids=["one layer", "no projection in the cell", "one direction"],
)
def test_sizes_are_inferred_from_the_variables(tmp_path: Path, config: Any) -> None:
    model = random_model(config)
    opened = open_model(write_module(tmp_path, module_tensors(model)))
    assert same_weights(opened, model)
    assert opened.card == {}


def test_options_next_to_the_module_complete_the_variables(tmp_path: Path) -> None:
    config = replace(TINY, skip_connections=False, cell_clip=None, char_cnn=replace(TINY.char_cnn, activation="tanh"))
    model = random_model(config)
    folder = write_module(tmp_path / "module", module_tensors(model, zero_row=True))
    (tmp_path / "options.json").write_text(json.dumps(bilm_tf.options_from_config(config)))
    assert open_model(folder).config != config
    assert same_weights(open_model(folder, options=tmp_path / "options.json"), model)
    (tmp_path / "options.json").rename(folder / "options.json")
    assert same_weights(open_model(folder), model)


def with_tensors(**changes: np.ndarray | None) -> dict[str, Any]:
    """The variables of a module with a mix, some of them others or left out."""
    tensors = module_tensors(random_model(TINY), zero_row=True) | GOOGLE_MIX
    return {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}


WEIGHTS = "aggregation/weights"
ONES = np.ones((262, 8), np.float32)
# The variables, the error, and the name that it mentions.
REFUSED: list[tuple[Callable[[], dict[str, Any]], type[ElmoError], str]] = [
    (lambda: with_tensors(**{"bilm/char_embed": ONES}), FormatError, "262 rows"),
    (lambda: with_tensors(**{"bilm/CNN/b_cnn_1": None}), TensorMismatchError, "CNN/b_cnn_1"),
    (lambda: with_tensors(**{WEIGHTS: np.zeros(4, np.float32)}), TensorMismatchError, WEIGHTS),
    (lambda: {"dense/kernel": ONES}, FormatError, "dense/kernel"),
    (lambda: {"bilm/char_embed": ONES[0]}, TensorMismatchError, "module"),
    (lambda: {"bilm/char_embed": ONES[:261], "bilm/CNN/W_cnn_0": ONES[0]}, TensorMismatchError, "module"),
    (lambda: with_tensors(**{"bilm/CNN/W_cnn_0": ONES[0]}), ConfigError, "module"),
]


@pytest.mark.parametrize(("tensors", "error", "name"), REFUSED, ids=range(len(REFUSED)))
def test_another_module_is_refused(
    tensors: Callable[[], dict[str, Any]], error: type[ElmoError], name: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=name):
        open_model(write_module(tmp_path / "module", tensors()))


def test_a_module_embeds_and_its_mix_outlives_conversion(tmp_path: Path) -> None:
    model = random_model(TINY)
    opened = open_model(write_module(tmp_path / "module", module_tensors(model, zero_row=True) | DEEPPAVLOV_MIX))
    save_model(opened, tmp_path / "ours")
    converted = open_model(tmp_path / "ours")
    assert converted.card["mix"] == {"weights": [0.5, -1.0, 2.0], "gamma": 1.5}
    sentences = [["the", "cat"]]
    expected = Elmo(model, start="zero").embed(sentences)[0]
    for other in (opened, converted):
        assert same_weights(other, model)
        np.testing.assert_allclose(Elmo(other, start="zero").embed(sentences)[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    "mix", [{"weights": [0.0, 1.0], "gamma": 1.0}, {"weights": [0.0, 1.0, 2.0], "gamma": "one"}, "mean"], ids=str
)
def test_a_mix_in_a_card_that_does_not_fit_the_model_is_refused(mix: Any) -> None:
    model = random_model()
    model.card[MIX] = mix
    with pytest.raises(FormatError, match=r"card has no valid 'mix'.* 3 numbers"):
        stored_mix(model)
