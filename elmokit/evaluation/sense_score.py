"""The official score of word sense disambiguation, as computed by ``Scorer.java`` of the unified framework."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class SenseScore(NamedTuple):
    """Precision, recall and F1, each from 0 to 1."""

    precision: float
    recall: float
    f1: float


def score_senses(gold: Mapping[str, Collection[str]], answers: Mapping[str, Collection[str]]) -> SenseScore:
    """Score answers against the gold senses (Raganato et al. 2017).

    An answer with several senses counts as the fraction of them that is correct, and matching one of the gold senses is
    enough. Answers without a gold sense are ignored. Precision is over the answered instances, recall over all gold
    instances. If nothing was answered, the official program divides by zero and prints NaN; here the score is 0.

    Args:
        gold: The correct senses of each instance id.
        answers: The answered senses of each instance id; empty or missing for no answer.
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
