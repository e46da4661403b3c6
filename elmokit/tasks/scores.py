"""The official scores: F1 of chunks and roles, exact match of answers, metrics of coreference, accuracy.

- **Chunks** like ``conlleval`` (Tjong Kim Sang, version 2004-01-26). ``tags.read_chunks`` finds them as it does.
- **Roles** like ``srl-eval.pl`` of the CoNLL-2005 shared task (Carreras and Marquez 2005). The unit is the argument: it
  is correct if its bounds and its role are. The predicate (role V) is not an argument. A piece ``C-X`` continues the
  last X before it, and such an argument is correct only if all its pieces are; a ``C-X`` without an X before it counts
  as an X. ``R-X`` is a role of its own.
- **Answers** like the SQuAD scripts (Rajpurkar et al. 2016, 2018): in lower case, without ASCII punctuation and the
  words a, an, the, and with single spaces. The best score over all gold answers counts.
- **Coreference** like the reference scorer 8.01 (Pradhan et al. 2014): MUC, B-cubed, CEAF-e and their mean. Each metric
  is a sum of numerators over a sum of denominators, over all documents. Mentions match if their bounds are equal.
  Following the field, the gold clusters are called the key and the predicted ones the response. Singletons count like
  any other cluster on both sides; AllenNLP's port of the scorer drops some of them.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import needs_extra
from elmokit.tasks.tags import Chunk


def percent(part: float, whole: float) -> float:
    """Return ``100 * part / whole``, or 0 if ``whole`` is 0, as every official script does."""
    return 100 * part / whole if whole else 0.0


def accuracy(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return the percentage of positions at which both lists have the same label, or 0 if the lists are empty."""
    n_equal = sum(one == other for one, other in zip(gold, predicted, strict=True))
    return percent(n_equal, len(gold))


def f1(precision: float, recall: float) -> float:
    """Return the harmonic mean of precision and recall, or 0 if both are 0."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@dataclass(frozen=True)
class Counts:
    """The numbers of correct, predicted and gold items, with precision, recall and F1 in percent."""

    correct: int = 0
    predicted: int = 0
    gold: int = 0

    @property
    def precision(self) -> float:
        return percent(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        return percent(self.correct, self.gold)

    @property
    def f1(self) -> float:
        return f1(self.precision, self.recall)


def chunk_f1(gold: Sequence[Sequence[Chunk]], predicted: Sequence[Sequence[Chunk]]) -> Counts:
    """Count the chunks of sentences over all labels. A chunk is correct if its bounds and its label are."""
    by_label = chunk_f1_per_label(gold, predicted).values()
    return Counts(
        sum(counts.correct for counts in by_label),
        sum(counts.predicted for counts in by_label),
        sum(counts.gold for counts in by_label),
    )


def chunk_f1_per_label(gold: Sequence[Sequence[Chunk]], predicted: Sequence[Sequence[Chunk]]) -> dict[str, Counts]:
    """Count like ``chunk_f1`` for each label separately, with the labels in alphabetical order."""
    counted: dict[str, list[int]] = {}
    for gold_chunks, predicted_chunks in zip(gold, predicted, strict=True):
        expected, answered = set(gold_chunks), set(predicted_chunks)
        for kind, chunks in enumerate((expected & answered, answered, expected)):  # correct, predicted, gold
            for chunk in chunks:
                counted.setdefault(chunk.label, [0, 0, 0])[kind] += 1
    return {label: Counts(*counted[label]) for label in sorted(counted)}


def f1_scores(overall: Counts, by_type: Mapping[str, Counts], **others: float) -> dict[str, float]:
    """Return F1, precision, recall, any other scores, and the F1 of each type that the gold data contains."""
    per_type = {f"f1-{kind}": counts.f1 for kind, counts in by_type.items() if counts.gold}
    return {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall, **others, **per_type}


PREDICATE = "V"
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
    words = ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split()
    return " ".join(words)


def token_f1(gold: str, predicted: str, empty_matches: bool) -> float:
    """Return the F1 of the tokens of two answers, as multisets, from 0 to 1.

    Args:
        empty_matches: If both answers are empty after normalization, score 1 (v2.0) instead of 0 (v1.1).
    """
    wanted, given = normalize_answer(gold).split(), normalize_answer(predicted).split()
    if empty_matches and not (wanted and given):
        return float(wanted == given)
    shared = (Counter(wanted) & Counter(given)).total()
    return f1(shared / len(given), shared / len(wanted)) if shared else 0.0


def squad_v1(gold: Sequence[Sequence[str]], predicted: Sequence[str | None]) -> SquadScores:
    """Score like ``evaluate-v1.1.py``. A question that was not answered (None) scores 0.

    Args:
        gold: For each question its acceptable answers, at least one.
    """
    scores = []
    for answers, answer in zip(gold, predicted, strict=True):
        if answer is None:
            scores.append((0.0, 0.0))
        else:
            scores.append(_best(answers, answer, empty_matches=False))
    return _mean(scores)


def squad_v2(gold: Sequence[Sequence[str]], predicted: Sequence[str | None]) -> Squad2Scores:
    """Score like ``evaluate-v2.0.py``. A missing prediction (None) is left out; an empty string means "no answer".

    Args:
        gold: For each question its acceptable answers; empty if it has no answer.
    """
    answerable: list[tuple[float, float]] = []
    unanswerable: list[tuple[float, float]] = []
    for answers, answer in zip(gold, predicted, strict=True):
        if answer is None:
            continue
        # The script drops gold answers that are empty after normalization, and compares with "" if none is left.
        comparable = [text for text in answers if normalize_answer(text)] or [""]
        scores = answerable if answers else unanswerable
        scores.append(_best(comparable, answer, empty_matches=True))
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


Mention = tuple[int, int]
"""The first and the last token of a span, both included, counted from the start of the document."""
Clusters = Sequence[Sequence[Mention]]
Matching = Callable[[NDArray[np.float64]], float]
"""Returns the largest sum of cells of a matrix such that no two share a row or a column."""


@dataclass(frozen=True)
class Ratio:
    """One metric: the numerators and denominators of recall and precision, and their values in percent."""

    recall_part: float = 0.0
    recall_whole: float = 0.0
    precision_part: float = 0.0
    precision_whole: float = 0.0

    @property
    def recall(self) -> float:
        return percent(self.recall_part, self.recall_whole)

    @property
    def precision(self) -> float:
        return percent(self.precision_part, self.precision_whole)

    @property
    def f1(self) -> float:
        return f1(self.precision, self.recall)

    def __add__(self, other: Ratio) -> Ratio:
        return Ratio(
            self.recall_part + other.recall_part,
            self.recall_whole + other.recall_whole,
            self.precision_part + other.precision_part,
            self.precision_whole + other.precision_whole,
        )


@dataclass(frozen=True)
class CorefScores:
    """The three metrics, and the score of the mentions alone, whatever their cluster."""

    muc: Ratio
    b_cubed: Ratio
    ceaf_e: Ratio
    mentions: Ratio

    @property
    def average_f1(self) -> float:
        """The mean of the three F1 scores in percent, which is the published number."""
        return (self.muc.f1 + self.b_cubed.f1 + self.ceaf_e.f1) / 3


def coref_scores(key: Sequence[Clusters], response: Sequence[Clusters]) -> CorefScores:
    """Score the clusters of documents."""
    best_matching = _best_matching()
    muc = b_cubed = ceaf_e = mentions = Ratio()
    for key_clusters, response_clusters in zip(key, response, strict=True):
        cleaned = _without_repeats(key_clusters, response_clusters)
        muc += _muc(key_clusters, cleaned)
        b_cubed += _b_cubed(key_clusters, cleaned)
        ceaf_e += _ceaf_e(key_clusters, cleaned, best_matching)
        mentions += _mentions(key_clusters, cleaned)
    return CorefScores(muc, b_cubed, ceaf_e, mentions)


def _without_repeats(key: Clusters, response: Clusters) -> list[list[Mention]]:
    """Drop repeated mentions of the response like the reference scorer.

    A repeated mention counts only where it occurs first if the key contains it. A repeated mention that the key does
    not contain counts every time.
    """
    # This is what the Perl program does; published scores were computed with it.
    known = set(chain.from_iterable(key))
    seen: set[Mention] = set()
    cleaned: list[list[Mention]] = []
    for cluster in response:
        kept: list[Mention] = []
        for mention in cluster:
            if mention not in seen:
                kept.append(mention)
            if mention in known:
                seen.add(mention)
        cleaned.append(kept)
    return [cluster for cluster in cleaned if cluster]


def _cluster_of(clusters: Clusters) -> dict[Mention, int]:
    """Return the index of each mention's cluster; that of the last one if several contain it."""
    return {mention: index for index, cluster in enumerate(clusters) for mention in cluster}


def _muc(key: Clusters, response: Clusters) -> Ratio:
    """Count links (Vilain et al. 1995): a cluster that the other side splits into n parts keeps its size minus n."""
    cluster_of = _cluster_of(key)
    n_kept = 0
    for cluster in response:
        # Links that both sides share: recall and precision have the same numerator. A singleton has no link and counts
        # nothing.
        parts = [cluster_of[mention] for mention in cluster if mention in cluster_of]
        # n mentions that lie in p of the other side's clusters share n - p links.
        n_kept += len(parts) - len(set(parts))
    return Ratio(n_kept, _n_links(key), n_kept, _n_links(response))


def _n_links(clusters: Clusters) -> int:
    # Connecting n mentions takes n - 1 links.
    return sum(len(cluster) - 1 for cluster in clusters if cluster)


def _b_cubed(key: Clusters, response: Clusters) -> Ratio:
    """Average the overlap of each mention's two clusters over all mentions (Bagga and Baldwin 1998)."""
    cluster_of = _cluster_of(key)
    members = [set(cluster) for cluster in key]
    recall = precision = 0.0
    for cluster in response:
        for mention in cluster:
            if mention in cluster_of:
                index = cluster_of[mention]
                # The same overlap enters both sums, divided by the size of the key's cluster and of the response's.
                n_shared = sum(other in members[index] for other in cluster)
                recall += n_shared / len(key[index])
                precision += n_shared / len(cluster)
    return Ratio(recall, sum(map(len, key)), precision, sum(map(len, response)))


def _best_matching() -> Matching:
    with needs_extra("The coreference score CEAF", "tasks"):
        from scipy.optimize import linear_sum_assignment

    def best(similarity: NDArray[np.float64]) -> float:
        return float(similarity[linear_sum_assignment(similarity, maximize=True)].sum())

    return best


def _ceaf_e(key: Clusters, response: Clusters, best_matching: Matching) -> Ratio:
    """Match clusters one to one so that the sum of ``2 |K & R| / (|K| + |R|)`` is largest (Luo 2005)."""
    similarity = np.zeros((len(key), len(response)))
    rows: dict[Mention, list[int]] = {}  # the key's clusters that contain a mention
    for row, cluster in enumerate(key):
        for mention in cluster:
            rows.setdefault(mention, []).append(row)
    # Filled mention by mention, so that the cost grows with the number of mentions and not of pairs of clusters.
    for column, cluster in enumerate(response):
        for mention in cluster:
            for row in rows.get(mention, ()):
                similarity[row, column] += 2 / (len(key[row]) + len(cluster))
    # An assignment problem, solved exactly; the reference scorer uses the Kuhn-Munkres algorithm.
    best = best_matching(similarity)
    # Empty clusters of the response were dropped by `_without_repeats`; those of the key are left out here.
    return Ratio(best, sum(map(bool, key)), best, len(response))


def _mentions(key: Clusters, response: Clusters) -> Ratio:
    in_key, in_response = set(chain.from_iterable(key)), set(chain.from_iterable(response))
    n_shared = len(in_key & in_response)
    return Ratio(n_shared, len(in_key), n_shared, len(in_response))
