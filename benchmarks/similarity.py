"""Measure how well ways of pooling token vectors into sentence vectors agree with people.

    python benchmarks/similarity.py STS.csv [--model MODEL] [--whiten TEXT...] [--sentences N]

STS.csv has two raw sentences and a score per row, as in the STS benchmark. The script prints a Markdown table of
Spearman correlations: a row for each choice of layers, a column for each weighting, and two with a whitening that is
fitted on N sentences of each TEXT (tokenized, one sentence per line). The tokenizer needs the extra ``tokenize``.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from elmokit import Elmo, SentenceEmbedder, SentencePooling
from elmokit.io.text_files import read_sentences
from elmokit.scoring.similarity import read_scored_pairs, score_similarity
from elmokit.text.tokenize import treebank_tokenizer

LAYERS = (0, 1, 2, "average", (0, 1), (0, 1, 2))
WEIGHTINGS = {
    "mean": SentencePooling("mean"),
    "sif 1e-2": SentencePooling(smoothing=1e-2),
    "sif 1e-3": SentencePooling(smoothing=1e-3),
    "sif 3e-4": SentencePooling(smoothing=3e-4),
    "sif 1e-4": SentencePooling(smoothing=1e-4),
}
WHITENED = ("mean", "sif 3e-4")


def main() -> None:
    """Score all combinations and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path, help="pairs of sentences with scores, CSV")
    parser.add_argument("--model", help="path, URL or published name; without it, the model in the package")
    parser.add_argument("--whiten", type=Path, nargs="*", default=[], help="tokenized texts for the whitening")
    parser.add_argument("--sentences", type=int, default=2_000, help="sentences of each text")
    options = parser.parse_args()
    pairs = read_scored_pairs(options.pairs, treebank_tokenizer())
    elmo = Elmo.from_pretrained(options.model)
    text = [s for path in options.whiten for s in itertools.islice(read_sentences(path), options.sentences)]
    columns = [*WEIGHTINGS, *(f"{name}, whitened" for name in WHITENED if text)]
    print(f"| layers | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for layers in LAYERS:
        embedders = {
            name: SentenceEmbedder(elmo, SentencePooling(weighting.weighting, layers, weighting.smoothing))
            for name, weighting in WEIGHTINGS.items()
        }
        scores = [score_similarity(embedder, pairs).spearman for embedder in embedders.values()]
        if text:
            scores += [score_similarity(embedders[name].fit(text), pairs).spearman for name in WHITENED]
        print(f"| {layers} | {' | '.join(f'{score:.3f}' for score in scores)} |", flush=True)


if __name__ == "__main__":
    main()
