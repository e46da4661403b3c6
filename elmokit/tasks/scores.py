"""Official scores: F1 of chunks and roles, exact match and F1 of answers, coreference metrics, accuracy.

- **Chunks** as in ``conlleval`` (Tjong Kim Sang, version 2004-01-26), including how ``tags.read_chunks`` finds them.
- **Roles** as in ``srl-eval.pl`` of the CoNLL-2005 shared task (Carreras and Marquez 2005). The unit is the argument,
  which is correct if its bounds and role are correct. The predicate (role V) is not an argument. A piece ``C-X``
  continues the last X before it; an argument of several pieces is correct only if all of them are. A ``C-X`` without an
  X before it counts as an X. ``R-X`` is a role of its own.
- **Answers** as in the SQuAD scripts (Rajpurkar et al. 2016, 2018): compared in lower case, without ASCII punctuation
  and the words a, an and the, and with single spaces. The best score over all gold answers counts.
- **Coreference** as in the reference scorer 8.01 (Pradhan et al. 2014): MUC, B-cubed, CEAF-e and their mean. Each
  metric is a sum of numerators divided by a sum of denominators, over all documents. Mentions match if their bounds are
  equal. As usual in the field, gold clusters are called the key and predicted clusters the response. Singletons count
  like any other cluster on both sides; AllenNLP's port of the scorer drops some of them.
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
    """Return ``100 * part / whole``, or 0 if ``whole`` is 0, as in all official scripts."""
    if not whole:
        return 0.0
    return 100 * part / whole


def accuracy(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return the percentage of positions with equal labels, or 0 if the lists are empty."""
    n_equal = 0
    for gold_label, predicted_label in zip(gold, predicted, strict=True):
        if gold_label == predicted_label:
            n_equal += 1
    return percent(n_equal, len(gold))


def f1(precision: float, recall: float) -> float:
    """Return the harmonic mean of precision and recall, or 0 if both are 0."""
    if precision + recall == 0:
        return 0.0
    return 2 * precision * recall / (precision + recall)


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
    """Count the chunks of all labels. A chunk is correct if its bounds and label are correct."""
    by_label = chunk_f1_per_label(gold, predicted).values()
    return Counts(
        sum(counts.correct for counts in by_label),
        sum(counts.predicted for counts in by_label),
        sum(counts.gold for counts in by_label),
    )


def chunk_f1_per_label(gold: Sequence[Sequence[Chunk]], predicted: Sequence[Sequence[Chunk]]) -> dict[str, Counts]:
    """Count the chunks of each label as in ``chunk_f1``. Labels are in alphabetical order."""
    n_correct: Counter[str] = Counter()
    n_predicted: Counter[str] = Counter()
    n_gold: Counter[str] = Counter()
    for gold_chunks, predicted_chunks in zip(gold, predicted, strict=True):
        expected, answered = set(gold_chunks), set(predicted_chunks)
        n_correct.update(chunk.label for chunk in expected & answered)
        n_predicted.update(chunk.label for chunk in answered)
        n_gold.update(chunk.label for chunk in expected)
    counts = {}
    for label in sorted(n_predicted.keys() | n_gold.keys()):
        counts[label] = Counts(n_correct[label], n_predicted[label], n_gold[label])
    return counts


def f1_scores(overall: Counts, by_type: Mapping[str, Counts], **others: float) -> dict[str, float]:
    """Return F1, precision, recall, any other scores, and the F1 of each type in the gold data."""
    scores = {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall, **others}
    for kind, counts in by_type.items():
        if counts.gold:
            scores[f"f1-{kind}"] = counts.f1
    return scores


PREDICATE = "V"
CONTINUATION = "C-"

Argument = tuple[str, frozenset[tuple[int, int]]]
"""An argument's role, and the bounds (start, stop) of its pieces."""


@dataclass(frozen=True)
class SrlScores:
    """The scores of ``srl-eval.pl``: all arguments, arguments by role, and the percentage of perfect propositions."""

    overall: Counts
    by_role: dict[str, Counts]
    n_propositions: int
    perfect: float


def srl_eval(
    gold: Sequence[Mapping[int, Iterable[Chunk]]], predicted: Sequence[Mapping[int, Iterable[Chunk]]]
) -> SrlScores:
    """Score the propositions of sentences.

    If a predicate was not predicted, all its arguments count as missed. A predicate that is only in the prediction is
    ignored.

    Args:
        gold, predicted: For each sentence, the arguments of its predicates, by the predicate's token index. Arguments
            with the role V are ignored.
    """
    correct: Counter[str] = Counter()
    predicted_roles: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    n_propositions = n_perfect = 0
    for gold_sentence, predicted_sentence in zip(gold, predicted, strict=True):
        for predicate, chunks in gold_sentence.items():
            # As in srl-eval.pl, a repeated gold argument counts once, but a repeated prediction each time.
            wanted = set(_arguments(chunks))
            given = _arguments(predicted_sentence.get(predicate, ()))
            matching = [argument for argument in given if argument in wanted]
            correct.update(role for role, _ in matching)
            predicted_roles.update(role for role, _ in given)
            expected.update(role for role, _ in wanted)
            n_propositions += 1
            has_wrong = len(matching) < len(given)
            if not has_wrong and len(matching) == len(wanted):
                n_perfect += 1
    overall = Counts(correct.total(), predicted_roles.total(), expected.total())
    by_role = {}
    for role in sorted(predicted_roles.keys() | expected.keys()):
        by_role[role] = Counts(correct[role], predicted_roles[role], expected[role])
    return SrlScores(overall, by_role, n_propositions, percent(n_perfect, n_propositions))


def _arguments(chunks: Iterable[Chunk]) -> list[Argument]:
    """Join continuations to the chunks that they continue, and drop the predicate."""
    pieces: list[tuple[str, list[tuple[int, int]]]] = []
    last: dict[str, list[tuple[int, int]]] = {}  # by role: the argument that a continuation would join
    # In text order, because a continuation belongs to the last argument of its role before it.
    for start, stop, label in sorted(chunks):
        role = label.removeprefix(CONTINUATION)
        is_continuation = role != label
        if is_continuation and role in last:
            last[role].append((start, stop))
        else:
            last[role] = [(start, stop)]
            pieces.append((role, last[role]))
    arguments = []
    for role, bounds in pieces:
        if role != PREDICATE:
            arguments.append((role, frozenset(bounds)))
    return arguments


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
    """Scores of v2.0: over all questions, over questions with an answer, and over questions without one."""

    overall: SquadScores
    answerable: SquadScores
    unanswerable: SquadScores


def normalize_answer(text: str) -> str:
    """Return the normalized form of an answer for comparisons."""
    words = ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split()
    return " ".join(words)


def token_f1(gold: str, predicted: str, empty_matches: bool) -> float:
    """Return the F1 of the tokens of two answers, as multisets, from 0 to 1.

    Args:
        empty_matches: If both answers are empty after normalization, score 1 (v2.0) instead of 0 (v1.1).
    """
    wanted = normalize_answer(gold).split()
    given = normalize_answer(predicted).split()
    if empty_matches and not (wanted and given):
        return float(wanted == given)
    shared = (Counter(wanted) & Counter(given)).total()
    if shared == 0:
        return 0.0
    return f1(shared / len(given), shared / len(wanted))


def squad_v1(gold: Sequence[Sequence[str]], predicted: Sequence[str | None]) -> SquadScores:
    """Score as in ``evaluate-v1.1.py``. An unanswered question (None) scores 0.

    Args:
        gold: The acceptable answers of each question, at least one.
        predicted: The predicted answers.
    """
    scores = []
    for answers, answer in zip(gold, predicted, strict=True):
        if answer is None:
            scores.append((0.0, 0.0))
        else:
            scores.append(_best(answers, answer, empty_matches=False))
    return _mean(scores)


def squad_v2(gold: Sequence[Sequence[str]], predicted: Sequence[str | None]) -> Squad2Scores:
    """Score as in ``evaluate-v2.0.py``. A missing prediction (None) is left out; an empty string means "no answer".

    Args:
        gold: The acceptable answers of each question; empty if it has no answer.
        predicted: The predicted answers.
    """
    answerable: list[tuple[float, float]] = []
    unanswerable: list[tuple[float, float]] = []
    for answers, answer in zip(gold, predicted, strict=True):
        if answer is None:
            continue
        # The script drops gold answers that are empty after normalization, and compares with "" if none is left.
        comparable = [text for text in answers if normalize_answer(text)]
        score = _best(comparable or [""], answer, empty_matches=True)
        if answers:
            answerable.append(score)
        else:
            unanswerable.append(score)
    return Squad2Scores(_mean(answerable + unanswerable), _mean(answerable), _mean(unanswerable))


def _best(answers: Sequence[str], answer: str, empty_matches: bool) -> tuple[float, float]:
    """Return the highest exact match and the highest F1 over the gold answers."""
    normalized = normalize_answer(answer)
    exact = max(float(normalize_answer(text) == normalized) for text in answers)
    overlap = max(token_f1(text, answer, empty_matches) for text in answers)
    return exact, overlap


def _mean(scores: Sequence[tuple[float, float]]) -> SquadScores:
    n_questions = len(scores)
    exact = sum(exact for exact, _ in scores)
    overlap = sum(overlap for _, overlap in scores)
    return SquadScores(percent(exact, n_questions), percent(overlap, n_questions), n_questions)


Mention = tuple[int, int]
"""The first and last token of a span, both inclusive, counted from the start of the document."""
Clusters = Sequence[Sequence[Mention]]
Matching = Callable[[NDArray[np.float64]], float]
"""Returns the largest sum of cells of a matrix, of which no two share a row or column."""


@dataclass(frozen=True)
class Ratio:
    """A metric: the numerators and denominators of recall and precision, and their values in percent."""

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
    """The three metrics, and the score of mentions regardless of their clusters."""

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

    If the key contains a repeated mention, only its first occurrence counts. A repeated mention that is not in the key
    counts every time.
    """
    # The Perl program does this, and published scores were computed with it.
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
    """Return the index of each mention's cluster; if several contain it, the last one."""
    cluster_of: dict[Mention, int] = {}
    for index, cluster in enumerate(clusters):
        cluster_of |= dict.fromkeys(cluster, index)
    return cluster_of


def _muc(key: Clusters, response: Clusters) -> Ratio:
    """Count links (Vilain et al. 1995): n mentions in p clusters of the other side share n - p links."""
    cluster_of = _cluster_of(key)
    n_shared = 0  # recall and precision have the same numerator
    for cluster in response:
        of_key = [cluster_of[mention] for mention in cluster if mention in cluster_of]
        n_shared += len(of_key) - len(set(of_key))
    return Ratio(n_shared, _n_links(key), n_shared, _n_links(response))


def _n_links(clusters: Clusters) -> int:
    """Count the links of clusters: n mentions have n - 1."""
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
                # The same overlap enters both sums, divided by the size of one or the other cluster.
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
    """Match clusters one to one, with the largest possible sum of ``2 |K & R| / (|K| + |R|)`` (Luo 2005)."""
    similarity = np.zeros((len(key), len(response)))
    rows: dict[Mention, list[int]] = {}  # by mention: the key's clusters that contain it
    for row, cluster in enumerate(key):
        for mention in cluster:
            rows.setdefault(mention, []).append(row)
    # The matrix is filled by mention, so the cost grows with the number of mentions, not of pairs of clusters.
    for column, cluster in enumerate(response):
        for mention in cluster:
            for row in rows.get(mention, ()):
                similarity[row, column] += 2 / (len(key[row]) + len(cluster))
    # The assignment problem is solved exactly, as by the reference scorer's Kuhn-Munkres algorithm.
    best = best_matching(similarity)
    # `_without_repeats` dropped the response's empty clusters. The key's empty clusters are left out here.
    n_clusters = sum(1 for cluster in key if cluster)
    return Ratio(best, n_clusters, best, len(response))


def _mentions(key: Clusters, response: Clusters) -> Ratio:
    in_key = set(chain.from_iterable(key))
    in_response = set(chain.from_iterable(response))
    n_shared = len(in_key & in_response)
    return Ratio(n_shared, len(in_key), n_shared, len(in_response))
