"""Compare elmokit with the encoder that one would pick today: a transformer of the shape of MiniLM.

    python benchmarks/transformer.py TEXT --work FOLDER [--lines 3000] [--seconds 15] [--threads N] [--only small]

Needs ``pip install transformers``. The transformer is ``BertModel`` with 6 layers, 384 dimensions, 12 heads, an inner
dimension of 1,536 and random weights. It runs with the settings that are fastest on a CPU: inference mode, PyTorch's
fused attention ("sdpa"), float32 or bfloat16, and texts of similar length in one batch. elmokit computes ``en-mini``
and random weights of the sizes ``small`` and ``original`` in float32 and int8, with its defaults. Both return one
float32 array of the top layer for each text.

Two workloads are made of the first lines of TEXT (one tokenized sentence per line): the sentences themselves, and
documents of 2,000 tokens. The positions of the transformer are extended to whole documents; "512" cuts them into pieces
of 512 tokens instead, as models with 512 positions need.

The comparison favors the transformer: a token is one piece, where real tokenizers make 1.2 to 1.4 pieces of a word, and
splitting words into pieces is not timed, whereas elmokit's conversion of characters is.

Every system runs in a process of its own, with batches of several sizes, and its fastest one is shown. It embeds
batches in random order for some seconds. Memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from elmokit import Elmo
from elmokit.io.text_files import read_lines, split_tokens
from elmokit.text.batching import plan_batches
from elmokit.weights.open import open_model, save_model

TRANSFORMERS = ("transformer float32", "transformer bfloat16", "transformer 512 float32", "transformer 512 bfloat16")
ELMOS = tuple(f"{size} {precision}" for size in ("en-mini", "small", "original") for precision in ("float32", "int8"))
DOCUMENT_TOKENS = 2000
WINDOW = 512
N_PIECES = 30_522  # the vocabulary of BERT
# Tokens of a batch. One size does not suit all: an LSTM is faster with many rows, attention needs memory for each.
BATCH_TOKENS = {"sentences": (1024, 4096), "documents": (4000, 32_000)}
Texts = list[list[str]]
Embed = Callable[[Texts], object]


def read_texts(text: str, workload: str, n_lines: int) -> Texts:
    """Return the sentences of a file, or documents made of them."""
    sentences = [tokens for line in islice(read_lines(text), n_lines) if (tokens := split_tokens(line))]
    if workload == "sentences":
        return sentences
    tokens = [token for sentence in sentences for token in sentence]
    return [tokens[start : start + DOCUMENT_TOKENS] for start in range(0, len(tokens), DOCUMENT_TOKENS)][:-1]


def open_transformer(name: str) -> Embed:
    """Return a function that embeds a batch with the transformer."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=N_PIECES,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=DOCUMENT_TOKENS + 2,
        attn_implementation="sdpa",
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    if "bfloat16" in name:
        model = model.bfloat16()

    @torch.inference_mode()
    def embed(texts: Texts) -> object:
        length = max(map(len, texts)) + 2
        ids = torch.randint(N_PIECES, (len(texts), length))
        # Without padding, no mask: attention is faster then.
        mask = None
        if min(map(len, texts)) + 2 < length:
            mask = torch.tensor([[1] * (len(text) + 2) + [0] * (length - len(text) - 2) for text in texts])
        outputs = model(input_ids=ids, attention_mask=mask).last_hidden_state.float().numpy()
        return [row[1 : len(text) + 1].copy() for row, text in zip(outputs, texts, strict=True)]

    return embed


def open_elmo(name: str, work: Path) -> Embed:
    """Return a function that embeds a batch with elmokit."""
    size, precision = name.split()
    elmo = Elmo(open_model(None if size == "en-mini" else work / size))
    elmo.bilm.precision = precision  # type: ignore[assignment]
    return lambda texts: elmo.embed(texts, layers="top", batch_tokens=10**9)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure one system in this process."""
    torch.set_num_threads(args.threads)
    texts = read_texts(args.text, args.workload, args.lines)
    if "512" in args.system:
        texts = [text[start : start + WINDOW - 2] for text in texts for start in range(0, len(text), WINDOW - 2)]
    embed = open_transformer(args.system) if args.system in TRANSFORMERS else open_elmo(args.system, args.work)
    batches = [[texts[row] for row in rows] for rows in plan_batches(list(map(len, texts)), args.batch_tokens)]
    random.Random(0).shuffle(batches)  # those that are not reached have the same lengths as the others
    embed([text[:20] for text in batches[0]])
    n_tokens, started = 0, time.perf_counter()
    for batch in batches:
        embed(batch)
        n_tokens += sum(map(len, batch))
        if time.perf_counter() - started > args.seconds:
            break
    seconds = time.perf_counter() - started
    return {"tokens": n_tokens, "tokens_per_second": n_tokens / seconds, "peak_mib": peak_memory_mib()}


def peak_memory_mib() -> float:
    """Return the peak memory of this process."""
    # Not `getrusage`, whose peak includes that of the process that started this one.
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def measure_all(args: argparse.Namespace) -> None:
    """Measure every system in a process of its own, and print a table."""
    from elmokit.bilm import PRESETS, BiLM
    from elmokit.weights.model import PretrainedBiLM

    for size in ("small", "original"):
        if not (args.work / size).exists():
            bilm = BiLM(PRESETS[size])
            bilm.reset_parameters(0)
            args.work.mkdir(parents=True, exist_ok=True)
            save_model(PretrainedBiLM(bilm, "elmokit"), args.work / size)
    results = []
    print("| workload | system | batch tokens | tokens/s | peak MiB | tokens embedded |\n|---|---|---|---|---|---|")
    for workload, batch_sizes in BATCH_TOKENS.items():
        for system in (*TRANSFORMERS, *ELMOS):
            if args.only not in system or ("512" in system and workload == "sentences"):
                continue
            runs = []
            for batch_tokens in batch_sizes:
                command = [sys.executable, __file__, args.text, "--work", args.work, "--workload", workload]
                command += ["--system", system, "--batch-tokens", batch_tokens, "--seconds", args.seconds]
                command += ["--lines", args.lines, "--threads", args.threads]
                printed = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout
                run = json.loads(printed.splitlines()[-1])
                runs.append({"workload": workload, "system": system, "batch_tokens": batch_tokens, **run})
            results += runs
            best = max(runs, key=lambda run: run["tokens_per_second"])
            numbers = [f"{best[name]:,.0f}" for name in ("batch_tokens", "tokens_per_second", "peak_mib", "tokens")]
            print(f"| {workload} | {system} | {' | '.join(numbers)} |", flush=True)
    (args.work / "transformer.json").write_text(json.dumps(results, indent=1))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure one system, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="tokenized text, one sentence per line")
    parser.add_argument("--work", type=Path, required=True, help="directory for models and results")
    parser.add_argument("--lines", type=int, default=3000, help="lines of the text to use  [default: 3000]")
    parser.add_argument("--seconds", type=float, default=15, help="time for each batch size  [default: 15]")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads  [default: all cores]")
    parser.add_argument("--only", default="", help="measure the systems whose name contains this")
    parser.add_argument("--workload", choices=list(BATCH_TOKENS), help=argparse.SUPPRESS)
    parser.add_argument("--system", choices=(*TRANSFORMERS, *ELMOS), help=argparse.SUPPRESS)
    parser.add_argument("--batch-tokens", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.system:
        print(json.dumps(measure(args)))
    else:
        measure_all(args)


if __name__ == "__main__":
    main()
