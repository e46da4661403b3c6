"""SRL F1 as ``srl-eval.pl`` of the CoNLL-2005 shared task counts it.

A proposition is right argument by argument: same bounds, same role. The predicate (role V) is left out. A piece
``C-X`` belongs to the last X before it, and the argument is right only if all its pieces are; a ``C-X`` without an X
before it is an X.
``R-X`` is a role of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elmokit.tasks.scores.chunks import Chunk
from elmokit.tasks.scores.counts import Counts, percent

PREDICATE = "V"
CONTINUATION = "C-"

Argument = tuple[str, frozenset[tuple[int, int]]]
"""A role and the bounds (start, stop) of its pieces."""


@dataclass(frozen=True)
class SRLScores:
    """What ``srl-eval.pl`` prints: all arguments, arguments by role, percent of propositions without a mistake."""

    overall: Counts
    by_role: dict[str, Counts]
    n_propositions: int
    perfect: float


def srl_eval(
    gold: Sequence[Mapping[int, Iterable[Chunk]]], predicted: Sequence[Mapping[int, Iterable[Chunk]]]
) -> SRLScores:
    """Score sentences of propositions.

    A predicate that the prediction lacks loses all its arguments; one that only the prediction has counts for nothing.

    Args:
        gold, predicted: for each sentence its predicates (places of their tokens) with their arguments; V is left out.

    Raises:
        ValueError: sentences without a counterpart.
    """
    correct: Counter[str] = Counter()
    found: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    n_propositions = n_perfect = 0
    for gold_sentence, predicted_sentence in zip(gold, predicted, strict=True):
        for place, chunks in gold_sentence.items():
            wanted = set(_arguments(chunks))
            given = _arguments(predicted_sentence.get(place, ()))
            right = [argument for argument in given if argument in wanted]
            correct.update(role for role, _ in right)
            found.update(role for role, _ in given)
            expected.update(role for role, _ in wanted)
            n_propositions += 1
            n_perfect += len(right) == len(given) == len(wanted)
    roles = sorted(found.keys() | expected.keys())
    return SRLScores(
        Counts(correct.total(), found.total(), expected.total()),
        {role: Counts(correct[role], found[role], expected[role]) for role in roles},
        n_propositions,
        percent(n_perfect, n_propositions),
    )


def _arguments(chunks: Iterable[Chunk]) -> list[Argument]:
    """Chunks with their continuations joined, the predicate left out."""
    pieces: list[tuple[str, list[tuple[int, int]]]] = []
    last: dict[str, list[tuple[int, int]]] = {}  # the argument that a continuation would join
    for start, stop, label in sorted(chunks):
        role = label.removeprefix(CONTINUATION)
        if role != label and role in last:
            last[role].append((start, stop))
        else:
            last[role] = [(start, stop)]
            pieces.append((role, last[role]))
    return [(role, frozenset(bounds)) for role, bounds in pieces if role != PREDICATE]
