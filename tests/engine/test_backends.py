"""The choice of a backend: availability, the model's precision, and the environment variable."""

from __future__ import annotations

import numpy as np
import pytest

from elmokit import Elmo, ElmoModule
from elmokit.engine import compiler
from elmokit.engine.architecture import PRESETS, BiLMConfig
from elmokit.engine.interface import NetworkInput
from elmokit.engine.precision import VARIABLE, requested_backend
from elmokit.errors import ConfigError
from elmokit.network.bilm import BiLM
from tests.conftest import random_model
from tests.helpers.instruction_sets import machine_library


def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "load_library", lambda: None)


def test_the_environment_variable_overrides_the_precision_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert requested_backend() == "float32"
    assert requested_backend("int8") == "int8"
    monkeypatch.setenv(VARIABLE, "auto")
    assert requested_backend("int8") == "int8"
    monkeypatch.setenv(VARIABLE, "reference")
    assert requested_backend("int8") == "reference"


def test_a_wrong_value_of_the_environment_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "in8")
    with pytest.raises(ConfigError, match=r"ELMOKIT_BACKEND is 'in8'.*auto, reference, float32, bfloat16, int8, int7"):
        requested_backend()


def test_the_precision_of_a_model_changes_the_vectors_of_elmo_but_not_those_of_its_modules() -> None:
    machine_library()
    model = random_model(scale=1.0)
    (exact,) = Elmo(model, start="zero").embed([["the", "cat"]])
    elmo = Elmo(model.replace(precision="int8"), start="zero")
    (rounded,) = elmo.embed([["the", "cat"]])
    difference = abs(rounded[1:] - exact[1:]).max()
    assert difference < 0.2
    # Where the processor has no fast products of bytes, layers so small are computed in float32.
    assert (difference > 0) == (elmo.computer.network.computation().precision == "int8")
    # The char CNN has the precision too, where the C functions compute it.
    assert abs(rounded[0] - exact[0]).max() < 0.1
    module = ElmoModule(model.replace(precision="int8"), start="zero")
    np.testing.assert_allclose(module.embed([["the", "cat"]], layers="all")[0], exact, atol=1e-5)
    again = Elmo(module.to_model(), start="zero").embed([["the", "cat"]])[0]
    assert np.array_equal(again, rounded)


def test_a_module_reports_one_computation_of_all_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    bilm = BiLM(PRESETS["tiny"])
    if (library := compiler.load_library()) is not None:
        assert bilm.computation().settings() == {
            "device": "cpu",
            "instructions": library.instructions,
            "precision": "float32",
            "kernels": ["native"] * 5,
        }
        assert str(bilm.computation()) == f"float32 (native, {library.instructions}, cpu)"
    assert bilm.double().computation().kernels == ("reference",) * 5
    bilm.float()
    monkeypatch.setenv(VARIABLE, "reference")
    assert bilm.computation().kernels == ("reference",) * 5
    assert (bilm.computation().instructions or "").startswith("PyTorch's ")
    without_library(monkeypatch)
    monkeypatch.setenv(VARIABLE, "bfloat16")
    assert bilm.computation().kernels == ("reference",) * 5
    assert bilm.computation().precision == "float32"
    words = BiLM(BiLMConfig(char_cnn=None, n_words=5, projection_dim=4, hidden_dim=6, n_layers=1))
    assert words.computation().kernels[0] == "reference"


def test_a_step_is_rounded_no_more_on_a_repeated_token_than_in_a_text() -> None:
    exact, rounded = (Elmo.from_pretrained(precision=precision) for precision in ("float32", "int8"))
    text = ("The bank raised its rate because the river had flooded the old part of the town . " * 4).split()

    def mean_error(tokens: list[str]) -> float:
        """Return the error of the top layer after one step from the exact state, relative to its length."""
        state, errors = exact.start_state, []
        layers = [exact.model.config.n_layers]
        for vector in exact.computer.word_vectors(tokens):
            step = NetworkInput(vector[None], np.zeros(1, np.int64), np.ones(1, np.int64), state)
            ((found,), _), ((expected,), state) = (
                elmo.computer.network.direction(0, step, layers) for elmo in (rounded, exact)
            )
            errors.append(float(np.linalg.norm(found - expected) / np.linalg.norm(expected)))
        return sum(errors) / len(errors)

    assert mean_error(["a"] * 60) <= 1.2 * mean_error(text)
