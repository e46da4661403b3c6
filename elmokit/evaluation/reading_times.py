"""Reading times: does a word's surprisal explain how long people take to read it?

A linear regression (ordinary least squares) predicts the mean reading time of a word from properties of the word and
of the two words before it, because a difficult word also slows down the words after it (spill-over):

- base: length in characters (as shown, with punctuation) and log frequency;
- full: the same and surprisal (the sum over the tokens of the word).

Each story is predicted by a regression on the other stories. The log-likelihood of a word's reading time is that of a
normal distribution around the prediction, with the mean squared residual of the other stories as its variance. The
*gain* is the log-likelihood of the full regression minus that of the base regression, in nats per word. Only words for
which all columns are defined count, the same ones for all models: the first words of a story do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.sentence_vectors import word_probability
from elmokit.embedding.start_state import StartName
from elmokit.errors import TextError
from elmokit.evaluation.figures import COLUMN, plot_bars
from elmokit.evaluation.natural_stories import (
    LARGE_MODEL,
    READING_TIMES,
    WORDS,
    Story,
    read_large_model,
    read_natural_stories,
)
from elmokit.evaluation.result import Record, TableResult, computed, value
from elmokit.evaluation.table import Evaluation, EvaluationRun, Files, existing_files
from elmokit.formats.model import PretrainedBiLM
from elmokit.lm.ngram import encode_text, ngram_nats
from elmokit.lm.surprisal import softmax_and_vocabulary, surprisals
from elmokit.storage.part_results import PartResults
from elmokit.storage.progress import ProgressCallback, StageCounter
from elmokit.storage.text_files import TEXT_SUFFIXES, find_text_files, read_sentences, total_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPILL_OVER = 2
"""How many words before a word also count."""
ORDER = 5
LARGE_MODEL_NAME = "GPT-3"
"""The large model whose log probabilities Natural Stories contains."""
Columns = list[NDArray[np.float64]]
"""``(words,)`` for each story."""


@dataclass(frozen=True)
class SurprisalEffect(Record):
    """How well the surprisal of one model explains reading times."""

    name: str = value("surprisal")
    gain: float = value("gain", ".2f", unit="nats per 1,000 words", scale=1000, error="standard_error")
    """Gain in log-likelihood of held-out stories, in nats per word."""

    @property
    @computed(format=".2f", scale=1000)
    def standard_error(self) -> float:
        """The standard error of the mean gain over stories."""
        return float(np.std(self.gain_by_story, ddof=1) / math.sqrt(len(self.gain_by_story)))

    gain_by_story: list[float] = value()

    @property
    @computed("stories that gain", in_json=False)
    def _gaining_stories(self) -> str:
        return f"{sum(gain > 0 for gain in self.gain_by_story)} of {len(self.gain_by_story)}"

    slopes: list[float] = value(
        ("ms/nat, word", *(f"{lag} before" for lag in range(1, SPILL_OVER + 1))), ".2f", key="milliseconds_per_nat"
    )
    """Milliseconds per nat of surprisal of the word, the word before, and the one before that, over all stories."""


@dataclass(frozen=True)
class ReadingTimesResult(TableResult):
    """The regressions of reading times on the surprisals of models."""

    figure_title = "Gain in log-likelihood"

    n_words: int = value()
    """Number of words analyzed."""
    stories: list[int] = value()
    base_log_likelihood: float = value()
    """Log-likelihood of held-out stories without surprisal, in nats per word."""
    frequencies: str = value()
    """Where the word frequencies are from."""
    effects: list[SurprisalEffect] = value()

    def table_rows(self) -> list[SurprisalEffect]:
        """Return a row for each model."""
        return self.effects

    def notes(self) -> list[str]:
        return [
            f"{self.n_words:,} words of {len(self.stories)} stories, each predicted from the others; ± is the standard "
            "error over stories.",
            f"Log-likelihood without surprisal: {self.base_log_likelihood:.4f} nats per word. Word frequencies: "
            f"{self.frequencies}.",
        ]

    def headlines(self) -> list[tuple[str, str]]:
        """Return the gain of the model itself: forward, if it has two directions."""
        own = self.effects[0]
        return [(f"reading times, {own.name}, gain in nats per 1,000 words", f"{1000 * own.gain:.2f}")]

    @property
    def figure_size(self) -> tuple[float, float]:
        return COLUMN, 0.8 + 0.25 * len(self.effects)

    def plot(self, figure: Figure) -> None:
        """Draw the gain of each model as a bar."""
        gains = [1000 * effect.gain for effect in self.effects]
        errors = [1000 * effect.standard_error for effect in self.effects]
        label = "gain in log-likelihood (nats per 1,000 words)"
        plot_bars(figure, [effect.name for effect in self.effects], gains, errors, label)


def evaluate_reading_times(
    model: PretrainedBiLM,
    stories: Sequence[Story],
    *,
    text: Sequence[str | Path] | None = None,
    others: Mapping[str, Columns] | None = None,
    start: StartName = "warm",
    parts: PartResults | None = None,
    progress: ProgressCallback | None = None,
) -> ReadingTimesResult:
    """Measure how well the surprisal of a model explains reading times.

    Args:
        model: A model with its softmax and vocabulary.
        stories: The stories, from ``read_natural_stories``.
        text: Files of tokenized text, ideally the model's training text. Its words are counted for the frequencies, and
            a 5-gram model over the model's vocabulary is estimated on it. Without it there is no 5-gram, and
            frequencies follow Zipf's law from the order of the vocabulary.
        others: Surprisals of further models, such as those of ``read_large_model``.
        start: As in ``surprisals``. Each sentence of a story is read from this state.
        parts: Where surprisals are kept, so that an interrupted run can be resumed.
        progress: Called with the number of words.

    Raises:
        ModelNotFoundError: The model has no softmax or no vocabulary.
        TextError: There are fewer than two stories, too few words, or only equal reading times; a file cannot be read;
            or the text has no word of the vocabulary.
    """
    softmax_and_vocabulary(model)
    parts = PartResults(None, {}) if parts is None else parts
    columns: dict[str, Columns] = {}
    count = StageCounter(progress, "reading times", sum(len(story.words) for story in stories))
    by_story = []
    for story in stories:
        nats = parts.compute(f"reading times, story {story.number}", partial(_word_nats, model, story, start))
        by_story.append(np.array(nats))
        count(len(story.words))
    for number, name in enumerate(model.config.direction_names):
        columns[name] = [nats[number] for nats in by_story]
    if text:
        counted = parts.compute("reading times, text", lambda: _count_text(model, stories, text, progress))
        columns[f"{ORDER}-gram"] = [np.array(row) for row in counted["nats"]]
        frequencies = [np.array(row) for row in counted["log_frequencies"]]
        source = f"counts of {counted['n_tokens']:,} tokens of text"
    else:
        frequencies = _log_frequencies(model, stories, None)
        source = "Zipf's law by rank in the model's vocabulary"
    return regress_reading_times(stories, frequencies, columns | dict(others or {}), source)


def regress_reading_times(
    stories: Sequence[Story], log_frequencies: Columns, surprisal: Mapping[str, Columns], frequencies: str = "given"
) -> ReadingTimesResult:
    """Regress reading times on length, log frequency and surprisal, cross-validated by story.

    All columns have a value for each word, by story; ``surprisal`` has columns for each model. ``frequencies`` says in
    the result where the frequencies are from.
    """
    lengths = [np.array([len(word.text) for word in story.words], dtype=np.float64) for story in stories]
    times = np.concatenate([[word.milliseconds for word in story.words] for story in stories])
    folds = np.concatenate([np.full(len(story.words), number) for number, story in enumerate(stories)])
    base = np.concatenate(
        [np.ones((len(times), 1)), _with_spill_over(lengths), _with_spill_over(log_frequencies)], axis=1
    )
    added = {name: _with_spill_over(nats) for name, nats in surprisal.items()}
    defined = np.isfinite(np.concatenate([times[:, None], base, *added.values()], axis=1)).all(axis=1)
    n_columns = base.shape[1] + SPILL_OVER + 1
    kept = np.unique(folds[defined], return_counts=True)[1]
    times, folds, base = times[defined], folds[defined], base[defined]
    if len(kept) < len(stories) or len(times) - kept.max(initial=0) <= n_columns or np.ptp(times) == 0:
        raise TextError(
            f"Expected words with different reading times in two or more stories, and more than {n_columns} outside of "
            f"each; found {len(times)} with all columns, in {len(kept)} of {len(stories)} stories."
        )
    without = _held_out_log_likelihood(base, times, folds)
    effects = []
    for name, columns in added.items():
        full = np.concatenate([base, columns[defined]], axis=1)
        gains = _held_out_log_likelihood(full, times, folds) - without
        by_story = [float(gains[folds == number].mean()) for number in range(len(stories))]
        slopes = np.linalg.lstsq(full, times, rcond=None)[0][base.shape[1] :]
        effects.append(SurprisalEffect(name, float(gains.mean()), by_story, slopes.tolist()))
    numbers = [story.number for story in stories]
    return ReadingTimesResult(int(defined.sum()), numbers, float(without.mean()), frequencies, effects)


def _held_out_log_likelihood(
    columns: NDArray[np.float64], times: NDArray[np.float64], folds: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Compute the log-likelihood of each word by a regression on the other folds, ``(words,)``."""
    result = np.empty(len(times))
    for fold in np.unique(folds):
        test = folds == fold
        weights = np.linalg.lstsq(columns[~test], times[~test], rcond=None)[0]
        variance = np.mean((times[~test] - columns[~test] @ weights) ** 2)
        residuals = times[test] - columns[test] @ weights
        result[test] = -0.5 * (np.log(2 * np.pi * variance) + residuals**2 / variance)
    return result


def _with_spill_over(stories: Columns) -> NDArray[np.float64]:
    """Make a column for the word and one for each word before it, ``(words, 1 + SPILL_OVER)``; NaN before a story."""
    shifted = [
        np.stack(
            [np.concatenate([np.full(lag, np.nan), values])[: len(values)] for lag in range(SPILL_OVER + 1)], axis=1
        )
        for values in stories
    ]
    return np.concatenate(shifted)


def _word_nats(model: PretrainedBiLM, story: Story, start: StartName) -> list[list[float]]:
    """Compute the surprisal of each word for each direction, ``(directions, words)``: the sum over its tokens."""
    sentences = [story.words[span] for span in story.sentences()]
    scored = surprisals(model, [[token for word in words for token in word.tokens] for words in sentences], start)
    sums = [
        _sum_by_word(words, sentence.nats[:, 1:-1].astype(np.float64))
        for words, sentence in zip(sentences, scored, strict=True)
    ]
    whole: list[list[float]] = np.concatenate(sums, axis=1).tolist()
    return whole


def _sum_by_word(words: Sequence[Any], nats: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add up the nats of tokens ``(..., tokens)`` to those of words ``(..., words)``."""
    starts = np.cumsum([0, *(len(word.tokens) for word in words)])[:-1]
    return np.add.reduceat(nats, starts, axis=-1)


def _count_text(
    model: PretrainedBiLM, stories: Sequence[Story], paths: Sequence[str | Path], progress: ProgressCallback | None
) -> dict[str, Any]:
    """Compute the surprisal of each word by an n-gram model, and its log frequency."""
    vocabulary = softmax_and_vocabulary(model)[1]
    text = encode_text(_read_text(paths, progress), vocabulary)
    sentences = [story.words[span] for story in stories for span in story.sentences()]
    tokens = [[token for word in words for token in word.tokens] for words in sentences]
    scored = ngram_nats(text, encode_text(tokens, vocabulary), vocabulary, ORDER, progress)
    nats = np.concatenate([_sum_by_word(words, row[:-1]) for words, row in zip(sentences, scored, strict=True)])
    stops = np.cumsum([len(story.words) for story in stories])[:-1]
    counts = np.bincount(text.words, minlength=len(vocabulary))
    # Boundaries are not words, and an unknown word should count as rare, not as frequent as all of them together.
    hidden = {vocabulary.begin_id, vocabulary.end_id, vocabulary.unknown_id}
    by_word = {word: int(counts[n]) for n, word in enumerate(vocabulary.words) if n not in hidden and counts[n]}
    if not by_word:
        raise TextError("No word of the text to count is in the model's vocabulary.")
    return {
        "nats": [row.tolist() for row in np.split(nats, stops)],
        "log_frequencies": [row.tolist() for row in _log_frequencies(model, stories, by_word)],
        "n_tokens": int((text.offsets > 0).sum() - (text.offsets == 0).sum()),
    }


def _log_frequencies(model: PretrainedBiLM, stories: Sequence[Story], counts: Mapping[str, int] | None) -> Columns:
    """Compute the log probability of each word in running text: that of its rarest token, punctuation apart."""
    probability = word_probability(model, counts)

    def of_word(tokens: Sequence[str]) -> float:
        words = [token for token in tokens if any(map(str.isalnum, token))] or tokens
        return math.log(min(map(probability, words)))

    return [np.array([of_word(word.tokens) for word in story.words]) for story in stories]


def _read_text(paths: Sequence[str | Path], progress: ProgressCallback | None) -> Iterator[list[str]]:
    files = find_text_files(paths)
    count = StageCounter(progress, "read text", total_bytes(files))
    for path in files:
        yield from read_sentences(path, count)


def _find(data: Path) -> Files | None:
    stories = existing_files(data, *(f"natural-stories/{name}*" for name in (WORDS, READING_TIMES, LARGE_MODEL)))
    text = existing_files(data, *(f"lm-*/train*{suffix}" for suffix in TEXT_SUFFIXES))
    return {"stories": stories, "text": text} if stories else None


def _run(run: EvaluationRun, files: Files) -> ReadingTimesResult:
    folder = files["stories"][0].parent
    stories = read_natural_stories(folder)
    large = read_large_model(folder, stories)
    return evaluate_reading_times(
        run.elmo.model,
        stories,
        text=files["text"],
        others=None if large is None else {LARGE_MODEL_NAME: large},
        parts=run.parts,
        progress=run.progress,
    )


EVALUATION = Evaluation("Reading times (Natural Stories)", f"natural-stories/{WORDS}", _find, _run, predicts=True)
