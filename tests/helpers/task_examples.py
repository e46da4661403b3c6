"""A few written examples for each task, and small settings that fit them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from elmokit import Elmo
from elmokit.config import deep_merge, to_dict, to_toml
from elmokit.tasks.config_file import config_of
from elmokit.tasks.inputs import ElmoShape, Inputs, LayersInModel
from elmokit.tasks.task import TaskSetup
from elmokit.tasks.task_vocabulary import make_vocabulary
from elmokit.tasks.trained_bilm import copy_for_training

NER = """-DOCSTART- -X- -X- O

Mira NNP I-NP I-PER
visits VBZ I-VP O
Oslo NNP I-NP I-LOC

The DT I-NP O
New NNP I-NP I-LOC
York NNP I-NP I-LOC
bus NN I-NP O
. . O O

Ann NNP I-NP I-PER
Lee NNP I-NP I-PER
Mira NNP I-NP B-PER
sleep VB I-VP O
"""
SST = """(3 (2 Mira) (3 (2 rides) (4 superbly)))
(1 (2 It) (1 (2 was) (1 (1 rather) (0 dull))))
(2 (2 A) (2 (2 film) (2 .)))
(4 (4 Great) (3 (2 fun) (2 !)))
(0 (2 Simply) (0 (0 awful) (2 .)))
"""
NLI = """{"gold_label":"entailment","sentence1":"A girl fixes a bike.","sentence2":"Someone repairs something."}
{"gold_label":"contradiction","sentence1":"A girl fixes a bike.","sentence2":"The girl is asleep."}
{"gold_label":"neutral","sentence1":"A girl fixes a bike.","sentence2":"The bike is new."}
{"gold_label":"-","sentence1":"Two dogs run.","sentence2":"Two animals race."}
{"gold_label":"entailment","sentence1":"Two dogs run.","sentence2":"Animals are moving."}
"""
SRL = """1 Mira fixed her bike . ||| B-ARG0 B-V B-ARG1 I-ARG1 O
1 Ada sold the old car . ||| B-ARG0 B-V B-ARG1 I-ARG1 I-ARG1 O
3 yesterday , Mira sold it . ||| B-ARGM-TMP O B-ARG0 B-V B-ARG1 O
4 the car that Ada fixed ran . ||| B-ARG1 I-ARG1 B-R-ARG1 B-ARG0 B-V O O
5 the car that Ada fixed ran . ||| B-ARG0 I-ARG0 I-ARG0 I-ARG0 I-ARG0 B-V O
2 it , said Ada , broke . ||| B-ARG1 O B-V B-ARG0 O B-C-ARG1 O
0 wait ! ||| B-V O
"""
COREF = """{"doc_key": "nw/one_0", "sentences": [["Mira", "fixed", "her", "bike", "."], ["It", "rides", "well", "."], \
["She", "is", "happy", "."]], "speakers": [["a", "a", "a", "a", "a"], ["b", "b", "b", "b"], ["a", "a", "a", "a"]], \
"clusters": [[[0, 0], [2, 2], [9, 9]], [[2, 3], [5, 5]]]}
{"doc_key": "bc/two_0", "sentences": [["Ada", "sold", "the", "car", "."], \
["Mira", "bought", "it", "from", "her", "."]], "clusters": [[[0, 0], [9, 9]], [[2, 3], [7, 7]]]}
"""
QA_PASSAGE = "Ada fixed her bike in May. The old chain had snapped twice, so Ada bought a new one in Oslo."
QA_ANSWERS = {
    "When did Ada fix her bike?": "May",
    "What had snapped?": "The old chain",
    "Where did Ada buy a chain?": "Oslo",
    "Who fixed the bike?": "Ada",
}


def squad(answers: dict[str, str], without_answer: tuple[str, ...] = ()) -> str:
    """Questions on ``QA_PASSAGE`` as SQuAD's JSON."""
    questions: list[dict[str, Any]] = [
        {"id": f"q{n}", "question": asked, "answers": [{"text": answer, "answer_start": QA_PASSAGE.index(answer)}]}
        for n, (asked, answer) in enumerate(answers.items())
    ]
    questions += [{"id": asked, "question": asked, "answers": [], "is_impossible": True} for asked in without_answer]
    return json.dumps({"data": [{"title": "Demo", "paragraphs": [{"context": QA_PASSAGE, "qas": questions}]}]})


TEXTS = {"ner": NER, "sst": SST, "nli": NLI, "srl": SRL, "coref": COREF, "qa": squad(QA_ANSWERS)}
MODELS: dict[str, dict[str, Any]] = {
    "ner": {"hidden": [16], "dropout": 0.1},
    "sst": {"input_dropout": 0.1, "projection_dim": 16, "hidden": 16, "output_hidden": [16], "output_dropout": [0.1]},
    "qa": {"hidden": 16, "dropout": 0.0},
    "nli": {"hidden": 16, "dropout": 0.1, "attention_dropout": 0.1},
    "srl": {"predicate_dim": 6, "hidden": 24, "layers": 2},
    "coref": {"hidden": 16, "scorer_hidden": 16, "max_width": 2, "keep": 0.9, "lexical_dropout": 0.1},
}


def tiny(name: str, path: Path | str, elmo: dict[str, Any] | None = None, **tables: Any) -> tuple[Any, Any]:
    """A task and a config that fits its few examples; written to the path if nothing is there."""
    path = Path(path)
    if not path.exists():
        path.write_text(TEXTS[name], encoding="utf-8")
    content = {
        "task": name,
        "preset": "small",
        "data": {"train": str(path), "dev": str(path)},
        "words": {"dim": 8, "min_count": 1},
        "model": MODELS[name],
        "train": {
            "batch_size": 2,
            "epochs": 80 if name == "coref" else 40,
            "patience": False,
            "plateau": False,
            "average": False,
            "optimizer": {"learning_rate": 0.01},
        },
    }
    if elmo is not None:
        content["elmo"] = elmo
    return config_of(deep_merge(content, tables), "the test")


def built(
    name: str, folder: Path, elmo: dict[str, Any] | None = None, **tables: Any
) -> tuple[TaskSetup, Any, list[Any]]:
    """A task's untrained model, with the biLM inside if it has one, and the examples that it knows the words of."""
    task, config = tiny(name, folder / f"{name}.data", elmo, **tables)
    examples = list(task.read(str(folder / f"{name}.data"), config))
    opened = None if elmo is None else Elmo.from_pretrained(config.elmo.model, start=config.elmo.start)
    layers = None if opened is None else LayersInModel(ElmoShape.of(opened))
    inputs = Inputs(make_vocabulary(task, config, examples, []).vocabularies, layers)
    setup = TaskSetup(task, config, inputs, task.labels(examples, config), torch.device("cpu"))
    torch.manual_seed(0)
    return setup, setup.build(bilm=None if opened is None else copy_for_training(opened)), examples


def changed(config: Any, **train: Any) -> Any:
    """The config with other training settings."""
    return replace(config, train=replace(config.train, **train))


def log_of(seed: Path) -> list[dict[str, Any]]:
    """The evaluations that the training of a seed has logged, without what was measured."""
    lines = [json.loads(line) for line in (seed / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds")
    return lines


def kept(seed: Path) -> dict[str, Any]:
    """The log of a seed's training, its result, and the bytes of its weights."""
    weights = [path for path in seed.rglob("*.safetensors") if "checkpoints" not in path.parts]
    files = {str(path.relative_to(seed)): path.read_bytes() for path in (*weights, seed / "result.json")}
    return {"log": log_of(seed), **files}


def write_config(name: str = "ner", folder: Path | str = ".", **tables: Any) -> None:
    """Write a task's examples, ``data``, and a config that fits them, ``config.toml``."""
    (Path(folder) / "data").write_text(TEXTS[name], encoding="utf-8")
    _, config = tiny(name, Path(folder) / "data", **tables)
    content = {"task": name, **to_dict(config)}
    content["data"] |= {"train": "data", "dev": "data"}
    (Path(folder) / "config.toml").write_text(to_toml(content), encoding="utf-8")
