"""Minimal pairs: does a model find the better of two sentences more probable, as BLiMP tests it?

A sentence is compared with its partner by its whole log probability, the sentence end included. A tie counts as wrong.
Accuracies are averaged over paradigms, each with equal weight, as in Warstadt et al. 2020.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.start_state import StartName
from elmokit.engine.state import State
from elmokit.errors import TextError
from elmokit.evaluation.figures import INK, LINES, PAGE, save_figure, styled_figure
from elmokit.evaluation.tables import Table
from elmokit.formats.model import PretrainedBiLM
from elmokit.lm.pairs import MinimalPairScores, score_minimal_pairs
from elmokit.lm.surprisal import BATCH_TOKENS, Surprisal
from elmokit.storage.part_results import PartResults
from elmokit.storage.progress import ProgressCallback
from elmokit.storage.text_files import read_lines

BOTH = "both"
"""The name of the comparison by the sum over both directions."""
OVERALL = "overall"
"""The row for all paradigms; in a table of published results also that for all paradigms of a phenomenon."""
GOOD, BAD, PARADIGM, PHENOMENON = "sentence_good", "sentence_bad", "UID", "linguistics_term"


@dataclass(frozen=True)
class Paradigm:
    """Pairs that test one point of grammar."""

    name: str
    phenomenon: str
    """The group of paradigms to which it belongs; empty if none is given."""
    pairs: list[tuple[str, str]]
    """Raw sentences, the acceptable one first."""


@dataclass(frozen=True)
class PublishedAccuracies:
    """The accuracies of other models."""

    by_model: dict[str, dict[str, float]]
    """By model and paradigm, from 0 to 1."""
    phenomena: dict[str, str]
    """The phenomenon to which each paradigm was published as belonging. BLiMP's files name 13, its results 12."""


@dataclass(frozen=True)
class ParadigmScore:
    """The results of one paradigm."""

    name: str
    phenomenon: str
    n_pairs: int
    n_tokens: int
    n_unknown: int
    """Tokens that are not in the vocabulary."""
    correct: dict[str, int]
    """Pairs whose acceptable sentence is more probable: "forward", "backward", and "both" for the sum of the two."""
    ties: dict[str, int]
    """Pairs whose sentences are equally probable. They count as wrong."""

    def accuracy(self, choice: str) -> float:
        """Return the fraction of correct pairs."""
        return self.correct[choice] / self.n_pairs


@dataclass(frozen=True)
class MinimalPairsResult:
    """The results of a test with minimal pairs."""

    paradigms: list[ParadigmScore]
    published: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    """Accuracies of other models, by model and paradigm."""

    @property
    def choices(self) -> list[str]:
        """What decides: "forward", "backward" and "both", or the only direction of the model."""
        return list(self.paradigms[0].correct)

    @property
    def phenomena(self) -> list[str]:
        """The phenomena, in the order of the files."""
        return list(dict.fromkeys(paradigm.phenomenon for paradigm in self.paradigms if paradigm.phenomenon))

    def accuracy(self, choice: str, phenomenon: str | None = None) -> float:
        """Return the mean accuracy over all paradigms, or over those of a phenomenon."""
        return float(np.mean([one.accuracy(choice) for one in self._of(phenomenon)]))

    def published_accuracy(self, model: str, phenomenon: str | None = None) -> float:
        """Return a published model's mean over the same paradigms; NaN if one of them is not published."""
        return float(np.mean([self.published[model].get(one.name, math.nan) for one in self._of(phenomenon)]))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        groups = {name: name for name in self.phenomena} | {OVERALL: None}
        return {
            "accuracy": {
                group: {choice: self.accuracy(choice, name) for choice in self.choices}
                for group, name in groups.items()
            },
            "published": {
                group: {
                    model: None if math.isnan(value := self.published_accuracy(model, name)) else value
                    for model in self.published
                }
                for group, name in groups.items()
            },
            "n_pairs": sum(one.n_pairs for one in self.paradigms),
            "ties": {choice: sum(one.ties[choice] for one in self.paradigms) for choice in self.choices},
            "unknown_ratio": self._unknown_ratio,
            "paradigms": [dataclasses.asdict(one) for one in self.paradigms],
        }

    def table(self, by_paradigm: bool = False) -> Table:
        """Return accuracies in percent: a row for each phenomenon, or for each paradigm, and one for all."""
        head = ["accuracy (%)", "pairs", *self.choices, *self.published]
        groups: list[tuple[str, Sequence[ParadigmScore]]]
        if by_paradigm:
            groups = [(one.name, [one]) for one in self.paradigms]
        else:
            groups = [(name, self._of(name)) for name in self.phenomena]
        rows = []
        for name, scores in [*groups, (OVERALL, self.paradigms)]:
            values = [np.mean([one.accuracy(choice) for one in scores]) for choice in self.choices]
            values += [np.mean([known.get(one.name, math.nan) for one in scores]) for known in self.published.values()]
            shown = ["" if np.isnan(value) else f"{100 * value:.1f}" for value in values]
            rows.append([name, f"{sum(one.n_pairs for one in scores):,}", *shown])
        return Table(head, rows)

    def notes(self) -> list[str]:
        """Return sentences about ties and unknown words."""
        n_pairs = sum(one.n_pairs for one in self.paradigms)
        ties = ", ".join(
            f"{choice} {n} ({n / n_pairs:.3%})"
            for choice in self.choices
            for n in [sum(one.ties[choice] for one in self.paradigms)]
        )
        return [
            f"Ties, which count as wrong: {ties}.",
            f"{self._unknown_ratio:.1%} of the tokens are not in the vocabulary.",
        ]

    def to_text(self, by_paradigm: bool = False) -> str:
        """Return the table and the notes for people."""
        return "\n".join([self.table(by_paradigm).to_text(), "", *self.notes()])

    def draw(self, path: str | Path, overwrite: bool = False) -> tuple[Path, Path]:
        """Draw the accuracy by phenomenon as PNG and SVG. Errors as in ``save_figure``."""
        groups = [*self.phenomena, None]
        series = {choice: [100 * self.accuracy(choice, group) for group in groups] for choice in self.choices}
        for model in self.published:
            series[model] = [100 * self.published_accuracy(model, group) for group in groups]
        with styled_figure(PAGE, 0.9 + 0.24 * len(groups)) as figure:
            axes = figure.subplots()
            axes.grid(visible=False, axis="y")
            rows = range(len(groups))
            for (label, values), style in zip(series.items(), LINES, strict=False):
                axes.plot(values, rows, label=label, **{**style, "linestyle": "none"})
            axes.axvline(50, color=INK, linestyle=":", linewidth=0.9, label="chance")
            axes.set_yticks(rows, [(group or OVERALL).replace("_", " ") for group in groups])
            axes.invert_yaxis()
            axes.set_xlabel("accuracy (%)")
            figure.legend(loc="outside upper center", ncols=5)
            return save_figure(figure, path, overwrite)

    @property
    def _unknown_ratio(self) -> float:
        return sum(one.n_unknown for one in self.paradigms) / max(1, sum(one.n_tokens for one in self.paradigms))

    def _of(self, phenomenon: str | None) -> list[ParadigmScore]:
        return [one for one in self.paradigms if phenomenon in (None, one.phenomenon)]


def read_minimal_pairs(paths: Iterable[str | Path]) -> list[Paradigm]:
    """Read files in BLiMP's layout: a JSON object per line.

    The keys are ``sentence_good`` and ``sentence_bad``, ``UID`` (the paradigm; without it, the file's name) and
    ``linguistics_term`` (the phenomenon; can be missing). Other keys are ignored.

    Raises:
        TextError: A file cannot be read, a line is not such an object, or a paradigm belongs to two phenomena.
    """
    found: dict[str, Paradigm] = {}
    for path in paths:
        n_before = sum(len(paradigm.pairs) for paradigm in found.values())
        for number, line in enumerate(read_lines(path), start=1):
            if not line.strip():
                continue
            name, phenomenon, good, bad = _pair(line, path, number)
            paradigm = found.setdefault(name, Paradigm(name, phenomenon, []))
            if paradigm.phenomenon != phenomenon:
                raise TextError(
                    f"{path}, line {number}: the paradigm {name!r} belongs to {phenomenon!r} here and to "
                    f"{paradigm.phenomenon!r} before. Give every paradigm one {PHENOMENON}."
                )
            paradigm.pairs.append((good, bad))
        if sum(len(paradigm.pairs) for paradigm in found.values()) == n_before:
            raise TextError(f"{path} contains no pair of sentences.")
    return list(found.values())


def read_published_accuracies(path: str | Path) -> PublishedAccuracies:
    """Read accuracies of other models by paradigm.

    Args:
        path: A table separated by tabs. Its first line names the columns: ``UID``, ``linguistics_term`` (optional), and
            a column for each model. Values are from 0 to 1; a cell can be empty. Rows for ``overall`` are skipped.

    Raises:
        TextError: The file cannot be read or is not such a table.
    """
    rows = [line.split("\t") for line in read_lines(path)]
    head = rows[0] if rows else []
    if PARADIGM not in head:
        raise TextError(f"{path}: the first line must name the columns, {PARADIGM} and models, separated by tabs.")
    models = [column for column, name in enumerate(head) if name not in (PARADIGM, PHENOMENON)]
    found: dict[str, dict[str, float]] = {head[column]: {} for column in models}
    phenomena: dict[str, str] = {}
    for number, row in enumerate(rows[1:], start=2):
        if not any(row):
            continue
        try:
            name, *values = row[head.index(PARADIGM)], *(row[column] for column in models)
            if name == OVERALL:
                continue
            for column, value in zip(models, values, strict=True):
                if value:
                    found[head[column]][name] = _fraction(value)
            if PHENOMENON in head and row[head.index(PHENOMENON)]:
                phenomena[name] = row[head.index(PHENOMENON)]
        except (ValueError, IndexError):
            raise TextError(
                f"{path}, line {number}: expected {len(head)} columns with numbers from 0 to 1, but got {row}."
            ) from None
    return PublishedAccuracies(found, phenomena)


def evaluate_minimal_pairs(
    model: PretrainedBiLM,
    paradigms: Sequence[Paradigm],
    tokenize: Callable[[str], list[str]],
    *,
    published: PublishedAccuracies | None = None,
    start: StartName | State = "warm",
    batch_tokens: int = BATCH_TOKENS,
    parts: PartResults | None = None,
    progress: ProgressCallback | None = None,
) -> MinimalPairsResult:
    """Score a model on minimal pairs by paradigm, phenomenon and overall.

    Args:
        model: A model with its softmax and vocabulary.
        paradigms: The pairs, from ``read_minimal_pairs``.
        tokenize: Splits a raw sentence into tokens, as the model's training text was.
        published: Accuracies of other models to show next to it, from ``read_published_accuracies``. Their phenomena
            replace those of the files.
        start, batch_tokens: As in ``surprisals``.
        parts: Where finished paradigms are kept, so that an interrupted run can be resumed.
        progress: Called with the number of sentences.

    Raises:
        ModelNotFoundError: The model has no softmax or no vocabulary.
        TextError: There is no pair.

    Example:
        >>> paradigms = read_minimal_pairs(["blimp.jsonl.xz"])
        >>> result = evaluate_minimal_pairs(open_model("en-mini"), paradigms, treebank_tokenizer())
        >>> result.accuracy("both")
    """
    if not paradigms:
        raise TextError("No pair of sentences to score.")
    parts = PartResults(None, {}) if parts is None else parts
    n_done, n_sentences = 0, 2 * sum(len(paradigm.pairs) for paradigm in paradigms)

    def count(_: Surprisal) -> None:
        nonlocal n_done
        n_done += 1
        if progress is not None:
            progress("minimal pairs", n_done, n_sentences)

    def score(paradigm: Paradigm) -> dict[str, Any]:
        pairs = ((tokenize(good), tokenize(bad)) for good, bad in paradigm.pairs)
        scores = score_minimal_pairs(model, pairs, start, batch_tokens, count)
        compared = _by_choice(scores, model.config.direction_names)
        result = ParadigmScore(
            paradigm.name,
            paradigm.phenomenon,
            len(paradigm.pairs),
            scores.n_tokens,
            scores.n_unknown,
            correct={choice: int((nats[:, 0] < nats[:, 1]).sum()) for choice, nats in compared.items()},
            ties={choice: int((nats[:, 0] == nats[:, 1]).sum()) for choice, nats in compared.items()},
        )
        return dataclasses.asdict(result)

    found = []
    for paradigm in paradigms:
        name = f"minimal pairs {paradigm.name}"
        if name in parts:
            n_done += 2 * len(paradigm.pairs)
        found.append(ParadigmScore(**parts.compute(name, partial(score, paradigm))))
    if published is None:
        return MinimalPairsResult(found)
    groups = published.phenomena
    found = [dataclasses.replace(one, phenomenon=groups.get(one.name, one.phenomenon)) for one in found]
    return MinimalPairsResult(found, published.by_model)


def _by_choice(scores: MinimalPairScores, directions: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Return the nats ``(pairs, 2)`` of each direction, and their sum if there are two."""
    nats = {name: scores.nats[:, :, number] for number, name in enumerate(directions)}
    return nats | {BOTH: scores.nats.sum(axis=2)} if len(nats) > 1 else nats


def _pair(line: str, path: str | Path, number: int) -> tuple[str, str, str, str]:
    try:
        row = json.loads(line)
        found = row.get(PARADIGM, Path(path).name.split(".")[0]), row.get(PHENOMENON, ""), row[GOOD], row[BAD]
        if all(isinstance(value, str) for value in found):
            return found
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        pass
    raise TextError(
        f'{path}, line {number}: expected a JSON object such as {{"{GOOD}": "She ran.", "{BAD}": "She runned.", '
        f'"{PARADIGM}": "past_tense", "{PHENOMENON}": "morphology"}}, but got: {line[:80]}'
    )


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value
