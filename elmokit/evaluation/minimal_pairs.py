"""Minimal pairs: does a model find the better of two sentences more probable, as BLiMP tests it?

A sentence is compared with its partner by its whole log probability, the sentence end included. A tie counts as wrong.
Accuracies are averaged over paradigms, each with equal weight, as in Warstadt et al. 2020.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.start_state import StartName
from elmokit.engine.state import State
from elmokit.errors import TextError
from elmokit.evaluation.figures import INK, LINES, PAGE
from elmokit.evaluation.result import NO_IMAGES, Images, Record, TableResult, computed, paragraphs, tabulate, value
from elmokit.evaluation.table import Evaluation, EvaluationRun, Files, existing_files
from elmokit.evaluation.tables import Table
from elmokit.formats.model import PretrainedBiLM
from elmokit.lm.pairs import score_minimal_pairs
from elmokit.lm.surprisal import BATCH_TOKENS
from elmokit.storage.part_results import PartResults
from elmokit.storage.progress import ProgressCallback, StageCounter, count_of
from elmokit.storage.text_files import or_packed, read_lines
from elmokit.text.tokenize import get_tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOTH = "both"
"""The name of the comparison by the sum over both directions."""
PAID = "unknown words paid"
"""The name of the comparison in which an unknown word costs as much as the rarest word of the vocabulary."""
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
class ParadigmScore(Record):
    """The results of one paradigm."""

    name: str = value()
    phenomenon: str = value()
    n_pairs: int = value()
    n_tokens: int = value()
    n_unknown: int = value()
    """Tokens that are not in the vocabulary."""
    correct: dict[str, int] = value()
    """Pairs whose acceptable sentence is more probable: "forward", "backward", "both" for the sum of the two, and
    "unknown words paid" (:attr:`~elmokit.lm.pairs.MinimalPairScores.paid_nats`)."""
    ties: dict[str, int] = value()
    """Pairs whose sentences are equally probable. They count as wrong."""
    n_unequal: int = value()
    """Pairs whose sentences have unequal numbers of unknown words, so that these can decide."""

    def accuracy(self, choice: str) -> float:
        """Return the fraction of correct pairs."""
        return self.correct[choice] / self.n_pairs


@dataclass(frozen=True)
class GroupAccuracy(Record):
    """The mean accuracies over a group of paradigms."""

    name: str = value("accuracy (%)")
    n_pairs: int = value("pairs", ",")
    by_choice: dict[str, float] = value("", ".1f", scale=100)
    published: dict[str, float] = value("", ".1f", scale=100)
    """By model; NaN if one of the paradigms is not published."""


@dataclass(frozen=True)
class MinimalPairsResult(TableResult):
    """The results of a test with minimal pairs."""

    figure_title = "Accuracy by phenomenon"

    @property
    @computed(key="accuracy")
    def _accuracies(self) -> dict[str, dict[str, float]]:
        return {group.name: group.by_choice for group in self.table_rows()}

    @property
    @computed(key="published")
    def _published_accuracies(self) -> dict[str, dict[str, float]]:
        return {group.name: group.published for group in self.table_rows()}

    @property
    @computed()
    def n_pairs(self) -> int:
        """The number of pairs."""
        return sum(paradigm.n_pairs for paradigm in self.paradigms)

    @property
    @computed()
    def n_unequal(self) -> int:
        """Pairs whose sentences have unequal numbers of unknown words."""
        return sum(paradigm.n_unequal for paradigm in self.paradigms)

    @property
    @computed()
    def ties(self) -> dict[str, int]:
        """Pairs whose sentences are equally probable, by what decides."""
        return {choice: sum(paradigm.ties[choice] for paradigm in self.paradigms) for choice in self.choices}

    @property
    @computed()
    def unknown_ratio(self) -> float:
        """The fraction of the tokens that are not in the vocabulary."""
        n_tokens = sum(paradigm.n_tokens for paradigm in self.paradigms)
        return sum(paradigm.n_unknown for paradigm in self.paradigms) / max(1, n_tokens)

    paradigms: list[ParadigmScore] = value()
    published: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    """Accuracies of other models, by model and paradigm."""

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
        return self._group("", phenomenon).by_choice[choice]

    def published_accuracy(self, model: str, phenomenon: str | None = None) -> float:
        """Return a published model's mean over the same paradigms; NaN if one of them is not published."""
        return self._group("", phenomenon).published[model]

    def table_rows(self, by_paradigm: bool = False) -> list[GroupAccuracy]:
        """Return a row for each phenomenon, or for each paradigm, and one for all."""
        if by_paradigm:
            groups = [self._mean(paradigm.name, [paradigm]) for paradigm in self.paradigms]
        else:
            groups = [self._group(name, name) for name in self.phenomena]
        return [*groups, self._group(OVERALL, None)]

    def table(self, by_paradigm: bool = False) -> Table:
        """Return accuracies in percent: a row for each phenomenon, or for each paradigm, and one for all."""
        return tabulate(self.table_rows(by_paradigm))

    def notes(self) -> list[str]:
        ties = ", ".join(f"{choice} {n} ({n / self.n_pairs:.3%})" for choice, n in self.ties.items())
        return [
            f"Ties, which count as wrong: {ties}.",
            f"{self.unknown_ratio:.1%} of the tokens are not in the vocabulary. In {count_of(self.n_unequal, 'pair')} "
            f"({self.n_unequal / self.n_pairs:.1%}), the sentences have unequal numbers of them, which can decide: "
            "<UNK> is more probable than any word that it stands for. With unknown words paid, each costs as much as "
            "the rarest word of the vocabulary.",
        ]

    def to_text(self, by_paradigm: bool = False) -> str:
        return "\n".join([self.table(by_paradigm).to_text(), "", *self.notes()])

    def to_markdown(self, images: Images = NO_IMAGES) -> str:
        means = f"{super().to_markdown(images)} Accuracies are means over paradigms."
        return paragraphs(means, self.table(by_paradigm=True).to_markdown())

    def headlines(self) -> list[tuple[str, str]]:
        """Return the overall accuracies."""
        return [(f"BLiMP, {choice} (%)", f"{100 * self.accuracy(choice):.1f}") for choice in self.choices]

    @property
    def figure_size(self) -> tuple[float, float]:
        return PAGE, 0.9 + 0.24 * len(self.table_rows())

    def plot(self, figure: Figure) -> None:
        """Draw the accuracy by phenomenon, a point for each choice and each published model."""
        groups = self.table_rows()
        series = {choice: [100 * group.by_choice[choice] for group in groups] for choice in self.choices}
        series |= {model: [100 * group.published[model] for group in groups] for model in self.published}
        axes = figure.subplots()
        axes.grid(visible=False, axis="y")
        rows = range(len(groups))
        for (label, accuracies), style in zip(series.items(), itertools.cycle(LINES)):
            axes.plot(accuracies, rows, label=label, **{**style, "linestyle": "none"})
        axes.axvline(50, color=INK, linestyle=":", linewidth=0.9, label="chance")
        axes.set_yticks(rows, [group.name.replace("_", " ") for group in groups])
        axes.invert_yaxis()
        axes.set_xlabel("accuracy (%)")
        figure.legend(loc="outside upper center", ncols=5)

    def _group(self, name: str, phenomenon: str | None) -> GroupAccuracy:
        return self._mean(name, [row for row in self.paradigms if phenomenon in (None, row.phenomenon)])

    def _mean(self, name: str, paradigms: Sequence[ParadigmScore]) -> GroupAccuracy:
        own = {choice: float(np.mean([row.accuracy(choice) for row in paradigms])) for choice in self.choices}
        published = {
            model: float(np.mean([known.get(row.name, math.nan) for row in paradigms]))
            for model, known in self.published.items()
        }
        return GroupAccuracy(name, sum(row.n_pairs for row in paradigms), own, published)


def read_minimal_pairs(paths: Iterable[str | Path]) -> list[Paradigm]:
    """Read files in BLiMP's layout: a JSON object per line.

    The keys are ``sentence_good`` and ``sentence_bad``, ``UID`` (the paradigm; without it, the file's name) and
    ``linguistics_term`` (the phenomenon; can be missing). Other keys are ignored.

    Raises:
        TextError: A file cannot be read, a line is not such an object, or a paradigm belongs to two phenomena.
    """
    paradigms: dict[str, Paradigm] = {}
    for path in paths:
        n_before = sum(len(paradigm.pairs) for paradigm in paradigms.values())
        for number, line in enumerate(read_lines(path), start=1):
            if not line.strip():
                continue
            name, phenomenon, good, bad = _pair(line, path, number)
            paradigm = paradigms.setdefault(name, Paradigm(name, phenomenon, []))
            if paradigm.phenomenon != phenomenon:
                raise TextError(
                    f"{path}, line {number}: the {PHENOMENON} of the paradigm {name!r} is {phenomenon!r} here and "
                    f"{paradigm.phenomenon!r} before."
                )
            paradigm.pairs.append((good, bad))
        if sum(len(paradigm.pairs) for paradigm in paradigms.values()) == n_before:
            raise TextError(f"{path} contains no pair of sentences.")
    return list(paradigms.values())


def read_published_accuracies(path: str | Path) -> PublishedAccuracies:
    """Read accuracies of other models by paradigm.

    The file is a table separated by tabs. Its first line names the columns: ``UID``, ``linguistics_term`` (optional),
    and a column for each model. Values are from 0 to 1; a cell can be empty. Rows for ``overall`` are skipped.
    """
    rows = [line.split("\t") for line in read_lines(path)]
    head = rows[0] if rows else []
    if PARADIGM not in head or len(set(head)) < len(head):
        raise TextError(
            f"{path}: the first line must name the columns, {PARADIGM} and models, each once and separated by tabs."
        )
    by_model: dict[str, dict[str, float]] = {name: {} for name in head if name not in (PARADIGM, PHENOMENON)}
    phenomena: dict[str, str] = {}
    for number, row in enumerate(rows[1:], start=2):
        if not any(row):
            continue
        cells = dict(zip(head, row, strict=False))
        values = {model: cells.get(model) for model in by_model}
        name, phenomenon = cells.get(PARADIGM), cells.get(PHENOMENON)
        if name == OVERALL:
            continue
        if name is None or not all(map(_is_fraction, values.values())):
            raise TextError(
                f"{path}, line {number}: expected {len(head)} columns with numbers from 0 to 1, but got {row}."
            )
        for model, accuracy in values.items():
            if accuracy:
                by_model[model][name] = float(accuracy)
        if phenomenon:
            phenomena[name] = phenomenon
    return PublishedAccuracies(by_model, phenomena)


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
        TextError: Two paradigms have the same name.

    Example:
        >>> paradigms = read_minimal_pairs(["blimp.jsonl.xz"])
        >>> result = evaluate_minimal_pairs(open_model("en-mini"), paradigms, get_tokenizer("treebank"))
        >>> result.accuracy("both")
    """
    repeated = next((name for name, n in Counter(row.name for row in paradigms).items() if n > 1), None)
    if repeated is not None:
        raise TextError(f"Two paradigms have the name {repeated!r}.")
    parts = PartResults(None, {}) if parts is None else parts
    count = StageCounter(progress, "minimal pairs", 2 * sum(len(paradigm.pairs) for paradigm in paradigms))

    def score(paradigm: Paradigm) -> dict[str, Any]:
        pairs = ((tokenize(good), tokenize(bad)) for good, bad in paradigm.pairs)
        compared = score_minimal_pairs(model, pairs, start, batch_tokens, lambda _: count())
        by_choice: dict[str, NDArray[np.float64]] = {
            name: compared.nats[:, :, number] for number, name in enumerate(model.config.direction_names)
        }
        if len(by_choice) > 1:
            by_choice[BOTH] = compared.nats.sum(axis=2)
        by_choice[PAID] = compared.paid_nats.sum(axis=2)
        result = ParadigmScore(
            paradigm.name,
            paradigm.phenomenon,
            len(paradigm.pairs),
            compared.n_tokens,
            compared.n_unknown,
            correct={choice: int((nats[:, 0] < nats[:, 1]).sum()) for choice, nats in by_choice.items()},
            ties={choice: int((nats[:, 0] == nats[:, 1]).sum()) for choice, nats in by_choice.items()},
            n_unequal=int((compared.unknown[:, 0] != compared.unknown[:, 1]).sum()),
        )
        return result.to_dict()

    scores = []
    for paradigm in paradigms:
        name = f"minimal pairs {paradigm.name}"
        if name in parts:
            count.done += 2 * len(paradigm.pairs)
        scores.append(ParadigmScore(**parts.compute(name, partial(score, paradigm))))
    if published is None:
        return MinimalPairsResult(scores)
    groups = published.phenomena
    scores = [dataclasses.replace(row, phenomenon=groups.get(row.name, row.phenomenon)) for row in scores]
    return MinimalPairsResult(scores, published.by_model)


def _pair(line: str, path: str | Path, number: int) -> tuple[str, str, str, str]:
    try:
        row = json.loads(line)
        cells = row.get(PARADIGM, Path(path).name.split(".")[0]), row.get(PHENOMENON, ""), row[GOOD], row[BAD]
        if all(isinstance(cell, str) for cell in cells) and cells[2].strip() and cells[3].strip():
            return cells
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        pass
    raise TextError(
        f'{path}, line {number}: expected a JSON object with two sentences, such as {{"{GOOD}": "She ran.", '
        f'"{BAD}": "She runned.", "{PARADIGM}": "past_tense", "{PHENOMENON}": "morphology"}}, but got: {line[:80]}'
    )


def _is_fraction(text: str | None) -> bool:
    """Whether a cell is empty or a number from 0 to 1; not if it is missing."""
    try:
        return text == "" or 0 <= float(text or "") <= 1
    except ValueError:
        return False


def _find(data: Path) -> Files | None:
    pairs = existing_files(data, *(f"blimp/*{suffix}" for suffix in or_packed(".jsonl")))
    return {"pairs": pairs, "published": existing_files(data, "blimp/published.tsv")} if pairs else None


def _run(run: EvaluationRun, files: Files) -> MinimalPairsResult:
    return evaluate_minimal_pairs(
        run.elmo.model,
        read_minimal_pairs(files["pairs"]),
        get_tokenizer("treebank"),
        published=read_published_accuracies(files["published"][0]) if files["published"] else None,
        parts=run.parts,
        progress=run.progress,
    )


EVALUATION = Evaluation("Minimal pairs (BLiMP)", "blimp/*.jsonl", _find, _run, predicts=True)
