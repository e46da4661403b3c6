"""ELMo in lm-eval, through that library's own tasks and evaluator."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import LanguageModel, PretrainedBiLM
from elmokit.errors import ConfigError
from elmokit.formats.save import save_model
from tests.helpers.hosts import need_host

need_host("lm-eval")
pytestmark = pytest.mark.filterwarnings("default")  # its dependencies warn on import

from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from elmokit.integrations.lm_eval import ElmoLM  # noqa: E402

PAIRS = [
    ("the cat sat on the mat .", "the cat on sat the mat ."),
    ("the dog ran .", "the dog zebra ."),
    ("the cat ran", "cat ran the"),
    ("the mat sat", "sat mat the"),
]
DIRECTIONS = ["forward", "backward", "both"]


@pytest.fixture(scope="module")
def manager() -> TaskManager:
    """All tasks of lm-eval, which take seconds to find."""
    return TaskManager()


def requests(kind: str, *arguments: tuple[str, ...]) -> list[Any]:
    return [Instance(kind, {}, arguments=texts, idx=0) for texts in arguments]


def local_blimp(folder: Path) -> dict[str, Any]:
    """lm-eval's own task file of a paradigm, with data on this machine in place of the Hub's."""
    data = folder / "pairs.jsonl"
    data.write_text("".join(json.dumps({"sentence_good": good, "sentence_bad": bad}) + "\n" for good, bad in PAIRS))
    files = {"data_files": {"train": str(data)}, "cache_dir": str(folder / "cache")}
    task = {"task": "blimp_adjunct_island", "dataset_path": "json", "dataset_name": None, "dataset_kwargs": files}
    return {"group": "local", "task": [task]}


@pytest.mark.slow
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_blimp_task_gives_the_accuracy_of_elmokit(
    model: PretrainedBiLM, tmp_path: Path, direction: str, manager: TaskManager
) -> None:
    lm = ElmoLM(model, direction=direction)  # type: ignore[arg-type]
    results = simple_evaluate(lm, tasks=[local_blimp(tmp_path)], task_manager=manager, bootstrap_iters=0)
    ((name, samples),) = results["samples"].items()
    expected = LanguageModel(model).minimal_pairs([(good.split(), bad.split()) for good, bad in PAIRS])
    rows = {"forward": [0], "backward": [1], "both": [0, 1]}[direction]
    scores = [[float(nats) for nats, _ in sample["filtered_resps"]] for sample in samples]
    np.testing.assert_allclose(scores, -expected.nats[:, :, rows].sum(axis=2), rtol=1e-6)
    accuracy = (expected.nats[:, 0][:, rows].sum(axis=1) < expected.nats[:, 1][:, rows].sum(axis=1)).mean()
    assert results["results"][name]["acc,none"] == accuracy


@pytest.mark.slow
def test_command_line_evaluates_a_model_by_its_path(model: PretrainedBiLM, tmp_path: Path) -> None:
    save_model(model, tmp_path / "model")
    task = local_blimp(tmp_path)["task"][0] | {"task": "local_pairs", "output_type": "multiple_choice"}
    task |= {"validation_split": "train", "doc_to_text": "", "doc_to_target": 0, "test_split": None}
    task |= {"doc_to_choice": "{{[sentence_good, sentence_bad]}}"}
    (tmp_path / "local_pairs.yaml").write_text(json.dumps(task))  # YAML contains JSON
    command = [sys.executable, "-m", "elmokit.integrations.lm_eval", "--model", "elmokit", "--tasks", "local_pairs"]
    options = ["--model_args", f"pretrained={tmp_path / 'model'},direction=both", "--include_path", str(tmp_path)]
    output = subprocess.run([*command, *options], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    accuracy = LanguageModel(model).minimal_pairs([(good.split(), bad.split()) for good, bad in PAIRS]).accuracy
    assert re.search(r"\|acc +\|.*?\| *([\d.]+)\|", output)[1] == f"{accuracy:.2f}"  # type: ignore[index]


def test_continuation_is_conditioned_on_its_context(model: PretrainedBiLM) -> None:
    (sentence,) = LanguageModel(model).surprisal([["the", "cat", "sat", "on", "the", "mat"]])
    given = requests("loglikelihood", ("the cat sat", " on the mat"))
    ((whole, _),) = ElmoLM(model).loglikelihood(given)
    assert whole == pytest.approx(-sentence.nats[0, 4:].sum())
    ((without_end, _),) = ElmoLM(model, sentence_end=False).loglikelihood(given)
    assert without_end == pytest.approx(-sentence.nats[0, 4:7].sum())
    # Only the forward direction can read a context alone.
    ((joint, is_greedy),) = ElmoLM(model, direction="backward").loglikelihood(given)
    assert joint == pytest.approx(-sentence.total_nats[1])
    assert not is_greedy


def test_continuation_is_greedy_if_the_model_predicts_each_word(model: PretrainedBiLM) -> None:
    lm = LanguageModel(model)
    context = ["the", "cat"]
    predicted: list[str] = []
    for _ in range(3):
        (best,) = lm.substitutes([*context, *predicted, "."], 2 + len(predicted), "forward", n=1, special_words=True)
        predicted.append(best.word)
    other = "dog" if predicted[-1] != "dog" else "mat"
    given = [("the cat", " ".join(words)) for words in (predicted, [*predicted[:-1], other], ["zebra"])]
    scored = ElmoLM(model, tokenization="spaces").loglikelihood(requests("loglikelihood", *given))
    assert [is_greedy for _, is_greedy in scored] == ["<UNK>" not in predicted, False, False]


def test_text_is_scored_line_by_line(model: PretrainedBiLM) -> None:
    text = "the cat sat .\n\nthe dog ran .\n"
    first, second = LanguageModel(model).surprisal([["the", "cat", "sat", "."], ["the", "dog", "ran", "."]])
    given = requests("loglikelihood_rolling", (text,), ("",), ("the dog ran .",))
    for row, direction in enumerate(("forward", "backward")):
        totals = ElmoLM(model, direction=direction).loglikelihood_rolling(given)  # type: ignore[arg-type]
        nats = [sentence.total_nats[row] for sentence in (first, second)]
        assert totals == pytest.approx([-sum(nats), 0.0, -nats[1]])
    assert math.isfinite(totals[0])


def test_what_it_cannot_do_is_refused(model: PretrainedBiLM) -> None:
    with pytest.raises(ConfigError, match="choose forward or backward or both"):
        ElmoLM(model, direction="left")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Choose 'treebank' or 'spaces'"):
        ElmoLM(model, tokenization="bpe")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a perplexity needs one"):
        ElmoLM(model, direction="both").loglikelihood_rolling([])
    with pytest.raises(ConfigError, match="only scores it"):
        ElmoLM(model).generate_until([])
