"""ELMo in lm-eval, whose model ``hf`` opens a causal language model for transformers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import LanguageModel, PretrainedBiLM
from tests.helpers.hosts import need_host

need_host("lm-eval")
pytestmark = pytest.mark.filterwarnings("default")  # its dependencies warn on import

from elmokit.integrations.transformers import ElmoForCausalLM, ElmoTokenizer  # noqa: E402

PAIRS = [
    ("the cat sat on the mat .", "the cat on sat the mat ."),
    ("the dog ran .", "the dog zebra ."),
    ("the cat ran", "cat ran the"),
    ("the mat sat", "sat mat the"),
]
RUN = "import elmokit.integrations.transformers; from lm_eval.__main__ import cli_evaluate; cli_evaluate()"


@pytest.mark.slow
def test_the_command_line_gives_the_log_probabilities_of_elmokit(model: PretrainedBiLM, tmp_path: Path) -> None:
    ElmoForCausalLM.from_elmokit(model).save_pretrained(tmp_path / "lm")
    ElmoTokenizer.from_elmokit(model, direction="forward").save_pretrained(tmp_path / "lm")
    lines = [json.dumps({"sentence_good": good, "sentence_bad": bad}) for good, bad in PAIRS]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    task: dict[str, Any] = {"task": "local_pairs", "dataset_path": "json", "output_type": "multiple_choice"}
    task |= {"dataset_kwargs": {"data_files": {"train": str(tmp_path / "pairs.jsonl")}}, "validation_split": "train"}
    task |= {"doc_to_text": "", "doc_to_target": 0, "doc_to_choice": "{{[sentence_good, sentence_bad]}}"}
    (tmp_path / "local_pairs.yaml").write_text(json.dumps(task))  # YAML contains JSON
    options = shlex.split("run --model hf --model_args pretrained=lm --tasks local_pairs --include_path . --device cpu")
    subprocess.run(
        [sys.executable, "-c", RUN, *options, "--output_path", "results", "--log_samples"],
        check=True,
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")},
    )
    (file,) = (tmp_path / "results").rglob("samples_*.jsonl")
    samples = [json.loads(line) for line in file.read_text().splitlines()]
    scores = [[float(score) for score, _ in sample["filtered_resps"]] for sample in samples]
    # lm-eval does not score the end of a sentence, and passes the ids of words, among which unknown ones are one.
    words = model.vocabulary.ids if model.vocabulary is not None else {}
    for found, pair in zip(scores, PAIRS, strict=True):
        tokens = [[word if word in words else "<UNK>" for word in sentence.split()] for sentence in pair]
        nats = [sentence.nats[0, 1:-1].sum() for sentence in LanguageModel(model).surprisal(tokens)]
        np.testing.assert_allclose(found, np.negative(nats), rtol=1e-4)
