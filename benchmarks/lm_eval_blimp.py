"""Run the BLiMP tasks of lm-eval on local files, and compare with elmokit's evaluation (results/integrations.md).

    python benchmarks/lm_eval_blimp.py blimp.jsonl --pairs 50

lm-eval's own model "hf" opens the forward direction of the model in the package, as saved for transformers. It is
compared with elmokit in float32, without the end of the sentence.

The file is BLiMP's data in one file: one pair per line, with its paradigm as UID.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import lm_eval
import numpy as np

from elmokit import LanguageModel
from elmokit.integrations.transformers import ElmoForCausalLM, ElmoTokenizer
from elmokit.storage.text_files import read_lines
from elmokit.text.tokenize import treebank_tokens


def local_tasks(paradigms: dict[str, list[dict[str, Any]]], folder: Path) -> dict[str, Any]:
    """Return a group of lm-eval's own tasks that read these pairs instead of those on the Hub."""
    tasks = []
    for name, pairs in paradigms.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
        files = {"data_files": {"train": str(path)}}
        tasks.append({"task": f"blimp_{name}", "dataset_path": "json", "dataset_name": None, "dataset_kwargs": files})
    return {"group": "blimp_local", "task": tasks}


def without_end(pairs: list[dict[str, Any]]) -> np.ndarray:
    """Return the surprisal of the forward direction in float32, ``(pairs, 2)``, without that of ``</S>``."""
    lm, tokenize = LanguageModel.from_pretrained(precision="float32"), treebank_tokens
    sentences = [tokenize(pair[key]) for pair in pairs for key in ("sentence_good", "sentence_bad")]
    return np.array([scored.nats[0, 1:-1].sum() for scored in lm.surprisal(sentences)]).reshape(-1, 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--pairs", type=int, default=1000, help="the first pairs of each paradigm to use")
    arguments = parser.parse_args()
    paradigms: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in read_lines(arguments.data):
        pair = json.loads(line)
        if len(paradigms[pair["UID"]]) < arguments.pairs:
            paradigms[pair["UID"]].append(pair)
    with tempfile.TemporaryDirectory() as folder:
        ElmoForCausalLM.from_elmokit().save_pretrained(f"{folder}/model")
        ElmoTokenizer.from_elmokit(direction="forward").save_pretrained(f"{folder}/model")
        results = lm_eval.simple_evaluate(
            "hf",
            model_args={"pretrained": f"{folder}/model"},
            tasks=[local_tasks(paradigms, Path(folder))],
            device="cpu",
            batch_size=32,
            bootstrap_iters=0,
        )
    accuracies, expected, differences = [], [], []
    for name, pairs in paradigms.items():
        task = next(key for key in results["samples"] if key.endswith(f"blimp_{name}"))
        samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
        theirs = -np.array([[float(scored[0]) for scored in sample["filtered_resps"]] for sample in samples])
        ours = without_end(pairs)
        differences.append(np.abs(theirs - ours).ravel())
        accuracies.append(results["results"][task]["acc,none"])
        expected.append((ours[:, 0] < ours[:, 1]).mean())
    print(
        f"lm-eval {100 * np.mean(accuracies):.2f} %, elmokit {100 * np.mean(expected):.2f} %, "
        f"{sum(map(len, paradigms.values())):,} pairs; difference in nats: median "
        f"{np.median(np.concatenate(differences)):.1e}, largest {np.concatenate(differences).max():.1e}"
    )
