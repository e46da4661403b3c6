"""The mean vector of each sense in a sense-tagged corpus."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from elmokit.embedding.elmo import Elmo
from elmokit.engine.unit_vectors import unit_vectors
from elmokit.errors import OutputError, TextError
from elmokit.evaluation.probe_corpus import model_settings, read_chunks
from elmokit.evaluation.sense_files import Instance, LemmaPos, SenseSentence, SenseSet, read_keys, read_sense_xml
from elmokit.formats.sentence_pooling import RANK_TOLERANCE
from elmokit.storage.atomic import atomic_write
from elmokit.storage.bounded import file_digest
from elmokit.storage.progress import ProgressCallback

SAVE_SECONDS = 60.0
PRIOR_WEIGHT = 0.1
"""Of the logarithm of a sense's frequency, next to a cosine: the best on SemEval-2007 (results/en-mini-training.md)."""
Inventory = Mapping[LemmaPos, tuple[str, ...]]
"""The senses of each lemma, the first sense first."""


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
