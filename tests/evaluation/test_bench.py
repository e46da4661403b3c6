"""The measurements of ``elmokit bench``: their structure and the facts in them. Times differ and are not tested."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from elmokit.engine import compiler
from elmokit.engine.precision import NATIVE, PRECISIONS, VARIABLE
from elmokit.engine.threads import n_threads
from elmokit.evaluation import bench
from elmokit.evaluation.bench import SpeedReport, measure_speed
from elmokit.formats.save import save_model
from tests.conftest import random_model
from tests.helpers.instruction_sets import choose_kernels_as_if, machine_library
from tests.helpers.shell import command_runner


@pytest.fixture(scope="module")
def report() -> SpeedReport:
    return measure_speed(random_model(), n_rows=(1, 3), seconds=0.001)


def test_every_precision_and_plain_numpy_are_measured_at_every_batch_size(report: SpeedReport) -> None:
    measured = [(one.request, one.n_rows) for one in report.speeds]
    assert measured == [(request, n) for request in ("reference", *PRECISIONS) for n in (1, 3)]
    assert all(one.tokens_per_second > 0 for one in report.speeds)
    assert report.speed("int8", 3).n_rows == 3


def test_small_layers_whose_weights_would_be_widened_are_reported_as_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_library()
    choose_kernels_as_if(monkeypatch, "bfloat16")
    report = measure_speed(random_model(), n_rows=(1,), seconds=0.001)
    assert report.speed("bfloat16", 1).computed_in == ("float32",)
    assert report.speed("int8", 1).computed_in == ("int8",)


@pytest.mark.filterwarnings("ignore:The C functions are unavailable")
def test_speed_is_measured_without_kernels_and_the_model_and_the_environment_are_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "load_library", lambda: None)
    monkeypatch.setattr(compiler, "why_unavailable", lambda: "no compiler")
    monkeypatch.setenv(VARIABLE, "float32")
    model = random_model().replace(precision="int8")
    report = measure_speed(model, n_rows=(1,), seconds=0.001)
    assert (report.machine["used"], report.machine["why_no_library"]) == (None, "no compiler")
    assert not any(one.backend in NATIVE for one in report.speeds)
    assert (model.precision, os.environ[VARIABLE]) == ("int8", "float32")


def test_the_command_prints_one_screen_or_json(
    report: SpeedReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "measure_speed", lambda model, progress: report)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it, so it is restored after the test
    save_model(random_model(), tmp_path / "model")
    shell = command_runner(monkeypatch, capsys, "bench")
    lines = shell("--model", str(tmp_path / "model")).out.splitlines()
    assert lines[0].startswith("model")
    assert sum(line.startswith("int8") for line in lines) >= 2
    facts = json.loads(shell("--model", str(tmp_path / "model"), "--json", "--threads", str(n_threads())).out)
    assert facts.keys() == {"model", "machine", "speeds"}
    assert len(facts["speeds"]) == len(report.speeds)
