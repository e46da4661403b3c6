"""What the upgrade page promises about files of version 0.2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import Elmo, LanguageModel, open_model, save_model, train
from elmokit.embedding.corpus import embed_file
from elmokit.embedding.outputs.writer import partial_folder
from elmokit.errors import FormatError, ModelError, OutputError, TrainingError
from elmokit.evaluation.occurrences import OccurrenceIndex, build_index
from elmokit.storage.workspace import JOURNAL, OtherVersionError
from elmokit.tasks.run import open_run, train_task
from elmokit.tasks.run_folder import FACTS
from tests.conftest import random_model
from tests.helpers.paths import ROOT
from tests.helpers.shell import Shell
from tests.helpers.task_examples import tiny
from tests.helpers.tiny_training import SETTINGS, TEXT, Reports

MODELS = ROOT / "tests/data/version-0.2"
"""Models of 0.2. Its vectors of the top layer of one sentence are below."""
SENTENCE = ["big", "was", "cat", "sat", "."]
TOP_LAYER = [
    [0.095673, 0.091070, -0.109874, -0.010611, 0.048022, -0.069073, -0.009556, 0.004883],
    [0.104930, 0.043279, -0.096535, 0.021806, 0.047122, -0.095610, -0.009048, 0.029692],
    [0.036252, 0.048310, -0.111958, 0.009042, 0.046096, -0.132856, -0.053498, 0.029623],
    [0.041424, 0.033360, -0.106644, 0.010368, 0.047774, -0.130676, -0.036295, -0.023612],
    [0.098170, 0.125421, -0.081145, -0.029735, 0.032933, -0.147161, -0.073394, -0.045028],
]


def make_former(folder: Path) -> None:
    """Change the journal of a workspace to one of version 0.2, which had no version in it."""
    journal = json.loads((folder / JOURNAL).read_text())
    del journal["workspace"]
    (folder / JOURNAL).write_text(json.dumps(journal | {"crc32": 1}))
    (folder / "checksums").touch()


def test_a_model_with_an_adaptive_softmax_opens_without_it() -> None:
    with pytest.warns(UserWarning, match="adaptive softmax of version 0.2, which is ignored"):
        model = open_model(MODELS / "adaptive")
    (vectors,) = Elmo(model).embed([SENTENCE], layers="top")
    np.testing.assert_allclose(vectors, TOP_LAYER, atol=2e-6)
    with pytest.raises(ModelError, match="cannot predict"):
        LanguageModel(model)


def test_a_model_that_reads_backward_alone_is_refused_without_advice_that_changes_its_vectors() -> None:
    with pytest.raises(FormatError, match=r"Only version 0\.2 can open it") as refused:
        open_model(MODELS / "backward-only")
    assert "Did you mean" not in str(refused.value)


def test_an_unfinished_output_is_started_anew_on_request(folder: Path) -> None:
    Path("text.txt").write_text(TEXT)
    partial = partial_folder("vectors.npz")
    partial.mkdir()
    (partial / JOURNAL).write_text(json.dumps({"settings": {}, "progress": {"n_batches": 6}, "sizes": {"names": 0}}))
    (partial / "names").touch()
    elmo = Elmo(random_model())
    with pytest.raises(OtherVersionError, match="to start over, pass --overwrite"):
        embed_file(elmo, "text.txt", "vectors.npz")
    embed_file(elmo, "text.txt", "vectors.npz", overwrite=True)
    assert Path("vectors.npz").exists()
    assert not partial.exists()


def test_an_index_is_built_anew_on_request(folder: Path) -> None:
    elmo, sentences = Elmo(random_model()), [line.split() for line in TEXT.splitlines()]
    build_index(elmo, lambda: iter(sentences), "index")
    make_former(Path("index"))
    with pytest.raises(OtherVersionError, match="rebuild it with elmokit neighbors index CORPUS index --overwrite"):
        OccurrenceIndex("index")
    with pytest.raises(OtherVersionError, match="to start over, pass --overwrite"):
        build_index(elmo, lambda: iter(sentences), "index")
    assert build_index(elmo, lambda: iter(sentences), "index", overwrite=True).n_tokens == len(TEXT.split())
    assert not Path("index/checksums").exists()


@pytest.mark.slow
def test_a_training_is_started_anew_on_request_and_its_model_opens(shell: Shell) -> None:
    Path("text.txt").write_text(TEXT)
    settings: dict[str, Any] = {**SETTINGS, "held_out": "text.txt", "out": "run", "report": Reports()}
    train("text.txt", **settings)
    Path("run/journal.json").rename("run/settings.json")  # as in 0.2
    Path("run/curves.png").touch()
    assert open_model("run").can_predict
    counted = Reports()
    with pytest.raises(OtherVersionError, match=r"run was started by another version .* pass --overwrite"):
        train("text.txt", **settings | {"report": counted})
    assert not counted
    for command in (
        ("run_test", "--vocab_file", "run/vocab.txt", "--test_prefix", "text.txt"),
        ("dump_weights", "--outfile", "w.hdf5"),
    ):
        ran = shell("bilm-tf", *command, "--save_dir", "run")
        assert (ran.code, "Other commands open its best model" in ran.err) == (2, True)
    train("text.txt", **settings, overwrite=True)
    assert not {"settings.json", "curves.png"} & {path.name for path in Path("run").iterdir()}


def test_a_training_where_nothing_can_be_written_is_refused_before_the_text_is_read(folder: Path) -> None:
    Path("a-file").touch()
    with pytest.raises(OutputError, match="Cannot write to a-file/run"):
        train("missing.txt", held_out="missing.txt", out="a-file/run", **SETTINGS)


def test_a_task_is_used_with_its_layers_computed_again(tmp_path: Path) -> None:
    save_model(random_model(), tmp_path / "bilm")
    task, config = tiny("ner", tmp_path / "data", {"model": str(tmp_path / "bilm")}, train={"epochs": 1})
    run = tmp_path / "run"
    train_task(task, config, run)
    before = open_run(run)
    examples = before.read(str(tmp_path / "data"))
    scores = before.score(examples)
    (run / JOURNAL).unlink()
    (cache,) = (run / "layers").iterdir()
    make_former(cache)
    opened = open_run(run)
    assert opened.score(examples) == scores
    opened.cache_layers(examples)
    assert not (cache / "checksums").exists()
    with pytest.raises(OtherVersionError, match="pass --overwrite"):
        train_task(task, config, run)
    train_task(task, config, run, overwrite=True)
    assert open_run(run).score(examples) == scores


def test_a_task_with_the_included_model_says_whose_it_needs(tmp_path: Path) -> None:
    task, config = tiny("ner", tmp_path / "data", {}, train={"epochs": 1})
    run = tmp_path / "run"
    train_task(task, config, run)
    facts = json.loads((run / FACTS).read_text())
    facts["bilm"]["fingerprint"] = "0" * 32
    (run / FACTS).write_text(json.dumps(facts | {"elmokit": "0.2.0 at commit 4bcb175c"}))
    expected = "started with the en-mini of elmokit 0.2.0, .* set elmo.model to the copy in .*config.toml"
    with pytest.raises(TrainingError, match=expected):
        open_run(run)
