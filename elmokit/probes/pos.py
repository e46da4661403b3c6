"""What the layers know of parts of speech: a linear classifier on each layer's frozen vectors.

Peters et al. 2018, section 5.3 and table 6. Two guards against reading too much into an accuracy stand beside it: the
most frequent tag of each word, which needs no vector, and a control task (Hewitt and Liang 2019), in which each
word gets one tag at random, so that only what the classifier can learn by heart counts.
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

from elmokit.embedder import Elmo
from elmokit.errors import ConfigError, TextError
from elmokit.probes.growing import GrowingFolder, Progress, chunks, mapped, model_digest, no_progress, text_digest
from elmokit.probes.linear import LinearSettings, predict_linear, train_linear
from elmokit.probes.tagged import TaggedSentence

FLOAT16 = "<f2"
CONTROL_SEED = 2019


@dataclass(frozen=True)
class PosRow:
    """What a classifier made of one layer, or of several."""

    name: str
    """A layer's number, "average", or "mix" (learned weights)."""
    accuracies: list[float]
    """On the test tokens, from 0 to 1, per seed."""
    controls: list[float] | None = None
    """Accuracy at the control task, per seed; None if it was not asked for."""
    weights: list[float] | None = None
    """The mix: softmax weights of the layers, mean over the seeds."""

    @property
    def accuracy(self) -> float:
        """Mean over the seeds."""
        return float(np.mean(self.accuracies))

    @property
    def deviation(self) -> float:
        """Standard deviation over the seeds (n - 1); 0 for one seed."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else 0.0

    @property
    def selectivity(self) -> float | None:
        """Accuracy less that at the control task."""
        return None if self.controls is None else self.accuracy - float(np.mean(self.controls))


@dataclass(frozen=True)
class PosResult:
    """A probe of parts of speech, layer by layer."""

    rows: list[PosRow]
    baseline: float
    """Accuracy of the most frequent tag of each word, and of all words for one that training did not have."""
    n_train_tokens: int
    n_test_tokens: int
    n_tags: int
    n_unknown_tags: int
    """Test tokens whose tag stands nowhere in training; they count as wrong."""


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
    progress: Progress = no_progress,
) -> PosResult:
    """Train a linear probe on each layer and score it on the test sentences.

    Args:
        layers: which layers; None for all.
        combined: also the plain mean of these layers, and a learned mix of them.
        seeds: one training each, of every row.
        control: also the control task.
        folder: keep the vectors (float16) there, to go on after a kill and to use them again; None for a temporary one.

    Raises:
        ConfigError: there is no such layer, or no seed.
        TextError: there is nothing to train or to test on.
        OutputError: ``folder`` holds something else, or cannot be written.
    """
    chosen = list(range(elmo.n_layers)) if layers is None else sorted(set(layers))
    if not seeds:
        raise ConfigError("The probe needs at least one seed.")
    if not chosen:
        raise ConfigError("The probe needs at least one layer.")
    tags = sorted({tag for sentence in train for tag in sentence.tags if tag is not None})
    if not tags or not any(tag is not None for sentence in test for tag in sentence.tags):
        raise TextError("The probe needs tagged words to train on and to test on; one of the two has none.")
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
        plan = [(str(layer), [place], False) for place, layer in enumerate(chosen)]
        if combined and len(chosen) > 1:
            everything = list(range(len(chosen)))
            plan += [("average", everything, False), ("mix", everything, True)]
        rows = []
        for name, places, learn in plan:
            scores: list[list[float]] = [[], []]
            weights = []
            for task, (known, hidden) in enumerate(meanings):
                for seed in seeds:
                    what = ("control task, " if task else "") + (f"layer {name}" if name.isdigit() else name)
                    stage = f"steps ({what}, seed {seed})"
                    probe = train_linear(
                        [seen[place] for place in places],
                        known,
                        len(tags),
                        learn,
                        seed,
                        settings,
                        lambda done, total, stage=stage: progress(stage, done, total),  # type: ignore[misc]
                    )
                    found = predict_linear(probe, [unseen[place] for place in places])
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
    elmo: Elmo, part: Sequence[TaggedSentence], home: Path, layers: list[int], progress: Progress
) -> list[NDArray[Any]]:
    """Per layer ``(tokens, dim)`` in float16, mapped from the folder; computed as far as it lacks them."""
    sentences = [sentence.words for sentence in part]
    about = {
        "what": "token vectors, one float16 file a layer",
        "model": model_digest(elmo),
        "text": text_digest(sentences),
        "layers": layers,
        "dim": elmo.output_dim,
    }
    n_tokens = sum(map(len, sentences))
    with GrowingFolder(home, about) as folder:
        n_done = folder.done
        stage = f"words of {home.name}"
        progress(stage, sum(map(len, sentences[:n_done])), n_tokens)
        for chunk in chunks(sentences[n_done:], len):
            for array in elmo.embed(chunk, layers=layers):
                for layer, rows in zip(layers, array.astype(FLOAT16), strict=True):
                    folder.append(f"layer-{layer}.f16", rows)
            n_done += len(chunk)
            folder.commit(n_done)
            progress(stage, sum(map(len, sentences[:n_done])), n_tokens)
        folder.commit(n_done, finished=True)
        return [mapped(home, f"layer-{layer}.f16", FLOAT16, folder.sizes, elmo.output_dim) for layer in layers]


def _labels(part: Sequence[TaggedSentence], tags: list[str]) -> NDArray[np.int64]:
    """``(tokens,)``: a tag's place in the list, -1 where there is none or an unknown one."""
    places: dict[str | None, int] = {tag: place for place, tag in enumerate(tags)}
    return np.array([places.get(tag, -1) for sentence in part for tag in sentence.tags], dtype=np.int64)


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
    """Labels of the training and of the test tokens: one a word, drawn as often as the tags stand in training."""
    share = np.bincount(answers[answers >= 0], minlength=n_tags) / (answers >= 0).sum()
    draw = np.random.default_rng(CONTROL_SEED)
    words = sorted({word for part in (train, test) for sentence in part for word in sentence.words})
    of_word = dict(zip(words, draw.choice(n_tags, size=len(words), p=share).tolist(), strict=True))
    known, hidden = (
        np.array([of_word[word] for sentence in part for word in sentence.words], dtype=np.int64)
        for part in (train, test)
    )
    known[answers < 0] = -1
    return known, hidden
