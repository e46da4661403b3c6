"""Measure the speed of perplexity, surprisal and minimal pairs against another checkout, on one thread.

    python benchmarks/scoring.py TEXT --against OTHER-CHECKOUT --model FOLDER [--lines 300] [--rounds 3]
        [--instructions amx,avx512] [--precisions float32,int8]
    python benchmarks/scoring.py TEXT --against OTHER-CHECKOUT --size small --words 200000 --lines 100

TEXT has one tokenized sentence per line. The model is one that both checkouts can open, such as the included one in
float32 (`elmokit convert en-mini FOLDER --precision float32`), or one of a published size with random weights and a
vocabulary of so many words. For minimal pairs, every sentence is compared with itself without its last word.

Each measurement runs in a process of its own, which first scores ten sentences, so that weights are packed, and then
counts the processor time. The variants take turns, so that other programs slow all of them down, and the fastest round
of each counts. A variant is the other checkout with its best instructions, or this one with one instruction set and
precision.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
MEASURES = ("perplexity", "surprisal", "minimal pairs")


def main() -> None:
    """Measure all variants in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--against", type=Path, required=True, help="the other checkout")
    parser.add_argument("--lines", type=int, default=300, help="lines of TEXT  [default: 300]")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements  [default: 3]")
    parser.add_argument("--instructions", default="auto", help="instruction sets, separated by commas  [default: auto]")
    parser.add_argument("--precisions", default="float32", help="precisions, separated by commas  [default: float32]")
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", help="a model that both checkouts can open")
    model.add_argument("--size", help="a published size with random weights")
    parser.add_argument("--words", type=int, default=200_000, help="vocabulary of --size  [default: 200000]")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)  # one measurement, in a process
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args)))
        return
    variants = {("before", "auto", "float32"): args.against}
    for instructions in args.instructions.split(","):
        for precision in args.precisions.split(","):
            variants["now", instructions, precision] = HERE
    results: dict[tuple[str, str, str], list[dict[str, float]]] = {variant: [] for variant in variants}
    for _ in range(args.rounds):
        for (name, instructions, precision), checkout in variants.items():
            environment = os.environ | {
                "PYTHONPATH": str(checkout.resolve()),
                "OMP_NUM_THREADS": "1",
                "ELMOKIT_INSTRUCTIONS": instructions,
                "ELMOKIT_BACKEND": precision,
            }
            command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--measure"]
            # Not in this checkout: a script's own directory would come first in the path.
            found = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
            results[name, instructions, precision].append(json.loads(found))
    best = {variant: {key: min(one[key] for one in each) for key in each[0]} for variant, each in results.items()}
    base = best["before", "auto", "float32"]
    print(f"| variant | instructions | precision | perplexity of the text | {' | '.join(MEASURES)} |")
    print("|---|---|---|---|" + "---|" * len(MEASURES))
    for variant, times in best.items():
        cells = [f"{times[key]:.2f} s ({base[key] / times[key]:.2f}x)" for key in MEASURES]
        print(f"| {' | '.join(variant)} | {times['value']:.6f} | {' | '.join(cells)} |")


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Return the processor time of each measure, and the perplexity itself."""
    import torch

    from elmokit import LanguageModel

    torch.set_num_threads(1)
    with args.text.open(encoding="utf-8") as file:
        sentences = [line.split() for line, _ in zip(file, range(args.lines), strict=False)]
    model = LanguageModel.from_pretrained(args.model) if args.model else random_model(args.size, args.words, sentences)
    pairs = [(sentence, sentence[:-1]) for sentence in sentences]
    times: dict[str, float] = {}
    model.surprisal(sentences[:10])
    for name, compute in (
        ("perplexity", lambda: model.perplexity(sentences)),
        ("surprisal", lambda: model.surprisal(sentences)),
        ("minimal pairs", lambda: model.minimal_pairs(pairs)),
    ):
        started = time.process_time()
        result: Any = compute()
        times[name] = time.process_time() - started
        if name == "perplexity":
            times["value"] = result.mean
    return times


def random_model(size: str, n_words: int, sentences: list[list[str]]) -> Any:
    """Return a language model of a published size with random weights."""
    import torch

    from elmokit import LanguageModel
    from elmokit.engine.config import PRESETS
    from elmokit.formats.model import PretrainedBiLM
    from elmokit.network.bilm import BiLM
    from elmokit.network.softmax_module import FullSoftmax
    from elmokit.text.vocabulary import Vocabulary

    torch.manual_seed(0)
    known = dict.fromkeys(["</S>", "<S>", "<UNK>", *(token for sentence in sentences for token in sentence)])
    words = [*known, *(f"word-{number}" for number in range(n_words - len(known)))]
    bilm = BiLM(PRESETS[size])
    bilm.reset_parameters(seed=0)
    softmax = FullSoftmax(n_words, PRESETS[size].projection_dim)
    softmax.reset_parameters()
    return LanguageModel(PretrainedBiLM(bilm, "elmokit", softmax=softmax, vocabulary=Vocabulary(words[:n_words])))


if __name__ == "__main__":
    main()
