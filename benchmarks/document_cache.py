"""Fit the weights of the cache of a document's own words, measure what it changes, and what it costs.

    python benchmarks/document_cache.py fit lm-wikipedia lm-books --tokens 10000
    python benchmarks/document_cache.py bits lm-wikipedia lm-books --skip 12000 --tokens 10000
    python benchmarks/document_cache.py cost lm-wikipedia --tokens 2000

Folders of text are those of ``documents.py``. ``fit`` prints the weights that make the words of all folders most
probable, by EM; every folder counts alike. ``bits`` prints a table of documents with the cache and without, and
``cost`` the seconds that surprisal, and the words expected at each position, take with it and without.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from documents import Document, print_change, print_heads, read_documents
from numpy.typing import NDArray

from elmokit import LanguageModel
from elmokit.lm import word_cache
from elmokit.lm.spelling import spelling_of
from elmokit.lm.substitutes import Wanted, expected_words
from elmokit.lm.surprisal import Predictions, Surprisal
from elmokit.lm.word_cache import SIZES, CacheSettings, DocumentCache, cached_surprisals

MARKS = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Weights while the caches are read for a fit: they tell how many words are in a cache."""


class Recorder(DocumentCache):
    """A cache that keeps what the model and the cache expected of each word, for each direction."""

    def begin(self) -> None:
        super().begin()
        if not hasattr(self, "rows"):
            self.rows: list[list[NDArray[np.float64]]] = [[] for _ in self.model.config.read_backward]

    def add_to(self, predictions: Predictions) -> Surprisal:
        found = predictions.surprisal
        expected, weights, spelling = self.expect(predictions)
        is_expected = found.is_unknown & (expected > 0).any(axis=0)
        by_model = np.exp(-found.nats - np.where(is_expected, spelling, 0.0))
        for direction, rows in enumerate(self.rows):
            is_read = weights[direction] > 0
            columns = (weights[direction], by_model[direction], expected[direction])
            rows.append(np.stack([column[is_read] for column in columns], axis=1))
        return found


def fit_weights(options: argparse.Namespace) -> None:
    """Print the weights of both directions, for each number of words in the cache."""
    lm = LanguageModel.from_pretrained(options.model)
    word_cache.FORWARD_WEIGHTS = word_cache.BACKWARD_WEIGHTS = MARKS  # type: ignore[misc]
    recorders = []
    for folder in options.folders:
        recorder = Recorder(lm.model, settings(options), spelling_of(lm.model).nats)
        for _ in cached_surprisals(lm.computer, documents_of(folder, options), recorder):
            pass
        recorders.append(recorder)
    for direction, name in enumerate(lm.model.config.direction_names):
        tables = [np.concatenate(recorder.rows[direction]) for recorder in recorders]
        weights = [round(float(fit_weight(tables, mark)), 3) for mark in MARKS]
        print(f"{name}: {weights} below and from each of {SIZES}", flush=True)


def fit_weight(tables: list[NDArray[np.float64]], mark: float) -> float:
    """Return the weight of caches of one size, by EM. Each table counts alike."""
    weight = 0.1
    for _ in range(100):
        shares = []
        for table in tables:
            _, by_model, by_cache = table[np.isclose(table[:, 0], mark)].T
            if len(by_model):
                of_cache = weight * by_cache
                shares.append((of_cache / ((1 - weight) * by_model + of_cache)).mean())
        weight = float(np.mean(shares)) if shares else 0.0
    return weight


def show_bits(options: argparse.Namespace) -> None:
    """Print a table: each direction of documents without and with the cache, and bits per character."""
    lm = LanguageModel.from_pretrained(options.model, spelling=options.spelling)
    print_heads()
    for folder in options.folders:
        documents = documents_of(folder, options)
        without = lm.perplexity(documents, documents=True)
        cached = lm.perplexity(documents, documents=True, cache=settings(options))
        print_change(folder.name, len(documents), without, cached, digits=3)


def show_cost(options: argparse.Namespace) -> None:
    """Print the seconds of each, medians and the fastest of rounds that alternate, and their ratios."""
    lm = LanguageModel.from_pretrained(options.model, precision=options.precision)
    documents = documents_of(options.folders[0], options)
    wanted = Wanted(["forward"], 8)
    queries = [[(sentence, range(len(sentence))) for sentence in document] for document in documents]

    def expect(cache: bool) -> None:
        words = DocumentCache(lm.model, settings(options), spelling_of(lm.model).nats) if cache else None
        for _ in expected_words(lm.computer, queries, wanted, documents=True, cache=words):
            pass

    tasks: dict[str, Callable[[bool], object]] = {
        "surprisal": lambda cache: lm.surprisal_documents(documents, cache=settings(options) if cache else False),
        "expected words": expect,
    }
    n_words = sum(len(sentence) for document in documents for sentence in document)
    for name, task in tasks.items():
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(options.rounds):
            for cache, times in seconds.items():
                started = time.process_time()
                task(cache)
                times.append(time.process_time() - started)
        for kind, choose in (("median", statistics.median), ("fastest", min)):
            without, cached = choose(seconds[False]), choose(seconds[True])
            print(f"{name}, {n_words:,} words, {kind}: {without:.2f} to {cached:.2f} s ({cached / without:.2f} times)")


def documents_of(folder: Path, options: argparse.Namespace) -> list[Document]:
    """Read documents of a folder, after those that are skipped."""
    n_skipped, found = 0, []
    for document in read_documents(folder, options.split, options.skip + options.tokens, options.tokens_of_each):
        if n_skipped < options.skip:
            n_skipped += sum(map(len, document))
        else:
            found.append(document[options.skip_sentences :])
    return found


def settings(options: argparse.Namespace) -> CacheSettings:
    """Return the settings of the cache."""
    return CacheSettings(options.theta, options.size)


COMMANDS = {"fit": fit_weights, "bits": show_bits, "cost": show_cost}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(COMMANDS))
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--model", help="as in LanguageModel.from_pretrained; the included model by default")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--skip", type=int, default=0, help="tokens of each folder, in whole documents")
    parser.add_argument("--skip-sentences", type=int, default=0, help="of each document")
    parser.add_argument("--tokens", type=int, default=10_000, help="of each folder")
    parser.add_argument("--tokens-of-each", type=int, default=2_000, help="of each document, from its start")
    parser.add_argument("--theta", type=float, default=CacheSettings.theta)
    parser.add_argument("--size", type=int, default=CacheSettings.size)
    parser.add_argument("--spelling", default="model", help="as in LanguageModel, for bits")
    parser.add_argument("--precision", help="for the cost")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    COMMANDS[chosen.what](chosen)
