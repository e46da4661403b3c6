"""Exact match and F1 of answers, counted like the official SQuAD scripts (Rajpurkar et al. 2016, 2018).

Both scripts compare answers in lower case, without ASCII punctuation and the words a, an, the, and with single spaces.
An answer is compared with every gold answer, and its best score counts.
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
    """Mean exact match and F1 of ``n_questions``, in percent."""

    exact_match: float
    f1: float
    n_questions: int


@dataclass(frozen=True)
class Squad2Scores:
    """Scores of v2.0: over all questions, over those that have an answer, and over those that have none."""

    overall: SquadScores
    answerable: SquadScores
    unanswerable: SquadScores


def normalize_answer(text: str) -> str:
    """Return the form in which answers are compared."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def token_f1(gold: str, predicted: str, empty_matches: bool) -> float:
    """Return the F1 of the tokens of two answers, as multisets, from 0 to 1.

    Args:
        empty_matches: If both answers are empty after normalization, score 1 (v2.0) instead of 0 (v1.1).
    """
    wanted, given = normalize_answer(gold).split(), normalize_answer(predicted).split()
    if empty_matches and not (wanted and given):
        return float(wanted == given)
    shared = (Counter(wanted) & Counter(given)).total()
    return harmonic_mean(shared / len(given), shared / len(wanted)) if shared else 0.0


def squad_v1(gold: Sequence[Sequence[str]], predicted: Sequence[str | None]) -> SquadScores:
    """Score like ``evaluate-v1.1.py``. A question that was not answered (None) scores 0.

    Args:
        gold: For each question its acceptable answers, at least one.
    """
    scores = [
        _best(answers, answer, empty_matches=False) if answer is not None else (0.0, 0.0)
        for answers, answer in zip(gold, predicted, strict=True)
    ]
    return _mean(scores)


def squad_v2(gold: Sequence[Sequence[str]], predicted: Sequence[str | None]) -> Squad2Scores:
    """Score like ``evaluate-v2.0.py``. A missing prediction (None) is left out; an empty string means "no answer".

    Args:
        gold: For each question its acceptable answers; empty if it has no answer.
    """
    answerable: list[tuple[float, float]] = []
    unanswerable: list[tuple[float, float]] = []
    for answers, answer in zip(gold, predicted, strict=True):
        if answer is not None:
            # The script drops gold answers that are empty after normalization, and compares with "" if none is left.
            comparable = [text for text in answers if normalize_answer(text)] or [""]
            (answerable if answers else unanswerable).append(_best(comparable, answer, empty_matches=True))
    return Squad2Scores(_mean(answerable + unanswerable), _mean(answerable), _mean(unanswerable))


def _best(answers: Sequence[str], answer: str, empty_matches: bool) -> tuple[float, float]:
    """Return the highest exact match and the highest F1 over the gold answers."""
    exact = max(float(normalize_answer(text) == normalize_answer(answer)) for text in answers)
    return exact, max(token_f1(text, answer, empty_matches) for text in answers)


def _mean(scores: Sequence[tuple[float, float]]) -> SquadScores:
    return SquadScores(
        percent(sum(exact for exact, _ in scores), len(scores)),
        percent(sum(overlap for _, overlap in scores), len(scores)),
        len(scores),
    )
