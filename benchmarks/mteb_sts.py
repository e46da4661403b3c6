"""Evaluate sentence vectors with MTEB's own task STSBenchmark on pairs from a file, next to those of another model.

python benchmarks/mteb_sts.py stsbenchmark/dev.csv
python benchmarks/mteb_sts.py stsbenchmark/dev.csv --other path/of/all-MiniLM-L6-v2

The file holds rows of two sentences and a score from 0 to 5, in CSV. Results are in results/similarity.md.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import mteb
from datasets import Dataset, DatasetDict
from mteb.tasks.sts.eng.sts_benchmark_sts import STSBenchmarkSTSV2
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from elmokit.integrations.sentence_transformers import ElmoEmbeddings, ElmoPooling


class LocalPairs(STSBenchmarkSTSV2):  # type: ignore[misc]
    """The task with its own metrics, and the pairs of a file in place of those of the Hub."""

    metadata = STSBenchmarkSTSV2.metadata.model_copy(update={"eval_splits": ["test"]})
    path = Path()

    def load_data(self, *args: Any, **kwargs: Any) -> None:
        """Read the file."""
        rows = csv.reader(self.path.read_text(encoding="utf-8").splitlines())
        first, second, scores = zip(*rows, strict=True)
        pairs = {"sentence1": first, "sentence2": second, "score": list(map(float, scores))}
        self.dataset = DatasetDict(test=Dataset.from_dict(pairs))
        self.data_loaded = True


def networks(model: str | None, other: str | None) -> dict[str, SentenceTransformer]:
    """Return the networks by name."""
    elmo = ElmoEmbeddings(model)
    found = {
        "ElmoPooling (default)": SentenceTransformer(modules=[elmo, ElmoPooling.from_elmo(elmo.elmo)]),
        "Pooling, mean of layer 0": _mean(model, [0]),
        "Pooling, mean of all layers": _mean(model, "all"),
    }
    return found if other is None else found | {Path(other).name: SentenceTransformer(other)}


def _mean(model: str | None, layers: Any) -> SentenceTransformer:
    elmo = ElmoEmbeddings(model, layers=layers)
    return SentenceTransformer(modules=[elmo, Pooling(elmo.get_embedding_dimension())])


def main() -> None:
    """Print the correlations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--model", help="a path or name; the small English model by default")
    parser.add_argument("--other", help="the directory of a model of sentence-transformers")
    args = parser.parse_args()
    LocalPairs.path = args.pairs
    for name, network in networks(args.model, args.other).items():
        network.to("cpu")
        start = time.perf_counter()
        results = mteb.evaluate(network, [LocalPairs()], cache=None)
        seconds = time.perf_counter() - start
        (scores,) = results.task_results[0].scores["test"]
        parameters = sum(parameter.numel() for parameter in network.parameters())
        dim = network.get_embedding_dimension()
        print(
            f"{name}: Spearman {scores['cosine_spearman']:.4f}, Pearson {scores['cosine_pearson']:.4f}; "
            f"{dim} dimensions, {parameters / 1e6:.1f} M parameters, {seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
