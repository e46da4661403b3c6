"""Measure what each layer encodes about word senses, with a nearest-mean classifier.

This follows section 5.3 and table 5 of Peters et al. 2018. Each sense is represented by the mean of its vectors in a
sense-tagged corpus. A word of a test text gets the sense of its lemma and part of speech whose mean is nearest by
cosine, or the first sense of the inventory if the training corpus has none of them. One more row, which the paper does
not have, adds what the cosine ignores: which senses are frequent.
"""

from __future__ import annotations

import json
import time
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
from elmokit.storage.bounded import file_digest
from elmokit.storage.progress import ProgressCallback, count_of

ANSWERS = "*.key.txt"
"""The files in a directory of answers."""
POOLED = "all"
"""The name of all test sets together."""
WITH_PRIOR = "top layer with prior"
"""The row of the top layer, half whitened and with a prior for frequent senses."""
SAVE_SECONDS = 60.0
PRIOR_WEIGHT = 0.1
"""Of the logarithm of a sense's frequency, next to a cosine: the best on SemEval-2007 (results/en-mini-training.md)."""
Inventory = Mapping[LemmaPos, tuple[str, ...]]
"""The senses of each lemma, the first sense first."""


class SenseScore(NamedTuple):
    """Precision, recall and F1, each from 0 to 1."""

    precision: float
    recall: float
    f1: float


def score_senses(gold: Mapping[str, Collection[str]], answers: Mapping[str, Collection[str]]) -> SenseScore:
    """Score answers against the gold senses, as ``Scorer.java`` of the unified framework does (Raganato et al. 2017).

    An answer with several senses counts as the fraction of them that is correct, and matching one of the gold senses is
    enough. Answers without a gold sense are ignored. Precision is over the answered instances, recall over all gold
    instances. If nothing was answered, the official program divides by zero and prints NaN; here the score is 0.
    """
    right = 0.0
    n_answered = 0
    for name, senses in answers.items():
        distinct = set(senses)
        if name in gold and distinct:
            right += sum(sense in gold[name] for sense in distinct) / len(distinct)
            n_answered += 1
    precision = right / n_answered if n_answered else 0.0
    recall = right / len(gold) if gold else 0.0
    total = precision + recall
    return SenseScore(precision, recall, 2 * precision * recall / total if total else 0.0)


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
    """Instances whose lemma is not in training; every layer answers with the first sense of the inventory."""
    rows: list[SenseRow]
    answers: dict[str, dict[str, dict[str, str]]]
    """For each row and test set the answered sense of each instance id, which are the lines of a key file."""

    def table_rows(self) -> list[Row]:
        """Return the F1 of each layer and baseline, in percent, by test set and by part of speech."""
        return [
            {self.measure: layer_title(row.name)}
            | {name: 100 * score.f1 for name, score in (row.scores | row.by_pos).items()}
            for row in self.rows
        ]

    def notes(self) -> list[str]:
        n_instances, n_missing = sum(self.n_instances.values()), sum(self.n_backed_off.values())
        notes = [
            f"{count_of(self.n_senses, 'sense')} in training; {n_missing:,} of {n_instances:,} instances have none of "
            "theirs in it."
        ]
        if any(score.precision != score.recall for row in self.rows for score in row.scores.values()):
            gives = any(row.name == "first" for row in self.rows)
            reason = "the inventory lacks their lemma; see" if gives else "give an --inventory, or see"
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
    """Compute sense means and score every layer on test sets.

    Args:
        elmo: The model.
        train: The sense-tagged corpus.
        tests: The test sets.
        inventory: The senses of each lemma, the first sense first. Without it, instances whose lemma is not in training
            have no answer.
        path: Where to keep the sense means, as in ``train_senses``.
        progress: Called with the number of instances.
        overwrite: Compute the means in ``path`` anew.

    Raises:
        TextError: A file cannot be read or does not match the other, or two test sets have the same name.
        OutputError: ``path`` contains something else or cannot be written.

    Example:
        >>> result = probe_senses(elmo, find_sense_set("semcor"), [find_sense_set("senseval2")])
        >>> print(result.to_text())
    """
    names = [test.name for test in tests]
    if not names or len(set(names)) < len(names) or (len(names) > 1 and POOLED in names):
        raise TextError(
            f"The probe needs one or more test sets with different names, none of them {POOLED!r}; found: "
            f"{', '.join(names) or 'none'}."
        )
    gold = {test.name: read_keys(test.gold) for test in tests}
    texts = {test.name: list(read_sense_xml(test.data)) for test in tests}
    pos_of: dict[str, dict[str, str]] = {}
    for test in tests:
        instances = [instance for sentence in texts[test.name] for instance in sentence.instances]
        pos_of[test.name] = {instance.id: instance.pos for instance in instances}
        if not pos_of[test.name].keys() & gold[test.name].keys():
            raise TextError(f"{test.gold} has no key for any instance of {test.data}.")
    means = train_senses(elmo, train, path, progress, overwrite=overwrite)
    answers: dict[str, dict[str, dict[str, str]]] = {}
    n_backed_off = {}
    for name, text in texts.items():
        by_row, backed_off = answer_senses(elmo, text, means, inventory, progress, len(pos_of[name]))
        n_backed_off[name] = len(backed_off & gold[name].keys())
        for row, senses in by_row.items():
            if row != "first" or inventory:
                answers.setdefault(row, {})[name] = senses
    pooled_gold, pooled_pos = _pooled(gold), _pooled(pos_of)
    rows = []
    for row, by_set in answers.items():
        scores = {name: score_senses(gold[name], _as_keys(by_set[name])) for name in gold}
        pooled = _as_keys(_pooled(by_set))
        if len(tests) > 1:
            scores[POOLED] = score_senses(pooled_gold, pooled)
        by_pos = {
            pos: score_senses({key: pooled_gold[key] for key in pooled_gold if pooled_pos.get(key) == pos}, pooled)
            for pos in sorted(set(pooled_pos.values()))
        }
        rows.append(SenseRow(row, scores, by_pos))
    n_instances = {name: len(keys) for name, keys in gold.items()}
    return SenseResult(len(means.rows), n_instances, n_backed_off, rows, answers)


def write_answers(result: SenseResult, path: str | Path, overwrite: bool = False) -> None:
    """Write key files for the official scorer, one per row and test set, such as ``senseval2.layer-1.key.txt``."""
    check_output_path(path, overwrite, folder=True, parts=[ANSWERS])
    with atomic_write(path, overwrite, folder=True) as folder:
        for row, by_set in result.answers.items():
            title = layer_title(row).replace(" ", "-")
            for name, senses in by_set.items():
                lines = "".join(f"{instance} {sense}\n" for instance, sense in senses.items())
                (folder / f"{name}.{title}.key.txt").write_text(lines, encoding="utf-8", newline="\n")


def answer_senses(
    elmo: Elmo,
    sentences: Iterable[SenseSentence],
    means: SenseMeans,
    inventory: Inventory | None = None,
    progress: ProgressCallback | None = None,
    n_instances: int = 0,
) -> tuple[dict[str, dict[str, str]], set[str]]:
    """Choose the sense of each instance of a text, by each layer and by the baselines.

    Returns for each row ("0", "1", ..., "average", "top layer with prior", "most frequent", "first") the sense of each
    instance id; and the ids of the instances that have none of their senses in training, which every layer answers with
    the first sense.
    """
    inventory = inventory or {}
    names = [*map(str, range(elmo.n_layers)), "average", WITH_PRIOR]
    answers: dict[str, dict[str, str]] = {name: {} for name in ("first", "most frequent", *names)}
    backed_off: set[str] = set()
    with_prior = FrequencyProbe(means, -1)
    n_done = 0
    if progress is not None:
        progress("disambiguate", n_done, n_instances)
    for sentence, vectors in embed_instances(elmo, sentences):
        if sentence is None:
            if progress is not None:
                progress("disambiguate", n_done, n_instances)
            continue
        n_done += len(sentence.instances)
        for instance in sentence.instances:
            lemma_pos = (instance.lemma, instance.pos)
            first = inventory.get(lemma_pos, ())[:1]
            frequent = tuple(sense for sense, _ in means.tagged.get(lemma_pos, Counter[str]()).most_common(1))
            for name, best in (("first", first), ("most frequent", frequent or first)):
                if best:
                    answers[name][instance.id] = best[0]
            candidates = means.candidates(lemma_pos, inventory)
            if candidates:
                vector = vectors[:, instance.start : instance.stop].mean(axis=1)
                chosen = means.nearest(vector, candidates, average=True)
                chosen.append(with_prior.best(vector, lemma_pos, candidates))
            else:
                backed_off.add(instance.id)
                chosen = [*first] * len(names)
            for name, sense in zip(names, chosen, strict=False):  # without a first sense either, nothing was chosen
                answers[name][instance.id] = sense
    return answers, backed_off


def _pooled(by_set: Mapping[str, Mapping[str, Any]]) -> dict[Any, Any]:
    """Merge the test sets. Ids repeat across sets, so the key is the set's name and the id."""
    return {(name, instance): item for name, items in by_set.items() for instance, item in items.items()}


def _as_keys(answers: Mapping[Any, str]) -> dict[Any, tuple[str]]:
    return {instance: (sense,) for instance, sense in answers.items()}


class SenseMeans:
    """The mean vector of each sense, and how often each lemma was tagged with each of its senses.

    Memory grows with the number of distinct senses, not with the text: ``(senses, layers, dim)`` in float32.
    """

    def __init__(self, n_layers: int, dim: int) -> None:
        self.rows: dict[str, int] = {}
        self.sums: NDArray[np.float32] = np.zeros((0, n_layers, dim), dtype=np.float32)
        self.counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.tagged: dict[LemmaPos, Counter[str]] = {}
        self.n_sentences = 0

    def add(self, instance: Instance, senses: Iterable[str], vector: NDArray[np.float32]) -> None:
        """Add a tagged instance with its vector, ``(layers, dim)``."""
        tagged = self.tagged.setdefault((instance.lemma, instance.pos), Counter())
        for sense in senses:
            tagged[sense] += 1
            row = self.rows.setdefault(sense, len(self.rows))
            if row == len(self.sums):
                more = max(1024, row // 2)
                self.sums = np.concatenate([self.sums, np.zeros((more, *self.sums.shape[1:]), dtype=np.float32)])
                self.counts = np.concatenate([self.counts, np.zeros(more, dtype=np.int64)])
            self.sums[row] += vector
            self.counts[row] += 1

    def candidates(self, lemma_pos: LemmaPos, inventory: Inventory) -> list[str]:
        """List the senses of a lemma that are in training, in the order of the inventory, then by frequency."""
        tagged = self.tagged.get(lemma_pos, Counter[str]())
        listed = [*inventory.get(lemma_pos, ()), *(sense for sense, _ in tagged.most_common())]
        return [sense for sense in dict.fromkeys(listed) if sense in self.rows]

    def nearest(self, vector: NDArray[np.float32], senses: list[str], average: bool = False) -> list[str]:
        """Choose for each layer of ``(layers, dim)`` the sense with the nearest mean; ties go to the earlier one."""
        # (senses, layers, dim). The sums will do, because a cosine ignores length.
        means = self.sums[[self.rows[sense] for sense in senses]]
        if average:
            vector = np.concatenate([vector, vector.mean(axis=0, keepdims=True)])
            means = np.concatenate([means, means.mean(axis=1, keepdims=True)], axis=1)
        norms = np.linalg.norm(means, axis=-1)
        cosines = np.einsum("sld,ld->sl", means, vector) / np.where(norms == 0, 1, norms)
        return [senses[index] for index in cosines.argmax(axis=0)]

    def save(self, path: Path, settings: dict[str, Any]) -> None:
        """Write to a safetensors file, atomically. ``settings`` say what the means were computed from."""
        n_rows = len(self.rows)
        tagged = [[lemma, pos, list(counts.items())] for (lemma, pos), counts in self.tagged.items()]
        content = {"about": settings, "n_sentences": self.n_sentences, "senses": list(self.rows), "tagged": tagged}
        tensors: dict[str, NDArray[Any]] = {"sums": self.sums[:n_rows], "counts": self.counts[:n_rows]}
        with atomic_write(path, overwrite=True) as temporary:
            try:
                save_file(tensors, temporary, metadata={"content": json.dumps(content, ensure_ascii=False)})
            except SafetensorError as error:
                raise OSError(str(error)) from error
            temporary.chmod(0o644)  # safetensors creates files that only their owner can read

    @classmethod
    def load(cls, path: Path, settings: dict[str, Any], n_layers: int, dim: int) -> SenseMeans:
        """Read a file that :meth:`save` wrote, and check that its means were computed from the same data."""
        means = cls(n_layers, dim)
        try:
            with safe_open(path, framework="np") as file:
                content = json.loads(file.metadata()["content"])
                sums, counts = file.get_tensor("sums"), file.get_tensor("counts")
            for name, new in settings.items():
                old = dict(content["about"]).get(name)
                if old != new:
                    raise OutputError(
                        f"{path} contains sense means with {name} {old!r}, but this run has {name} {new!r}. Use the "
                        "same, choose another name, or start anew with --overwrite (overwrite=True)."
                    )
            means.n_sentences = int(content["n_sentences"])
            means.rows = {sense: row for row, sense in enumerate(content["senses"])}
            means.tagged = {(lemma, pos): Counter(dict(given)) for lemma, pos, given in content["tagged"]}
            means.sums = sums.astype(np.float32).reshape(len(means.rows), n_layers, dim)
            means.counts = counts.astype(np.int64).reshape(len(means.rows))
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise OutputError(
                f"{path} is not a file of sense means ({error}). Choose another name, or delete it."
            ) from None
        return means


class FrequencyProbe:
    """Nearest means of one layer, half whitened, with a prior for frequent senses.

    A cosine is dominated by the few directions in which the vectors vary most, and knows nothing of how often a sense
    occurs. So each direction is divided by the root of its standard deviation, over the means weighted by their counts;
    and a multiple of the logarithm of a sense's relative frequency for its lemma, counts plus one half, is added to the
    cosine.
    """

    def __init__(self, means: SenseMeans, layer: int) -> None:
        self._means, self._layer = means, layer
        n_rows = len(means.rows)
        counts = means.counts[:n_rows, None].astype(np.float64)
        vectors = means.sums[:n_rows, layer] / counts
        self._center = (counts * vectors).sum(axis=0) / counts.sum()
        centered = vectors - self._center
        variances, directions = np.linalg.eigh((counts * centered).T @ centered / counts.sum())
        kept = variances > RANK_TOLERANCE * variances.max(initial=0.0)
        self._matrix = directions[:, kept] / variances[kept] ** 0.25
        self._directions = self._unit(vectors)  # (senses, dim)

    def best(self, vector: NDArray[np.float32], lemma_pos: LemmaPos, senses: list[str]) -> str:
        """Choose a sense for the vectors ``(layers, dim)`` of a word; ties go to the earlier one."""
        cosines = self._directions[[self._means.rows[sense] for sense in senses]] @ self._unit(vector[self._layer])
        tagged = self._means.tagged.get(lemma_pos, Counter[str]())
        counts = np.array([tagged[sense] + 0.5 for sense in senses])
        return senses[int(np.argmax(cosines + PRIOR_WEIGHT * np.log(counts / counts.sum())))]

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
    """Compute the mean vector of each sense in a corpus, which is read once, in bounded memory.

    With ``path``, the means are saved there every minute: if the process is killed, the next call with the same
    arguments resumes, with the same result. A finished file is not computed again, unless ``overwrite`` is given.
    """
    keys = read_keys(source.gold)
    settings = {
        "what": "sense means",
        **model_settings(elmo),
        "data": file_digest(source.data),
        "gold": file_digest(source.gold),
    }
    path = None if path is None else Path(path)
    means = SenseMeans(elmo.n_layers, elmo.output_dim)
    if path is not None:
        if path.exists() and not overwrite:
            means = SenseMeans.load(path, settings, elmo.n_layers, elmo.output_dim)
        else:
            means.save(path, settings)  # fails now rather than later if the file cannot be written
    n_known, at_start = len(keys), means.n_sentences
    saved_at, save_seconds = time.monotonic(), 0.0
    n_instances = sum(sum(counts.values()) for counts in means.tagged.values())
    if progress is not None:
        progress("compute sense means", n_instances, n_known)
    sentences = read_sense_xml(source.data)
    for _ in range(at_start):
        next(sentences, None)
    for sentence, vectors in embed_instances(elmo, sentences):
        if sentence is None:
            if progress is not None:
                progress("compute sense means", n_instances, n_known)
            if path is not None and time.monotonic() - saved_at > max(SAVE_SECONDS, 20 * save_seconds):
                started = time.monotonic()
                means.save(path, settings)
                saved_at = time.monotonic()
                save_seconds = saved_at - started  # for a large model, saving takes a while
            continue
        means.n_sentences += 1
        n_instances += len(sentence.instances)
        for instance in sentence.instances:
            if instance.id not in keys:
                raise TextError(f"{source.data}: instance {instance.id} has no key in {source.gold}.")
            means.add(instance, keys[instance.id], vectors[:, instance.start : instance.stop].mean(axis=1))
    if not means.rows:
        raise TextError(f"{source.data} contains no instance to learn senses from.")
    if path is not None and means.n_sentences > at_start:
        means.save(path, settings)
    return means


def embed_instances(
    elmo: Elmo, sentences: Iterable[SenseSentence]
) -> Iterator[tuple[SenseSentence, NDArray[np.float32]] | tuple[None, NDArray[np.float32]]]:
    """Yield sentences with their vectors ``(layers, tokens, dim)``, and None after each chunk.

    A sentence without instances is not embedded and has no vectors.
    """
    nothing = np.zeros((elmo.n_layers, 0, elmo.output_dim), dtype=np.float32)
    for chunk in read_chunks(sentences, lambda sentence: len(sentence.words)):
        vectors = iter(elmo.embed([sentence.words for sentence in chunk if sentence.instances], layers="all"))
        for sentence in chunk:
            yield sentence, next(vectors) if sentence.instances else nothing
        yield None, nothing
