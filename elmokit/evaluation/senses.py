"""Measure what each layer encodes about word senses, with a nearest-mean classifier.

This follows section 5.3 and table 5 of Peters et al. 2018. Each sense is represented by the mean of its vectors in a
sense-tagged corpus. A word of a test text gets the sense of its lemma and part of speech whose mean is nearest by
cosine, or the first sense of the inventory if the training corpus has none of them. An additional row, not in the
paper, accounts for sense frequency, which the cosine ignores.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.sentence_vectors import RANK_TOLERANCE
from elmokit.engine.state import unit_vectors
from elmokit.errors import OutputError, TextError
from elmokit.evaluation.probe_corpus import model_settings, read_chunks
from elmokit.evaluation.result import Result, Row, layer_title
from elmokit.evaluation.sense_files import Instance, LemmaPos, SenseSentence, SenseSet, read_keys, read_sense_xml
from elmokit.storage.atomic import atomic_write, check_output_path
from elmokit.storage.checksums import file_digest
from elmokit.storage.progress import ProgressCallback, StageCounter, count_of

ANSWERS = "*.key.txt"
"""The files in a directory of answers."""
POOLED = "all"
"""The name of all test sets together."""
FIRST, MOST_FREQUENT, AVERAGE = "first", "most frequent", "average"
"""Rows: the first sense in the inventory, the most frequent one in training, and the mean of the layers."""
WITH_PRIOR = "top layer with prior"
"""The row of the top layer, half whitened and with a prior for frequent senses."""
PRIOR_WEIGHT = 0.1
"""Weight of log sense frequency relative to the cosine: the best on SemEval-2007 (results/en-mini-training.md)."""
Inventory = Mapping[LemmaPos, tuple[str, ...]]
"""The senses of each lemma, the first sense first."""


class SenseScore(NamedTuple):
    """Precision, recall and F1, each from 0 to 1."""

    precision: float
    recall: float
    f1: float


def score_senses(gold: Mapping[str, Collection[str]], answers: Mapping[str, Collection[str]]) -> SenseScore:
    """Score answers against gold senses, like ``Scorer.java`` of the unified framework (Raganato et al. 2017).

    An answer with several senses counts as the fraction of them that is correct, and matching one of the gold senses is
    enough. Answers without a gold sense are ignored. Precision is over the answered instances, recall over all gold
    instances. If nothing was answered, the official program divides by zero and prints NaN; here the score is 0.
    """
    right = 0.0
    n_answered = 0
    for name, senses in answers.items():
        distinct = set(senses)
        if name in gold and distinct:
            right += len(distinct.intersection(gold[name])) / len(distinct)
            n_answered += 1
    precision = right / max(n_answered, 1)
    recall = right / max(len(gold), 1)
    if right == 0:
        return SenseScore(precision, recall, 0.0)
    return SenseScore(precision, recall, 2 * precision * recall / (precision + recall))


@dataclass(frozen=True)
class SenseRow:
    """The scores of one layer, or of a baseline that uses no vectors."""

    name: str
    """The number of a layer; "average"; "top layer with prior"; or a baseline: "most frequent" (in training) or "first"
    (in the inventory)."""
    scores: dict[str, SenseScore]
    """Scores by test set. If there are several, "all" has the score over their instances together."""
    by_pos: dict[str, SenseScore]
    """Scores by part of speech, over the instances of all test sets."""


@dataclass(frozen=True)
class SenseResult(Result):
    """The results of the word sense probe."""

    digits = 1
    measure = "F1 (%)"

    n_senses: int
    """Distinct senses in the training corpus."""
    n_instances: dict[str, int]
    """Instances with gold keys, by test set."""
    n_backed_off: dict[str, int]
    """Instances whose lemma is not in training; all layers answer with the first sense of the inventory."""
    rows: list[SenseRow]
    answers: dict[str, dict[str, dict[str, str]]]
    """The answered sense of each instance id, by row and test set: the lines of a key file."""

    def table_rows(self) -> list[Row]:
        """Return the F1 of each layer and baseline, in percent, by test set and by part of speech."""
        rows: list[Row] = []
        for row in self.rows:
            scores = row.scores | row.by_pos
            percent = {name: 100 * score.f1 for name, score in scores.items()}
            rows.append({self.measure: layer_title(row.name), **percent})
        return rows

    def notes(self) -> list[str]:
        n_instances, n_missing = sum(self.n_instances.values()), sum(self.n_backed_off.values())
        notes = [
            f"{count_of(self.n_senses, 'sense')} in training; for {n_missing:,} of {n_instances:,} instances, none of "
            "their senses is among them."
        ]
        if any(score.precision != score.recall for row in self.rows for score in row.scores.values()):
            gives = any(row.name == FIRST for row in self.rows)
            reason = "the inventory lacks their lemma; see" if gives else "pass an --inventory, or see"
            notes.append(f"Some instances have no answer: {reason} precision and recall in --json.")
        return notes

    def to_dict(self) -> dict[str, Any]:
        return {
            "senses": self.n_senses,
            "instances": self.n_instances,
            "backed_off": self.n_backed_off,
            "rows": [
                {"name": row.name, "scores": _as_dicts(row.scores), "parts_of_speech": _as_dicts(row.by_pos)}
                for row in self.rows
            ],
        }


def _as_dicts(scores: Mapping[str, SenseScore]) -> dict[str, dict[str, float]]:
    return {name: score._asdict() for name, score in scores.items()}


def probe_senses(
    elmo: Elmo,
    train: SenseSet,
    tests: Sequence[SenseSet],
    inventory: Inventory | None = None,
    path: str | Path | None = None,
    progress: ProgressCallback | None = None,
    *,
    overwrite: bool = False,
) -> SenseResult:
    """Compute sense means and score each layer on test sets.

    Args:
        elmo: The model.
        train: The sense-tagged corpus.
        tests: The test sets.
        inventory: The senses of each lemma, first sense first. Without it, instances whose lemma is not in training
            have no answer.
        path: Where to store the sense means, as in ``train_senses``.
        progress: Called with the number of instances.
        overwrite: Recompute the means in ``path``.

    Raises:
        TextError: A file cannot be read or does not match the other, or two test sets have the same name.
        OutputError: ``path`` contains something else or cannot be written.

    Example:
        >>> result = probe_senses(elmo, find_sense_set("semcor"), [find_sense_set("senseval2")])
        >>> print(result.to_text())
    """
    gold = _read_gold(tests)
    texts: dict[str, list[SenseSentence]] = {}
    pos_of: dict[str, dict[str, str]] = {}
    for test in tests:
        texts[test.name] = list(read_sense_xml(test.data))
        pos_of[test.name] = _parts_of_speech(texts[test.name])
        if pos_of[test.name].keys().isdisjoint(gold[test.name]):
            raise TextError(f"{test.gold} has no keys for the instances of {test.data}.")
    means = train_senses(elmo, train, path, progress, overwrite=overwrite)
    answers: dict[str, dict[str, dict[str, str]]] = {}
    n_backed_off = {}
    for name, text in texts.items():
        by_row, backed_off = answer_senses(elmo, text, means, inventory, progress, len(pos_of[name]))
        if not inventory:
            del by_row[FIRST]
        n_backed_off[name] = len(backed_off & gold[name].keys())
        for row, senses in by_row.items():
            answers.setdefault(row, {})[name] = senses
    return SenseResult(
        n_senses=len(means.sums),
        n_instances={name: len(keys) for name, keys in gold.items()},
        n_backed_off=n_backed_off,
        rows=[_sense_row(row, gold, by_set, pos_of) for row, by_set in answers.items()],
        answers=answers,
    )


def _read_gold(tests: Sequence[SenseSet]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Read the gold senses of each instance, by test set."""
    names = [test.name for test in tests]
    rows = names if len(names) == 1 else [*names, POOLED]
    if not names or len(set(rows)) < len(rows):
        raise TextError(
            f"The probe needs one or more test sets with different names, none of them {POOLED!r}; found: "
            f"{', '.join(names) or 'none'}."
        )
    return {test.name: read_keys(test.gold) for test in tests}


def _parts_of_speech(text: Iterable[SenseSentence]) -> dict[str, str]:
    """Look up the part of speech of each instance id."""
    return {instance.id: instance.pos for sentence in text for instance in sentence.instances}


def _sense_row(
    name: str,
    gold: Mapping[str, Mapping[str, Collection[str]]],
    answers: Mapping[str, Mapping[str, str]],
    pos_of: Mapping[str, Mapping[str, str]],
) -> SenseRow:
    """Score the answers of a row; all arguments are by test set."""
    scores = {test: score_senses(senses, _as_keys(answers[test])) for test, senses in gold.items()}
    pooled_gold, pooled_answers, pooled_pos = _pooled(gold), _as_keys(_pooled(answers)), _pooled(pos_of)
    if len(gold) > 1:
        scores[POOLED] = score_senses(pooled_gold, pooled_answers)
    by_pos = {}
    for pos in sorted(set(pooled_pos.values())):
        gold_of_pos = {key: senses for key, senses in pooled_gold.items() if pooled_pos.get(key) == pos}
        by_pos[pos] = score_senses(gold_of_pos, pooled_answers)
    return SenseRow(name, scores, by_pos)


def write_answers(result: SenseResult, path: str | Path, overwrite: bool = False) -> None:
    """Write key files for the official scorer, one per row and test set, such as ``senseval2.layer-1.key.txt``."""
    check_output_path(path, overwrite, folder=True, parts=[ANSWERS])
    with atomic_write(path, overwrite, folder=True) as folder:
        for row, by_set in result.answers.items():
            title = layer_title(row).replace(" ", "-")
            for name, senses in by_set.items():
                lines = [f"{instance} {sense}\n" for instance, sense in senses.items()]
                file = folder / f"{name}.{title}.key.txt"
                file.write_text("".join(lines), encoding="utf-8", newline="\n")


def answer_senses(
    elmo: Elmo,
    sentences: Iterable[SenseSentence],
    means: SenseMeans,
    inventory: Inventory | None = None,
    progress: ProgressCallback | None = None,
    n_instances: int = 0,
) -> tuple[dict[str, dict[str, str]], set[str]]:
    """Choose the sense of each instance in a text, by each layer and baseline.

    Returns for each row ("0", "1", ..., "average", "top layer with prior", "most frequent", "first") the sense of each
    instance id; and the ids of the instances that have none of their senses in training, which every layer answers with
    the first sense.
    """
    inventory = inventory or {}
    layers = [*map(str, range(elmo.n_layers)), AVERAGE, WITH_PRIOR]
    answers: dict[str, dict[str, str]] = {name: {} for name in (FIRST, MOST_FREQUENT, *layers)}
    backed_off: set[str] = set()
    with_prior = FrequencyProbe(means, -1)
    count = StageCounter(progress, "disambiguate", n_instances)
    count(0)
    for sentence, vectors in embed_instances(elmo, sentences):
        for instance in sentence.instances:
            lemma_pos = (instance.lemma, instance.pos)
            chosen: dict[str, str] = {}
            listed = inventory.get(lemma_pos, ())
            if listed:
                chosen = dict.fromkeys(answers, listed[0])
            most_frequent = means.most_frequent(lemma_pos)
            if most_frequent is not None:
                chosen[MOST_FREQUENT] = most_frequent
            candidates = means.candidates(lemma_pos, inventory)
            if candidates:
                vector = _mean_vector(instance, vectors)
                nearest = means.nearest(vector, candidates)
                best = with_prior.best(vector, lemma_pos, candidates)
                chosen.update(zip(layers, [*nearest, best], strict=True))
            else:
                backed_off.add(instance.id)
            for name, sense in chosen.items():
                answers[name][instance.id] = sense
        count(len(sentence.instances))
    return answers, backed_off


def _mean_vector(instance: Instance, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean vector of an instance's tokens, ``(layers, dim)``."""
    mean: NDArray[np.float32] = vectors[:, instance.start : instance.stop].mean(axis=1)
    return mean


def _pooled(by_set: Mapping[str, Mapping[str, Any]]) -> dict[Any, Any]:
    """Merge the test sets. Ids can repeat across sets, so the key is the set's name and the id."""
    return {(name, instance): item for name, items in by_set.items() for instance, item in items.items()}


def _as_keys(answers: Mapping[Any, str]) -> dict[Any, tuple[str]]:
    return {instance: (sense,) for instance, sense in answers.items()}


class SenseMeans:
    """The mean vector of each sense, and the sense counts of each lemma.

    Memory grows with the number of distinct senses, not with the text.
    """

    def __init__(self) -> None:
        self.sums: dict[str, NDArray[np.float32]] = {}
        """The sum of the vectors of each sense, ``(layers, dim)``."""
        self.counts: Counter[str] = Counter()
        """The number of these vectors."""
        self.tagged: dict[LemmaPos, Counter[str]] = {}
        self.n_sentences = 0

    def add(self, instance: Instance, senses: Iterable[str], vector: NDArray[np.float32]) -> None:
        """Add a tagged instance with its vector, ``(layers, dim)``."""
        tagged = self.tagged.setdefault((instance.lemma, instance.pos), Counter())
        for sense in senses:
            tagged[sense] += 1
            self.counts[sense] += 1
            self.sums[sense] = self.sums.get(sense, np.float32(0)) + vector

    def most_frequent(self, lemma_pos: LemmaPos) -> str | None:
        """Return the most frequent sense of a lemma, if it is in training."""
        counts = self.tagged.get(lemma_pos, Counter[str]())
        return max(counts, key=counts.__getitem__, default=None)

    def candidates(self, lemma_pos: LemmaPos, inventory: Inventory) -> list[str]:
        """List the senses of a lemma that are in training, in the order of the inventory, then by frequency."""
        by_frequency = [sense for sense, _ in self.tagged.get(lemma_pos, Counter[str]()).most_common()]
        listed = dict.fromkeys([*inventory.get(lemma_pos, ()), *by_frequency])
        return [sense for sense in listed if sense in self.sums]

    def nearest(self, vector: NDArray[np.float32], senses: list[str]) -> list[str]:
        """Choose for each layer of ``(layers, dim)``, and for their average, the sense with the nearest mean.

        Ties go to the earlier sense.
        """
        # (senses, layers, dim). The sums will do, because a cosine ignores length.
        means = np.stack([self.sums[sense] for sense in senses])
        vector = np.concatenate([vector, vector.mean(axis=0, keepdims=True)])
        means = np.concatenate([means, means.mean(axis=1, keepdims=True)], axis=1)
        norms = np.linalg.norm(means, axis=-1)
        norms[norms == 0] = 1
        cosines = np.einsum("sld,ld->sl", means, vector) / norms
        return [senses[index] for index in cosines.argmax(axis=0)]

    def save(self, path: Path, settings: dict[str, Any]) -> None:
        """Write to a safetensors file, atomically. ``settings`` say what the means were computed from."""
        tagged = [[lemma, pos, list(counts.items())] for (lemma, pos), counts in self.tagged.items()]
        content = {"about": settings, "n_sentences": self.n_sentences, "senses": list(self.sums), "tagged": tagged}
        tensors: dict[str, NDArray[Any]] = {
            "sums": np.array(list(self.sums.values()), np.float32),
            "counts": np.array([self.counts[sense] for sense in self.sums], np.int64),
        }
        with atomic_write(path, overwrite=True) as temporary:
            try:
                save_file(tensors, temporary, metadata={"content": json.dumps(content, ensure_ascii=False)})
            except SafetensorError as error:
                raise OSError(str(error)) from error
            temporary.chmod(0o644)  # safetensors creates files that only their owner can read

    @classmethod
    def load(cls, path: Path, settings: dict[str, Any], n_layers: int, dim: int) -> SenseMeans:
        """Read a file that :meth:`save` wrote, and check that its means were computed from the same data."""
        means = cls()
        try:
            with safe_open(path, framework="np") as file:
                content = json.loads(file.metadata()["content"])
                sums, counts = file.get_tensor("sums"), file.get_tensor("counts")
            for name, new in settings.items():
                old = dict(content["about"]).get(name)
                if old != new:
                    raise OutputError(
                        f"{path} contains sense means with {name} {old!r}, but this run has {name} {new!r}. Use the "
                        "same, choose another name, or start over with --overwrite (overwrite=True)."
                    )
            means.n_sentences = int(content["n_sentences"])
            senses = content["senses"]
            means.tagged = {(lemma, pos): Counter(dict(given)) for lemma, pos, given in content["tagged"]}
            means.sums = dict(zip(senses, sums.astype(np.float32).reshape(len(senses), n_layers, dim), strict=True))
            means.counts = Counter(dict(zip(senses, counts.tolist(), strict=True)))
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise OutputError(
                f"{path} is not a file of sense means ({error}). Choose another name, or delete it."
            ) from None
        return means


class FrequencyProbe:
    """Nearest means of one layer, half whitened, with a prior for frequent senses.

    A cosine is dominated by the few directions in which the vectors vary most, and ignores how often a sense occurs. So
    each direction is divided by the root of its standard deviation, over the means weighted by their counts, and a
    multiple of the log relative frequency of a sense for its lemma (counts plus one half) is added to the cosine.
    """

    def __init__(self, means: SenseMeans, layer: int) -> None:
        self._means, self._layer = means, layer
        self._rows = {sense: row for row, sense in enumerate(means.sums)}
        counts = np.array([means.counts[sense] for sense in means.sums], np.float64)[:, None]
        vectors = np.stack([of_layers[layer] for of_layers in means.sums.values()]) / counts
        self._center = (counts * vectors).sum(axis=0) / counts.sum()
        centered = vectors - self._center
        variances, directions = np.linalg.eigh((counts * centered).T @ centered / counts.sum())
        kept = variances > RANK_TOLERANCE * variances.max(initial=0.0)
        self._matrix = directions[:, kept] / variances[kept] ** 0.25
        self._directions = self._unit(vectors)  # (senses, dim)

    def best(self, vector: NDArray[np.float32], lemma_pos: LemmaPos, senses: list[str]) -> str:
        """Choose a sense for the vectors ``(layers, dim)`` of a word; ties go to the earlier one."""
        directions = self._directions[[self._rows[sense] for sense in senses]]
        cosines = directions @ self._unit(vector[self._layer])
        tagged = self._means.tagged.get(lemma_pos, Counter[str]())
        counts = np.array([tagged[sense] + 0.5 for sense in senses])
        scores = cosines + PRIOR_WEIGHT * np.log(counts / counts.sum())
        return senses[int(np.argmax(scores))]

    def _unit(self, vectors: NDArray[Any]) -> NDArray[np.float64]:
        return unit_vectors((vectors - self._center) @ self._matrix)


def train_senses(
    elmo: Elmo,
    source: SenseSet,
    path: str | Path | None = None,
    progress: ProgressCallback | None = None,
    *,
    overwrite: bool = False,
) -> SenseMeans:
    """Compute the mean vector of each sense in a corpus, in one pass and bounded memory.

    With ``path``, the means are saved there at the end or when the call is interrupted. The next call with the same
    arguments resumes, with the same result. A complete file is not recomputed, unless ``overwrite`` is set.
    """
    keys = read_keys(source.gold)
    means = SenseMeans()
    if path is None:
        _add_instances(means, elmo, source, keys, progress)
        return means
    path = Path(path)
    settings = {
        "what": "sense means",
        **model_settings(elmo),
        "data": file_digest(source.data),
        "gold": file_digest(source.gold),
    }
    if path.exists() and not overwrite:
        means = SenseMeans.load(path, settings, elmo.n_layers, elmo.output_dim)
    else:
        means.save(path, settings)  # fails now rather than later if the file cannot be written
    n_before = means.n_sentences
    try:
        _add_instances(means, elmo, source, keys, progress)
    finally:
        if means.n_sentences > n_before:
            means.save(path, settings)
    return means


def _add_instances(
    means: SenseMeans,
    elmo: Elmo,
    source: SenseSet,
    keys: Mapping[str, Collection[str]],
    progress: ProgressCallback | None,
) -> None:
    """Add the instances of the sentences that the means do not have yet."""
    n_before = sum(sum(counts.values()) for counts in means.tagged.values())
    count = StageCounter(progress, "compute sense means", len(keys), done=n_before)
    count(0)
    sentences = itertools.islice(read_sense_xml(source.data), means.n_sentences, None)
    for sentence, vectors in embed_instances(elmo, sentences):
        for instance in sentence.instances:
            if instance.id not in keys:
                raise TextError(f"{source.data}: instance {instance.id} has no key in {source.gold}.")
        for instance in sentence.instances:
            means.add(instance, keys[instance.id], _mean_vector(instance, vectors))
        means.n_sentences += 1
        count(len(sentence.instances))
    if not means.sums:
        raise TextError(f"{source.data} contains no instances to learn senses from.")


def embed_instances(
    elmo: Elmo, sentences: Iterable[SenseSentence]
) -> Iterator[tuple[SenseSentence, NDArray[np.float32]]]:
    """Yield sentences with their vectors ``(layers, tokens, dim)``.

    A sentence without instances is not embedded and has no vectors.
    """
    nothing = np.zeros((elmo.n_layers, 0, elmo.output_dim), dtype=np.float32)
    for chunk in read_chunks(sentences, lambda sentence: len(sentence.words)):
        vectors = iter(elmo.embed([sentence.words for sentence in chunk if sentence.instances], layers="all"))
        for sentence in chunk:
            if sentence.instances:
                yield sentence, next(vectors)
            else:
                yield sentence, nothing
