"""Compare elmokit with the encoder that one would pick today: a transformer of the shape of MiniLM.

    pip install transformers tokenizers onnx onnxruntime sympy openvino nncf
    OMP_NUM_THREADS=1 python benchmarks/transformer.py --text lm-wikipedia-test.txt --threads 1

elmokit computes the top layer of ``en-mini`` in int8 and in float32, with the defaults of ``Elmo.embed``. The
transformer has 6 layers, 384 dimensions, 12 heads, an inner dimension of 1,536 and random weights. It runs in:

- PyTorch (``BertModel`` with fused attention), in float32 and bfloat16;
- ONNX Runtime, in float32; in int8 with dynamic quantization; and in int8 after its own optimizer fused the layers;
- OpenVINO, in float32 and bfloat16; and in int8, with weights and activations that NNCF quantized.

"static table 256" has no network: it looks the vectors of pieces up, as model2vec does. A library that is not installed
is named, and its rows are left out.

Every system starts from lists of words and returns one float32 vector per word. The time of the transformers
includes a WordPiece tokenizer, trained on the part of the text that is not embedded, and averaging the pieces of
each word; the time of elmokit includes converting characters. The passes repeat the same text, so elmokit's cache of
frequent tokens is disabled.

The workloads are made of the first sentences of the text:

- sentences: all of them in one call. A transformer gets batches of similar length, of the size that is fastest for it;
- document: one document of 2,000 words per call. The transformer reads it in windows of 512 pieces;
- sentence: one sentence of about 20 words per call.

All systems run in one process with equal numbers of threads and take turns: a round measures each of them once in each
workload, by whole passes until ``--seconds`` are over. The table shows medians over the rounds, and ratios are
medians of the ratios within a round. Processor time is the time of all threads.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from transformer_peers import PACKAGES, Embed, Peers, Texts

from elmokit import Elmo

OURS = ("en-mini int8", "en-mini float32")
SYSTEMS = (*OURS, *PACKAGES)
N_SENTENCES = 600
DOCUMENT_WORDS = 2000
N_DOCUMENTS = 3
SHORT_SENTENCE_WORDS = range(15, 26)
N_SHORT_SENTENCES = 60
BATCH_PIECES = (512, 2048, 8192)
VERSIONS = ("numpy", "torch", *dict.fromkeys(package for packages in PACKAGES.values() for package in packages))
# What the kernels of these libraries depend on, by the names in Linux's /proc/cpuinfo (x86-64, then Arm).
CPU_FEATURES = (
    *("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8"),
    *("asimddp", "bf16", "i8mm", "sve"),
)
Calls = list[Texts]


class Speed(NamedTuple):
    """Words per second."""

    processor: float
    """By the time of all threads."""
    wall: float


Speeds = Mapping[tuple[str, str], Sequence[Speed]]
"""The speed in each round, by workload and system."""


def read_sentences(path: Path) -> list[list[str]]:
    """Read the sentences of a file that have a word."""
    with path.open(encoding="utf-8") as lines:
        return [words for line in lines if (words := line.split())]


def make_workloads(sentences: list[list[str]]) -> dict[str, Calls]:
    """Return the texts of every call of a pass, by workload."""
    words = [word for sentence in sentences for word in sentence]
    starts = range(0, len(words) - DOCUMENT_WORDS + 1, DOCUMENT_WORDS)
    documents = [words[start : start + DOCUMENT_WORDS] for start in starts]
    short = [sentence for sentence in sentences if len(sentence) in SHORT_SENTENCE_WORDS]
    return {
        "sentences": [sentences],
        "document": [[document] for document in documents[:N_DOCUMENTS]],
        "sentence": [[sentence] for sentence in short[:N_SHORT_SENTENCES]],
    }


def open_elmo(name: str) -> Embed:
    """Return a function that embeds texts with ``en-mini``, in batches of the default size."""
    precision: Literal["int8", "float32"] = "int8" if name == "en-mini int8" else "float32"
    elmo = Elmo.from_pretrained(precision=precision, token_cache_mib=0)
    return lambda texts, batch_pieces: elmo.embed(texts, layers="top")


def is_installed(package: str) -> bool:
    """Check if pip installed a package."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def select_systems(only: str, is_installed: Callable[[str], bool] = is_installed) -> tuple[list[str], list[str]]:
    """Return the systems to measure, and a line for each package that is missing."""
    parts = only.split(",")
    requested = [name for name in SYSTEMS if name in OURS or any(part.lower() in name.lower() for part in parts)]
    missing = {name: [package for package in PACKAGES.get(name, ()) if not is_installed(package)] for name in requested}
    notes = []
    for package in dict.fromkeys(package for packages in missing.values() for package in packages):
        rows = ", ".join(name for name, packages in missing.items() if package in packages)
        notes.append(f"{package} is not installed (pip install {package}). Rows left out: {rows}.")
    return [name for name, packages in missing.items() if not packages], notes


def run_calls(embed: Embed, calls: Calls, batch_pieces: int, seconds: float = 0) -> Speed:
    """Measure whole passes over the calls of a workload, at least one and for at least some seconds."""
    n_words = sum(len(text) for texts in calls for text in texts)
    n_passes, started, started_processor = 0, time.perf_counter(), time.process_time()
    while True:
        for texts in calls:
            embed(texts, batch_pieces)
        n_passes += 1
        wall = time.perf_counter() - started
        if wall >= seconds:
            return Speed(n_passes * n_words / (time.process_time() - started_processor), n_passes * n_words / wall)


def fastest_batch_size(embed: Embed, calls: Calls) -> int:
    """Return the number of pieces per batch with which a system is fastest, after passes that are not counted."""
    speeds = {}
    for batch_pieces in BATCH_PIECES:
        run_calls(embed, calls, batch_pieces)  # libraries prepare themselves for shapes that they have not seen
        speeds[batch_pieces] = run_calls(embed, calls, batch_pieces).processor
    return max(speeds, key=lambda batch_pieces: speeds[batch_pieces])


def measure(systems: Mapping[str, Embed], workloads: Mapping[str, Calls], n_rounds: int, seconds: float) -> Speeds:
    """Measure every system in every workload, in turns."""
    cells = {}
    for workload, calls in workloads.items():
        for system, embed in systems.items():
            print(f"preparing {system}, {workload}", file=sys.stderr)
            cells[workload, system] = fastest_batch_size(embed, calls)
    speeds: dict[tuple[str, str], list[Speed]] = {cell: [] for cell in cells}
    for round_ in range(n_rounds):
        for (workload, system), batch_pieces in cells.items():
            speed = run_calls(systems[system], workloads[workload], batch_pieces, seconds)
            speeds[workload, system].append(speed)
        print(f"round {round_ + 1} of {n_rounds} is done", file=sys.stderr)
    return speeds


def table_rows(speeds: Speeds) -> list[str]:
    """Format the medians as a Markdown table."""
    header = ["workload", "system"]
    for clock in Speed._fields:
        header += [f"words/s, {clock} time", *(f"{name} to this, {clock} time" for name in OURS)]
    header.append("spread")
    rows = [header, ["---"] * len(header)]
    for (workload, system), rounds in speeds.items():
        row = [workload, system]
        for clock in Speed._fields:
            row.append(f"{statistics.median(getattr(speed, clock) for speed in rounds):,.0f}")
            for name in OURS:
                pairs = zip(speeds[workload, name], rounds, strict=True)
                row.append(f"{statistics.median(getattr(ours, clock) / getattr(it, clock) for ours, it in pairs):.2f}x")
        processor = [speed.processor for speed in rounds]
        rows.append([*row, f"{max(processor) / min(processor) - 1:.0%}"])
    return [f"| {' | '.join(row)} |" for row in rows]


def mean_cosines(systems: Mapping[str, Embed], texts: Texts) -> dict[str, float]:
    """Compare the vectors of each system with those of the same network in float32.

    A cosine far below 1 means that a system computes something else, so its speed is worth nothing.
    """
    vectors = {}
    for name, embed in systems.items():
        rows = np.concatenate(embed(texts, BATCH_PIECES[0]))
        vectors[name] = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)
    cosines = {}
    for name, rows in vectors.items():
        exact = "en-mini float32" if name in OURS else "PyTorch float32"
        if name != exact and exact in vectors and rows.shape == vectors[exact].shape:  # the static table is smaller
            cosines[name] = float((rows * vectors[exact]).sum(axis=1).mean())
    return cosines


def describe_machine(n_threads: int) -> list[str]:
    """Return lines about the processor, the versions and the code."""
    file = Path("/proc/cpuinfo")
    facts = {}
    for line in file.read_text(errors="replace").splitlines() if file.exists() else []:
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    features = facts.get("flags", facts.get("Features", "")).split()
    known = ", ".join(name for name in CPU_FEATURES if name in features) or "unknown"
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(describe, capture_output=True, text=True).stdout.strip() or "unknown"
    versions = ", ".join(f"{package} {version(package)}" for package in VERSIONS if is_installed(package))
    return [
        f"Processor: {facts.get('model name') or platform.processor() or 'unknown'} ({known}); threads: {n_threads}",
        f"Python {platform.python_version()}, {versions}",
        f"Code: commit {commit}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="tokenized text, one sentence per line")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads  [default: all cores]")
    parser.add_argument("--rounds", type=int, default=5, help="number of measurements  [default: 5]")
    parser.add_argument("--seconds", type=float, default=3, help="time for each measurement  [default: 3]")
    parser.add_argument(
        "--only", default="", help="measure en-mini and the systems whose name contains one of these, as in onnx,static"
    )
    args = parser.parse_args(arguments)
    sentences = read_sentences(args.text)
    embedded, rest = sentences[:N_SENTENCES], sentences[N_SENTENCES:]
    workloads = make_workloads(embedded)
    if not all(workloads.values()):
        parser.error(
            f"{args.text} is too short: its first {N_SENTENCES} lines need {DOCUMENT_WORDS:,} words and a sentence "
            f"of {SHORT_SENTENCE_WORDS[0]} to {SHORT_SENTENCE_WORDS[-1]} words."
        )
    # The tokenizer's threads; it reads both when it is first used.
    os.environ["RAYON_NUM_THREADS"] = str(args.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if args.threads > 1 else "false"
    torch.set_num_threads(args.threads)
    names, notes = select_systems(args.only)
    with tempfile.TemporaryDirectory() as folder:
        peers = Peers(rest or embedded, Path(folder), args.threads)
        systems = {name: open_elmo(name) if name in OURS else peers.open(name) for name in names}
        speeds = measure(systems, workloads, args.rounds, args.seconds)
        cosines = mean_cosines(systems, embedded[:50])
        print("\n".join(table_rows(speeds)) + "\n")
        print('"en-mini int8 to this": how many times as fast en-mini in int8 is. "spread": by how much the fastest')
        print(f"round exceeds the slowest one. Rounds: {args.rounds}, of at least {args.seconds:g} seconds each.\n")
        facts = [*notes, *describe_machine(args.threads)]
        if any(name in PACKAGES for name in names):
            n_pieces = sum(len(pieces.ids) for pieces in peers.tokenizer.split(embedded))
            per_word = n_pieces / sum(map(len, embedded))
            size = peers.tokenizer.tokenizer.get_vocab_size()
            trained = f"trained on {len(peers.sentences):,} sentences"
            facts.append(f"WordPiece: {size:,} pieces, {per_word:.2f} per word; {trained}")
        shown = ", ".join(f"{name} {cosine:.5f}" for name, cosine in cosines.items())
        facts.append(f"Mean cosine with the vectors in float32: {shown}")
        print("\n".join(f"- {fact}" for fact in facts))


if __name__ == "__main__":
    main()
