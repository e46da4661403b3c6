"""Train ``ElmoForTokenClassification`` on entities with the trainer of transformers (results/integrations.md).

python benchmarks/transformers_tagging.py wikigold

The folder has the files train.conll and dev.conll: a token and its tag on each line.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from transformers import DataCollatorForTokenClassification, Trainer, TrainingArguments, set_seed

from elmokit.integrations.transformers import ElmoForTokenClassification, ElmoTokenizer
from elmokit.tasks.scores import chunk_f1, chunks_of


def read(path: Path) -> list[tuple[list[str], list[str]]]:
    """Return the tokens and the tags of each sentence."""
    blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    rows = [[line.split() for line in block.splitlines() if line.strip()] for block in blocks]
    return [([row[0] for row in block], [row[-1] for row in block]) for block in rows]


def main() -> None:
    """Train, and print the F1 score on dev."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--finetune", action="store_true", help="train the biLM too")
    args = parser.parse_args()
    set_seed(0)
    train, dev = (read(Path(args.folder) / name) for name in ("train.conll", "dev.conll"))
    labels = sorted({tag for _, tags in train for tag in tags})
    tokenizer = ElmoTokenizer.from_elmokit()

    def encode(words: list[str], tags: list[str]) -> dict[str, object]:
        encoded = tokenizer(words, is_split_into_words=True)
        return {**encoded, "labels": [-100 if i is None else labels.index(tags[i]) for i in encoded.word_ids()]}

    model = ElmoForTokenClassification.from_elmokit(labels=labels, trainable=args.finetune)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            num_train_epochs=args.epochs,
            learning_rate=1e-3 if args.finetune else 1e-2,
            per_device_train_batch_size=16,
            report_to="none",
            save_strategy="no",
            seed=0,
        )
        collate = DataCollatorForTokenClassification(tokenizer)
        trainer = Trainer(model, settings, train_dataset=[encode(*row) for row in train], data_collator=collate)
        started = time.perf_counter()
        trainer.train()
        print(f"{time.perf_counter() - started:.0f} s of training")
        predicted = trainer.predict([encode(*row) for row in dev]).predictions.argmax(axis=2)
    names = [[labels[i] for i in row[1 : 1 + len(words)]] for row, (words, _) in zip(predicted, dev, strict=True)]
    counts = chunk_f1(*([chunks_of(tags) for tags in side] for side in ([tags for _, tags in dev], names)))
    print(f"{len(train)} sentences, {args.epochs} epochs: F1 {counts.f1:.1f}")


if __name__ == "__main__":
    main()
