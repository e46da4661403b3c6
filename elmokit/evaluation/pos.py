"""Measure what each layer encodes about parts of speech, with a linear classifier on its frozen vectors.

This follows section 5.3 and table 6 of Peters et al. 2018. Probing accuracy alone can mislead, so two baselines are
reported alongside it: the most frequent tag of each word, which needs no vector, and a control task (Hewitt and Liang
2019) with a random tag for each word, which a classifier can only memorize.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.fingerprint import RESTORE
from elmokit.errors import ConfigError, TextError, needs_torch
from elmokit.evaluation.layer_figure import Series, draw_layers, row_title
from elmokit.evaluation.linear_settings import LinearSettings
from elmokit.evaluation.probe_corpus import model_settings, read_chunks, text_digest
from elmokit.evaluation.tables import Table
from elmokit.evaluation.tagged import TaggedSentence
from elmokit.storage.progress import ProgressCallback
from elmokit.storage.resumable import ResumableStore

FLOAT16 = "<f2"
CONTROL_SEED = 2019


@dataclass(frozen=True)
class PosRow:
    """The results of the classifier on one layer, or on several combined."""

    name: str
    """A layer's number, "average", or "mix" (learned weights)."""
    accuracies: list[float]
    """Accuracy on the test tokens for each seed, from 0 to 1."""
    controls: list[float] | None = None
    """Accuracy on the control task for each seed; None if it was not run."""
    weights: list[float] | None = None
    """Weights of the layers in a learned mix, averaged over the seeds."""

    @property
    def accuracy(self) -> float:
        """The mean over the seeds."""
        return float(np.mean(self.accuracies))

    @property
    def deviation(self) -> float:
        """The sample standard deviation over the seeds; 0 for one seed."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else 0.0

    @property
    def selectivity(self) -> float | None:
        """Accuracy minus the accuracy on the control task."""
        return None if self.controls is None else self.accuracy - float(np.mean(self.controls))


@dataclass(frozen=True)
class PosResult:
    """The results of the part-of-speech probe."""

    rows: list[PosRow]
    baseline: float
    """Accuracy of the most frequent tag of each word; for unknown words, of the most frequent tag of all words."""
    n_train_tokens: int
    n_test_tokens: int
    n_tags: int
    n_unknown_tags: int
    """Test tokens whose tag does not occur in training; they count as wrong."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        rows = [
            {
                "name": row.name,
                "accuracy": row.accuracy,
                "deviation": row.deviation,
                "accuracies": row.accuracies,
                "controls": row.controls,
                "selectivity": row.selectivity,
                "weights": row.weights,
            }
            for row in self.rows
        ]
        return {
            "train_tokens": self.n_train_tokens,
            "test_tokens": self.n_test_tokens,
            "tags": self.n_tags,
            "unknown_tags": self.n_unknown_tags,
            "most_frequent_tag": self.baseline,
            "rows": rows,
        }

    def table(self) -> Table:
        """Return a row for each layer, under the baseline. The columns are those that were measured."""
        columns: dict[str, list[str]] = {
            "accuracy": [f"{self.baseline:.2%}", *(f"{r.accuracy:.2%}" for r in self.rows)]
        }
        if any(len(row.accuracies) > 1 for row in self.rows):
            columns["± seeds"] = ["", *(f"{row.deviation:.2%}" for row in self.rows)]
        if any(row.selectivity is not None for row in self.rows):
            lost = [row.selectivity or 0.0 for row in self.rows]
            columns["control task"] = [
                "",
                *(f"{row.accuracy - one:.2%}" for row, one in zip(self.rows, lost, strict=True)),
            ]
            columns["selectivity"] = ["", *(f"{one:.2%}" for one in lost)]
        if any(row.weights for row in self.rows):
            columns["weights"] = ["", *(" ".join(f"{weight:.2f}" for weight in row.weights or ()) for row in self.rows)]
        names = ["most frequent tag", *(row_title(row.name) for row in self.rows)]
        return Table(["part of speech", *columns], list(zip(names, *columns.values(), strict=True)))

    def notes(self) -> list[str]:
        """Return sentences about the data."""
        notes = [f"{self.n_tags} tags, {self.n_train_tokens:,} training words, {self.n_test_tokens:,} test words."]
        if self.n_unknown_tags:
            notes.append(
                f"{self.n_unknown_tags:,} test words have a tag that does not occur in training; they count as wrong."
            )
        return notes

    def to_text(self) -> str:
        """Return the table and the notes for people."""
        return "\n".join([self.table().to_text(), "", *self.notes()])

    def draw(self, path: str | Path, overwrite: bool = False) -> tuple[Path, Path]:
        """Draw the accuracy of each layer as PNG and SVG. Errors as in ``draw_layers``."""
        accuracies = [100 * row.accuracy for row in self.rows]
        series = [Series("linear probe", accuracies, [100 * row.deviation for row in self.rows])]
        if all(row.selectivity is not None for row in self.rows):
            controls = [100 * (row.accuracy - (row.selectivity or 0)) for row in self.rows]
            series.append(Series("control task", controls))
        levels = {"most frequent tag": 100 * self.baseline}
        return draw_layers(path, [row.name for row in self.rows], series, levels, "accuracy (%)", overwrite)


def probe_pos(
    elmo: Elmo,
    train: Sequence[TaggedSentence],
    test: Sequence[TaggedSentence],
    *,
    layers: Sequence[int] | None = None,
    combined: bool = True,
    seeds: Sequence[int] = (0,),
    control: bool = False,
    settings: LinearSettings = LinearSettings(),  # noqa: B008 (frozen)
    folder: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> PosResult:
    """Train a linear probe on each layer and score it on the test sentences.

    Args:
        elmo: The model.
        train: Sentences to train the classifier on.
        test: Sentences to score it on.
        layers: The layers to probe; None for all.
        combined: Also probe the mean of these layers, and a learned mix of them.
        seeds: Each layer is trained once per seed.
        control: Also run the control task.
        settings: How to train the classifier.
        folder: Keep the vectors (float16) in this directory, so that an interrupted run can be resumed and later runs
            can use them. None uses a temporary directory.
        progress: Called with the words embedded, then with the training steps of each classifier.

    Raises:
        ConfigError: The layer does not exist, or there is no seed.
        TextError: There are no tagged words to train on, or to test on.
        OutputError: ``folder`` contains something else or cannot be written.
        MissingExtraError: PyTorch is not installed.

    Example:
        >>> result = probe_pos(elmo, list(read_tagged("train.conllu")), list(read_tagged("test.conllu")))
        >>> print(result.to_text())
    """
    with needs_torch("The part-of-speech probe"):
        from elmokit.evaluation.linear_probe import predict_linear, train_linear

    chosen = list(range(elmo.n_layers)) if layers is None else sorted(set(layers))
    if not seeds:
        raise ConfigError("The probe needs at least one seed.")
    if not chosen:
        raise ConfigError("The probe needs at least one layer.")
    tags = sorted({tag for sentence in train for tag in sentence.tags if tag is not None})
    if not tags or not any(tag is not None for sentence in test for tag in sentence.tags):
        raise TextError(
            "The probe needs tagged words in both the training and the test text, but one of them has none."
        )
    answers, questions = _labels(train, tags), _labels(test, tags)
    asked = np.array([tag is not None for sentence in test for tag in sentence.tags])
    meanings = [(answers, questions)]
    if control:
        meanings.append(_control_task(train, test, answers, len(tags)))

    with tempfile.TemporaryDirectory(prefix="elmokit-pos-") as temporary:
        home = Path(temporary if folder is None else folder)
        seen, unseen = (
            _vectors(elmo, part, home / name, chosen, progress) for name, part in (("train", train), ("test", test))
        )
        plan = [(str(layer), [index], False) for index, layer in enumerate(chosen)]
        if combined and len(chosen) > 1:
            everything = list(range(len(chosen)))
            plan += [("average", everything, False), ("mix", everything, True)]
        rows = []
        for name, used, learn in plan:
            scores: list[list[float]] = [[], []]
            weights = []
            for task, (known, hidden) in enumerate(meanings):
                for seed in seeds:
                    stage = f"train {row_title(name)}, seed {seed}{', control task' if task else ''}"
                    rows_of = [seen[index] for index in used]
                    probe = train_linear(rows_of, known, len(tags), learn, seed, settings, progress, stage)
                    found = predict_linear(probe, [unseen[index] for index in used])
                    scores[task].append(float((found == hidden)[asked].mean()))
                    if learn and task == 0:
                        weights.append(probe.mix.weight.detach().softmax(0).numpy())
            mean_weights = np.mean(weights, axis=0).tolist() if weights else None
            rows.append(PosRow(name, scores[0], scores[1] if control else None, mean_weights))
    known_tags = set(tags)
    n_unknown = sum(tag is not None and tag not in known_tags for sentence in test for tag in sentence.tags)
    n_train = int((answers >= 0).sum())
    return PosResult(rows, _baseline(train, test), n_train, int(asked.sum()), len(tags), n_unknown)


def _vectors(
    elmo: Elmo,
    part: Sequence[TaggedSentence],
    folder: Path,
    layers: list[int],
    progress: ProgressCallback | None,
) -> list[NDArray[Any]]:
    """Return the vectors of each layer, ``(tokens, dim)`` in float16, memory-mapped. Compute those that are missing."""
    sentences = [sentence.words for sentence in part]
    settings = {
        "what": "token vectors, one float16 file a layer",
        **model_settings(elmo),
        "text": text_digest(sentences),
        "layers": layers,
        "dim": elmo.output_dim,
    }
    n_tokens = sum(map(len, sentences))
    with ResumableStore(folder, settings, restore=RESTORE) as store:
        n_done = store.progress.get("n_done", 0)
        if progress is not None:
            progress(f"embed {folder.name}", sum(map(len, sentences[:n_done])), n_tokens)
        for chunk in read_chunks(sentences[n_done:]):
            for array in elmo.embed(chunk, layers=layers):
                for layer, rows in zip(layers, array.astype(FLOAT16), strict=True):
                    store.append(f"layer-{layer}.f16", rows)
            n_done += len(chunk)
            store.commit({"n_done": n_done}, finished=n_done == len(sentences))
            if progress is not None:
                progress(f"embed {folder.name}", sum(map(len, sentences[:n_done])), n_tokens)
        return [store.committed.memory_map(f"layer-{layer}.f16", FLOAT16, elmo.output_dim) for layer in layers]


def _labels(part: Sequence[TaggedSentence], tags: list[str]) -> NDArray[np.int64]:
    """Return the index of each token's tag, ``(tokens,)``; -1 if it has none or an unknown one."""
    index_of: dict[str | None, int] = {tag: index for index, tag in enumerate(tags)}
    return np.array([index_of.get(tag, -1) for sentence in part for tag in sentence.tags], dtype=np.int64)


def _baseline(train: Sequence[TaggedSentence], test: Sequence[TaggedSentence]) -> float:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    overall: Counter[str] = Counter()
    for sentence in train:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            if tag is not None:
                counts[word][tag] += 1
                overall[tag] += 1
    hits = [
        tag == counts.get(word, overall).most_common(1)[0][0]
        for sentence in test
        for word, tag in zip(sentence.words, sentence.tags, strict=True)
        if tag is not None
    ]
    return float(np.mean(hits))


def _control_task(
    train: Sequence[TaggedSentence], test: Sequence[TaggedSentence], answers: NDArray[np.int64], n_tags: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return random labels of the training and test tokens: one per word, with the frequencies of the real tags."""
    frequencies = np.bincount(answers[answers >= 0], minlength=n_tags) / (answers >= 0).sum()
    draw = np.random.default_rng(CONTROL_SEED)
    words = sorted({word for part in (train, test) for sentence in part for word in sentence.words})
    of_word = dict(zip(words, draw.choice(n_tags, size=len(words), p=frequencies).tolist(), strict=True))
    known, hidden = (
        np.array([of_word[word] for sentence in part for word in sentence.words], dtype=np.int64)
        for part in (train, test)
    )
    known[answers < 0] = -1
    return known, hidden
