"""Measure what each layer encodes about parts of speech, with a linear classifier on its frozen vectors.

This follows section 5.3 and table 6 of Peters et al. 2018. Probing accuracy alone can mislead, so two baselines are
reported alongside it: the most frequent tag of each word, which needs no vector, and a control task (Hewitt and Liang
2019) with a random tag for each word, which a classifier can only memorize.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.config import check_at_least, check_positive
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.outputs.output_format import as_stored
from elmokit.errors import TextError, needs_torch
from elmokit.evaluation.probe_corpus import read_chunks
from elmokit.evaluation.result import Result, Row, layer_title
from elmokit.evaluation.tagged import TaggedSentence
from elmokit.storage.progress import ProgressCallback, StageCounter, count_of

with needs_torch("The part-of-speech probe"):
    import torch
    from torch import Tensor, nn

    from elmokit.network.scalar_mix import ScalarMix

CONTROL_SEED = 2019
MOST_FREQUENT = "most frequent tag"
"""The row of the baseline."""
AVERAGE, MIX = "average", "mix"
"""The rows for several layers: their mean, and a learned mix."""
READ_ROWS = 4096
MIN_STEPS = 500  # a handful of tokens makes few batches per epoch, but should still be learned

LayerRows = Sequence[NDArray[Any]]
"""For each layer ``(tokens, dim)``."""


@dataclass(frozen=True)
class LinearSettings:
    """How to train the classifier, with Adam and a cosine learning rate schedule."""

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
        if len(self.accuracies) == 1:
            return 0.0
        return float(np.std(self.accuracies, ddof=1))

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
        """Return the baseline, and one row per layer, in percent."""
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
            notes.append(f"The tags of {n_words} do not occur in the training text and count as wrong.")
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
    seeds: Sequence[int] = (0,),
    control: bool = False,
    settings: LinearSettings = LinearSettings(),
    progress: ProgressCallback | None = None,
) -> PosResult:
    """Train a linear probe on each layer, their mean and a learned mix, and score it on a test text.

    Args:
        elmo: The model.
        train: Sentences to train the classifier on.
        test: Sentences to score it on.
        layers: The layers to probe; None for all.
        seeds: Each layer is trained once per seed.
        control: Also run the control task.
        settings: How to train the classifier.
        progress: Called with the words embedded, then with the training steps of each classifier.

    Raises:
        ConfigError: The layer does not exist, or there are no seeds.
        TextError: There are no tagged words to train on, or to test on.

    Example:
        >>> result = probe_pos(elmo, list(read_tagged("train.conllu")), list(read_tagged("test.conllu")))
        >>> print(result.to_text())
    """
    chosen = list(range(elmo.n_layers)) if layers is None else sorted(set(layers))
    check_at_least("the number of seeds", len(seeds), 1)
    _check_tagged("training", train)
    _check_tagged("test", test)
    tagged = _label_tags(train, test)
    control_task = _control_task(train, test, tagged) if control else None
    train_layers = _vectors(elmo, "train", train, chosen, progress)
    test_layers = _vectors(elmo, "test", test, chosen, progress)
    rows = []
    for name, indices in _combinations(chosen):
        trained_on = [train_layers[index] for index in indices]
        tested_on = [test_layers[index] for index in indices]
        probes = _train_probes(name, trained_on, tagged, seeds, settings, progress)
        accuracies = [_accuracy(probe, tested_on, tagged) for probe in probes]
        controls = weights = None
        if control_task is not None:
            memorizing = _train_probes(name, trained_on, control_task, seeds, settings, progress)
            controls = [_accuracy(probe, tested_on, control_task) for probe in memorizing]
        if name == MIX:
            weights = _mean_weights(probes)
        rows.append(PosRow(name, accuracies, controls, weights))
    return PosResult(
        n_train_tokens=int((tagged.train >= 0).sum()),
        n_test_tokens=int(tagged.is_scored.sum()),
        n_tags=tagged.n_classes,
        n_unknown_tags=int((tagged.is_scored & (tagged.test < 0)).sum()),
        baseline=_baseline(train, test),
        rows=rows,
    )


class LabeledTexts(NamedTuple):
    """Labels for training and scoring a classifier."""

    title: str
    """Empty for the tags; "control task" for random ones."""
    n_classes: int
    train: NDArray[np.int64]
    """The class of each training token, ``(tokens,)``; -1 if it has none."""
    test: NDArray[np.int64]
    """The class of each test token, ``(tokens,)``; -1 if it has none or one that is not in training."""
    is_scored: NDArray[np.bool_]
    """Test tokens that have a tag, ``(tokens,)``."""


def _check_tagged(name: str, text: Sequence[TaggedSentence]) -> None:
    if all(tag is None for tag in _tags(text)):
        raise TextError(f"The probe's {name} text has no tagged words.")


def _combinations(layers: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Name each probe and list its layers: each layer alone, then all of them if there are several."""
    combinations = [(str(layer), [index]) for index, layer in enumerate(layers)]
    if len(layers) > 1:
        everything = list(range(len(layers)))
        combinations += [(AVERAGE, everything), (MIX, everything)]
    return combinations


def _train_probes(
    name: str,
    layers: LayerRows,
    texts: LabeledTexts,
    seeds: Sequence[int],
    settings: LinearSettings,
    progress: ProgressCallback | None,
) -> list[LinearProbe]:
    """Train a classifier with each seed."""
    probes = []
    for seed in seeds:
        stage = f"train {layer_title(name)}, seed {seed}"
        if texts.title:
            stage = f"{stage}, {texts.title}"
        probes.append(train_linear(layers, texts.train, texts.n_classes, name == MIX, seed, settings, progress, stage))
    return probes


def _accuracy(probe: LinearProbe, layers: LayerRows, texts: LabeledTexts) -> float:
    is_right = predict_linear(probe, layers) == texts.test
    return float(is_right[texts.is_scored].mean())


def _mean_weights(probes: Sequence[LinearProbe]) -> list[float]:
    weights = [probe.mix.weight.detach().softmax(0).numpy() for probe in probes]
    mean: list[float] = np.mean(weights, axis=0).tolist()
    return mean


def _vectors(
    elmo: Elmo, name: str, text: Sequence[TaggedSentence], layers: list[int], progress: ProgressCallback | None
) -> NDArray[np.float16]:
    """Compute the vectors of each layer, ``(layers, tokens, dim)``."""
    sentences = [sentence.words for sentence in text]
    n_tokens = sum(map(len, sentences))
    count = StageCounter(progress, f"embed {name}", n_tokens)
    count(0)
    rows = np.empty((len(layers), n_tokens, elmo.output_dim), np.float16)
    start = 0
    for chunk in read_chunks(sentences):
        for vectors in elmo.embed(chunk, layers=layers):
            stop = start + vectors.shape[1]
            rows[:, start:stop] = as_stored(vectors, "float16", "The probe cannot store it.")
            start = stop
        count(sum(map(len, chunk)))
    return rows


def _label_tags(train: Sequence[TaggedSentence], test: Sequence[TaggedSentence]) -> LabeledTexts:
    """Number the training text's tags, and label the tokens of both texts with them."""
    train_tags, test_tags = _tags(train), _tags(test)
    numbers: dict[str | None, int] = {}
    for tag in sorted({tag for tag in train_tags if tag is not None}):
        numbers[tag] = len(numbers)
    return LabeledTexts(
        title="",
        n_classes=len(numbers),
        train=np.array([numbers.get(tag, -1) for tag in train_tags], np.int64),
        test=np.array([numbers.get(tag, -1) for tag in test_tags], np.int64),
        is_scored=np.array([tag is not None for tag in test_tags]),
    )


def _tags(text: Iterable[TaggedSentence]) -> list[str | None]:
    """List the tags of all tokens."""
    return [tag for sentence in text for tag in sentence.tags]


def _words(text: Iterable[TaggedSentence]) -> list[str]:
    """List all tokens."""
    return [word for sentence in text for word in sentence.words]


def _baseline(train: Sequence[TaggedSentence], test: Sequence[TaggedSentence]) -> float:
    """Score the most frequent tag of each word; for unknown words, the most frequent tag of all words."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    overall: Counter[str] = Counter()
    for word, tag in zip(_words(train), _tags(train), strict=True):
        if tag is not None:
            counts[word][tag] += 1
            overall[tag] += 1
    hits = []
    for word, tag in zip(_words(test), _tags(test), strict=True):
        if tag is not None:
            (best, _), *_ = counts.get(word, overall).most_common(1)
            hits.append(tag == best)
    return float(np.mean(hits))


def _control_task(
    train: Sequence[TaggedSentence], test: Sequence[TaggedSentence], tagged: LabeledTexts
) -> LabeledTexts:
    """Draw random labels of the training and test tokens: one per word, with the frequencies of the real tags."""
    has_tag = tagged.train >= 0
    frequencies = np.bincount(tagged.train[has_tag], minlength=tagged.n_classes) / has_tag.sum()
    train_words, test_words = _words(train), _words(test)
    words = sorted({*train_words, *test_words})
    draw = np.random.default_rng(CONTROL_SEED)
    drawn = draw.choice(tagged.n_classes, size=len(words), p=frequencies).tolist()
    label_of = dict(zip(words, drawn, strict=True))
    train_labels = np.array([label_of[word] for word in train_words], dtype=np.int64)
    test_labels = np.array([label_of[word] for word in test_words], dtype=np.int64)
    train_labels[~has_tag] = -1
    return tagged._replace(title="control task", train=train_labels, test=test_labels)


class LinearProbe(nn.Module):
    """A linear classifier on a mix of layers, with features standardized to mean 0 and deviation 1.

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
    settings: LinearSettings = LinearSettings(),
    progress: ProgressCallback | None = None,
    stage: str = "train",
) -> LinearProbe:
    """Train a classifier on one layer, or on several that are averaged or, with ``learn_mix``, mixed.

    ``labels`` are ``(tokens,)``, classes from 0; tokens with a negative label are not used.
    """
    tokens = np.flatnonzero(labels >= 0)
    center, scale = _mean_and_deviation(layers, tokens)
    probe = LinearProbe(center, scale, len(layers), n_classes, learn_mix)
    n_per_epoch = math.ceil(len(tokens) / settings.batch_size)
    n_steps = max(settings.epochs * n_per_epoch, MIN_STEPS)
    trained = [parameter for parameter in probe.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    shuffle = np.random.default_rng(seed)
    order = tokens[:0]
    if progress is not None:
        progress(stage, 0, n_steps)
    for step in range(n_steps):
        if not len(order):
            order = shuffle.permutation(tokens)
        chosen = np.sort(order[: settings.batch_size])
        order = order[settings.batch_size :]
        scores = probe(_rows(layers, chosen))
        loss = nn.functional.cross_entropy(scores, torch.from_numpy(labels[chosen]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if progress is not None and (step % 100 == 99 or step + 1 == n_steps):
            progress(stage, step + 1, n_steps)
    return probe


@torch.no_grad()
def predict_linear(probe: LinearProbe, layers: LayerRows) -> NDArray[np.int64]:
    """Find the best class of each token, ``(tokens,)``."""
    n_tokens = len(layers[0])
    best = np.empty(n_tokens, dtype=np.int64)
    for start in range(0, n_tokens, READ_ROWS):
        here = slice(start, start + READ_ROWS)
        best[here] = probe(_rows(layers, here)).argmax(dim=1).numpy()
    return best


def _rows(layers: LayerRows, chosen: NDArray[np.int64] | slice) -> Tensor:
    """Read the chosen rows of every layer, ``(layers, chosen, dim)``."""
    rows = [np.asarray(layer[chosen], dtype=np.float32) for layer in layers]
    return torch.from_numpy(np.stack(rows))


def _mean_and_deviation(layers: LayerRows, tokens: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Compute the mean and deviation of each feature of the averaged layers over some tokens: ``(dim,)`` twice."""
    dim = layers[0].shape[1]
    total = torch.zeros(dim, dtype=torch.float64)
    square = torch.zeros(dim, dtype=torch.float64)
    for start in range(0, len(tokens), READ_ROWS):
        rows = _rows(layers, tokens[start : start + READ_ROWS]).double().mean(dim=0)
        total += rows.sum(dim=0)
        square += (rows**2).sum(dim=0)
    mean = total / len(tokens)
    deviation = (square / len(tokens) - mean**2).clamp(min=0).sqrt()
    return mean.float(), torch.where(deviation < 1e-6, 1.0, deviation).float()
