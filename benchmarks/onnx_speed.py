"""Compare the vectors and the speed of ONNX Runtime and elmokit, one thread each (results/integrations.md).

    OMP_NUM_THREADS=1 python benchmarks/onnx_speed.py text.txt

The file has one tokenized sentence per line; the first 512 are used, in batches of 32 of similar length.
"""

from __future__ import annotations

import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
import onnxruntime

from elmokit import Elmo
from elmokit.integrations.onnx import export_onnx
from elmokit.text.text import Text

N_SENTENCES, BATCH_SIZE = 512, 32

if __name__ == "__main__":
    sentences = sorted((tokens for tokens in islice(Text(sys.argv[1]).token_lists(), N_SENTENCES) if tokens), key=len)
    n_tokens = sum(map(len, sentences))
    batches = [sentences[start : start + BATCH_SIZE] for start in range(0, len(sentences), BATCH_SIZE)]
    elmo = Elmo.from_pretrained(token_cache_mib=0, precision="float32")
    with tempfile.TemporaryDirectory() as folder:
        path = export_onnx(None, Path(folder) / "en-mini.onnx")
        print(f"file: {path.stat().st_size / 1e6:.1f} MB")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options)
    seconds, largest = {"ONNX Runtime": 0.0, "elmokit": 0.0}, 0.0
    for batch in batches:
        started = time.process_time()
        (layers,) = session.run(["layers"], {"char_ids": elmo.ids(batch)})
        seconds["ONNX Runtime"] += time.process_time() - started
        started = time.process_time()
        vectors = elmo.embed(batch)
        seconds["elmokit"] += time.process_time() - started
        for row, expected in zip(layers.swapaxes(0, 1), vectors, strict=True):
            largest = max(largest, float(np.abs(row[:, 1 : 1 + expected.shape[1]] - expected).max()))
    for name, value in seconds.items():
        print(f"{name}: {n_tokens / value:,.0f} tokens per second of processor time")
    print(f"{n_tokens:,} tokens, largest difference {largest:.1e}")
