"""Align two models that were trained on two halves of a text, as if the halves were two languages.

    python benchmarks/alignment.py WORK TEXT --held-out TEXT [--words 5000] [--tokens N N]

Sentences are assigned to the halves at random, and each half trains a model (128/64) with a seed of its own, over one
vocabulary.
The dictionary maps each word to itself, so that every answer can be checked. Its words occur at least 20 times in each
half; a fifth of them are tested on. The script prints a Markdown table: how often the nearest anchor among all these
words is the right one, before and after. Unfinished trainings are resumed if the script is run again.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import torch

import elmokit
from elmokit.io.tables import Table
from elmokit.io.text_files import read_sentences
from elmokit.nn.alignment import LayerAlignment
from elmokit.text.vocabulary_files import build_vocabulary
from elmokit.weights.model import PretrainedBiLM
from elmokit.word_retrieval import measure_retrieval, word_anchors

MIN_COUNT = 20
TEST_RATIO = 0.2
SIZES = (100, 300, 1000)


def split(text: Path, work: Path) -> tuple[list[Path], list[str]]:
    """Write the two halves, and return them with the words that are frequent in both, the most frequent first."""
    rng, halves, counts = np.random.default_rng(0), [work / "a.txt", work / "b.txt"], [Counter[str](), Counter[str]()]
    with halves[0].open("w", encoding="utf-8") as first, halves[1].open("w", encoding="utf-8") as second:
        for sentence in read_sentences(text):
            half = int(rng.integers(2))
            (first, second)[half].write(" ".join(sentence) + "\n")
            counts[half].update(sentence)
    rarer = {word: min(count, counts[1][word]) for word, count in counts[0].items()}
    return halves, sorted((word for word, n in rarer.items() if n >= MIN_COUNT), key=lambda word: -rarer[word])


def trained(
    run: Path, text: Path, arguments: argparse.Namespace, vocabulary: Path, n_tokens: int, seed: int
) -> PretrainedBiLM:
    """Train a model on one half, or open the one that was trained before."""
    started = time.process_time()
    if run.exists():
        return elmokit.resume(run).model
    result = elmokit.train(
        text,
        held_out=arguments.held_out,
        out=run,
        preset="tiny",
        hidden_dim=128,
        projection_dim=64,
        vocabulary=vocabulary,
        held_out_sentences=500,
        tokens=n_tokens,
        seed=seed,
    )
    print(f"{run.name}: perplexity {result.best_perplexity}, {time.process_time() - started:.0f} s of processor time")
    return result.model


def main() -> None:
    """Train, align and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="directory for the halves and the runs")
    parser.add_argument("text", type=Path, help="tokenized text, one sentence per line")
    parser.add_argument("--held-out", type=Path, required=True, help="validation text")
    parser.add_argument("--words", type=int, default=5000, help="words of the vocabulary  [default: 5000]")
    parser.add_argument("--tokens", type=int, nargs=2, default=[500_000] * 2, help="lengths of the trainings")
    parser.add_argument("--sentences", type=int, default=20_000, help="sentences for the anchors of each half")
    arguments = parser.parse_args()

    arguments.work.mkdir(exist_ok=True)
    halves, words = split(arguments.text, arguments.work)
    vocabulary = arguments.work / "vocab.txt"
    if not vocabulary.exists():
        build_vocabulary([arguments.text], vocabulary, arguments.words)
    models = [
        trained(arguments.work / f"run-{name}", half, arguments, vocabulary, n_tokens, seed)
        for seed, (name, half, n_tokens) in enumerate(zip("ab", halves, arguments.tokens, strict=True), start=1)
    ]
    first, second = (
        word_anchors(elmokit.Elmo(model), islice(read_sentences(half), arguments.sentences), words)
        for model, half in zip(models, halves, strict=True)
    )
    known = set(first.words) & set(second.words)
    words = [word for word in words if word in known]
    order = np.random.default_rng(0).permutation(len(words))
    n_test = round(TEST_RATIO * len(words))
    tested, learnable = [[words[index] for index in part] for part in (order[:n_test], order[n_test:])]
    rows = []
    for centered in (False, True):
        for size in (*SIZES, len(learnable)):
            of_first, of_second = (
                torch.from_numpy(one.vectors[:, one.rows(learnable[:size])]) for one in (first, second)
            )
            alignment = LayerAlignment.fit(of_first, of_second, centered)
            for one in measure_retrieval(first, second, [(word, word) for word in tested], alignment):
                values = (one.cosine_before, one.cosine, one.csls_before, one.csls)
                percent = [f"{100 * value:.1f}" for value in values]
                rows.append([f"{size:,}", "yes" if centered else "no", str(one.layer), *percent])
    print(f"{len(tested):,} words tested, {len(words):,} candidates")
    head = ["pairs learned from", "centered", "layer", "cosine, before", "after", "CSLS, before", "after"]
    print(Table(head, rows).to_markdown())


if __name__ == "__main__":
    main()
