"""Runs: each task fits its examples, the run directory is complete, and what does not fit is an error."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import elmokit
from elmokit.errors import (
    ConfigError,
    FormatError,
    ModelNotFoundError,
    OutputError,
    TextError,
    TrainingError,
    UnknownLabelError,
)
from elmokit.formats.save import save_model
from elmokit.storage.checksums import json_crc32
from elmokit.tasks.config_file import load_config
from elmokit.tasks.coref import parse_document
from elmokit.tasks.layer_cache import LayerCache
from elmokit.tasks.run import open_run, sample_texts, train_task
from elmokit.tasks.task_config import WordsConfig
from elmokit.tasks.task_table import TASKS
from elmokit.text.text import Text
from elmokit.training.training_run import run_origin
from tests.conftest import random_model
from tests.helpers.task_examples import QA_PASSAGE, TEXTS, changed, tiny

LINES = {
    "srl": ["Ada fixed it .", "0 wait ! |||"],
    "coref": ["Mira fixed her bike .", "It rides well .", "She is happy ."],
    "qa": [f"When did Ada fix her bike?\t{QA_PASSAGE}"],
}
"""Texts whose labels a model that has learned the examples of ``TEXTS`` knows."""


@pytest.fixture
def bilm(tmp_path: Path) -> str:
    save_model(random_model(), tmp_path / "bilm")
    return str(tmp_path / "bilm")


Learned = Callable[[str], Path]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Learned:
    """Train a task on its examples with ELMo, once, and return its run; the examples are beside it."""
    bilm = tmp_path_factory.mktemp("learned") / "bilm"
    save_model(random_model(), bilm)

    @functools.cache
    def train(name: str) -> Path:
        run = tmp_path_factory.mktemp(name) / "run"
        elmo = {"model": str(bilm), **({} if name == "ner" else {"output": {"dropout": 0.1}})}
        longer = {"train": {"epochs": 60, "optimizer": {"learning_rate": 0.003}}} if name in ("sst", "nli") else {}
        task, config = tiny(name, run.with_name("data"), elmo, **longer)
        results = train_task(task, config, run)
        assert results["dev"][task.metric]["mean"] == 100.0
        mixes = results["seeds"][0]["mixes"]
        assert set(mixes) == ({"input"} if name == "ner" else {"input", "output"})
        assert all(sum(mix["weights"]) == pytest.approx(1) for mix in mixes.values())
        return run

    return train


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TEXTS))
def test_each_task_fits_its_examples_with_elmo_and_gives_them_back(name: str, learned: Learned) -> None:
    opened = open_run(learned(name))
    examples = opened.read(str(learned(name).with_name("data")))
    assert opened.score(examples)[opened.task.metric] == 100.0
    assert not opened.model.training
    records = [opened.task.to_record(*pair) for pair in opened.predict_lines(LINES.get(name, []), "text", str.split)]
    if name == "srl":
        assert [[frame["predicate"] for frame in record["frames"]] for record in records] == [[1], [0]]
    if name == "qa":
        assert [record["answer"] for record in records] == ["May"]
    if name == "coref":
        document = parse_document(json.dumps(records[0]), "the record")
        assert document.sentences == examples[0].sentences
        assert document.clusters


def test_a_run_records_everything_needed_to_repeat_it(tmp_path: Path, bilm: str) -> None:
    vectors, test = tmp_path / "v.txt", tmp_path / "test"
    vectors.write_text("Mira 1 2\n")
    test.write_text(TEXTS["ner"])
    tables: dict[str, Any] = {
        "words": {"vectors": str(vectors), "dim": False, "lowercase": False},
        "data": {"test": str(test)},
        "train": {"epochs": 2, "seeds": [3, 4]},
    }
    task, config = tiny("ner", tmp_path / "data", {"model": bilm}, **tables)
    results = train_task(task, config, tmp_path / "run")
    assert load_config(tmp_path / "run/config.toml") == (task, config)
    facts = json.loads((tmp_path / "run/run.json").read_text())
    assert facts["command"] == run_origin()["command"]
    assert facts["elmokit"].startswith(elmokit.__version__)
    assert facts["directory"] == str(Path.cwd())
    assert {"torch", "numpy"} <= set(facts["versions"])
    n_bytes = len(TEXTS["ner"])
    sizes = {part: {name: size for name, (size, _) in files.items()} for part, files in facts["data"].items()}
    data = {str(tmp_path / "data"): n_bytes}
    assert sizes == {"train": data, "dev": data, "test": {str(test): n_bytes}, "vectors": {str(vectors): 9}}
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
    assert isinstance(opened.inputs.layers, LayerCache)
    assert ["Mira", "visits", "Oslo"] in opened.inputs.layers
    assert len(opened.predict(opened.read("../data"))) == 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no such names")
@pytest.mark.parametrize("what", ["file", "biLM", "working directory"])
def test_names_that_a_run_cannot_record_are_refused_before_anything_is_written(
    tmp_path: Path, bilm: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    name = os.fsdecode(b"caf\xe9")
    shutil.copytree(bilm, tmp_path / name / "bilm")
    (tmp_path / name / "a.train").write_text(TEXTS["ner"])
    monkeypatch.chdir(tmp_path / name if what == "working directory" else tmp_path)
    data = f"{tmp_path / name}/a.train" if what == "file" else str(tmp_path / "data")
    elmo = {"model": name if what == "biLM" else "bilm"}
    task, config = tiny("ner", tmp_path / "data", elmo, data={"train": data})
    with pytest.raises(TextError, match=r"caf.*is not UTF-8"):
        train_task(task, config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each task that labels are checked for."""
    folder = tmp_path_factory.mktemp("finished")
    for name in ("ner", "nli", "srl"):
        task, config = tiny(name, folder / f"{name}.data", train={"epochs": 1})
        train_task(task, config, folder / name)
    return folder


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("vocabulary.json", {"crc32": 1}),
        ("vocabulary.json", {"tables": {}}),
        ("vocabulary.json", {"chars": [1]}),
        ("seed-0/result.json", {"dev": {"f1": "high"}}),
        ("seed-0/best.safetensors", None),
        ("seed-0/result.json", None),
        ("vocabulary.json", None),
    ],
)
def test_a_damaged_run_is_named(finished: Path, tmp_path: Path, file: str, change: dict[str, Any] | None) -> None:
    run = shutil.copytree(finished / "ner", tmp_path / "run")
    if change is None:
        (run / file).write_text("[]")
    else:
        content = json.loads((run / file).read_text()) | change
        if file == "vocabulary.json" and "crc32" not in change:
            del content["crc32"]
            content["crc32"] = json_crc32(content)
        (run / file).write_text(json.dumps(content))
    with pytest.raises(FormatError, match=file):
        open_run(run)


@pytest.mark.parametrize(
    ("run", "seed", "error", "named"),
    [("ner", 7, ModelNotFoundError, "with seed 7. Finished: 0"), (".", None, ConfigError, "config.toml")],
)
def test_a_training_that_does_not_exist_is_named(
    finished: Path, run: str, seed: int | None, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        open_run(finished / run, seed=seed)


def test_layers_are_computed_before_training_and_shared_between_runs(tmp_path: Path, bilm: str) -> None:
    elmo = {"model": bilm, "cache": str(tmp_path / "cache")}
    task, config = tiny("ner", tmp_path / "data", elmo, train={"epochs": 1})
    reports: list[Any] = []
    for run in ("a", "b"):
        train_task(task, config, tmp_path / run, progress=lambda *report: reports.append(report))
        assert not (tmp_path / run / "layers").exists()
    # In the first run alone.
    assert [report for report in reports if report[0] == "layers"] == [("layers", n, 12) for n in (3, 8, 12)]


def test_seeds_can_be_added_when_a_run_is_resumed_and_nothing_else_can_change(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("Oslo 1 2\n")
    words = {"vectors": str(tmp_path / "v.txt"), "dim": False, "lowercase": False}
    task, config = tiny("ner", tmp_path / "data", words=words, train={"epochs": 2, "seeds": [1]})
    run = tmp_path / "run"
    first = train_task(task, config, run)
    more = train_task(task, changed(config, seeds=(2,)), run)
    assert more["seeds"][0] == first["seeds"][0]
    assert [result["seed"] for result in more["seeds"]] == [1, 2]
    assert load_config(run / "config.toml")[1].train.seeds == (1, 2)
    with pytest.raises(OutputError, match=r"train\.epochs 2, and now it is 3"):
        train_task(task, changed(config, epochs=3), run)
    for file, content, named in (
        ("data", TEXTS["ner"].replace("Mira", "Mara"), "another train file .*data"),
        ("v.txt", "Oslo 1 3\n", r"another vectors file .*v\.txt"),
    ):
        before = (tmp_path / file).read_text()
        (tmp_path / file).write_text(content)
        with pytest.raises(OutputError, match=named):
            train_task(task, config, run)
        (tmp_path / file).write_text(before)


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


@pytest.mark.parametrize(
    ("kind", "named", "tables"),
    [
        (ConfigError, "layers 0 to 2", {"elmo": {"model": "bilm", "input": {"layers": [5]}}}),
        (ConfigError, "'continued'", {"elmo": {"model": "bilm", "start": "continued"}}),
        (ModelNotFoundError, "no/such", {"elmo": {"model": "./no/such"}}),
        (ConfigError, "have 2 numbers", {"words": {"vectors": "v.txt", "lowercase": False}}),
        (TextError, "data.dev", {"data": {"dev": []}}),
        (TextError, "'none.conll'", {"data": {"dev": "none.conll"}}),
        (TextError, "data.train: empty", {"data": {"train": "empty"}}),
        (ConfigError, "There is no device 'nonsense'", {}),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    kind: type[Exception],
    named: str,
    tables: dict[str, Any],
    tmp_path: Path,
    bilm: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("v.txt").write_text("Mira 1 2\n")
    Path("empty").write_text("\n")
    task, config = tiny("ner", "data", **tables)
    with pytest.raises(kind, match=named):
        train_task(task, config, "run", device="cpu" if tables else "nonsense")
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("name", "content", "named", "is_unknown"),
    [
        ("ner", TEXTS["ner"].replace("I-LOC", "I-ORG"), "line 3: token 3 .* 'ORG', but this run knows LOC, PER", True),
        ("nli", TEXTS["nli"].replace('"neutral"', '"maybe"'), "line 3: the label 'maybe', but .* contradiction", True),
        ("srl", "0 wait ! ||| B-V B-ARG9\n", "line 1: token 2 .* 'B-ARG9', but this run knows O, B-ARG0", True),
        ("srl", TEXTS["srl"] + "0 wait ! |||\n", "line 8: no tags", False),
        ("ner", "\n", "There are no examples in the data", False),
    ],
)
def test_examples_that_cannot_be_evaluated_are_named(
    name: str, content: str, named: str, is_unknown: bool, finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").write_text(content)
    with pytest.raises(UnknownLabelError if is_unknown else TextError, match=named):
        open_run(finished / name).read(str(tmp_path / "other"), count_unknown_labels=not is_unknown)


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
    name: str, old: str, new: str, expected: dict[str, float], tmp_path: Path, learned: Learned
) -> None:
    (tmp_path / "other").write_text(TEXTS[name].replace(old, new))
    opened = open_run(learned(name))
    scores = opened.score(opened.read(str(tmp_path / "other"), count_unknown_labels=True))
    assert {score: scores[score] for score in expected} == pytest.approx(expected)


def test_another_bilm_is_refused(tmp_path: Path, bilm: str) -> None:
    task, config = tiny("ner", tmp_path / "data", {"model": bilm}, train={"epochs": 1})
    train_task(task, config, tmp_path / "run")
    save_model(random_model(seed=1), Path(bilm), overwrite=True)
    with pytest.raises(TrainingError, match="started with another biLM"):
        open_run(tmp_path / "run")
    with pytest.raises(OutputError, match="started with another biLM"):
        train_task(task, config, tmp_path / "run")


def test_the_best_seed_predicts(tmp_path: Path) -> None:
    task, config = tiny("ner", tmp_path / "data", train={"epochs": 2, "seeds": [1, 2]})
    run = tmp_path / "run"
    train_task(task, config, run)
    for seed, f1 in ((1, 10.0), (2, 90.0)):
        path = run / f"seed-{seed}/result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "dev": {"f1": f1}}))
    assert open_run(run).seed == 2
    assert open_run(run, seed=1).seed == 1


@pytest.fixture
def finetuned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls of ``finetune_for_task``, which only writes a model."""
    calls: list[tuple[Any, ...]] = []

    def finetune(source: str, sentences: Sequence[Sequence[str]], config: Any, folder: Path, *rest: Any) -> None:
        calls.append((source, [" ".join(sentence) for sentence in sentences], config.epochs, rest[0]))
        save_model(random_model(seed=5), folder)

    monkeypatch.setattr("elmokit.tasks.run.finetune_for_task", finetune)
    return calls


@pytest.mark.slow
def test_a_bilm_is_fine_tuned_on_whole_sentences(tmp_path: Path, bilm: str, finetuned: list[tuple[Any, ...]]) -> None:
    """Phrases are drawn by their sentences, and empty sides of pairs are skipped."""
    elmo, short = {"model": bilm, "finetune": {}}, {"epochs": 1}
    task, config = tiny("sst", tmp_path / "data", elmo, data={"phrases": "all"}, train=short)
    whole = [" ".join(sentence.tokens) for sentence in task.read(str(tmp_path / "data"), config)]
    for ratio, n_expected in ((1.0, 5), (0.5, 3)):
        train_task(task, replace(config, data=replace(config.data, train_ratio=ratio)), tmp_path / f"run-{ratio}")
        assert len(finetuned[-1][1]) == n_expected
        assert set(finetuned[-1][1]) <= set(whole)
    (tmp_path / "pairs").write_text("gold_label\tsentence1\tsentence2\nx\t\tthe cat\ny\tthe dog\tran\n")
    train_task(*tiny("nli", tmp_path / "pairs", elmo, train=short), tmp_path / "run-pairs")
    assert finetuned[-1][1] == ["the cat", "the dog", "ran"]


PREDICTOR_LINES = {
    "ner": ({"sentence": "Mira didn't see her."}, [["Mira", "did", "n't", "see", "her", "."]]),
    "sst": ({"sentence": "Great fun!", "label": "4"}, [["Great", "fun", "!"]]),
    "srl": ({"sentence": "Mira fixed it."}, [["Mira", "fixed", "it", "."]]),
    "coref": ({"document": "Mira left. She ran."}, [["Mira", "left", "."], ["She", "ran", "."]]),
    "nli": ({"premise": "Dogs run.", "hypothesis": "They move."}, [["Dogs", "run", "."], ["They", "move", "."]]),
    "qa": ({"passage": "Ada left.", "question": "Who?"}, [["Who", "?"], ["Ada", "left", "."]]),
}
"""What the predictors of AllenNLP read, and the tokens."""


@pytest.mark.parametrize("name", PREDICTOR_LINES)
def test_each_task_reads_what_the_predictor_of_allennlp_read(name: str) -> None:
    record, sentences = PREDICTOR_LINES[name]
    task = TASKS[name]
    (example,) = task.read_text([json.dumps(record)], "text", str.split, task.presets["small"])
    assert list(map(list, task.sentences(example))) == sentences
    if name in ("ner", "sst", "srl"):
        for key in ("tokens", "words"):
            (example,) = task.read_text([json.dumps({key: ["A", "b."]})], "text", str.split, task.presets["small"])
            assert list(map(list, task.sentences(example))) == [["A", "b."]]
        (example,) = task.read_text(["{ Mira } sleeps"], "text", str.split, task.presets["small"])
        assert list(map(list, task.sentences(example))) == [["{", "Mira", "}", "sleeps"]]


RAW = "Mira visits Oslo, and Ann didn't see her. She sleeps.\n" * 5


@pytest.mark.slow
def test_raw_text_is_refused_or_split(learned: Learned, tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text(RAW, encoding="utf-8")
    for name in ("ner", "sst", "srl", "coref"):
        opened = open_run(learned(name))
        with pytest.raises(TextError, match=r"raw\.txt looks like raw text: 'Oslo,'.* Pass --raw"):
            next(opened.predict_file(tmp_path / "raw.txt"))
        with pytest.warns(UserWarning, match="looks like raw text"):
            assert next(opened.predict_file(Text(tmp_path / "raw.txt")))
        sentences = []
        for example, _ in opened.predict_file(Text(tmp_path / "raw.txt", kind="raw")):
            sentences += map(list, opened.task.sentences(example))
        wanted = [
            ["Mira", "visits", "Oslo", ",", "and", "Ann", "did", "n't", "see", "her", "."],
            ["She", "sleeps", "."],
        ]
        assert sentences == wanted * 5
    (tmp_path / "raw.jsonl").write_text(json.dumps({"sentence": RAW}) + "\n", encoding="utf-8")
    opened = open_run(learned("sst"))
    assert len(list(opened.predict_file(tmp_path / "raw.jsonl"))) == 1
    with pytest.raises(ConfigError, match="The task nli splits its texts itself"):
        next(open_run(learned("nli")).predict_file(Text(tmp_path / "raw.txt", kind="raw")))
    with pytest.raises(ConfigError, match="for question answering"):
        next(opened.predict_file(tmp_path / "raw.jsonl", best=2))
    with pytest.raises(ConfigError, match="predict_file reads one file, but the text has 2"):
        next(opened.predict_file(Text([tmp_path / "raw.txt", tmp_path / "raw.jsonl"])))
    with pytest.raises(ConfigError, match="cannot read text of the kind 'fasta'"):
        next(opened.predict_file(Text(tmp_path / "raw.txt", kind="fasta")))


@pytest.mark.slow
def test_text_is_labeled_in_chunks(learned: Learned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmokit.tasks.run.READ_AHEAD_EXAMPLES", 2)
    lines = ["Mira visits Oslo", "", "The New York bus ."] * 2
    opened = open_run(learned("ner"))
    found = list(opened.predict_lines(lines, "text", str.split))
    assert [opened.task.to_text(*pair) for pair in found] == [
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
    with pytest.raises(ConfigError, match=f"The model of {name} has no inputs"):
        train_task(task, blind, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_smaller_sample_is_part_of_a_larger_one_and_texts_stay_together() -> None:
    texts = [f"text {n // 3}" for n in range(90)]
    samples = [sample_texts(texts, ratio) for ratio in (0.1, 0.3, 1.0)]
    assert [len(sample) for sample in samples] == [9, 27, 90]
    assert set(samples[0]) < set(samples[1]) < set(samples[2])
    assert sample_texts(["a"], 0.001) == [0]
    for ratio, n_texts, expected in ((0.07, 100, 7), (0.55, 100, 55), (0.14, 50, 7), (0.001, 100, 1), (0.071, 100, 8)):
        assert len(sample_texts([str(number) for number in range(n_texts)], ratio)) == expected
