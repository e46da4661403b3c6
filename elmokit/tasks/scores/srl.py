"""F1 of semantic roles, counted like ``srl-eval.pl`` of the CoNLL-2005 shared task (Carreras and Marquez 2005).

The unit is the argument: it is correct if its bounds and its role are. The predicate (role V) is not an argument. A
piece ``C-X`` continues the last X before it, and such an argument is correct only if all its pieces are; a ``C-X``
without an X before it counts as an X. ``R-X`` is a role of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elmokit.tasks.readers.srl import PREDICATE
from elmokit.tasks.scores.chunks import Chunk
from elmokit.tasks.scores.counts import Counts, percent

CONTINUATION = "C-"

Argument = tuple[str, frozenset[tuple[int, int]]]
"""A role, and the bounds (start, stop) of the pieces of the argument."""


@dataclass(frozen=True)
class SrlScores:
    """What ``srl-eval.pl`` prints: all arguments, arguments by role, and the percentage of perfect propositions."""

    overall: Counts
    by_role: dict[str, Counts]
    n_propositions: int
    perfect: float


def srl_eval(
    gold: Sequence[Mapping[int, Iterable[Chunk]]], predicted: Sequence[Mapping[int, Iterable[Chunk]]]
) -> SrlScores:
    """Score the propositions of sentences.

    All arguments of a predicate that was not predicted count as missed. A predicate that is only in the prediction is
    ignored.

    Args:
        gold, predicted: For each sentence the arguments of its predicates, by the index of the predicate's token.
            Arguments with the role V are ignored.
    """
    correct: Counter[str] = Counter()
    predicted_roles: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    n_propositions = n_perfect = 0
    for gold_sentence, predicted_sentence in zip(gold, predicted, strict=True):
        for predicate, chunks in gold_sentence.items():
            # srl-eval.pl counts a repeated gold argument once, but a repeated prediction each time.
            wanted = set(_arguments(chunks))
            given = _arguments(predicted_sentence.get(predicate, ()))
            matching = [argument for argument in given if argument in wanted]
            # A repeated correct prediction counts as correct each time, as in the script.
            correct.update(role for role, _ in matching)
            predicted_roles.update(role for role, _ in given)
            expected.update(role for role, _ in wanted)
            n_propositions += 1
            # Chained: nothing wrong was predicted, and nothing was missed.
            n_perfect += len(matching) == len(given) == len(wanted)
    roles = sorted(predicted_roles.keys() | expected.keys())
    return SrlScores(
        Counts(correct.total(), predicted_roles.total(), expected.total()),
        {role: Counts(correct[role], predicted_roles[role], expected[role]) for role in roles},
        n_propositions,
        percent(n_perfect, n_propositions),
    )


def _arguments(chunks: Iterable[Chunk]) -> list[Argument]:
    """Join continuations to the chunks that they continue, and drop the predicate."""
    pieces: list[tuple[str, list[tuple[int, int]]]] = []
    last: dict[str, list[tuple[int, int]]] = {}  # by role: the argument that a continuation would join
    # In text order: a continuation belongs to the last argument of its role before it.
    for start, stop, label in sorted(chunks):
        role = label.removeprefix(CONTINUATION)
        if role != label and role in last:
            last[role].append((start, stop))
        else:
            last[role] = [(start, stop)]
            pieces.append((role, last[role]))
    return [(role, frozenset(bounds)) for role, bounds in pieces if role != PREDICATE]
