"""Embed a corpus into Parquet with Ray Data, kill a worker, and compare with one process (results/integrations.md).

    python benchmarks/ray_corpus.py text.txt --kill

The file has one tokenized sentence per line. The vectors of the top layer are written as float32.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import ray
from pyarrow import dataset

from elmokit import Elmo
from elmokit.integrations.batch import Embed
from elmokit.storage.text_files import read_sentences

N_BLOCKS, BATCH_ROWS = 16, 500


class KilledOnce(Embed):
    """Kills its own process after five batches, once in the whole job, as a machine that fails would."""

    def __init__(self, flag: str) -> None:
        super().__init__(layers="top")
        self.flag, self.n_batches = Path(flag), 0

    def __call__(self, batch: Any) -> Any:
        self.n_batches += 1
        if self.n_batches > 5 and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--sentences", type=int, help="the first sentences to use (default: all)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill", action="store_true", help="kill a worker during the job")
    return parser.parse_args()


def largest_difference(folder: Path, sentences: list[list[str]]) -> float:
    """Return the largest difference from the vectors of this process, and check that every row was written once."""
    table = dataset.dataset(folder, format="parquet")
    rows = np.concatenate([batch["id"].to_numpy() for batch in table.to_batches(columns=["id"])])
    assert np.array_equal(np.sort(rows), np.arange(len(sentences))), "rows are missing, or were written twice"
    elmo, largest = Elmo.from_pretrained(), 0.0
    for batch in table.to_batches(columns=["id", "vectors"], batch_size=BATCH_ROWS):
        written = batch["vectors"]
        # The rows of all sentences of the batch, one after the other.
        joined = written.flatten().flatten().to_numpy().reshape(-1, elmo.output_dim)
        expected = elmo.embed([sentences[row] for row in batch["id"].to_pylist()], layers="top")
        assert written.value_lengths().to_pylist() == list(map(len, expected))
        largest = max(largest, float(np.abs(joined - np.concatenate(expected)).max(initial=0)))
    return largest


if __name__ == "__main__":
    arguments = parse_arguments()
    sentences = list(islice(read_sentences(arguments.text), arguments.sentences))
    rows = [{"id": row, "text": " ".join(tokens)} for row, tokens in enumerate(sentences)]
    n_tokens = sum(map(len, sentences))
    # Workers import elmokit from where this process does.
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    # One more than the workers, which writes the files.
    ray.init(num_cpus=arguments.workers + 1, include_dashboard=False, runtime_env={"env_vars": variables})
    with tempfile.TemporaryDirectory() as folder:
        flag, output = Path(folder) / "killed", Path(folder) / "vectors"
        started = time.perf_counter()
        ray.data.from_items(rows, override_num_blocks=N_BLOCKS).map_batches(
            KilledOnce if arguments.kill else Embed,
            fn_constructor_kwargs={"flag": str(flag)} if arguments.kill else {"layers": "top"},
            batch_format="pyarrow",
            batch_size=BATCH_ROWS,
            compute=ray.data.ActorPoolStrategy(size=arguments.workers),
        ).write_parquet(str(output))
        seconds = time.perf_counter() - started
        assert flag.exists() == arguments.kill
        n_bytes = sum(file.stat().st_size for file in output.iterdir())
        print(
            f"{len(sentences):,} sentences, {n_tokens:,} tokens, {arguments.workers} workers"
            f"{', one of them killed' if arguments.kill else ''}: {seconds:.0f} s, {n_tokens / seconds:,.0f} tokens/s, "
            f"{n_bytes / 1e6:.0f} MB; largest difference {largest_difference(output, sentences):.1e}"
        )
