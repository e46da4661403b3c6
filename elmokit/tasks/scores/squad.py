"""Exact match and F1 of answers as the official SQuAD scripts count them (Rajpurkar et al. 2016, 2018).

Both compare texts in lower case, without ASCII punctuation, without the words a, an, the, and with single blanks; an
answer is scored by the gold answer that it fits best.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from elmokit.tasks.scores.counts import f1 as harmonic_mean
from elmokit.tasks.scores.counts import percent

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class SquadScores:
    """Exact match and F1 in percent, over ``n_questions``."""

    exact_match: float
    f1: float
    n_questions: int


@dataclass(frozen=True)
class Squad2Scores:
    """v2.0: all questions, those that have an answer, those that have none."""

    overall: SquadScores
    answerable: SquadScores
    unanswerable: SquadScores


def normalize_answer(text: str) -> str:
    """The form in which two answers are compared."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def token_f1(gold: str, predicted: str, empty_matches: bool) -> float:
    """F1 of the two answers' tokens as multisets, 0 to 1.

    Args:
        empty_matches: two answers that are both empty once normalised score 1 (v2.0), not 0 (v1.1).
    """
    wanted, given = normalize_answer(gold).split(), normalize_answer(predicted).split()
    if empty_matches and not (wanted and given):
        return float(wanted == given)
    shared = (Counter(wanted) & Counter(given)).total()
    return harmonic_mean(shared / len(given), shared / len(wanted)) if shared else 0.0


def squad_v1(gold: Sequence[Sequence[str]], predicted: Sequence[str | None]) -> SquadScores:
    """Score as ``evaluate-v1.1.py``: a question that was not answered (None) counts and scores 0.

    Args:
        gold: for each question its acceptable answers, at least one.

    Raises:
        ValueError: a question without an answer, or without a counterpart.
    """
    if not all(gold):
        raise ValueError("A question has no gold answer. SQuAD v1.1 has none of these; score them with squad_v2.")
    scores = [
        _best(answers, answer, empty_matches=False) if answer is not None else (0.0, 0.0)
        for answers, answer in zip(gold, predicted, strict=True)
    ]
    return _mean(scores)


def squad_v2(gold: Sequence[Sequence[str]], predicted: Sequence[str | None]) -> Squad2Scores:
    """Score as ``evaluate-v2.0.py``: a missing prediction (None) is left out, the empty string says "no answer".

    Args:
        gold: for each question its acceptable answers; none where it has no answer.

    Raises:
        ValueError: a question without a counterpart.
    """
    answerable: list[tuple[float, float]] = []
    unanswerable: list[tuple[float, float]] = []
    for answers, answer in zip(gold, predicted, strict=True):
        if answer is not None:
            worded = [text for text in answers if normalize_answer(text)] or [""]
            (answerable if answers else unanswerable).append(_best(worded, answer, empty_matches=True))
    return Squad2Scores(_mean(answerable + unanswerable), _mean(answerable), _mean(unanswerable))


def _best(answers: Sequence[str], answer: str, empty_matches: bool) -> tuple[float, float]:
    """Exact match and F1, each by the gold answer that suits it best."""
    exact = max(float(normalize_answer(text) == normalize_answer(answer)) for text in answers)
    return exact, max(token_f1(text, answer, empty_matches) for text in answers)


def _mean(scores: Sequence[tuple[float, float]]) -> SquadScores:
    return SquadScores(
        percent(sum(exact for exact, _ in scores), len(scores)),
        percent(sum(overlap for _, overlap in scores), len(scores)),
        len(scores),
    )
