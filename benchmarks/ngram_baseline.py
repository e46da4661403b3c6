"""Train and evaluate a modified Kneser-Ney 5-gram model on the text and vocabulary of a biLM.

    python benchmarks/ngram_baseline.py --vocabulary vocab.txt --train 'corpus/train-*.txt.xz' \\
        --test a/test.txt.xz --test b/test.txt.xz

The model is that of ``elmokit.lm.ngram``. It gives the same perplexities as KenLM's ``lmplz``
(results/language-models.md).

Predictions are counted as in ``elmokit evaluate perplexity``: every token and the end of each sentence, so n + 1 for n
tokens. The start of a sentence is given. Words outside the vocabulary are ``<UNK>`` in training and test text. With
``--backward``, a second model reads every sentence from its end.

The script prints a Markdown table.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from elmokit.lm.ngram import encode_text, ngram_nats
from elmokit.storage.text_files import find_text_files, read_sentences
from elmokit.text.vocabulary import Vocabulary


def sentences(paths: Iterable[Path], backward: bool) -> Iterator[list[str]]:
    """Yield the sentences of texts, reversed for a backward model."""
    for path in paths:
        for tokens in read_sentences(path):
            yield tokens[::-1] if backward else tokens


def main() -> None:
    """Train the models, evaluate them and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=Path, required=True, help="vocabulary file")
    parser.add_argument("--train", action="append", required=True, help="training text; can be repeated")
    parser.add_argument("--test", action="append", required=True, type=Path, help="test text; can be repeated")
    parser.add_argument("--backward", action="store_true", help="also train a backward model")
    parser.add_argument("--order", type=int, default=5, help="the n of the n-grams  [default: 5]")
    arguments = parser.parse_args()

    vocabulary = Vocabulary.from_file(arguments.vocabulary)
    texts = find_text_files(arguments.train, reread=True)
    lengths = [sum(len(tokens) + 1 for tokens in read_sentences(test)) for test in arguments.test]
    columns = []
    for backward in (False, True) if arguments.backward else (False,):
        text = encode_text(sentences(texts, backward), vocabulary)
        queries = encode_text(sentences(arguments.test, backward), vocabulary)
        nats = np.concatenate(ngram_nats(text, queries, vocabulary, arguments.order))
        columns.append([float(part.mean()) for part in np.split(nats, np.cumsum(lengths)[:-1])])
    names = ["forward", "backward"][: len(columns)]
    print(f"| text | words in the vocabulary | predictions | unknown words | {' | '.join(names)} |")
    print("|---" * (4 + len(columns)) + "|")
    for number, test in enumerate(arguments.test):
        tokens = [token for sentence in read_sentences(test) for token in sentence]
        unknown = sum(token not in vocabulary.ids for token in tokens) / len(tokens)
        values = " | ".join(f"{math.exp(column[number]):.2f}" for column in columns)
        name = "/".join(test.parts[-2:])
        print(f"| {name} | {len(vocabulary):,} | {lengths[number]:,} | {unknown:.1%} | {values} |")


if __name__ == "__main__":
    main()
