"""Runs: each task fits its examples, the run directory is complete, and what does not fit is an error."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import elmokit
from elmokit.errors import (
    ConfigError,
    FormatError,
    LockedError,
    ModelNotFoundError,
    OutputError,
    TextError,
    TrainingError,
)
from elmokit.formats.save import save_model
from elmokit.storage.checksums import json_crc32
from elmokit.storage.lock import file_lock
from elmokit.storage.resumable import ResumableStore
from elmokit.tasks.config import FinetuneConfig, WordsConfig
from elmokit.tasks.run import open_run, train_task
from elmokit.tasks.table import load_config
from elmokit.training.run import run_origin
from tests.conftest import random_model
from tests.helpers.task_examples import TEXTS, changed, tiny


@pytest.fixture
def bilm(tmp_path: Path) -> str:
    save_model(random_model(), tmp_path / "bilm")
    return str(tmp_path / "bilm")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TEXTS))
@pytest.mark.parametrize("with_elmo", [False, True])
def test_each_task_fits_its_examples_and_gives_them_back(name: str, with_elmo: bool, tmp_path: Path, bilm: str) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    elmo = {"model": bilm, **({} if name == "ner" else {"output": {"dropout": 0.1}})}
    longer = {"train": {"epochs": 60, "optimizer": {"learning_rate": 0.003}}} if name in ("sst", "nli") else {}
    task, config = tiny(name, data, elmo if with_elmo else None, **longer)
    results = train_task(task, config, run)
    assert results["dev"][task.metric]["mean"] == 100.0
    mixes = results["seeds"][0]["mixes"]
    assert set(mixes) == ({"ner": {"input"}}.get(name, {"input", "output"}) if with_elmo else set())
    assert all(sum(mix["weights"]) == pytest.approx(1) for mix in mixes.values())
    opened = open_run(run)
    examples = opened.read(str(data))
    assert opened.score(examples)[task.metric] == 100.0
    assert not opened.model.training


def test_a_run_records_everything_needed_to_repeat_it(tmp_path: Path, bilm: str) -> None:
    task, config = tiny("ner", tmp_path / "data", {"model": bilm}, train={"epochs": 2, "seeds": [3, 4]})
    results = train_task(task, config, tmp_path / "run")
    assert load_config(tmp_path / "run/config.toml") == (task, config)
    facts = json.loads((tmp_path / "run/run.json").read_text())
    assert facts["command"] == run_origin()["command"]
    assert facts["elmokit"].startswith(elmokit.__version__)
    assert facts["data"]["train"] == {str(tmp_path / "data"): [len(TEXTS["ner"]), facts["data"]["dev"].popitem()[1][1]]}
    assert facts["bilm"]["card"] == {"note": "random"}
    again = train_task(*load_config(tmp_path / "run/config.toml"), tmp_path / "again")
    assert again == results == json.loads((tmp_path / "run/results.json").read_text())
    scores = [result["dev"]["f1"] for result in results["seeds"]]
    assert results["dev"]["f1"]["mean"] == pytest.approx(sum(scores) / 2)
    assert results["dev"]["f1"]["deviation"] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5)


def test_a_run_opens_from_another_folder(tmp_path: Path, bilm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task, config = tiny("ner", "data", {"model": "bilm", "cache": "cache"}, train={"epochs": 1})
    train_task(task, config, "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    opened = open_run("../run")
    assert opened.cache is not None
    assert ["Mira", "visits", "Oslo"] in opened.cache
    assert len(opened.predict(opened.read("../data"))) == 3


def test_a_run_records_its_files_and_packages(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("Mira 1 2\n")
    words = {"vectors": str(tmp_path / "v.txt"), "dim": False, "lowercase": False}
    (tmp_path / "test").write_text(TEXTS["ner"])
    task, config = tiny(
        "ner", tmp_path / "data", words=words, data={"test": str(tmp_path / "test")}, train={"epochs": 1}
    )
    train_task(task, config, tmp_path / "run")
    facts = json.loads((tmp_path / "run/run.json").read_text())
    assert list(facts["data"]) == ["train", "dev", "test", "vectors"]
    assert facts["data"]["test"][str(tmp_path / "test")][0] == len(TEXTS["ner"])
    assert facts["data"]["vectors"][str(tmp_path / "v.txt")][0] == 9
    assert facts["directory"] == str(Path.cwd())
    assert {"torch", "numpy"} <= set(facts["versions"])
    (tmp_path / "v.txt").write_text("Mira 1 3\n")
    with pytest.raises(TrainingError, match=r"data of .* have changed"):
        train_task(task, config, tmp_path / "run")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no such names")
@pytest.mark.parametrize("what", ["pattern", "file", "biLM", "cache", "working directory"])
def test_names_that_a_run_cannot_record_are_refused_before_anything_is_written(
    tmp_path: Path, bilm: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name if what == "working directory" else tmp_path)
    (tmp_path / name / "a.train").write_text(TEXTS["ner"])
    data = {"pattern": f"{tmp_path}/*/*.train", "file": f"{tmp_path / name}/a.train"}.get(what, str(tmp_path / "data"))
    if what == "working directory":
        shutil.copytree(bilm, "bilm")
    elmo = {"model": name if what == "biLM" else "bilm"} | ({"cache": name} if what == "cache" else {})
    task, config = tiny("ner", tmp_path / "data", elmo, data={"train": data})
    with pytest.raises(TextError, match=r"caf.*is not UTF-8, so a run cannot record it"):
        train_task(task, config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_killed_before_it_wrote_anything_can_be_started_again(tmp_path: Path) -> None:
    task, config = tiny("ner", tmp_path / "data", train={"epochs": 1})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").touch()
    (tmp_path / "run" / ".vocabulary.json.abcdefgh").mkdir()
    train_task(task, config, tmp_path / "run")
    assert not list((tmp_path / "run").rglob(".*"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").touch()
    with pytest.raises(OutputError, match="other already exists and is not a run to continue"):
        train_task(task, config, tmp_path / "other")


@pytest.mark.parametrize(
    "change",
    [{"tables": {}}, {"tables": "x"}, {"max_chars": [[1]]}, {"chars": [1]}, {"labels": {}}, {"labels": "x"}],
)
def test_a_damaged_vocabulary_is_named(finished: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    content = json.loads((run / "vocabulary.json").read_text())
    without_checksum = {name: value for name, value in content.items() if name != "crc32"}
    changed = without_checksum | change
    for damaged in (content | change, without_checksum, changed | {"crc32": json_crc32(changed)}):
        (run / "vocabulary.json").write_text(json.dumps(damaged))
        with pytest.raises(FormatError, match=r"vocabulary\.json is damaged"):
            open_run(run)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    task, config = tiny("ner", folder / "data", train={"epochs": 1})
    train_task(task, config, folder / "run")
    return folder / "run"


def test_layers_are_computed_before_training_and_shared_between_runs(
    tmp_path: Path, bilm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    elmo = {"model": bilm, "cache": str(tmp_path / "cache")}
    task, config = tiny("ner", tmp_path / "data", elmo, train={"epochs": 2})
    reports: list[Any] = []
    train_task(task, config, tmp_path / "a", progress=lambda *report: reports.append(report))
    assert [report for report in reports if report[0] == "layers"] == [("layers", n, 12) for n in (3, 8, 12)]
    assert not (tmp_path / "a/layers").exists()
    monkeypatch.setattr(ResumableStore, "append", lambda *_: pytest.fail("nothing is to be computed"))
    train_task(task, config, tmp_path / "b")


def test_seeds_can_be_added_when_a_run_is_resumed_and_nothing_else_can_change(tmp_path: Path) -> None:
    task, config = tiny("ner", tmp_path / "data", train={"epochs": 2, "seeds": [1]})
    run = tmp_path / "run"
    first = train_task(task, config, run)
    more = train_task(task, changed(config, seeds=(1, 2)), run)
    assert more["seeds"][0] == first["seeds"][0]
    assert [result["seed"] for result in more["seeds"]] == [1, 2]
    with pytest.raises(TrainingError, match=r"other settings: train\.epochs was 2 and is 3"):
        train_task(task, changed(config, epochs=3), run)
    (tmp_path / "data").write_text(TEXTS["ner"].replace("Mira", "Mara"))
    with pytest.raises(TrainingError, match="words or labels"):
        train_task(task, config, run)
    (tmp_path / "data").write_text(TEXTS["ner"].replace("VBZ", "VBP"))
    with pytest.raises(TrainingError, match=r"data of .* have changed"):
        train_task(task, config, run)


def test_overwriting_a_run_starts_anew(tmp_path: Path) -> None:
    task, config = tiny("ner", tmp_path / "data", train={"epochs": 1, "seeds": [1, 2]})
    run = tmp_path / "run"
    train_task(task, config, run)
    with pytest.raises(ConfigError, match="There is no device"):
        train_task(task, config, run, device="nonsense", overwrite=True)
    assert open_run(run, seed=2).seed == 2  # a mistake deletes nothing
    results = train_task(task, changed(config, epochs=2, seeds=(1,)), run, overwrite=True)
    assert results["seeds"][0]["n_epochs"] == 2
    assert not (run / "seed-2").exists()


def test_two_processes_do_not_train_in_one_run(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    task, config = tiny("ner", tmp_path / "data", train={"epochs": 1})
    run = tmp_path / "run"
    with file_lock(run / "lock"), pytest.raises(LockedError, match="Another process is training in"):
        train_task(task, config, run)
    assert not (run / "config.toml").exists()
    train_task(task, config, run)


def test_bad_settings_are_refused_before_anything_is_written(tmp_path: Path, bilm: str) -> None:
    run = tmp_path / "run"
    (tmp_path / "v.txt").write_text("Mira 1 2\n")
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ConfigError, "layers 0 to 2", {"elmo": {"model": bilm, "input": {"layers": [5]}}}),
        (ModelNotFoundError, "no/such", {"elmo": {"model": "./no/such"}}),
        (ConfigError, "have 2 numbers", {"words": {"vectors": str(tmp_path / "v.txt"), "lowercase": False}}),
        (ConfigError, "names no file", {"data": {"dev": []}}),
        (TextError, "No file matches 'none.conll'", {"data": {"dev": "none.conll"}}),
    ]
    for kind, message, tables in cases:
        elmo = tables.pop("elmo", None)
        task, config = tiny("ner", tmp_path / "data", elmo, **tables)
        with pytest.raises(kind, match=message):
            train_task(task, config, run)
        assert not run.exists()
    task, config = tiny("ner", tmp_path / "data")
    with pytest.raises(ConfigError, match="There is no device 'nonsense'"):
        train_task(task, config, run, device="nonsense")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(TextError, match="There is no example"):
        train_task(*tiny("ner", tmp_path / "empty"), run)


def test_unknown_labels_at_test_time_are_refused(tmp_path: Path) -> None:
    for name, old, new, message in (
        ("ner", "I-LOC", "I-ORG", "line 3: token 3 of the sentence has the type 'ORG', and this run knows LOC, PER"),
        (
            "nli",
            '"neutral"',
            '"maybe"',
            "line 3: the label 'maybe', and this run knows contradiction, entailment, neutral",
        ),
    ):
        task, config = tiny(name, tmp_path / name, train={"epochs": 1})
        train_task(task, config, tmp_path / f"run-{name}")
        (tmp_path / "other").write_text(TEXTS[name].replace(old, new))
        with pytest.raises(TextError) as error:
            open_run(tmp_path / f"run-{name}").read(str(tmp_path / "other"))
        assert message in str(error.value)
        assert "--count-unknown-labels" in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("ner", "I-LOC", "I-ORG", {"precision": 60.0, "recall": 60.0, "f1-ORG": 0.0, "f1-PER": 100.0}),
        ("srl", "ARGM-TMP", "ARGM-CAU", {"recall": 100 * 12 / 13, "f1-ARGM-CAU": 0.0, "f1-ARG0": 100.0}),
        ("nli", '"neutral"', '"maybe"', {"accuracy": 75.0}),
    ],
)
def test_unknown_labels_count_as_missed_on_request(
    name: str, old: str, new: str, expected: dict[str, float], tmp_path: Path
) -> None:
    task, config = tiny(name, tmp_path / "data")
    train_task(task, config, tmp_path / "run")
    (tmp_path / "other").write_text(TEXTS[name].replace(old, new))
    opened = open_run(tmp_path / "run")
    scores = opened.score(opened.read(str(tmp_path / "other"), count_unknown_labels=True))
    assert {score: scores[score] for score in expected} == pytest.approx(expected)


def test_missing_labels_are_refused_even_if_unknown_ones_count(tmp_path: Path) -> None:
    task, config = tiny("srl", tmp_path / "data", train={"epochs": 1})
    train_task(task, config, tmp_path / "run")
    (tmp_path / "other").write_text("1 Mira fixed it ||| B-ARG0 B-V B-ARG1\n1 Mira sold it |||\n")
    with pytest.raises(TextError, match="line 2: no tags"):
        open_run(tmp_path / "run").read(str(tmp_path / "other"), count_unknown_labels=True)


def test_another_bilm_or_a_damaged_run_is_refused(tmp_path: Path, bilm: str) -> None:
    run = tmp_path / "run"
    task, config = tiny("ner", tmp_path / "data", {"model": bilm}, train={"epochs": 1})
    train_task(task, config, run)
    shutil.rmtree(bilm)
    save_model(random_model(seed=1), Path(bilm))
    with pytest.raises(FormatError, match="trained with another biLM"):
        open_run(run)
    with pytest.raises(TrainingError, match=r"biLM of .* has changed"):
        train_task(task, config, run)
    shutil.rmtree(bilm)
    save_model(random_model(), Path(bilm))
    with pytest.raises(ModelNotFoundError, match=r"with seed 7. Finished seeds: 0"):
        open_run(run, seed=7)
    (run / "seed-0/best.safetensors").write_bytes(b"")
    with pytest.raises(FormatError, match=r"best\.safetensors is damaged"):
        open_run(run)
    (run / "vocabulary.json").write_text("[]")
    with pytest.raises(FormatError, match="not an object"):
        open_run(run)
    with pytest.raises(ModelNotFoundError, match="not a task's run"):
        open_run(tmp_path)


def test_the_best_seed_predicts(tmp_path: Path) -> None:
    task, config = tiny("ner", tmp_path / "data", train={"epochs": 2, "seeds": [1, 2]})
    run = tmp_path / "run"
    train_task(task, config, run)
    for seed, f1 in ((1, 10.0), (2, 90.0)):
        path = run / f"seed-{seed}/result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "dev": {"f1": f1}}))
    assert open_run(run).seed == 2
    assert open_run(run, seed=1).seed == 1


def test_the_bilm_may_be_fine_tuned_on_the_training_text_first(
    tmp_path: Path, bilm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def finetune(
        source: str | None,
        sentences: Sequence[Sequence[str]],
        config: FinetuneConfig,
        folder: Path,
        device: torch.device,
        progress: Any,
    ) -> None:
        given.append((source, list(map(list, sentences)), config.epochs, device))
        save_model(random_model(seed=5), folder)

    monkeypatch.setattr("elmokit.tasks.run.finetune_for_task", finetune)
    task, config = tiny("ner", tmp_path / "data", {"model": bilm, "finetune": {}}, train={"epochs": 1})
    train_task(task, config, tmp_path / "run")
    ((source, sentences, epochs, device),) = given
    assert (source, epochs, sentences[0]) == (bilm, 1, ["Mira", "visits", "Oslo"])
    assert device == torch.device("cpu")
    train_task(task, config, tmp_path / "run")
    assert len(given) == 1  # what is tuned stays in the run
    shutil.rmtree(bilm)
    assert open_run(tmp_path / "run").cache is not None


def test_phrases_are_drawn_by_their_sentences_and_a_bilm_learns_whole_sentences(
    tmp_path: Path, bilm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reached(Exception):
        pass

    def finetune(source: str | None, sentences: Sequence[Sequence[str]], *rest: Any) -> None:
        raise Reached([" ".join(sentence) for sentence in sentences])

    monkeypatch.setattr("elmokit.tasks.run.finetune_for_task", finetune)
    task, config = tiny("sst", tmp_path / "data", {"model": bilm, "finetune": {}}, data={"phrases": "all"})
    whole = [" ".join(sentence.tokens) for sentence in task.read(str(tmp_path / "data"), config)]
    for ratio, n_expected in ((1.0, 5), (0.5, 3)):
        drawn = replace(config, data=replace(config.data, train_ratio=ratio))
        with pytest.raises(Reached) as reached:
            train_task(task, drawn, tmp_path / f"run-{ratio}")
        (sentences,) = reached.value.args
        assert len(sentences) == n_expected
        assert set(sentences) <= set(whole)


def test_text_is_labeled_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmokit.tasks.run.READ_AHEAD_EXAMPLES", 2)
    task, config = tiny("ner", tmp_path / "data", train={"epochs": 30})
    train_task(task, config, tmp_path / "run")
    lines = ["Mira visits Oslo", "", "The New York bus ."] * 2
    found = list(open_run(tmp_path / "run").predict_lines(lines, "text", str.split))
    assert [task.to_text(*pair) for pair in found] == [
        "[PER Mira] visits [LOC Oslo]",
        "",
        "The [LOC New York] bus .",
    ] * 2


@pytest.mark.parametrize("name", TEXTS)
def test_a_model_without_input_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    task, config = tiny(name, tmp_path / "data")
    blind = replace(config, chars=None, words=None)
    if name == "coref":  # a table for heads alone is not read
        blind = replace(blind, head_words=WordsConfig(dim=4))
    (tmp_path / "data").unlink()
    with pytest.raises(ConfigError, match=f"The model of {name} has nothing to read: give words, chars or elmo.input"):
        train_task(task, blind, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_fine_tuning_skips_empty_sides_of_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").write_text("gold_label\tsentence1\tsentence2\nx\t\tthe cat\ny\tthe dog\tran\n")
    save_model(random_model(), tmp_path / "bilm")
    elmo = {"model": str(tmp_path / "bilm"), "finetune": {"epochs": 1}}
    task, config = tiny("nli", tmp_path / "data", elmo)
    seen: list[tuple[str, ...]] = []

    class Seen(Exception):
        pass

    def finetune(model: str, sentences: Sequence[tuple[str, ...]], *rest: Any) -> None:
        seen.extend(sentences)
        raise Seen

    monkeypatch.setattr("elmokit.tasks.run.finetune_for_task", finetune)
    with pytest.raises(Seen):
        train_task(task, config, tmp_path / "run")
    assert [" ".join(tokens) for tokens in seen] == ["the cat", "the dog", "ran"]
