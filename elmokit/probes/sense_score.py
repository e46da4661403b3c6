"""The official score of word sense disambiguation: that of ``Scorer.java`` in the unified framework."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class SenseScore(NamedTuple):
    """From 0 to 1."""

    precision: float
    recall: float
    f1: float


def score_senses(gold: Mapping[str, Collection[str]], answers: Mapping[str, Collection[str]]) -> SenseScore:
    """Score answers against the gold senses (Raganato et al. 2017).

    An answer of several senses counts by the share of them that is right; one of the gold senses is enough. Answers to
    what gold does not ask are passed over. Precision is over what was answered, recall over all of gold.

    Where nothing was answered, the official program divides by nothing and prints NaN; here that is 0.

    Args:
        gold: instance id to the senses that are right.
        answers: instance id to the senses that are given; none or no entry for no answer.
    """
    right = 0.0
    n_answered = 0
    for name, given in answers.items():
        distinct = set(given)
        if name in gold and distinct:
            right += sum(sense in gold[name] for sense in distinct) / len(distinct)
            n_answered += 1
    precision = right / n_answered if n_answered else 0.0
    recall = right / len(gold) if gold else 0.0
    total = precision + recall
    return SenseScore(precision, recall, 2 * precision * recall / total if total else 0.0)
