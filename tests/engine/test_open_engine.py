"""The network is opened in C if there are C functions, and in NumPy with one warning if there are none."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from collections.abc import Callable

import numpy as np
import pytest

from elmokit import Elmo, LanguageModel
from elmokit.engine import compiler, engine
from elmokit.engine.engine import Engine, open_engine
from elmokit.engine.reference import ReferenceEngine
from tests.helpers.arrays_on_demand import ArraysOnDemand
from tests.helpers.engine_models import CONFIGS, random_ids
from tests.helpers.instruction_sets import choose_kernels_as_if, machine_library

CONFIG = CONFIGS["words and characters"]


def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "load_library", lambda: None)
    monkeypatch.setattr(compiler, "why_unavailable", lambda: "there is no compiler")
    engine._warn_once.cache_clear()


def test_c_functions_compute_if_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_library()
    choose_kernels_as_if(monkeypatch)  # as on a processor where int8 is faster for small layers, too
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = open_engine(CONFIG, ArraysOnDemand(CONFIG), "int8")
    assert isinstance(network, Engine)
    assert network.computation().precision == "int8"


def test_without_them_numpy_computes_and_one_warning_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    without_library(monkeypatch)
    with pytest.warns(UserWarning, match="there is no compiler") as caught:
        networks = [open_engine(CONFIG, ArraysOnDemand(CONFIG), "int8") for _ in range(3)]
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert "install a wheel of elmokit or a C compiler" in str(caught[0].message)
    for network in networks:
        assert isinstance(network, ReferenceEngine)
        assert network.computation().precision == "float32"
        assert network.token_vectors(random_ids(CONFIG, 3)).dtype == np.float32


def from_the_included_model() -> Elmo:
    elmo = Elmo.from_pretrained()
    elmo.embed([["a"]])
    return elmo


@pytest.mark.parametrize("use", [from_the_included_model, lambda: LanguageModel.from_pretrained().surprisal([["a"]])])
def test_the_warning_points_to_the_line_that_called_elmokit(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[], object]
) -> None:
    without_library(monkeypatch)
    with pytest.warns(UserWarning, match="there is no compiler") as caught:
        use()
    (warning,) = caught
    lines, first_line = inspect.getsourcelines(use)
    assert warning.filename == __file__
    assert first_line <= warning.lineno < first_line + len(lines)


def test_the_reference_is_used_without_a_warning_where_it_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    without_library(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(open_engine(CONFIG, ArraysOnDemand(CONFIG), "reference"), ReferenceEngine)


def test_a_network_needs_neither_pytorch_nor_the_modules_of_it() -> None:
    code = """
import sys
from elmokit.engine.architecture import PRESETS
from elmokit.engine.engine import open_engine
from tests.helpers.arrays_on_demand import ArraysOnDemand

config = PRESETS["tiny"]
for request in ("float32", "reference"):
    open_engine(config, ArraysOnDemand(config), request)
print([name for name in sys.modules if name.split(".")[0] == "torch" or name.startswith("elmokit.network")])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "[]\n", ran.stderr
