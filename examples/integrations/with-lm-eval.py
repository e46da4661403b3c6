"""Evaluate ELMo on minimal pairs with a task of lm-eval and data on this machine.

pip install '.[lm-eval]'
python examples/integrations/with-lm-eval.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

from elmokit.integrations.lm_eval import ElmoLM

PAIRS = [
    ("The cats near the door sleep.", "The cats near the door sleeps."),
    ("She saw herself in the mirror.", "She saw himself in the mirror."),
    ("These books were sold.", "These book were sold."),
    ("He has eaten the bread.", "He has ate the bread."),
]


def main() -> None:
    """Print the accuracy of each direction."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "pairs.jsonl"
        lines = [json.dumps({"sentence_good": good, "sentence_bad": bad}) for good, bad in PAIRS]
        data.write_text("\n".join(lines), encoding="utf-8")
        # The task's own definition, with another data set.
        task = {
            "task": "blimp_anaphor_gender_agreement",
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": {"train": str(data)}, "cache_dir": folder},
        }
        manager = TaskManager()  # finding all tasks takes a while
        for direction in ("forward", "backward", "both"):
            results = lm_eval.simple_evaluate(
                ElmoLM(direction=direction),
                tasks=[{"group": "local", "task": [task]}],
                task_manager=manager,
                bootstrap_iters=0,
            )
            (scores,) = (values for values in results["results"].values() if "acc,none" in values)
            print(f"{direction}: {scores['acc,none']:.2f}")


if __name__ == "__main__":
    main()
