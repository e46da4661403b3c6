"""Train flair's sequence tagger on entities with ELMo, or with embeddings of words that are learned from scratch.

python benchmarks/flair_training.py wikigold --embeddings elmo

The folder has the files train.conll and dev.conll: a token and its tag on each line. Results are in
results/integrations.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import flair
import torch
from flair.datasets import ColumnCorpus
from flair.embeddings import OneHotEmbeddings
from flair.models import SequenceTagger
from flair.trainers import ModelTrainer

from elmokit.integrations.flair import ElmoTokenEmbeddings


def main() -> None:
    """Train, and print the F1 score on dev."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--embeddings", choices=["elmo", "words"], default="elmo")
    parser.add_argument("--model", help="a path or name; the small English model by default")
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    flair.set_seed(0)
    # The tagger is evaluated once, on dev, after the last epoch.
    files = {"train_file": "train.conll", "test_file": "dev.conll"}
    corpus = ColumnCorpus(args.folder, {0: "text", 1: "ner"}, **files, sample_missing_splits=False)
    labels = corpus.make_label_dictionary("ner", add_unk=False)
    is_elmo = args.embeddings == "elmo"
    embeddings = ElmoTokenEmbeddings(args.model) if is_elmo else OneHotEmbeddings.from_corpus(corpus, min_freq=2)
    tagger = SequenceTagger(embeddings, labels, "ner", hidden_size=128)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        result = ModelTrainer(tagger, corpus).train(
            folder,
            optimizer=torch.optim.Adam,
            learning_rate=0.003,
            mini_batch_size=8,
            max_epochs=args.epochs,
            train_with_dev=True,
        )
    seconds = time.perf_counter() - start
    print(f"{args.embeddings}: F1 {100 * result['test_score']:.2f} after {args.epochs} epochs, {seconds:.0f} s")


if __name__ == "__main__":
    main()
