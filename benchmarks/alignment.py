"""Align two models that were trained on two halves of a text, as if the halves were two languages.

    python benchmarks/alignment.py MODEL_A TEXT_A MODEL_B TEXT_B [--sentences 20000]

The dictionary maps each word to itself, so that every answer can be checked. Its words occur at least 20 times in the
sentences that are read of each half; a fifth of them are tested on. The script prints a Markdown table: how often the
nearest anchor among all these words is the right one, before and after.
"""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch

import elmokit
from elmokit.engine.layer_alignment import LayerAlignment
from elmokit.evaluation.tables import Table
from elmokit.evaluation.word_retrieval import measure_retrieval, word_anchors
from elmokit.storage.text_files import read_sentences

MIN_COUNT = 20
TEST_RATIO = 0.2
SIZES = (100, 300, 1000)


def frequent_words(texts: list[list[list[str]]]) -> list[str]:
    """Return the words that are frequent in both texts, the most frequent first."""
    first, second = (Counter(chain.from_iterable(text)) for text in texts)
    rarer = {word: min(count, second[word]) for word, count in first.items()}
    return sorted((word for word, n in rarer.items() if n >= MIN_COUNT), key=lambda word: -rarer[word])


def main() -> None:
    """Align the models and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for half in "ab":
        parser.add_argument(f"model_{half}", help="model trained on this half")
        parser.add_argument(f"text_{half}", type=Path, help="its text, one tokenized sentence per line")
    parser.add_argument("--sentences", type=int, default=20_000, help="read N sentences of each half  [default: 20000]")
    arguments = parser.parse_args()

    texts = [list(islice(read_sentences(path), arguments.sentences)) for path in (arguments.text_a, arguments.text_b)]
    words = frequent_words(texts)
    first, second = (
        word_anchors(elmokit.Elmo.from_pretrained(model, precision="float32"), text, words)
        for model, text in zip((arguments.model_a, arguments.model_b), texts, strict=True)
    )
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
