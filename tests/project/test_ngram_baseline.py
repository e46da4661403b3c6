"""The n-gram baseline of ``benchmarks/`` is equal to a slow one made of dictionaries."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict

import pytest

from benchmarks.ngram_baseline import FALLBACK_DISCOUNTS, encode_text, ngram_nats
from elmokit.text.vocabulary import SPECIALS, Vocabulary

BEGIN, END, _ = SPECIALS


def sentences(n: int, seed: int, words: int = 30) -> list[list[str]]:
    """Random sentences, in which rare words and repeated sequences both occur."""
    draw = random.Random(seed)
    return [[f"w{min(int(draw.expovariate(0.25)), words)}" for _ in range(draw.randrange(0, 8))] for _ in range(n)]


class SlowKneserNey:
    """Dictionaries and recursion, straight from the formulas."""

    def __init__(self, text: list[list[str]], order: int, n_words: int) -> None:
        raw: Counter[tuple[str, ...]] = Counter()
        before: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
        for words in text:
            line = [BEGIN, *words, END]
            for k in range(1, order + 1):
                for start in range(len(line) - k + 1):
                    gram = tuple(line[start : start + k])
                    raw[gram] += 1
                    if start:
                        before[gram].add(line[start - 1])
        self.counts: defaultdict[tuple[str, ...], dict[str, int]] = defaultdict(dict)
        self.discounts = {}
        for k in range(1, order + 1):
            adjusted = {}
            for gram in (gram for gram in raw if len(gram) == k):
                adjusted[gram] = raw[gram] if k == order or gram[0] == BEGIN else len(before[gram])
            adjusted.pop((BEGIN,), None)
            n = Counter(adjusted.values())
            self.discounts[k] = FALLBACK_DISCOUNTS
            if all(n[count] for count in (1, 2, 3, 4)):
                y = n[1] / (n[1] + 2 * n[2])
                found = tuple(c - (c + 1) * y * n[c + 1] / n[c] for c in (1, 2, 3))
                if all(0 <= discount <= count for count, discount in enumerate(found, start=1)):
                    self.discounts[k] = found  # type: ignore[assignment]
            for gram, count in adjusted.items():
                self.counts[gram[:-1]][gram[-1]] = count
        self.order, self.n_words = order, n_words

    def probability(self, word: str, context: tuple[str, ...]) -> float:
        shorter = 1 / self.n_words if not context else self.probability(word, context[1:])
        after = self.counts.get(context)
        if not after:
            return shorter
        total, discounts = sum(after.values()), self.discounts[len(context) + 1]
        reserved = sum(discounts[min(count, 3) - 1] for count in after.values())
        count = after.get(word, 0)
        own = count - discounts[min(count, 3) - 1] if count else 0
        return (own + reserved * shorter) / total

    def nats(self, words: list[str]) -> list[float]:
        line = [BEGIN, *words, END]
        return [
            -math.log(self.probability(line[end], tuple(line[max(0, end - self.order + 1) : end])))
            for end in range(1, len(line))
        ]


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_surprisals_equal_the_formulas(order: int) -> None:
    text, test = sentences(300, seed=1), sentences(40, seed=2)
    vocabulary = Vocabulary([*SPECIALS, *(f"w{number}" for number in range(31))])
    slow = SlowKneserNey(text, order, len(vocabulary) - 1)
    found = ngram_nats(encode_text(text, vocabulary), encode_text(test, vocabulary), vocabulary, order)
    for words, nats in zip(test, found, strict=True):
        assert nats.tolist() == pytest.approx(slow.nats(words))
