"""Fixtures of the tests: tiny models, the command line, a local HTTP server, and reference data."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from elmokit.engine.architecture import PRESETS, BiLMConfig, WordFeaturesConfig
from elmokit.engine.layer_selection import LayerAlignment
from elmokit.engine.library import Library
from elmokit.evaluation import pos
from elmokit.formats import fetch
from elmokit.formats.save import save_model
from elmokit.network.bilm import BiLM
from elmokit.network.softmax_module import FullSoftmax
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.vocabulary import SPECIALS, Vocabulary
from tests.helpers import instruction_sets
from tests.helpers.http_server import Server, served
from tests.helpers.paths import DATA, ROOT
from tests.helpers.shell import Shell, command_runner

SHARED = Path(os.environ.get("ELMOKIT_SHARED", ROOT.parent / "shared"))
# A busy machine is slow and not wrong, so no test has a deadline.
settings.register_profile("default", deadline=None, max_examples=10)
settings.register_profile("ci", deadline=None, derandomize=True)  # ten times as many, and the same every time
settings.load_profile("ci" if os.environ.get("CI") else "default")
WORDS = [*SPECIALS, "the", ".", "cat", "sat", "on", "mat", "dog", "ran"]
TABLE = replace(PRESETS["tiny"], word_features=WordFeaturesConfig(len(WORDS), PRESETS["tiny"].projection_dim))
"""Sizes of a model that reads characters and rows of a table of words, as the included one does."""


def pytest_collection_finish() -> None:
    """Leave tests and imported libraries out of garbage collections: each would take a fifth of a second."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each reason for which tests were skipped once, with the number of tests."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
        for report in terminalreporter.stats.get("skipped", [])
    )
    if reasons:
        terminalreporter.section("skipped tests")
    for reason, n_tests in reasons.most_common():
        terminalreporter.line(f"{n_tests:4} {reason}")


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Leave out ``fsync``, which only a power loss makes visible: the tests call it thousands of times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # it raises the same error for a file that is closed
        yield


@pytest.fixture(scope="session")
def bilm_tf_run() -> Path:
    """A tiny model that bilm-tf itself trained, with its text; ``tests/data/README.md`` says how."""
    return DATA / "bilm-tf-run"


@pytest.fixture(scope="session")
def bilm_tf_fixture() -> Path:
    """The test model that bilm-tf published, ``tests/fixtures/model`` of its repository.

    It may not be part of this repository. Set ``ELMOKIT_BILM_TF_FIXTURE`` to that directory to run the tests with it.
    """
    path = Path(os.environ.get("ELMOKIT_BILM_TF_FIXTURE", SHARED / "golden" / "bilm-tf-tiny"))
    if not (path / "lm_weights.hdf5").is_file():
        pytest.skip("no bilm-tf fixture (set ELMOKIT_BILM_TF_FIXTURE to tests/fixtures/model of a bilm-tf clone)")
    return path


def fixture_sentences(fixture: Path) -> list[list[list[str]]]:
    """Return the tokenized sentences of bilm-tf's fixture: one list for each of three batch rows."""
    names = ("sentences.json", "lm_embeddings_sentences.json")
    path = next(path for name in names if (path := fixture / name).is_file())
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [[line.split() if isinstance(line, str) else line for line in row] for row in rows]


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference data that may not be part of the repository; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no shared reference data (set ELMOKIT_SHARED)")
    return SHARED


def random_model(config: BiLMConfig = PRESETS["tiny"], seed: int = 0, scale: float = 3.0) -> PretrainedBiLM:
    """A model of random weights with a softmax; ``scale`` makes the LSTM's matter more than a fresh model's do."""
    bilm = BiLM(config)
    bilm.reset_parameters(seed)
    with torch.no_grad():
        for parameter in bilm.directions.parameters():
            parameter.mul_(scale)
    softmax = FullSoftmax(len(WORDS), config.projection_dim)
    softmax.reset_parameters(torch.Generator().manual_seed(seed))
    return PretrainedBiLM.from_modules(bilm, softmax, vocabulary=Vocabulary(WORDS), card={"note": "random"})


def edited_model(model: PretrainedBiLM, edit: Callable[[BiLM], object]) -> PretrainedBiLM:
    """Return a model whose weights ``edit`` has changed in a PyTorch module."""
    bilm = model.build_bilm()
    with torch.no_grad():
        edit(bilm)
    return model.replace(weights=bilm)


def model_beyond_float16() -> PretrainedBiLM:
    """Return a model whose vectors have numbers that float16 cannot hold."""
    return edited_model(random_model(), lambda bilm: bilm.get_parameter("token_layer.projection.weight").mul_(1e6))


def aligned_model() -> PretrainedBiLM:
    """A model of random weights with an alignment of random matrices, which change the length of vectors little."""
    model = random_model()
    n_layers, dim = model.config.n_layers + 1, model.config.output_dim
    matrices = torch.randn(n_layers, dim, dim, generator=torch.Generator().manual_seed(0)) / dim**0.5
    return model.replace(alignment=LayerAlignment.of_matrices(matrices.numpy()))


@pytest.fixture
def short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let classifiers of a few written words take fewer steps than those of real data."""
    monkeypatch.setattr(pos, "MIN_STEPS", 60)


@pytest.fixture
def model() -> PretrainedBiLM:
    return random_model()


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model in a directory, to be copied."""
    path = tmp_path_factory.mktemp("saved") / "model"
    save_model(random_model(), path)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved_model: Path) -> Path:
    """A working directory with a small model and a text; some test files override it with their own content."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved_model, "model")
    Path("text.txt").write_text("the cat sat .\n\nthe dog 's mat\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def shell(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Run ``elmokit`` in the working directory ``folder``."""
    return command_runner(monkeypatch, capsys)


@pytest.fixture
def task_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Run ``elmokit task`` in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return command_runner(monkeypatch, capsys, "task")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server on this machine, an empty cache, and no waiting between tries."""
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetch, "_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(fetch, "TIMEOUT_SECONDS", 5.0)
    with served(Server()) as server:
        yield server


@pytest.fixture(params=instruction_sets.one_per_set())
def library(request: pytest.FixtureRequest) -> Library:
    """The C functions, built for each instruction set of this processor in turn."""
    return instruction_sets.build(request.param)
