"""ELMo in lm-eval, through that library's own tasks and evaluator."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points, version
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
from lm_eval.api import registry  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.model import LM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from elmokit.integrations.lm_eval import ElmoLM  # noqa: E402

PAIRS = [
    ("the cat sat on the mat .", "the cat on sat the mat ."),
    ("the dog ran .", "the dog zebra ."),
    ("the cat ran", "cat ran the"),
    ("the mat sat", "sat mat the"),
]
DIRECTIONS = ["forward", "backward", "both"]
OFFLINE = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


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


def evaluate_in_a_shell(command: list[str], model: str, arguments: str, folder: Path) -> str:
    """Evaluate the pairs with a command line of lm-eval, and return the accuracy that it prints."""
    task = local_blimp(folder)["task"][0] | {"task": "local_pairs", "output_type": "multiple_choice"}
    task |= {"validation_split": "train", "doc_to_text": "", "doc_to_target": 0, "test_split": None}
    task |= {"doc_to_choice": "{{[sentence_good, sentence_bad]}}"}
    (folder / "local_pairs.yaml").write_text(json.dumps(task))  # YAML contains JSON
    options = ["--model", model, "--model_args", arguments, "--tasks", "local_pairs", "--include_path", str(folder)]
    ran = subprocess.run(
        [*command, *options, "--device", "cpu"], capture_output=True, text=True, cwd=folder, env=OFFLINE, check=False
    )
    assert ran.returncode == 0, ran.stderr
    accuracy = re.search(r"\|acc +\|.*?\| *([\d.]+)\|", ran.stdout)
    assert accuracy is not None, ran.stdout
    return accuracy[1]


@pytest.mark.slow
@pytest.mark.parametrize("command", [["lm_eval"], [sys.executable, "-m", "elmokit.integrations.lm_eval"]])
def test_command_line_evaluates_a_model_by_its_path(command: list[str], model: PretrainedBiLM, tmp_path: Path) -> None:
    if command == ["lm_eval"]:
        if not hasattr(registry, "import_plugins"):
            pytest.skip(f"lm-eval {version('lm_eval')} has no plugins")
        command = [str(Path(sys.executable).with_name("lm_eval"))]
    save_model(model, tmp_path / "model")
    arguments = f"pretrained={tmp_path / 'model'},direction=both"
    accuracy = LanguageModel(model).minimal_pairs([(good.split(), bad.split()) for good, bad in PAIRS]).accuracy
    assert float(evaluate_in_a_shell(command, "elmokit", arguments, tmp_path)) == pytest.approx(accuracy)


@pytest.mark.slow
def test_command_line_of_any_release_evaluates_a_model_converted_for_transformers(
    model: PretrainedBiLM, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    from elmokit.integrations.transformers import ElmoForCausalLM, ElmoTokenizer

    ElmoForCausalLM.from_elmokit(model).save_pretrained(tmp_path / "model")
    ElmoTokenizer.from_elmokit(model).save_pretrained(tmp_path / "model")
    command = [str(Path(sys.executable).with_name("lm_eval"))]
    arguments = f"pretrained={tmp_path / 'model'},trust_remote_code=True"
    lm = ElmoLM(model, sentence_end=False)
    scores = [
        [score for score, _ in lm.loglikelihood(requests("loglikelihood", ("", good), ("", bad)))]
        for good, bad in PAIRS
    ]
    assert float(evaluate_in_a_shell(command, "hf", arguments, tmp_path)) == np.mean([a > b for a, b in scores])


def test_entry_point_leads_to_the_model() -> None:
    (point,) = entry_points(group="lm_eval.models", name="elmokit") or pytest.skip("elmokit is not installed anew")
    # What a release with plugins does with an entry point, in the registry of this one.
    models = registry.Registry("model", base_cls=LM)
    models.register("elmokit", target=point)
    assert models.get("elmokit") is ElmoLM


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
    with pytest.raises(ConfigError, match="direction"):
        ElmoLM(model, direction="left")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tokenization is"):
        ElmoLM(model, tokenization="bpe")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="direction is 'both'"):
        ElmoLM(model, direction="both").loglikelihood_rolling([])
    with pytest.raises(ConfigError, match="only scores it"):
        ElmoLM(model).generate_until([])
