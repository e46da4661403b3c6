"""Classify the sentences of SST-5 with ``ElmoVectorizer`` and logistic regression (results/integrations.md).

    python benchmarks/sklearn_sst5.py train.txt dev.txt

The files hold one tree in brackets per line, as published. Every third training sentence is used, because the
file has the positive sentences first.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from elmokit.integrations.sklearn import ElmoVectorizer

SETTINGS = [{"pooling": "sif"}, {"pooling": "whitened"}, {"pooling": "mean"}, {"pooling": "mean", "layers": "all"}]


def read_trees(path: str) -> tuple[list[list[str]], list[int]]:
    """Return the tokens and labels of a file of trees."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [re.findall(r"\(\d ([^()]+)\)", line) for line in lines], [int(line[1]) for line in lines]


if __name__ == "__main__":
    (train, train_labels), (dev, dev_labels) = map(read_trees, sys.argv[1:])
    for settings in SETTINGS:
        started = time.perf_counter()
        pipeline = make_pipeline(
            ElmoVectorizer(**settings), StandardScaler(), LogisticRegression(C=0.001, max_iter=500)
        )
        pipeline.fit(train[::3], train_labels[::3])
        accuracy = pipeline.score(dev, dev_labels)
        print(f"{settings}: {100 * accuracy:.1f} %, {time.perf_counter() - started:.0f} s")
