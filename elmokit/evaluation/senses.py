"""Measure what each layer encodes about word senses, with a nearest-mean classifier.

This follows section 5.3 and table 5 of Peters et al. 2018. Each sense is represented by the mean of its vectors in a
sense-tagged corpus. A word of a test text gets the sense of its lemma and part of speech whose mean is nearest by
cosine, or the first sense of the inventory if the training corpus has none of them.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.fingerprint import RESTORE
from elmokit.errors import OutputError, TextError
from elmokit.evaluation.layer_figure import Series, draw_layers, row_title
from elmokit.evaluation.probe_corpus import model_settings, read_chunks
from elmokit.evaluation.sense_files import Instance, LemmaPos, SenseSentence, SenseSet, read_keys, read_sense_xml
from elmokit.evaluation.sense_score import SenseScore, score_senses
from elmokit.evaluation.tables import Table
from elmokit.storage.atomic import atomic_write, check_output_path
from elmokit.storage.checksums import file_digest
from elmokit.storage.progress import ProgressCallback

SAVE_SECONDS = 60.0
ANSWERS = "*.key.txt"
"""The files in a directory of answers."""
POOLED = "all"
"""The name of all test sets together."""
RULES = ("first", "most frequent")
"""The rows of the baselines, which use no vectors."""
Inventory = Mapping[LemmaPos, tuple[str, ...]]


@dataclass(frozen=True)
class SenseRow:
    """The scores of one layer, or of a baseline that uses no vectors."""

    name: str
    """The number of a layer, "average", or a baseline: "most frequent" (in training) or "first" (in the inventory)."""
    scores: dict[str, SenseScore]
    """Scores by test set. If there are several, "all" has the score over their instances together."""
    by_pos: dict[str, SenseScore]
    """Scores by part of speech, over the instances of all test sets."""


@dataclass(frozen=True)
class SenseResult:
    """The results of the word sense probe."""

    rows: list[SenseRow]
    n_instances: dict[str, int]
    """Instances with gold keys, by test set."""
    n_backed_off: dict[str, int]
    """Instances whose lemma is not in training; every layer answers with the first sense of the inventory."""
    n_senses: int
    """Distinct senses in the training corpus."""
    answers: dict[str, dict[str, dict[str, str]]]
    """For each row and test set the answered sense of each instance id, which are the lines of a key file."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the answers as plain JSON values."""
        rows = [
            {
                "name": row.name,
                "scores": {name: score._asdict() for name, score in row.scores.items()},
                "parts_of_speech": {name: score._asdict() for name, score in row.by_pos.items()},
            }
            for row in self.rows
        ]
        return {
            "senses": self.n_senses,
            "instances": self.n_instances,
            "backed_off": self.n_backed_off,
            "rows": rows,
        }

    def table(self) -> Table:
        """Return F1 in percent: a row for each layer, a column for each test set and part of speech."""
        sets, parts = list(self.rows[0].scores), list(self.rows[0].by_pos)
        rows = []
        for row in self.rows:
            scores = [row.scores[name] for name in sets] + [row.by_pos[name] for name in parts]
            rows.append([row_title(row.name), *(f"{100 * score.f1:.1f}" for score in scores)])
        return Table(["F1 in percent", *sets, *parts], rows)

    def notes(self) -> list[str]:
        """Return sentences about the data."""
        n_instances, n_missing = sum(self.n_instances.values()), sum(self.n_backed_off.values())
        notes = [
            f"{self.n_senses:,} senses in training; {n_missing:,} of {n_instances:,} instances have none of theirs in "
            "it."
        ]
        if any(score.precision != score.recall for row in self.rows for score in row.scores.values()):
            notes.append("Some instances have no answer: give an --inventory, or see precision and recall in --json.")
        return notes

    def to_text(self) -> str:
        """Return the table and the notes for people."""
        return "\n".join([self.table().to_text(), "", *self.notes()])

    def draw(self, path: str | Path, overwrite: bool = False) -> tuple[Path, Path]:
        """Draw the F1 of each layer as PNG and SVG. Errors as in ``draw_layers``."""
        layers = [row for row in self.rows if row.name not in RULES]
        last = list(self.rows[0].scores)[-1]  # all test sets together, if there are several
        series = [Series(name, [100 * row.scores[name].f1 for row in layers]) for name in self.rows[0].scores]
        levels = {f"{row.name} sense ({last})": 100 * row.scores[last].f1 for row in self.rows if row.name in RULES}
        return draw_layers(path, [row.name for row in layers], series, levels, "F1 (%)", overwrite)


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
        """Return the senses of a lemma that are in training, in the order of the inventory, then by frequency."""
        tagged = self.tagged.get(lemma_pos, Counter[str]())
        listed = [*inventory.get(lemma_pos, ()), *(sense for sense, _ in tagged.most_common())]
        return [sense for sense in dict.fromkeys(listed) if sense in self.rows]

    def nearest(self, vector: NDArray[np.float32], senses: list[str], average: bool = False) -> list[str]:
        """Return for each layer the sense whose mean is nearest by cosine; ties go to the earlier one.

        Args:
            vector: ``(layers, dim)``.
            senses: The senses to choose from.
            average: Add an entry for the average of the layers.
        """
        # (senses, layers, dim). The sums will do, because a cosine ignores length.
        means = self.sums[[self.rows[sense] for sense in senses]]
        if average:
            vector = np.concatenate([vector, vector.mean(axis=0, keepdims=True)])
            means = np.concatenate([means, means.mean(axis=1, keepdims=True)], axis=1)
        norms = np.linalg.norm(means, axis=-1)
        cosines = np.einsum("sld,ld->sl", means, vector) / np.where(norms == 0, 1, norms)
        return [senses[index] for index in cosines.argmax(axis=0)]

    def save(self, path: Path, settings: dict[str, Any]) -> None:
        """Write to a safetensors file, atomically.

        Args:
            path: The file.
            settings: What the means were computed from.

        Raises:
            OutputError: The file cannot be written.
        """
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
    def load(cls, path: Path, settings: dict[str, Any]) -> SenseMeans:
        """Read a file that :meth:`save` wrote.

        Args:
            path: The file.
            settings: What the means should have been computed from.

        Raises:
            OutputError: The file is damaged, or its means are of another model or text.
        """
        try:
            with safe_open(path, framework="np") as file:
                content = json.loads(file.metadata()["content"])
                sums, counts = file.get_tensor("sums"), file.get_tensor("counts")
            found = dict(content["about"])
            means = cls(*sums.shape[1:])
            means.sums, means.counts, means.n_sentences = sums, counts, int(content["n_sentences"])
            means.rows = {sense: row for row, sense in enumerate(content["senses"])}
            means.tagged = {(lemma, pos): Counter(dict(given)) for lemma, pos, given in content["tagged"]}
            if len(means.rows) != len(sums) or len(sums) != len(counts):
                raise ValueError("its tensors do not match")
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise OutputError(
                f"{path} is not a file of sense means ({error}). Choose another name, or delete it."
            ) from None
        for name, new in settings.items():
            old = found.get(name)
            if old != new:
                how = RESTORE[name](old) if name in RESTORE else "Use the same"
                raise OutputError(
                    f"{path} contains sense means with {name} {old!r}, but this run has {name} {new!r}. {how}, choose "
                    "another name, or delete it."
                )
        return means


def probe_senses(
    elmo: Elmo,
    train: SenseSet,
    tests: Sequence[SenseSet],
    inventory: Inventory | None = None,
    path: str | Path | None = None,
    progress: ProgressCallback | None = None,
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

    Raises:
        TextError: A file cannot be read or does not match the other, or two test sets have the same name.
        OutputError: ``path`` contains something else or cannot be written.

    Example:
        >>> result = probe_senses(elmo, find_sense_set("semcor"), [find_sense_set("senseval2")])
        >>> print(result.to_text())
    """
    if len({test.name for test in tests}) < len(tests) or not tests:
        raise TextError("The probe needs one or more test sets with different names.")
    gold = {test.name: read_keys(test.gold) for test in tests}
    texts = {test.name: list(read_sense_xml(test.data)) for test in tests}
    pos_of: dict[str, dict[str, str]] = {}
    for test in tests:
        pos_of[test.name] = {one.id: one.pos for sentence in texts[test.name] for one in sentence.instances}
        if not pos_of[test.name].keys() & gold[test.name].keys():
            raise TextError(f"{test.gold} has no key for any instance of {test.data}.")
    means = train_senses(elmo, train, path, progress)
    found = {
        name: answer_senses(elmo, text, means, inventory, progress, len(pos_of[name])) for name, text in texts.items()
    }
    answers: dict[str, dict[str, dict[str, str]]] = {}
    for name, (by_row, _) in found.items():
        for row, given in by_row.items():
            if row != "first" or inventory:
                answers.setdefault(row, {})[name] = given
    rows = []
    for row, by_set in answers.items():
        scores = {name: score_senses(gold[name], _as_keys(by_set[name])) for name in gold}
        pooled, pooled_gold = _pooled(by_set), _pooled(gold)
        if len(tests) > 1:
            scores[POOLED] = score_senses(pooled_gold, _as_keys(pooled))
        parts = {(name, one): pos for name, of_set in pos_of.items() for one, pos in of_set.items()}
        by_pos = {
            pos: score_senses({one: pooled_gold[one] for one in pooled_gold if parts.get(one) == pos}, _as_keys(pooled))
            for pos in sorted(set(parts.values()))
        }
        rows.append(SenseRow(row, scores, by_pos))
    n_backed_off = {name: len(ids & gold[name].keys()) for name, (_, ids) in found.items()}
    return SenseResult(rows, {name: len(keys) for name, keys in gold.items()}, n_backed_off, len(means.rows), answers)


def write_answers(result: SenseResult, path: str | Path, overwrite: bool = False) -> None:
    """Write a directory of key files for the official scorer, one per row and test set: ``senseval2.layer-1.key.txt``.

    Raises:
        OutputError: The directory exists, contains other files, or cannot be written.
    """
    check_output_path(path, overwrite, folder=True, parts=[ANSWERS])
    with atomic_write(path, overwrite, folder=True) as folder:
        for row, by_set in result.answers.items():
            title = row_title(row).replace(" ", "-")
            for name, given in by_set.items():
                lines = "".join(f"{one} {sense}\n" for one, sense in given.items())
                (folder / f"{name}.{title}.key.txt").write_text(lines, encoding="utf-8", newline="\n")


def train_senses(
    elmo: Elmo, source: SenseSet, path: str | Path | None = None, progress: ProgressCallback | None = None
) -> SenseMeans:
    """Compute the mean vector of each sense in a corpus. The corpus is read once, in bounded memory.

    Args:
        elmo: The model.
        source: The sense-tagged corpus.
        path: Keep the means in this file. It is saved every minute; if the process is killed, the next call with the
            same arguments resumes, with the same result. A finished file is not computed again.
        progress: Called with the number of instances.

    Raises:
        TextError: The corpus cannot be read, an instance has no key, or there is no instance.
        OutputError: ``path`` contains something else or cannot be written.
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
        if path.exists():
            means = SenseMeans.load(path, settings)
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
    for sentence, vectors in _embedded(elmo, sentences):
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


def answer_senses(
    elmo: Elmo,
    sentences: Iterable[SenseSentence],
    means: SenseMeans,
    inventory: Inventory | None = None,
    progress: ProgressCallback | None = None,
    n_instances: int = 0,
) -> tuple[dict[str, dict[str, str]], set[str]]:
    """Choose the sense of each instance of a text, by each layer and by the baselines.

    Args:
        elmo: The model.
        sentences: The text.
        means: The sense means.
        inventory: As in ``probe_senses``.
        progress: Called with the number of instances.
        n_instances: The number of instances, for ``progress``.

    Returns:
        For each row ("0", "1", ..., "average", "most frequent", "first") the sense of each instance id; and the ids of
        the instances that have none of their senses in training, which every layer answers with the first sense.
    """
    inventory = inventory or {}
    names = [*map(str, range(elmo.n_layers)), "average"]
    answers: dict[str, dict[str, str]] = {name: {} for name in ("first", "most frequent", *names)}
    backed_off: set[str] = set()
    n_done = 0
    if progress is not None:
        progress("disambiguate", n_done, n_instances)
    for sentence, vectors in _embedded(elmo, sentences):
        if sentence is None:
            if progress is not None:
                progress("disambiguate", n_done, n_instances)
            continue
        n_done += len(sentence.instances)
        for instance in sentence.instances:
            lemma_pos = (instance.lemma, instance.pos)
            first = inventory.get(lemma_pos, ())[:1]
            frequent = tuple(sense for sense, _ in means.tagged.get(lemma_pos, Counter[str]()).most_common(1))
            for name, given in (("first", first), ("most frequent", frequent or first)):
                if given:
                    answers[name][instance.id] = given[0]
            candidates = means.candidates(lemma_pos, inventory)
            if candidates:
                vector = vectors[:, instance.start : instance.stop].mean(axis=1)
                chosen = means.nearest(vector, candidates, average=True)
            else:
                backed_off.add(instance.id)
                chosen = [*first] * len(names)
            for name, sense in zip(names, chosen, strict=False):  # without a first sense either, nothing was chosen
                answers[name][instance.id] = sense
    return answers, backed_off


def _embedded(
    elmo: Elmo, sentences: Iterable[SenseSentence]
) -> Iterator[tuple[SenseSentence, NDArray[np.float32]] | tuple[None, NDArray[np.float32]]]:
    """Yield sentences with their vectors ``(layers, tokens, dim)``, and None after each chunk.

    A sentence without instances is not embedded and has no vectors.
    """
    nothing = np.zeros((elmo.n_layers, 0, elmo.output_dim), dtype=np.float32)
    for chunk in read_chunks(sentences, lambda sentence: len(sentence.words)):
        asked = iter(elmo.embed([sentence.words for sentence in chunk if sentence.instances]))
        for sentence in chunk:
            yield sentence, next(asked) if sentence.instances else nothing
        yield None, nothing


def _pooled(by_set: Mapping[str, Mapping[str, Any]]) -> dict[Any, Any]:
    """Merge the test sets. Ids repeat across sets, so the key is the set's name and the id."""
    return {(name, one): value for name, of_set in by_set.items() for one, value in of_set.items()}


def _as_keys(answers: Mapping[Any, str]) -> dict[Any, tuple[str]]:
    return {one: (sense,) for one, sense in answers.items()}
