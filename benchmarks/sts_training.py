"""Train an ELMo in sentence-transformers on scored pairs, and measure Spearman's correlation before and after.

python benchmarks/sts_training.py stsbenchmark/train.csv stsbenchmark/dev.csv --setup whitening

The files hold rows of two sentences and a score, in CSV. Results are in results/integrations.md.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from pathlib import Path

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.losses import CoSENTLoss
from sentence_transformers.sentence_transformer.modules import Pooling

from elmokit.integrations.sentence_transformers import ElmoEmbeddings, ElmoPooling


def read_pairs(path: str, n_pairs: int | None = None) -> Dataset:
    """Read the first pairs of a file, with scores from 0 to 1."""
    rows = list(csv.reader(Path(path).read_text(encoding="utf-8").splitlines()))[:n_pairs]
    first, second, scores = zip(*rows, strict=True)
    return Dataset.from_dict(
        {"sentence1": first, "sentence2": second, "score": [float(score) / 5 for score in scores]}
    ).shuffle(seed=0)


def build(setup: str, model: str | None) -> tuple[SentenceTransformer, float]:
    """Return the model and its learning rate."""
    elmo = ElmoEmbeddings(model, trainable=setup.startswith("finetune"))
    if setup in ("mix", "finetune-mean"):
        # The mix alone has three weights and gamma, which need large steps.
        rate = 3e-2 if setup == "mix" else 1e-3
        return SentenceTransformer(modules=[elmo, Pooling(elmo.get_embedding_dimension())]), rate
    pooling = ElmoPooling.from_elmo(elmo.elmo).requires_grad_(setup == "whitening")
    return SentenceTransformer(modules=[elmo, pooling]), 3e-4


def main() -> None:
    """Train, and print the correlations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train")
    parser.add_argument("dev")
    parser.add_argument("--setup", choices=["whitening", "mix", "finetune", "finetune-mean"], default="whitening")
    parser.add_argument("--model", help="a path or name; the small English model by default")
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--output", help="save the trained model here")
    args = parser.parse_args()
    dev = read_pairs(args.dev)
    evaluate = EmbeddingSimilarityEvaluator(dev["sentence1"], dev["sentence2"], dev["score"])
    model, rate = build(args.setup, args.model)
    print(f"before: {evaluate(model)['spearman_cosine']:.4f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        settings = SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=32,
            learning_rate=rate,
            warmup_steps=10,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            seed=1,
        )
        start = time.perf_counter()
        SentenceTransformerTrainer(model, settings, read_pairs(args.train, args.pairs), loss=CoSENTLoss(model)).train()
    seconds = time.perf_counter() - start
    print(f"after {args.epochs} x {args.pairs} pairs, {seconds:.0f} s: {evaluate(model)['spearman_cosine']:.4f}")
    if args.output:
        model.save(args.output)


if __name__ == "__main__":
    main()
