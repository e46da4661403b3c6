"""Minimal pairs: does a model assign a higher probability to the acceptable sentence, as in BLiMP?

Sentences are compared by total log probability, including the sentence end. Ties count as wrong. Accuracies are
averaged over paradigms with equal weights, as in Warstadt et al. 2020.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.computer import Computer, computer_of
from elmokit.errors import TextError
from elmokit.evaluation.result import Result, Row, number_or_none
from elmokit.lm.surprisal import MinimalPairScores, score_minimal_pairs
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.progress import ProgressCallback, StageCounter, count_of
from elmokit.storage.text_files import read_lines
from elmokit.text.columns import is_table, read_table
from elmokit.text.vocabulary import N_NAMED, name_words

BOTH = "both"
"""The name of the comparison by the sum over both directions."""
PAID = "unknown words paid"
"""The name of the comparison in which an unknown word costs as much as the rarest word of the vocabulary."""
OVERALL = "overall"
"""The row for all paradigms; in a table of published results, also for all paradigms of a phenomenon."""
GOOD, BAD, PARADIGM, PHENOMENON = "sentence_good", "sentence_bad", "UID", "linguistics_term"
SHORT = {GOOD: "good", BAD: "bad"}
"""Other names of the columns of sentences."""


@dataclass(frozen=True)
class Paradigm:
    """Pairs that test one point of grammar."""

    name: str
    phenomenon: str
    """The group of paradigms that it belongs to; empty if none is given."""
    pairs: list[tuple[str, str]]
    """Raw sentences, the acceptable one first."""
    rows: list[Row] = dataclasses.field(default_factory=list)
    """All columns of each pair, if they were read from a file."""


@dataclass(frozen=True)
class PublishedAccuracies:
    """The accuracies of other models."""

    by_model: dict[str, dict[str, float]]
    """By model and paradigm, from 0 to 1."""
    phenomena: dict[str, str]
    """The published phenomenon of each paradigm. BLiMP's files name 13, its results 12."""


@dataclass(frozen=True)
class ParadigmScore:
    """The results of one paradigm."""

    name: str
    phenomenon: str
    n_pairs: int
    n_tokens: int
    n_unknown: int
    """Number of tokens outside the vocabulary."""
    correct: dict[str, int]
    """Pairs whose acceptable sentence is more probable: "forward", "backward", "both" for the sum of the two, and
    "unknown words paid" (:attr:`~elmokit.lm.surprisal.MinimalPairScores.paid_nats`)."""
    ties: dict[str, int]
    """Pairs whose sentences are equally probable. They count as wrong."""
    n_unequal: int
    """Pairs whose sentences have unequal numbers of unknown words, which can be decisive."""
    unknown_words: list[str] = dataclasses.field(default_factory=list)
    """The first ten unknown words, each once."""

    def accuracy(self, choice: str) -> float:
        """Return the fraction of correct pairs."""
        return self.correct[choice] / self.n_pairs


@dataclass(frozen=True)
class MinimalPairsResult(Result):
    """The results of a test with minimal pairs."""

    digits = 1
    measure = "accuracy (%)"

    paradigms: list[ParadigmScore]
    published: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    """Accuracies of other models, by model and paradigm."""

    @property
    def n_pairs(self) -> int:
        """The number of pairs."""
        return sum(paradigm.n_pairs for paradigm in self.paradigms)

    @property
    def n_unequal(self) -> int:
        """Pairs whose sentences have unequal numbers of unknown words."""
        return sum(paradigm.n_unequal for paradigm in self.paradigms)

    @property
    def ties(self) -> dict[str, int]:
        """Pairs whose sentences are equally probable, by what decides."""
        ties: Counter[str] = Counter()
        for paradigm in self.paradigms:
            ties.update(paradigm.ties)
        return dict(ties)

    @property
    def unknown_ratio(self) -> float:
        """The fraction of tokens outside the vocabulary."""
        n_tokens = sum(paradigm.n_tokens for paradigm in self.paradigms)
        return sum(paradigm.n_unknown for paradigm in self.paradigms) / max(1, n_tokens)

    @property
    def unknown_words(self) -> list[str]:
        """The first ten unknown words, each once."""
        words = dict.fromkeys(word for paradigm in self.paradigms for word in paradigm.unknown_words)
        return list(words)[:N_NAMED]

    @property
    def choices(self) -> list[str]:
        """What decides: "forward", "backward" and "both", or the only direction; and "unknown words paid"."""
        return list(self.paradigms[0].correct)

    @property
    def phenomena(self) -> list[str]:
        """The phenomena, in the order of the files."""
        return list(dict.fromkeys(paradigm.phenomenon for paradigm in self.paradigms if paradigm.phenomenon))

    def accuracy(self, choice: str, phenomenon: str | None = None) -> float:
        """Return the mean accuracy over all paradigms, or over those of a phenomenon."""
        return _mean_accuracy(self._of(phenomenon), choice)

    def table_rows(self, by_paradigm: bool = False) -> list[Row]:
        """Return accuracies in percent: one row per phenomenon or paradigm, and one for all."""
        if by_paradigm:
            groups = [(paradigm.name, [paradigm]) for paradigm in self.paradigms]
        else:
            groups = [(name, self._of(name)) for name in self.phenomena]
        # One of them can have the name of the last row, too.
        return [self._row(name, paradigms) for name, paradigms in [*groups, (OVERALL, self.paradigms)]]

    def _groups(self) -> dict[str, list[ParadigmScore]]:
        """Return the paradigms of each phenomenon, and all of them."""
        return {**{name: self._of(name) for name in self.phenomena}, OVERALL: self.paradigms}

    def _row(self, name: str, paradigms: Sequence[ParadigmScore]) -> Row:
        row: dict[str, Any] = {self.measure: name, "pairs": sum(paradigm.n_pairs for paradigm in paradigms)}
        for title, accuracy in (self._accuracies(paradigms) | self._published_accuracies(paradigms)).items():
            row[title] = 100 * accuracy
        return row

    def _accuracies(self, paradigms: Sequence[ParadigmScore]) -> dict[str, float]:
        """Return the mean accuracy over some paradigms, by what decides."""
        return {choice: _mean_accuracy(paradigms, choice) for choice in self.choices}

    def _published_accuracies(self, paradigms: Sequence[ParadigmScore]) -> dict[str, float]:
        """Return the mean accuracy of each published model over some paradigms."""
        return {model: self._mean_published(paradigms, model) for model in self.published}

    def notes(self) -> list[str]:
        ties = ", ".join(f"{choice} {n} ({n / self.n_pairs:.3%})" for choice, n in self.ties.items())
        unknown = f" ({name_words(self.unknown_words)})" if self.unknown_words else ""
        return [
            f"Ties, which count as wrong: {ties}.",
            f"{self.unknown_ratio:.1%} of the tokens are not in the vocabulary{unknown}. "
            f"In {count_of(self.n_unequal, 'pair')} ({self.n_unequal / self.n_pairs:.1%}), the sentences have unequal "
            "numbers of them, which can be decisive, because <UNK> is more probable than any word that it stands for. "
            "With unknown words paid, each costs as much as the rarest vocabulary word.",
        ]

    def to_dict(self) -> dict[str, Any]:
        accuracy, published = {}, {}
        for name, paradigms in self._groups().items():
            accuracy[name] = self._accuracies(paradigms)
            means = self._published_accuracies(paradigms)
            published[name] = {model: number_or_none(mean) for model, mean in means.items()}
        return {
            "accuracy": accuracy,
            "published": published,
            "n_pairs": self.n_pairs,
            "n_unequal": self.n_unequal,
            "ties": self.ties,
            "unknown_ratio": self.unknown_ratio,
            "unknown_words": self.unknown_words,
            "paradigms": [dataclasses.asdict(paradigm) for paradigm in self.paradigms],
        }

    def beside(self, published: PublishedAccuracies) -> MinimalPairsResult:
        """Return these results together with those of other models, grouped by the phenomena of the latter."""
        paradigms = []
        for score in self.paradigms:
            phenomenon = published.phenomena.get(score.name, score.phenomenon)
            paradigms.append(dataclasses.replace(score, phenomenon=phenomenon))
        return MinimalPairsResult(paradigms, published.by_model)

    def _of(self, phenomenon: str | None) -> list[ParadigmScore]:
        return [row for row in self.paradigms if phenomenon in (None, row.phenomenon)]

    def _mean_published(self, paradigms: Sequence[ParadigmScore], model: str) -> float:
        known = self.published[model]
        return float(np.mean([known.get(row.name, math.nan) for row in paradigms]))


def _mean_accuracy(paradigms: Sequence[ParadigmScore], choice: str) -> float:
    return float(np.mean([row.accuracy(choice) for row in paradigms]))


def read_minimal_pairs(paths: Iterable[str | Path]) -> list[Paradigm]:
    """Read pairs of sentences: tables named ``.tsv`` or ``.csv``, or files in BLiMP's layout, a JSON object per line.

    The columns or keys are ``good`` and ``bad``, or as in BLiMP ``sentence_good`` and ``sentence_bad``; ``UID`` (the
    paradigm; without it, the file's name) and ``linguistics_term`` (the phenomenon; can be missing). Others are kept.

    Raises:
        TextError: A file cannot be read, a line is not such an object, or a paradigm belongs to two phenomena.
        ConfigError: A table lacks a column.
    """
    paradigms: dict[str, Paradigm] = {}
    for path in paths:
        has_pair = False
        for number, row in _table_rows(path) if is_table(path) else _json_rows(path):
            name, phenomenon, good, bad = _pair(row, path, number)
            paradigm = paradigms.setdefault(name, Paradigm(name, phenomenon, []))
            if paradigm.phenomenon != phenomenon:
                raise TextError(
                    f"{path}, line {number}: the {PHENOMENON} of the paradigm {name!r} is {phenomenon!r} here and "
                    f"{paradigm.phenomenon!r} before."
                )
            paradigm.pairs.append((good, bad))
            paradigm.rows.append(row)
            has_pair = True
        if not has_pair:
            raise TextError(f"{path} contains no sentence pairs.")
    return list(paradigms.values())


def _table_rows(path: str | Path) -> Iterator[tuple[int, Row]]:
    table = read_table(path)
    columns = list(table.columns)
    for long, short in SHORT.items():
        if long not in columns:
            columns[table.column(short)] = short  # it may be in another case
    for number, cells in table.rows:
        yield number, dict(zip(columns, cells, strict=True))


def _json_rows(path: str | Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                yield number, line


def read_published_accuracies(path: str | Path) -> PublishedAccuracies:
    """Read accuracies of other models by paradigm.

    The file is a table separated by tabs. Its first line names the columns: ``UID``, ``linguistics_term`` (optional),
    and a column for each model. Values are from 0 to 1; a cell can be empty. Rows for ``overall`` are skipped.
    """
    table = read_table(path)
    table.column(PARADIGM)
    models = [name for name in table.columns if name not in (PARADIGM, PHENOMENON)]
    by_model: dict[str, dict[str, float]] = {name: {} for name in models}
    phenomena: dict[str, str] = {}
    for number, row in table.rows:
        cells = dict(zip(table.columns, row, strict=True))
        name, phenomenon = cells[PARADIGM], cells.get(PHENOMENON)
        if name == OVERALL:
            continue
        for model, accuracies in by_model.items():
            if not _is_fraction(cells[model]):
                raise TextError(f"{path}, line {number}: {cells[model]!r} is not a number from 0 to 1.")
            if cells[model]:
                accuracies[name] = float(cells[model])
        if phenomenon:
            phenomena[name] = phenomenon
    return PublishedAccuracies(by_model, phenomena)


def evaluate_minimal_pairs(
    model: PretrainedBiLM | Computer,
    paradigms: Sequence[Paradigm],
    tokenize: Callable[[str], list[str]],
    *,
    published: PublishedAccuracies | None = None,
    on_pair: Callable[[Row], object] | None = None,
    progress: ProgressCallback | None = None,
) -> MinimalPairsResult:
    """Score a model on minimal pairs by paradigm, phenomenon and overall.

    Args:
        model: A model with its softmax and vocabulary, or its computer, such as ``LanguageModel.computer``.
        paradigms: The pairs, from ``read_minimal_pairs``.
        tokenize: Splits a raw sentence into tokens like the model's training text.
        published: Accuracies of other models to show next to it, from ``read_published_accuracies``. Their phenomena
            replace those of the files.
        on_pair: Called with a row for each pair: the columns of its file; the nats of each direction and the number of
            unknown tokens of both sentences; and whether it is correct (1) by each choice.
        progress: Called with the number of sentences.

    Raises:
        ModelNotFoundError: The model has no softmax or no vocabulary.
        TextError: Two paradigms have the same name; or, with ``on_pair``, a column has the name of a result.

    Example:
        >>> paradigms = read_minimal_pairs(["blimp.jsonl.xz"])
        >>> result = evaluate_minimal_pairs(open_model("en-mini"), paradigms, get_tokenizer("treebank"))
        >>> result.accuracy("both")
    """
    for name, n_times in Counter(paradigm.name for paradigm in paradigms).items():
        if n_times > 1:
            raise TextError(f"Two paradigms have the name {name!r}.")
    count = StageCounter(progress, "minimal pairs", 2 * sum(len(paradigm.pairs) for paradigm in paradigms))
    columns: dict[str, str] = {}
    for paradigm in paradigms:
        for row in paradigm.rows:
            columns |= dict.fromkeys(row, "")
    computer = computer_of(model)
    scores = []
    for paradigm in paradigms:
        pairs = [(tokenize(good), tokenize(bad)) for good, bad in paradigm.pairs]
        compared = score_minimal_pairs(computer, pairs, on_sentence=lambda _: count())
        nats = _nats_by_choice(compared, computer.model.config.direction_names)
        scores.append(_paradigm_score(paradigm, compared, nats))
        if on_pair is not None:
            for row in _pair_rows(paradigm, columns, compared, nats):
                on_pair(row)
    result = MinimalPairsResult(scores)
    return result if published is None else result.beside(published)


def _nats_by_choice(compared: MinimalPairScores, directions: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Compute what each choice compares, ``(pairs, 2)`` in nats: each direction, their sum, and unknown words paid."""
    nats = {direction: compared.nats[:, :, number] for number, direction in enumerate(directions)}
    if len(directions) > 1:
        nats[BOTH] = compared.nats.sum(axis=2)
    nats[PAID] = compared.paid_nats.sum(axis=2)
    return nats


def _paradigm_score(
    paradigm: Paradigm, compared: MinimalPairScores, nats: Mapping[str, NDArray[np.float64]]
) -> ParadigmScore:
    correct, ties = {}, {}
    for choice, pairs in nats.items():
        good, bad = pairs.T
        correct[choice] = int((good < bad).sum())
        ties[choice] = int((good == bad).sum())
    unknown_good, unknown_bad = compared.unknown.T
    return ParadigmScore(
        paradigm.name,
        paradigm.phenomenon,
        len(paradigm.pairs),
        compared.n_tokens,
        compared.n_unknown,
        correct,
        ties,
        n_unequal=int((unknown_good != unknown_bad).sum()),
        unknown_words=list(compared.unknown_words),
    )


def _pair_rows(
    paradigm: Paradigm,
    columns: Mapping[str, str],
    compared: MinimalPairScores,
    nats: Mapping[str, NDArray[np.float64]],
) -> Iterator[Row]:
    """Yield for each pair the columns of its file, all of ``columns``, and the columns of results."""
    for number in range(len(paradigm.pairs)):
        results = _pair_results(number, compared, nats)
        repeated = columns.keys() & results.keys()
        if repeated:
            raise TextError(f"A column of the results has the name {min(repeated)!r}, too; rename yours.")
        cells = _as_cells(paradigm.rows[number]) if paradigm.rows else {}
        yield {**columns, **cells, **results}


def _pair_results(
    number: int, compared: MinimalPairScores, nats: Mapping[str, NDArray[np.float64]]
) -> dict[str, float]:
    """Return the columns of results of a pair."""
    results: dict[str, float] = {}
    for side, name in enumerate(SHORT.values()):
        for choice, pairs in nats.items():
            if choice not in (BOTH, PAID):
                results[f"{name}_{choice}_nats"] = float(pairs[number, side])
        results[f"{name}_unknown"] = int(compared.unknown[number, side])
    for choice, pairs in nats.items():
        good, bad = pairs[number]
        results[f"correct_{choice}".replace(" ", "_")] = int(good < bad)
    return results


def _as_cells(row: Row) -> dict[str, str]:
    """Convert the values of a row, which may be any JSON values, to table cells."""
    cells = {}
    for name, value in row.items():
        cells[name] = value if isinstance(value, str) else json.dumps(value)
    return cells


def _pair(row: Any, path: str | Path, number: int) -> tuple[str, str, str, str]:
    """Return the paradigm, the phenomenon and the two sentences of a row."""
    if isinstance(row, Mapping):
        name = row.get(PARADIGM, Path(path).name.split(".")[0])
        phenomenon = row.get(PHENOMENON, "")
        good = row.get(GOOD, row.get(SHORT[GOOD]))
        bad = row.get(BAD, row.get(SHORT[BAD]))
        are_texts = all(isinstance(cell, str) for cell in (name, phenomenon, good, bad))
        if are_texts and good.strip() and bad.strip():
            return name, phenomenon, good, bad
    raise TextError(
        f"{path}, line {number}: expected two sentences, in the columns good and bad, or in JSON as "
        f'{{"{GOOD}": "She ran.", "{BAD}": "She runned.", "{PARADIGM}": "past_tense", '
        f'"{PHENOMENON}": "morphology"}}, but got: {str(row)[:80]}'
    )


def _is_fraction(text: str) -> bool:
    """Whether a cell is empty or a number from 0 to 1."""
    try:
        return text == "" or 0 <= float(text) <= 1
    except ValueError:
        return False
