"""What the layers know of word senses: the nearest mean of a sense's vectors.

Peters et al. 2018, section 5.3 and table 5: the biLM reads a corpus with senses; each sense gets the mean of its
vectors; a word of a test text takes, among the senses of its own lemma and part of speech, the one whose mean is
nearest by cosine, and the first sense where training had none of them.
"""

from __future__ import annotations

import hashlib
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

from elmokit.embedder import Elmo
from elmokit.errors import OutputError, TextError
from elmokit.io.atomic import atomic_write, check_output_path
from elmokit.probes.growing import Progress, chunks, model_digest, no_progress
from elmokit.probes.sense_files import Instance, LemmaPos, SenseSentence, SenseSet, read_keys, read_sense_xml
from elmokit.probes.sense_score import SenseScore, score_senses

SAVE_SECONDS = 60.0
ANSWERS = "*.key.txt"
"""What a folder of answers holds."""
Inventory = Mapping[LemmaPos, tuple[str, ...]]


POOLED = "all"


@dataclass(frozen=True)
class SenseRow:
    """How well one layer, or one rule without vectors, told senses apart."""

    name: str
    """A layer's number, "average", "most frequent" (sense in training) or "first" (sense of the inventory)."""
    scores: dict[str, SenseScore]
    """Per test set by its name; and "all", over the instances of all of them, where there are several."""
    by_pos: dict[str, SenseScore]
    """Per part of speech, over the instances of all sets."""


@dataclass(frozen=True)
class SenseResult:
    """A probe of word senses, layer by layer."""

    rows: list[SenseRow]
    n_instances: dict[str, int]
    """Per test set, as in its gold keys."""
    n_backed_off: dict[str, int]
    """Instances whose lemma training did not have; every layer answers them with the inventory's first sense."""
    n_senses: int
    """Senses that training had."""
    answers: dict[str, dict[str, dict[str, str]]]
    """Row and test set to instance id and sense: the lines of a key file."""


class SenseMeans:
    """Sums of vectors per sense, and how often each lemma was tagged with each of its senses.

    Memory grows with the number of distinct senses, not with the text: ``(senses, layers, dim)`` in float32.
    """

    def __init__(self, n_layers: int, dim: int) -> None:
        self.rows: dict[str, int] = {}
        self.sums: NDArray[np.float32] = np.zeros((0, n_layers, dim), dtype=np.float32)
        self.counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.tagged: dict[LemmaPos, Counter[str]] = {}
        self.n_sentences = 0

    def add(self, instance: Instance, senses: Iterable[str], vector: NDArray[np.float32]) -> None:
        """Count a tagged instance; ``vector`` is ``(layers, dim)``."""
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
        """Senses of a lemma that training had vectors for: in the inventory's order, then most frequent first."""
        tagged = self.tagged.get(lemma_pos, Counter[str]())
        listed = [*inventory.get(lemma_pos, ()), *(sense for sense, _ in tagged.most_common())]
        return [sense for sense in dict.fromkeys(listed) if sense in self.rows]

    def nearest(self, vector: NDArray[np.float32], senses: list[str], average: bool = False) -> list[str]:
        """Per layer the sense whose mean is nearest by cosine; the earlier one of equals.

        Args:
            vector: ``(layers, dim)``.
            average: one more entry, for the mean of the layers.
        """
        means = self.sums[[self.rows[sense] for sense in senses]]  # (senses, layers, dim); a cosine needs no division
        if average:
            vector = np.concatenate([vector, vector.mean(axis=0, keepdims=True)])
            means = np.concatenate([means, means.mean(axis=1, keepdims=True)], axis=1)
        norms = np.linalg.norm(means, axis=-1)
        cosines = np.einsum("sld,ld->sl", means, vector) / np.where(norms == 0, 1, norms)
        return [senses[place] for place in cosines.argmax(axis=0)]

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write to a safetensors file.

        Raises:
            OutputError: it cannot be written.
        """
        n_rows = len(self.rows)
        tagged = [[lemma, pos, list(counts.items())] for (lemma, pos), counts in self.tagged.items()]
        content = {"about": about, "n_sentences": self.n_sentences, "senses": list(self.rows), "tagged": tagged}
        tensors: dict[str, NDArray[Any]] = {"sums": self.sums[:n_rows], "counts": self.counts[:n_rows]}
        with atomic_write(path, overwrite=True) as beside:
            try:
                save_file(tensors, beside, metadata={"content": json.dumps(content, ensure_ascii=False)})
            except SafetensorError as error:
                raise OSError(str(error)) from error
            beside.chmod(0o644)

    @classmethod
    def load(cls, path: Path, about: dict[str, Any]) -> SenseMeans:
        """Read what ``save`` wrote.

        Raises:
            OutputError: it is damaged, or was made with another model or from another text.
        """
        try:
            with safe_open(path, framework="np") as file:
                content = json.loads(file.metadata()["content"])
                sums, counts = file.get_tensor("sums"), file.get_tensor("counts")
            found = content["about"]
            means = cls(*sums.shape[1:])
            means.sums, means.counts, means.n_sentences = sums, counts, int(content["n_sentences"])
            means.rows = {sense: row for row, sense in enumerate(content["senses"])}
            means.tagged = {(lemma, pos): Counter(dict(given)) for lemma, pos, given in content["tagged"]}
            if len(means.rows) != len(sums) or len(sums) != len(counts):
                raise ValueError("its parts do not fit each other")
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise OutputError(
                f"{path} is no file of sense means ({error}). Choose another name, or delete it."
            ) from None
        if found != about:
            raise OutputError(
                f"{path} holds sense means of another model or another text. Choose another name, or delete it."
            )
        return means


def probe_senses(
    elmo: Elmo,
    train: SenseSet,
    tests: Sequence[SenseSet],
    inventory: Inventory | None = None,
    path: str | Path | None = None,
    progress: Progress = no_progress,
) -> SenseResult:
    """Train sense means and score every layer on test sets.

    Args:
        inventory: senses of each lemma, the first one first; None if there is none: then what training did not have
            goes without an answer.
        path: where to keep the sense means, as in ``train_senses``.

    Raises:
        TextError: a file cannot be read, does not fit the other, or two test sets have one name.
        OutputError: ``path`` holds something else, or cannot be written.
    """
    if len({test.name for test in tests}) < len(tests) or not tests:
        raise TextError("The probe needs test sets of different names; one stands twice, or there is none.")
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
    """A folder of key files, one for each row and test set, for the official scorer: ``senseval2.layer-1.key.txt``.

    Raises:
        OutputError: the folder exists and may not be overwritten, holds other files, or cannot be written.
    """
    check_output_path(path, overwrite, folder=True, parts=[ANSWERS])
    with atomic_write(path, overwrite, folder=True) as folder:
        for row, by_set in result.answers.items():
            title = f"layer-{row}" if row.isdigit() else row.replace(" ", "-")
            for name, given in by_set.items():
                lines = "".join(f"{one} {sense}\n" for one, sense in given.items())
                (folder / f"{name}.{title}.key.txt").write_text(lines, encoding="utf-8", newline="\n")


def train_senses(
    elmo: Elmo, source: SenseSet, path: str | Path | None = None, progress: Progress = no_progress
) -> SenseMeans:
    """Read a corpus with senses once, in bounded memory.

    Args:
        path: keep the means in this file: saved every minute, gone on from after a kill (with the same result), and
            not computed again if whole.

    Raises:
        TextError: the corpus cannot be read, an instance has no key, or there is none at all.
        OutputError: ``path`` holds something else, or cannot be written.
    """
    keys = read_keys(source.gold)
    about = {
        "what": "sense means",
        "model": model_digest(elmo),
        "data": _digest(source.data),
        "gold": _digest(source.gold),
    }
    path = None if path is None else Path(path)
    means = SenseMeans(elmo.n_layers, elmo.output_dim)
    if path is not None:
        if path.exists():
            means = SenseMeans.load(path, about)
        else:
            means.save(path, about)  # a place that cannot be written to shows now
    n_known, at_start = len(keys), means.n_sentences
    saved_at, save_seconds = time.monotonic(), 0.0
    n_instances = sum(sum(counts.values()) for counts in means.tagged.values())
    progress("instances learnt", n_instances, n_known)
    sentences = read_sense_xml(source.data)
    for _ in range(at_start):
        next(sentences, None)
    for sentence, vectors in _embedded(elmo, sentences):
        if sentence is None:
            progress("instances learnt", n_instances, n_known)
            if path is not None and time.monotonic() - saved_at > max(SAVE_SECONDS, 20 * save_seconds):
                started = time.monotonic()
                means.save(path, about)
                saved_at = time.monotonic()
                save_seconds = saved_at - started  # the means of a large model take a while to write
            continue
        means.n_sentences += 1
        n_instances += len(sentence.instances)
        for instance in sentence.instances:
            if instance.id not in keys:
                raise TextError(f"{source.data}: instance {instance.id} has no key in {source.gold}.")
            means.add(instance, keys[instance.id], vectors[:, instance.start : instance.stop].mean(axis=1))
    if not means.rows:
        raise TextError(f"{source.data} holds no instance to learn senses from.")
    if path is not None and means.n_sentences > at_start:
        means.save(path, about)
    return means


def answer_senses(
    elmo: Elmo,
    sentences: Iterable[SenseSentence],
    means: SenseMeans,
    inventory: Inventory | None = None,
    progress: Progress = no_progress,
    n_instances: int = 0,
) -> tuple[dict[str, dict[str, str]], set[str]]:
    """The senses of a text's instances, by each layer.

    Args:
        inventory: senses of each lemma, the first one first; None if there is none: then what training did not have
            goes without an answer.

    Returns:
        for each layer by its number and for the "average" of all, and for "most frequent" (in training) and "first"
        (of the inventory): instance id to sense; and the ids for which training had no sense, so that every
        layer answers with the first.
    """
    inventory = inventory or {}
    names = [*map(str, range(elmo.n_layers)), "average"]
    answers: dict[str, dict[str, str]] = {name: {} for name in ("first", "most frequent", *names)}
    backed_off: set[str] = set()
    n_done = 0
    progress("instances asked", n_done, n_instances)
    for sentence, vectors in _embedded(elmo, sentences):
        if sentence is None:
            progress("instances asked", n_done, n_instances)
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
            answers_here = zip(names, chosen, strict=False)  # nothing was chosen where there is no first sense either
            for name, sense in answers_here:
                answers[name][instance.id] = sense
    return answers, backed_off


def _embedded(
    elmo: Elmo, sentences: Iterable[SenseSentence]
) -> Iterator[tuple[SenseSentence, NDArray[np.float32]] | tuple[None, NDArray[np.float32]]]:
    """Sentences that ask for senses, with their vectors ``(layers, tokens, dim)``; None after each whole chunk.

    A sentence without instances is not embedded and has no vectors.
    """
    nothing = np.zeros((elmo.n_layers, 0, elmo.output_dim), dtype=np.float32)
    for chunk in chunks(sentences, lambda sentence: len(sentence.words)):
        asked = iter(elmo.embed([sentence.words for sentence in chunk if sentence.instances]))
        for sentence in chunk:
            yield sentence, next(asked) if sentence.instances else nothing
        yield None, nothing


def _pooled(by_set: Mapping[str, Mapping[str, Any]]) -> dict[Any, Any]:
    """Ids repeat from set to set, so they are told apart by the set's name."""
    return {(name, one): value for name, of_set in by_set.items() for one, value in of_set.items()}


def _as_keys(answers: Mapping[Any, str]) -> dict[Any, tuple[str]]:
    return {one: (sense,) for one, sense in answers.items()}


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:16]
