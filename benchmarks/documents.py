"""Measure what documents change: perplexity on texts of several kinds, word senses, and words per second.

A folder of text has ``test.txt.xz``, with one tokenized sentence per line, and a table whose rows are its documents in
file order, with the columns ``split`` and ``sentences``.

    python benchmarks/documents.py perplexity lm-wikipedia lm-books
    python benchmarks/documents.py speed lm-wikipedia
    python benchmarks/documents.py senses semcor senseval2 senseval3 --inventory sense-inventory.tsv.xz

The folders of word senses are those of ``elmokit evaluate wsd``, the training corpus first; an instance's id begins
with the name of its text.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from elmokit import Elmo, LanguageModel
from elmokit.evaluation import senses
from elmokit.evaluation.sense_files import SenseSentence, find_sense_set, read_inventory
from elmokit.lm.perplexity import Perplexity
from elmokit.storage.text_files import read_lines

Document = list[list[str]]


def read_documents(folder: Path, split: str, n_tokens: int, n_of_each: int) -> list[Document]:
    """Read documents until there are enough tokens, and of each at most some tokens from its start."""
    rows: list[dict[str, str]] = []
    for table in folder.glob("*.tsv*"):
        rows += csv.DictReader(read_lines(table), delimiter="\t", quoting=csv.QUOTE_NONE)
    sizes = [int(row["sentences"]) for row in rows if row.get("split") == split]
    lines = read_lines(folder / f"{split}.txt.xz")
    documents: list[Document] = []
    n_read = 0
    for size in sizes:
        document: Document = []
        n_here = 0
        for line in islice(lines, size):
            if n_here < n_of_each:
                document.append(line.split())
                n_here += len(document[-1])
        documents.append(document)
        n_read += n_here
        if n_read >= n_tokens:
            break
    return documents


def print_heads() -> None:
    """Print the heads of the table whose rows :func:`print_change` prints."""
    print("| text | documents, words | forward | backward | bits per character |")
    print("|---|---|---|---|---|")


def print_change(name: str, n_documents: int, before: Perplexity, after: Perplexity, digits: int) -> None:
    """Print a row: perplexity of each direction and bits per character, before and after."""

    def change(number: Callable[[Perplexity], float]) -> str:
        old, new = number(before), number(after)
        return f"{old:.{digits}f} to {new:.{digits}f} ({100 * (new / old - 1):+.1f} %)"

    cells = [
        name,
        f"{n_documents}, {before.n_tokens:,}",
        change(lambda result: result.per_direction[0]),
        change(lambda result: result.per_direction[-1]),
        change(lambda result: sum(result.bits_per_character) / len(result.bits_per_character)),
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def show_perplexity(options: argparse.Namespace) -> None:
    """Print a table: each direction from sentences and from documents, and bits per character."""
    lm = LanguageModel.from_pretrained(options.model)
    print_heads()
    for folder in options.folders:
        documents = read_documents(folder, options.split, options.tokens, options.tokens_of_each)
        if options.shuffled:
            sentences = [sentence for document in documents for sentence in document]
            Random(1).shuffle(sentences)
            remaining = iter(sentences)
            documents = [list(islice(remaining, len(document))) for document in documents]
        alone = lm.perplexity([sentence for document in documents for sentence in document])
        read_on = lm.perplexity(documents, documents=True)
        print_change(folder.name, len(documents), alone, read_on, digits=2)


def show_senses(options: argparse.Namespace) -> None:
    """Print the F1 of each layer with vectors of sentences and of documents."""
    train, *tests = map(find_sense_set, options.folders)
    inventory = None if options.inventory is None else read_inventory(options.inventory)
    elmo = Elmo.from_pretrained(options.model)
    for in_documents in (False, True):

        def embed(
            elmo: Elmo, sentences: Iterable[SenseSentence], in_documents: bool = in_documents
        ) -> Iterator[tuple[SenseSentence, NDArray[np.float32]]]:
            texts: dict[str, list[SenseSentence]] = {}
            name = ""
            for sentence in sentences:
                name = sentence.instances[0].id.split(".")[0] if sentence.instances else name
                texts.setdefault(name, []).append(sentence)
            for text in islice(texts.values(), options.texts):
                words = [sentence.words for sentence in text]
                vectors = elmo.embed_documents([words])[0] if in_documents else elmo.embed(words)
                yield from zip(text, vectors, strict=True)

        senses.embed_instances = embed  # type: ignore[assignment]
        print("documents" if in_documents else "sentences")
        print(senses.probe_senses(elmo, train, tests, inventory).to_text(), flush=True)


def show_speed(options: argparse.Namespace) -> None:
    """Print the words per second of sentences and of documents, the best of rounds that alternate."""
    elmo = Elmo.from_pretrained(options.model)
    for folder in options.folders:
        documents = read_documents(folder, options.split, options.tokens, options.tokens_of_each)
        sentences = [sentence for document in documents for sentence in document]
        runs: dict[str, Callable[[], object]] = {
            "sentences": lambda sentences=sentences: elmo.embed(sentences, layers="top"),  # type: ignore[misc]
            "documents": lambda documents=documents: elmo.embed_documents(documents, layers="top"),  # type: ignore[misc]
        }
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(options.rounds):
            for name, run in runs.items():
                started = time.perf_counter()
                run()
                best[name] = min(best[name], time.perf_counter() - started)
        n_words = sum(map(len, sentences))
        speeds = ", ".join(f"{name} {n_words / seconds:,.0f} words/s" for name, seconds in best.items())
        print(f"{folder.name}: {len(documents)} documents; {speeds}; ratio {best['sentences'] / best['documents']:.2f}")


COMMANDS = {"perplexity": show_perplexity, "senses": show_senses, "speed": show_speed}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(COMMANDS))
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--model", help="as in Elmo.from_pretrained; the included model by default")
    parser.add_argument("--split", default="test")
    parser.add_argument("--tokens", type=int, default=20_000, help="of each folder")
    parser.add_argument("--tokens-of-each", type=int, default=5_000, help="of each document, from its start")
    parser.add_argument("--shuffled", action="store_true", help="distribute the sentences over the documents by chance")
    parser.add_argument("--inventory", type=Path, help="of the senses of each lemma")
    parser.add_argument("--texts", type=int, help="of a corpus of word senses, at most")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    COMMANDS[chosen.what](chosen)
