"""Mix the documents of several corpora into one training text.

    python benchmarks/mix_text.py OUT FOLDER:TIMES ... [--seed 1]

Each folder has ``train-*.txt.xz`` with one sentence per line, and a table with the columns split, ..., sentences, whose
rows of the split ``train`` are the documents in the order of the files. ``TIMES`` says how many tokens are taken, as a
multiple of the folder's: 0.5 takes a random half of its documents, 1.3 all of them and a random third again.

Documents are cut into passages of at most ``PASSAGE`` sentences, since a novel would otherwise be one, and all passages
are shuffled into ``SHARDS`` files of equal shares, with a blank line after each passage. A training on a part of these
files, or that ends in the middle of them, has read all corpora in the same proportions.
"""

import argparse
import csv
import random
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from elmokit.storage.text_files import read_lines

PASSAGE, SHARDS = 100, 16


def documents(folder: Path) -> Iterator[list[str]]:
    """Yield the training documents of a corpus: their lines."""
    # lm-fiction also lists the sources of its books.
    tables = [rows for path in folder.glob("*.tsv*") if (rows := _sentences(path))]
    lines = chain.from_iterable(map(read_lines, sorted(folder.glob("train-*.txt.xz"))))
    for n_sentences in max(tables, key=len):
        yield list(islice(lines, n_sentences))
    if any(True for _ in lines):
        raise ValueError(f"{folder} has more sentences than its table of documents")


def _sentences(table: Path) -> list[int]:
    rows = csv.DictReader(read_lines(table), delimiter="\t", quoting=csv.QUOTE_NONE)
    return [int(row["sentences"]) for row in rows if row.get("split") == "train"]


def passages(folder: Path, times: float, generator: random.Random) -> Iterator[list[str]]:
    """Yield the passages of some documents of a corpus, some of them several times."""
    for lines in documents(folder):
        for first in range(0, len(lines), PASSAGE):
            for _ in range(int(times) + (generator.random() < times % 1)):
                yield lines[first : first + PASSAGE]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("folders", nargs="+", metavar="FOLDER:TIMES")
    parser.add_argument("--seed", type=int, default=0, help="which documents are taken, and in which order")
    args = parser.parse_args()
    generator = random.Random(args.seed)
    mixed: list[list[str]] = []
    for folder, _, times in (name.rpartition(":") for name in args.folders):
        taken = list(passages(Path(folder), float(times), generator))
        n_sentences = sum(map(len, taken))
        n_tokens = sum(len(line.split(" ")) for lines in taken for line in lines)
        print(f"{Path(folder).name}: {len(taken):,} passages, {n_sentences:,} sentences, {n_tokens:,} tokens")
        mixed += taken
    generator.shuffle(mixed)
    args.out.mkdir(parents=True, exist_ok=True)
    for shard in range(SHARDS):
        with (args.out / f"train-{shard:04}.txt").open("w", encoding="utf-8") as file:
            for lines in mixed[shard::SHARDS]:
                file.writelines(f"{line}\n" for line in [*lines, ""])


if __name__ == "__main__":
    main()
