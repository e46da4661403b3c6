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

from elmokit.config import check_at_least, check_positive
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.outputs.output_format import as_stored
from elmokit.errors import TextError, needs_torch
from elmokit.evaluation.probe_corpus import model_settings, read_chunks
from elmokit.evaluation.result import Result, Row, layer_title
from elmokit.evaluation.tagged import TaggedSentence
from elmokit.storage.bounded import sentences_digest
from elmokit.storage.progress import ProgressCallback, StageCounter, count_of
from elmokit.storage.workspace import Workspace

with needs_torch("The part-of-speech probe"):
    import torch
    from torch import Tensor, nn

    from elmokit.network.scalar_mix import ScalarMix

FLOAT16 = "<f2"
CONTROL_SEED = 2019
MOST_FREQUENT = "most frequent tag"
"""The row of the baseline."""
READ_ROWS = 4096
MIN_STEPS = 500  # a handful of tokens makes few batches per epoch, but should be learned all the same

LayerRows = Sequence[NDArray[Any]]
"""For each layer ``(tokens, dim)``, in memory or memory-mapped."""


@dataclass(frozen=True)
class LinearSettings:
    """How to train the classifier, with Adam and a learning rate that falls to 0 along a cosine."""

    epochs: int = 5
    batch_size: int = 1024
    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        check_at_least("epochs", self.epochs, 1)
        check_at_least("batch_size", self.batch_size, 1)
        check_positive("learning_rate", self.learning_rate)


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
    def control(self) -> float | None:
        """Accuracy on the control task, the mean over the seeds."""
        return None if self.controls is None else float(np.mean(self.controls))

    @property
    def selectivity(self) -> float | None:
        """Accuracy minus the accuracy on the control task."""
        return None if self.control is None else self.accuracy - self.control

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        return {
            "name": self.name,
            "accuracy": self.accuracy,
            "deviation": self.deviation,
            "accuracies": self.accuracies,
            "controls": self.controls,
            "selectivity": self.selectivity,
            "weights": self.weights,
        }


@dataclass(frozen=True)
class PosResult(Result):
    """The results of the part-of-speech probe."""

    digits = 2
    measure = "accuracy (%)"

    n_train_tokens: int
    n_test_tokens: int
    n_tags: int
    n_unknown_tags: int
    """Test tokens whose tag does not occur in training; they count as wrong."""
    baseline: float
    """Accuracy of the most frequent tag of each word; for unknown words, of the most frequent tag of all words."""
    rows: list[PosRow]

    def table_rows(self) -> list[Row]:
        """Return the baseline, and a row for each layer, in percent."""
        rows: list[Row] = [{"part of speech": MOST_FREQUENT, self.measure: 100 * self.baseline}]
        for row in self.rows:
            cells: dict[str, Any] = {"part of speech": layer_title(row.name), self.measure: 100 * row.accuracy}
            if len(row.accuracies) > 1:
                cells["± seeds"] = f"{100 * row.deviation:.2f}"
            if row.control is not None and row.selectivity is not None:
                cells |= {"control task": 100 * row.control, "selectivity": 100 * row.selectivity}
            if row.weights is not None:
                cells["weights"] = " ".join(f"{weight:.2f}" for weight in row.weights)
            rows.append(cells)
        return rows

    def notes(self) -> list[str]:
        notes = [
            f"{count_of(self.n_tags, 'tag')}, {count_of(self.n_train_tokens, 'training word')}, "
            f"{count_of(self.n_test_tokens, 'test word')}."
        ]
        if self.n_unknown_tags:
            n_words = count_of(self.n_unknown_tags, "test word")
            notes.append(f"The tags of {n_words} do not occur in training; they count as wrong.")
        return notes

    def to_dict(self) -> dict[str, Any]:
        return {
            "train_tokens": self.n_train_tokens,
            "test_tokens": self.n_test_tokens,
            "tags": self.n_tags,
            "unknown_tags": self.n_unknown_tags,
            "most_frequent_tag": self.baseline,
            "rows": [row.to_dict() for row in self.rows],
        }


def probe_pos(
    elmo: Elmo,
    train: Sequence[TaggedSentence],
    test: Sequence[TaggedSentence],
    *,
    layers: Sequence[int] | None = None,
    combined: bool = True,
    seeds: Sequence[int] = (0,),
    control: bool = False,
    settings: LinearSettings = LinearSettings(),
    folder: str | Path | None = None,
    overwrite: bool = False,
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
        overwrite: Compute the vectors in ``folder`` anew.
        progress: Called with the words embedded, then with the training steps of each classifier.

    Raises:
        ConfigError: The layer does not exist, or there is no seed.
        TextError: There are no tagged words to train on, or to test on.
        OutputError: ``folder`` contains something else or cannot be written.

    Example:
        >>> result = probe_pos(elmo, list(read_tagged("train.conllu")), list(read_tagged("test.conllu")))
        >>> print(result.to_text())
    """
    chosen = list(range(elmo.n_layers)) if layers is None else sorted(set(layers))
    check_at_least("the number of seeds", len(seeds), 1)
    tags = sorted({tag for sentence in train for tag in sentence.tags if tag is not None})
    for name, text in (("training", train), ("test", test)):
        if not any(tag is not None for sentence in text for tag in sentence.tags):
            raise TextError(f"The {name} text of the probe has no tagged word.")
    answers, questions = _labels(train, tags), _labels(test, tags)
    is_tagged = np.array([tag is not None for sentence in test for tag in sentence.tags])
    label_sets = [(answers, questions)]
    if control:
        label_sets.append(_control_task(train, test, answers, len(tags)))

    with tempfile.TemporaryDirectory(prefix="elmokit-pos-") as temporary:
        home = Path(temporary if folder is None else folder)
        seen, unseen = (
            _vectors(elmo, text, home / name, chosen, overwrite, progress)
            for name, text in (("train", train), ("test", test))
        )
        plan = [(str(layer), [index], False) for index, layer in enumerate(chosen)]
        if combined and len(chosen) > 1:
            everything = list(range(len(chosen)))
            plan += [("average", everything, False), ("mix", everything, True)]
        rows = []
        for name, used, learn in plan:
            scores: list[list[float]] = [[], []]
            weights = []
            for task, (known, hidden) in enumerate(label_sets):
                for seed in seeds:
                    stage = f"train {layer_title(name)}, seed {seed}{', control task' if task else ''}"
                    rows_of = [seen[index] for index in used]
                    probe = train_linear(
                        rows_of, known, len(tags), learn, seed, **vars(settings), progress=progress, stage=stage
                    )
                    predicted = predict_linear(probe, [unseen[index] for index in used])
                    scores[task].append(float((predicted == hidden)[is_tagged].mean()))
                    if learn and task == 0:
                        weights.append(probe.mix.weight.detach().softmax(0).numpy())
            mean_weights = np.mean(weights, axis=0).tolist() if weights else None
            rows.append(PosRow(name, scores[0], scores[1] if control else None, mean_weights))
    known_tags = set(tags)
    n_unknown = sum(tag is not None and tag not in known_tags for sentence in test for tag in sentence.tags)
    n_train = int((answers >= 0).sum())
    return PosResult(n_train, int(is_tagged.sum()), len(tags), n_unknown, _baseline(train, test), rows)


def _vectors(
    elmo: Elmo,
    text: Sequence[TaggedSentence],
    folder: Path,
    layers: list[int],
    overwrite: bool,
    progress: ProgressCallback | None,
) -> list[NDArray[Any]]:
    """Map the vectors of each layer, ``(tokens, dim)`` in float16, into memory. Compute those that are missing."""
    sentences = [sentence.words for sentence in text]
    settings = {
        "what": "token vectors, one float16 file a layer",
        **model_settings(elmo),
        "text": sentences_digest(sentences),
        "layers": layers,
        "dim": elmo.output_dim,
    }
    n_tokens = sum(map(len, sentences))
    with Workspace(folder, settings, overwrite=overwrite) as workspace:
        n_done = workspace.progress.get("n_done", 0)
        count = StageCounter(progress, f"embed {folder.name}", n_tokens, done=sum(map(len, sentences[:n_done])))
        count(0)
        for chunk in read_chunks(sentences[n_done:]):
            for array in elmo.embed(chunk, layers=layers):
                for layer, rows in zip(layers, as_stored(array, "float16", "The probe cannot store it."), strict=True):
                    workspace.append(f"layer-{layer}.f16", rows)
            n_done += len(chunk)
            workspace.commit({"n_done": n_done})
            count(sum(map(len, chunk)))
        vectors = workspace.committed
    return [vectors.memory_map(f"layer-{layer}.f16", FLOAT16, elmo.output_dim) for layer in layers]


def _labels(text: Sequence[TaggedSentence], tags: list[str]) -> NDArray[np.int64]:
    """Look up the index of each token's tag, ``(tokens,)``; -1 if it has none or an unknown one."""
    index_of: dict[str | None, int] = {tag: index for index, tag in enumerate(tags)}
    return np.array([index_of.get(tag, -1) for sentence in text for tag in sentence.tags], dtype=np.int64)


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
    """Draw random labels of the training and test tokens: one per word, with the frequencies of the real tags."""
    frequencies = np.bincount(answers[answers >= 0], minlength=n_tags) / (answers >= 0).sum()
    draw = np.random.default_rng(CONTROL_SEED)
    words = sorted({word for text in (train, test) for sentence in text for word in sentence.words})
    of_word = dict(zip(words, draw.choice(n_tags, size=len(words), p=frequencies).tolist(), strict=True))
    known, hidden = (
        np.array([of_word[word] for sentence in text for word in sentence.words], dtype=np.int64)
        for text in (train, test)
    )
    known[answers < 0] = -1
    return known, hidden


class LinearProbe(nn.Module):
    """A linear classifier of a mix of layers, whose features are standardized to mean 0 and deviation 1.

    The mean and deviation are those of the average of the layers over the training tokens. Standardizing does not
    change what a linear classifier can express, only how fast it is trained.
    """

    def __init__(self, center: Tensor, scale: Tensor, n_layers: int, n_classes: int, learn_mix: bool) -> None:
        super().__init__()
        self.mix = ScalarMix(n_layers).requires_grad_(learn_mix)
        self.out = nn.Linear(len(center), n_classes)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.center, self.scale = center, scale

    def forward(self, rows: Tensor) -> Tensor:
        """Score the classes, ``(batch, classes)``, of vectors ``(layers, batch, dim)``."""
        mixed = self.mix(rows[:, None])[0]
        scores: Tensor = self.out((mixed - self.center) / self.scale)
        return scores


def train_linear(
    layers: LayerRows,
    labels: NDArray[np.int64],
    n_classes: int,
    learn_mix: bool = False,
    seed: int = 0,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    progress: ProgressCallback | None = None,
    stage: str = "train",
) -> LinearProbe:
    """Train a classifier on one layer, or on several that are averaged or, with ``learn_mix``, mixed.

    ``labels`` are ``(tokens,)``, classes from 0; tokens with a negative label are not used.
    """
    tokens = np.flatnonzero(labels >= 0)
    center, scale = _mean_and_deviation(layers, tokens)
    probe = LinearProbe(center, scale, len(layers), n_classes, learn_mix)
    n_per_epoch = -(-len(tokens) // batch_size)
    n_steps = max(epochs * n_per_epoch, MIN_STEPS)
    trained = [parameter for parameter in probe.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    shuffle = np.random.default_rng(seed)
    order = tokens[:0]
    if progress is not None:
        progress(stage, 0, n_steps)
    for step in range(n_steps):
        if not len(order):
            order = shuffle.permutation(tokens)
        chosen, order = np.sort(order[:batch_size]), order[batch_size:]
        loss = nn.functional.cross_entropy(probe(_rows(layers, chosen)), torch.from_numpy(labels[chosen]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if progress is not None and (step % 100 == 99 or step + 1 == n_steps):
            progress(stage, step + 1, n_steps)
    return probe


@torch.no_grad()
def predict_linear(probe: LinearProbe, layers: LayerRows) -> NDArray[np.int64]:
    """Find the best class of every token, ``(tokens,)``."""
    n_tokens = len(layers[0])
    best = [
        probe(_rows(layers, slice(start, start + READ_ROWS))).argmax(dim=1).numpy()
        for start in range(0, n_tokens, READ_ROWS)
    ]
    return np.concatenate(best) if best else np.zeros(0, dtype=np.int64)


def _rows(layers: LayerRows, chosen: NDArray[np.int64] | slice) -> Tensor:
    """Read the chosen rows of every layer, ``(layers, chosen, dim)``."""
    return torch.from_numpy(np.stack([np.asarray(layer[chosen], dtype=np.float32) for layer in layers]))


def _mean_and_deviation(layers: LayerRows, tokens: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Compute the mean and deviation of each feature of the averaged layers over some tokens: ``(dim,)`` twice."""
    total = square = torch.zeros(layers[0].shape[1], dtype=torch.float64)
    for start in range(0, len(tokens), READ_ROWS):
        rows = _rows(layers, tokens[start : start + READ_ROWS]).double().mean(dim=0)
        total, square = total + rows.sum(dim=0), square + (rows**2).sum(dim=0)
    mean = total / len(tokens)
    deviation = (square / len(tokens) - mean**2).clamp(min=0).sqrt()
    return mean.float(), torch.where(deviation < 1e-6, 1.0, deviation).float()
