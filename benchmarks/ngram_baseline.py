"""Train and evaluate a modified Kneser-Ney n-gram model (Chen and Goodman 1998), the baseline of the language models.

    python benchmarks/ngram_baseline.py --vocabulary vocab.txt --train 'corpus/train-*.txt.xz' \\
        --test a/test.txt.xz --test b/test.txt.xz

It is estimated as KenLM's ``lmplz`` does (Heafield et al. 2013): interpolated, unpruned, with three discounts per
order, for a closed vocabulary in which unknown words are one word; the perplexities are the same
(results/language-models.md). Only the probabilities of given sentences are computed, so no model is kept: each order is
counted, used and dropped.

The text is an array of word ids. An n-gram gets an id too: the n-grams of order k are numbered by sorting the pairs of
the id of their first k - 1 words and their last word. This is exact, in contrast to hashing. It needs about 100 bytes
of memory per token (4 GB for 40 million tokens).

Predictions are counted as in ``elmokit evaluate perplexity``: every token and the end of each sentence, so n + 1 for n
tokens. The start of a sentence is given. With ``--backward``, a second model reads every sentence from its end. The
script prints a Markdown table; ``--words text.txt words.tsv`` also writes the surprisal of each word of raw text, as
``elmokit surprisal --words`` does.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit.storage.text_files import find_text_files
from elmokit.text.text import Text
from elmokit.text.tokenize import group_words, tokenize
from elmokit.text.vocabulary import Vocabulary

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
"""The discounts of an order whose counts do not determine them, such as order 1 of a vocabulary without rare words.
``lmplz --discount_fallback`` uses the same."""
MISSING = -1
Ids = NDArray[np.int32]


@dataclass(frozen=True)
class EncodedText:
    """Sentences as word ids, boundaries included, one after the other."""

    words: Ids
    """``(positions,)``."""
    offsets: Ids
    """``(positions,)``: the position within the sentence, 0 for ``<S>``."""


@dataclass(frozen=True)
class _Order:
    """The n-grams of order k of a text, and where they occur in the sentences to score."""

    contexts: Ids
    """``(n_grams,)``: the id of the first k - 1 words of each n-gram. The context of a single word is 0, the empty one.
    """
    suffixes: Ids
    """``(n_grams,)``: the id of the last k - 1 words."""
    counts: NDArray[np.int64]
    """``(n_grams,)``: how often each occurs."""
    starts_sentence: NDArray[np.bool_]
    """``(n_grams,)``: whether the first word is ``<S>``."""
    text_ids: Ids
    """``(positions of the text,)``: the n-gram that ends there; ``MISSING`` where the sentence is too short for one."""
    query_ids: Ids
    """``(positions of the sentences,)``: the same; ``MISSING`` also if the n-gram does not occur in the text."""
    query_contexts: Ids
    """``(positions of the sentences,)``: its context; ``MISSING`` if the text lacks it."""


def encode_text(sentences: Iterable[Sequence[str]], vocabulary: Vocabulary) -> EncodedText:
    """Number the words of sentences, with boundaries. Words outside the vocabulary are ``<UNK>``."""
    boundaries = np.array([vocabulary.begin_id]), np.array([vocabulary.end_id])
    words_of = (vocabulary.word_ids(map(vocabulary.read, sentence)) for sentence in sentences)
    rows = [np.concatenate((boundaries[0], ids, boundaries[1])).astype(np.int32) for ids in words_of]
    lengths = np.array([len(row) for row in rows])
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    words = np.concatenate(rows)
    return EncodedText(words, (np.arange(len(words)) - starts).astype(np.int32))


def ngram_nats(
    text: EncodedText, sentences: EncodedText, vocabulary: Vocabulary, order: int = 5
) -> list[NDArray[np.float64]]:
    """Estimate an n-gram model on a text and compute the surprisal of sentences, both encoded with one vocabulary.

    Returns for each sentence of n tokens ``(n + 1,)``: the nats of its tokens and of its end.
    """
    grams = _count_words(text, sentences, len(vocabulary))
    probability = np.zeros(len(sentences.words))
    for k in range(1, order + 1):
        longer = _count_longer(grams, text, sentences, len(vocabulary), k + 1) if k < order else None
        counts = grams.counts
        if longer is not None:
            # Kneser-Ney: a lower order counts the distinct words that precede an n-gram. Nothing can precede <S>, so
            # an n-gram that starts with it keeps its number of occurrences; <S> itself is never predicted.
            counts = np.bincount(longer.suffixes, minlength=len(grams.counts))
            counts[grams.starts_sentence] = grams.counts[grams.starts_sentence] if k > 1 else 0
        elif k == 1:
            counts = np.where(grams.starts_sentence, 0, counts)
        if k == 1:
            # Words that the text lacks are words of the vocabulary too. <S> is the only one that is never predicted.
            probability[:] = 1 / (len(vocabulary.ids) - 1)
        probability = _interpolate(grams, counts, probability)
        if longer is not None:
            grams = longer
    nats = -np.log(probability)
    return [row[1:] for row in np.split(nats, np.flatnonzero(sentences.offsets == 0)[1:])]


def _count_words(text: EncodedText, sentences: EncodedText, n_words: int) -> _Order:
    """Count the n-grams of order 1, whose ids are the word ids."""
    starts_sentence = np.zeros(n_words, dtype=bool)
    starts_sentence[text.words[0]] = True
    empty = np.zeros(n_words, np.int32)
    counts = np.bincount(text.words, minlength=n_words)
    query_contexts = np.where(sentences.offsets > 0, 0, MISSING).astype(np.int32)
    return _Order(empty, empty, counts, starts_sentence, text.words, sentences.words, query_contexts)


def _count_longer(shorter: _Order, text: EncodedText, sentences: EncodedText, n_words: int, k: int) -> _Order:
    """Count the n-grams of order k, given those of order k - 1."""
    ends = np.flatnonzero(text.offsets >= k - 1)
    keys = shorter.text_ids[ends - 1].astype(np.int64) * n_words + text.words[ends]
    known, examples, numbers = np.unique(keys, return_index=True, return_inverse=True)
    del keys  # of the size of the text, like the other arrays that are deleted here
    text_ids = np.full(len(text.words), MISSING, np.int32)
    text_ids[ends] = numbers
    counts = np.bincount(numbers, minlength=len(known))
    del numbers
    examples = ends[examples]
    del ends

    query_ids, query_contexts = (np.full(len(sentences.words), MISSING, np.int32) for _ in range(2))
    ends = np.flatnonzero(sentences.offsets >= k - 1)
    query_contexts[ends] = shorter.query_ids[ends - 1]
    ends = ends[query_contexts[ends] != MISSING]
    keys = query_contexts[ends].astype(np.int64) * n_words + sentences.words[ends]
    ids = np.searchsorted(known, keys)
    is_known = ids < len(known)
    is_known[is_known] = known[ids[is_known]] == keys[is_known]
    query_ids[ends[is_known]] = ids[is_known]
    return _Order(
        contexts=(known // n_words).astype(np.int32),
        suffixes=shorter.text_ids[examples],
        counts=counts,
        starts_sentence=text.offsets[examples] == k - 1,
        text_ids=text_ids,
        query_ids=query_ids,
        query_contexts=query_contexts,
    )


def _interpolate(grams: _Order, counts: NDArray[np.int64], lower: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the probability of each position by the n-grams of one order, from that of the next lower order.

    p(w | h) = (max(0, c(hw) - D(c)) + (D1 N1 + D2 N2 + D3 N3) p_lower(w | h')) / sum_w c(hw), where N1, N2, N3 are the
    numbers of words w that follow h with c(hw) = 1, 2, and 3 or more. A context that the text lacks adds nothing.
    """
    discounts = np.array([0.0, *_discounts(counts)])
    kinds = np.minimum(counts, 3)
    n_contexts = int(grams.contexts.max(initial=0)) + 1
    totals = np.bincount(grams.contexts, counts, n_contexts)
    reserved = np.bincount(grams.contexts, discounts[kinds], n_contexts)
    # A context can be known without an n-gram after it: one that the text has at the end of sentences only.
    ends = np.flatnonzero((grams.query_contexts != MISSING) & (grams.query_contexts < n_contexts))
    ends = ends[totals[grams.query_contexts[ends]] > 0]
    total, left = totals[grams.query_contexts[ends]], reserved[grams.query_contexts[ends]]
    ids = grams.query_ids[ends]
    own = np.where(ids == MISSING, 0.0, (counts - discounts[kinds])[ids])
    probability = lower.copy()
    probability[ends] = (own + left * lower[ends]) / total
    return probability


def _discounts(counts: NDArray[np.int64]) -> tuple[float, ...]:
    """Compute the discounts of counts 1, 2, and 3 or more (Chen and Goodman 1998, equation 26)."""
    n1, n2, n3, n4 = np.bincount(np.minimum(counts, 5), minlength=6)[1:5].tolist()
    if not (n1 and n2 and n3 and n4):
        return FALLBACK_DISCOUNTS
    y = n1 / (n1 + 2 * n2)
    discounts = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    in_range = all(0 <= discount <= count for count, discount in enumerate(discounts, start=1))
    return discounts if in_range else FALLBACK_DISCOUNTS


def sentences(paths: Iterable[Path], backward: bool) -> Iterator[list[str]]:
    """Yield the sentences of texts, reversed for a backward model."""
    for path in paths:
        for tokens in Text(path).token_lists():
            yield tokens[::-1] if backward else tokens


def write_words(path: Path, texts: list[str], text: EncodedText, vocabulary: Vocabulary, order: int) -> None:
    """Write the surprisal of each word of raw texts, as ``elmokit surprisal --words`` does."""
    split = [tokenize(raw, offsets=True) for raw in texts]
    tokens = [[token.text for token in sentence] for sentences in split for sentence in sentences]
    nats = iter(ngram_nats(text, encode_text(tokens, vocabulary), vocabulary, order))
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write("text_index\tword\tforward_nats\n")
        for number, (raw, sentences) in enumerate(zip(texts, split, strict=True)):
            own = list(islice(nats, len(sentences)))
            for word in group_words(raw, sentences):
                sum_of_tokens = sum(own[sentence][position] for sentence, position in word.tokens)
                file.write(f"{number}\t{word.text}\t{sum_of_tokens:.6f}\n")


def main() -> None:
    """Train the models, evaluate them and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=Path, required=True, help="vocabulary file")
    parser.add_argument("--train", action="append", required=True, help="training text; can be repeated")
    parser.add_argument("--test", action="append", required=True, type=Path, help="test text; can be repeated")
    parser.add_argument("--backward", action="store_true", help="also train a backward model")
    parser.add_argument("--words", type=Path, nargs=2, help="raw text, and the table of its words to write (TSV)")
    parser.add_argument("--order", type=int, default=5, help="the n of the n-grams  [default: 5]")
    arguments = parser.parse_args()

    vocabulary = Vocabulary.from_file(arguments.vocabulary)
    texts = find_text_files(arguments.train, reread=True)
    lengths = [sum(len(tokens) + 1 for tokens in Text(test).token_lists()) for test in arguments.test]
    columns = []
    for backward in (False, True) if arguments.backward else (False,):
        text = encode_text(sentences(texts, backward), vocabulary)
        queries = encode_text(sentences(arguments.test, backward), vocabulary)
        nats = np.concatenate(ngram_nats(text, queries, vocabulary, arguments.order))
        if arguments.words and not backward:
            raw, table = arguments.words
            texts_of_words = [line for line in raw.read_text(encoding="utf-8").split("\n") if line.strip()]
            write_words(table, texts_of_words, text, vocabulary, arguments.order)
        columns.append([float(part.mean()) for part in np.split(nats, np.cumsum(lengths)[:-1])])
    names = ["forward", "backward"][: len(columns)]
    print(f"| text | words in the vocabulary | predictions | unknown words | {' | '.join(names)} |")
    print("|---" * (4 + len(columns)) + "|")
    for number, test in enumerate(arguments.test):
        tokens = [token for sentence in Text(test).token_lists() for token in sentence]
        unknown = sum(token not in vocabulary.ids for token in tokens) / len(tokens)
        values = " | ".join(f"{math.exp(column[number]):.2f}" for column in columns)
        name = "/".join(test.parts[-2:])
        print(f"| {name} | {len(vocabulary):,} | {lengths[number]:,} | {unknown:.1%} | {values} |")


if __name__ == "__main__":
    main()
