"""Embed a corpus of many files on a Ray cluster, one file at a time, and finish whatever fails on the way.

    python examples/scale/shards_on_ray.py corpus/ vectors/

Both directories are on a disk that all machines share. A process or machine that dies takes one file with it: Ray gives
the file to another process, which continues after the last batch that was written. If the whole job dies, run the
command again: complete files are skipped.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ray

from elmokit import Elmo, Layout, embed_file
from elmokit.errors import LockedError

PRECISION = "int8"  # vectors of one precision only, whatever processors the cluster has


@ray.remote(num_cpus=1, max_retries=10, retry_exceptions=[LockedError])
def embed_shard(text: Path, vectors: Path) -> int:
    """Embed one file and return how many tokens it has, or 0 if that was done before."""
    if vectors.exists():
        return 0
    elmo = Elmo.from_pretrained(precision=PRECISION)
    return embed_file(elmo, text, vectors, Layout(layers="top", dtype="float16")).n_tokens


if __name__ == "__main__":
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(exist_ok=True)
    # RAY_ADDRESS names a cluster; otherwise Ray uses this machine. Ray counts the cores, so a process has one thread.
    ray.init(runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}})
    shards = sorted(path for path in source.iterdir() if path.is_file())
    waiting = [embed_shard.remote(path, target / f"{path.name}.npz") for path in shards]
    while waiting:
        [done], waiting = ray.wait(waiting)
        print(f"{ray.get(done):,} tokens; {len(waiting)} files left", flush=True)
