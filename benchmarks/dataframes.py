"""Measure what a column of vectors costs in pandas and polars beside computing the vectors (results/integrations.md).

    python benchmarks/dataframes.py lm-wikipedia/test.txt.xz --lines 2000

Each time is the median of five, except that of the vectors, which are computed once.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas
import polars

from elmokit import SentenceEmbedder, SentencePooling
from elmokit.integrations.dataframes import add_vectors, to_matrix
from elmokit.storage.text_files import read_sentences


class Known:
    """An embedder that has its vectors already, so that only the columns are measured."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors, self.dim = vectors, vectors.shape[1]

    def embed(self, sentences: Any) -> np.ndarray:
        return self.vectors


def milliseconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return 1000 * median(times)


def measure_column(library: Any, sentences: list[list[str]], vectors: np.ndarray) -> None:
    """Print the times of one library, and check that a file keeps the numbers."""
    known: Any = Known(vectors)
    frame = library.DataFrame({"text": sentences})
    added = add_vectors(frame, embedder=known)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.parquet"
        (added.to_parquet if library is pandas else added.write_parquet)(path)
        assert np.array_equal(to_matrix(polars.read_parquet(path)["vector"]), vectors)
    adding = milliseconds(lambda: add_vectors(frame, embedder=known))
    reading = milliseconds(lambda: to_matrix(added["vector"]))
    stacking = milliseconds(lambda: np.stack(added["vector"].to_list()))
    print(f"{library.__name__}: adds it in {adding:.1f} ms, reads it in {reading:.3f} ms (np.stack: {stacking:.1f} ms)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--lines", type=int, default=2000)
    arguments = parser.parse_args()
    sentences = list(islice(read_sentences(arguments.text), arguments.lines))
    embedder = SentenceEmbedder.from_pretrained(pooling=SentencePooling("mean", "all"))
    started = time.perf_counter()
    vectors = embedder.embed(sentences)
    print(f"{vectors.shape} vectors: {time.perf_counter() - started:.1f} s")
    for library in (pandas, polars):
        measure_column(library, sentences, vectors)
