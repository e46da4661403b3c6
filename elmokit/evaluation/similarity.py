"""Similarity: do cosines agree with human ratings, as in the STS benchmark and lists of word pairs?"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.sentence_vectors import SentenceEmbedder, fit_whitening
from elmokit.engine.layer_selection import select_layers
from elmokit.engine.state import unit_vectors
from elmokit.errors import TextError
from elmokit.evaluation.result import Result, Row, number_or_none
from elmokit.pretrained.pooling_names import WEIGHTINGS
from elmokit.pretrained.sentence_pooling import SentencePooling
from elmokit.storage.progress import ProgressCallback, StageCounter, count_of
from elmokit.storage.text_files import read_lines, unpacked_name
from elmokit.text.tokenize import split_tokens

PAIRS_AT_ONCE = 256
Pooling = tuple[str, str]
"""The names of layers and of a weighting, by which vectors are pooled."""
COSINE_DIGITS = 6
"""Decimal places of compared cosines. Vectors are rounded to float32, so cosines of identical pairs can differ in the
seventh digit, which would give them different ranks."""


@dataclass(frozen=True)
class ScoredPair:
    """Two sentences or words with a human similarity rating."""

    first: list[str]
    second: list[str]
    score: float
    """On any scale; higher means more similar."""


@dataclass(frozen=True)
class SimilarityScores:
    """The agreement of cosines with human scores."""

    cosines: NDArray[np.float64]
    """``(pairs,)``; 0 if one of the sentences is empty."""
    spearman: float
    """Rank correlation, the measure of the STS benchmark; from -1 to 1, or NaN if all cosines are equal."""
    pearson: float
    """Linear correlation, or NaN."""


@dataclass(frozen=True)
class PoolingScore:
    """The agreement of one pooling of token vectors."""

    layers: str
    weighting: str
    spearman: float
    pearson: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        numbers = {"spearman": number_or_none(self.spearman), "pearson": number_or_none(self.pearson)}
        return dataclasses.asdict(self) | numbers


@dataclass(frozen=True)
class FileSimilarity:
    """The agreement of all poolings, for one file of pairs."""

    n_pairs: int
    poolings: list[PoolingScore]


@dataclass(frozen=True)
class SimilarityResult(Result):
    """The agreement of all poolings, for each file of pairs."""

    digits = 3
    measure = "Spearman correlation"

    results: dict[str, FileSimilarity]

    @property
    def scores(self) -> dict[str, list[PoolingScore]]:
        """The agreement of each pooling, by file."""
        return {name: result.poolings for name, result in self.results.items()}

    @property
    def n_pairs(self) -> dict[str, int]:
        """The number of pairs, by file."""
        return {name: result.n_pairs for name, result in self.results.items()}

    def best(self, name: str) -> PoolingScore:
        """Return the pooling with the highest rank correlation on a file."""
        poolings = self.results[name].poolings
        return max(_defined(poolings) or poolings, key=lambda score: score.spearman)

    def table_rows(self) -> list[Row]:
        """Return rank correlations: one row per file and choice of layers, one column per weighting."""
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for name, poolings in self.scores.items():
            for score in poolings:
                row = rows.setdefault((name, score.layers), {"pairs": name, "layers": score.layers})
                row[score.weighting] = score.spearman
        return list(rows.values())

    def notes(self) -> list[str]:
        return [self._note(name) for name in self.results]

    def _note(self, name: str) -> str:
        """Describe the scores of a file."""
        poolings = self.results[name].poolings
        defined = _defined(poolings)
        n_pairs = count_of(self.n_pairs[name], "pair")
        note = f"{name}: Spearman correlation of cosines with human scores, {n_pairs}."
        if defined:
            best = self.best(name)
            note += f" Best: {best.spearman:.3f}, layers {best.layers}, {best.weighting}."
        if len(defined) < len(poolings):
            note += " Where all cosines are equal, there is no correlation."
        return note

    def to_dict(self) -> dict[str, Any]:
        files = {}
        for name, result in self.results.items():
            poolings = [score.to_dict() for score in result.poolings]
            files[name] = {"n_pairs": result.n_pairs, "poolings": poolings}
        return files


def read_scored_pairs(
    path: str | Path,
    tokenize: Callable[[str], list[str]] = split_tokens,
    columns: tuple[int, int, int] | None = None,
) -> list[ScoredPair]:
    """Read pairs of sentences or words with a score.

    A file named ``.csv`` (or ``.csv.gz`` and so on) is CSV, like the STS benchmark. In other files, such as lists of
    word pairs, columns are separated by tabs, or by spaces if a line has no tab. The first row can be a header.

    Args:
        path: A file in UTF-8.
        tokenize: Splits a sentence into tokens. The STS benchmark has raw text; see
            :func:`~elmokit.text.tokenize.get_tokenizer`.
        columns: The columns of the two sentences and of the score, from 1. None: the file has exactly these three.

    Raises:
        TextError: The file cannot be read, has no pairs, or a row is not such a triple.
    """
    pairs = []
    try:
        for number, row in enumerate(_split_rows(path), start=1):
            if not row:
                continue
            cells = _choose_cells(row, columns)
            if number == 1 and cells and _number(cells[2]) is None:
                continue  # a header
            pair = _as_pair(cells, tokenize)
            if pair is None:
                raise TextError(f"{path}, row {number}: {_expected_row(path, row, columns)}")
            pairs.append(pair)
    except csv.Error as error:
        raise TextError(f"{path} is not a CSV file that can be read: {error}.") from None
    if not pairs:
        raise TextError(f"{path} contains no pairs; expected two sentences and a number in each row.")
    return pairs


def _is_csv(path: str | Path) -> bool:
    return unpacked_name(path).endswith(".csv")


def _split_rows(path: str | Path) -> Iterator[list[str]]:
    """Yield the cells of each row."""
    if _is_csv(path):  # a quoted field may contain line ends, so the reader needs them
        yield from csv.reader(f"{line}\n" for line in read_lines(path))
        return
    for line in read_lines(path):
        yield line.split("\t") if "\t" in line else line.split()


def _choose_cells(row: list[str], columns: tuple[int, int, int] | None) -> list[str]:
    """Return the cells of the two sentences and of the score; none if the row lacks one, or has more than expected."""
    if columns is None and len(row) == 3:
        columns = (1, 2, 3)
    if columns is None or min(columns) < 1 or max(columns) > len(row):
        return []
    return [row[column - 1].replace("\n", " ") for column in columns]


def _as_pair(cells: list[str], tokenize: Callable[[str], list[str]]) -> ScoredPair | None:
    """Convert two sentences and a score; None if one is empty or the score is not a finite number."""
    if not cells:
        return None
    first, second, score = tokenize(cells[0]), tokenize(cells[1]), _number(cells[2])
    if not first or not second or score is None or not math.isfinite(score):
        return None
    return ScoredPair(first, second, score)


def _expected_row(path: str | Path, row: list[str], columns: tuple[int, int, int] | None) -> str:
    """Describe the expected form of a row, for an error message."""
    where = "" if columns is None else f" in columns {columns[0]}, {columns[1]} and {columns[2]}"
    separated = "commas" if _is_csv(path) else "tabs or spaces"
    text = f"expected two sentences and a number{where}, separated by {separated}, but got {row}."
    if _is_csv(path) and any("\t" in cell for cell in row):  # as in the original release of the STS benchmark
        text += " If its columns are separated by tabs, rename the file to end in .tsv."
    return text


def score_similarity(embedder: SentenceEmbedder, pairs: Sequence[ScoredPair]) -> SimilarityScores:
    """Compare the cosine of each pair's vectors with the pair's score.

    Raises:
        TextError: There are fewer than two pairs, all have the same score, or a score is not finite.
    """
    _check_scores(pairs)
    return _agreement(embedder.embed(list(_sentences(pairs))), pairs)


def evaluate_similarity(
    elmo: Elmo,
    files: Mapping[str, Sequence[ScoredPair]],
    *,
    smoothings: Sequence[float] = (SentencePooling.smoothing,),
    whiten: Sequence[Sequence[str]] = (),
    progress: ProgressCallback | None = None,
) -> SimilarityResult:
    """Score all poolings of token vectors on pairs of sentences or words.

    Each layer, their average, and all layers concatenated are combined with each weighting: equal weights ("mean"), and
    less weight for frequent words ("sif"). If the model has a whitening or a head, it is scored, too. Vectors are only
    computed once.

    Args:
        elmo: The model.
        files: Pairs by name, from ``read_scored_pairs``.
        smoothings: The values of a for "sif", which needs a vocabulary for word frequencies.
        whiten: Sentences to fit another whitening on, for each pooling.
        progress: Called with the number of pairs.

    Raises:
        TextError: A file has fewer than two pairs, all have the same score, or a score is not finite.
    """
    for pairs in files.values():
        _check_scores(pairs)
    embedders = _embedders(elmo, smoothings, whiten)
    count = StageCounter(progress, "similarity", sum(map(len, files.values())))
    results = {}
    for name, pairs in files.items():
        chunks: dict[Pooling, list[NDArray[np.float32]]] = defaultdict(list)
        for start in range(0, len(pairs), PAIRS_AT_ONCE):
            chunk = pairs[start : start + PAIRS_AT_ONCE]
            for pooling, vectors in _pool(elmo, embedders, list(_sentences(chunk))).items():
                chunks[pooling].append(vectors)
            count(len(chunk))
        poolings = []
        for layers, weighting in embedders:
            agreement = _agreement(np.concatenate(chunks[layers, weighting]), pairs)
            poolings.append(PoolingScore(layers, weighting, agreement.spearman, agreement.pearson))
        results[name] = FileSimilarity(len(pairs), poolings)
    return SimilarityResult(results)


def _embedders(
    elmo: Elmo, smoothings: Sequence[float], whiten: Sequence[Sequence[str]]
) -> dict[Pooling, SentenceEmbedder]:
    """Make an embedder for each choice of layers and weighting."""
    plain: dict[Pooling, SentenceEmbedder] = {}
    for layers in (*range(elmo.n_layers), "average", "all"):
        for name, pooling in _weightings(elmo, smoothings).items():
            of_layers = dataclasses.replace(pooling, layers=layers)
            plain[_layers_name(layers), name] = SentenceEmbedder(elmo, of_layers)
    embedders = dict(plain)
    stored = {"stored whitening": elmo.model.whitening, "stored head": elmo.model.sentence_head}
    for name, linear_map in stored.items():
        if linear_map is not None:
            layers_name = _layers_name(linear_map.pooling.layers)
            embedders[layers_name, name] = SentenceEmbedder(elmo, linear_map=linear_map)
    if whiten:
        sentences = [list(tokens) for tokens in whiten if len(tokens)]
        for (layers, name), vectors in _pool(elmo, plain, sentences).items():
            whitening = fit_whitening([vectors], plain[layers, name].pooling)
            embedders[layers, f"{name}, whitened"] = SentenceEmbedder(elmo, linear_map=whitening)
    return embedders


def _weightings(elmo: Elmo, smoothings: Sequence[float]) -> dict[str, SentencePooling]:
    """Return the poolings of layer 0 by the names of their weightings; without word frequencies, only "mean"."""
    weightings: dict[str, SentencePooling] = {}
    for weighting in WEIGHTINGS:
        pooling = SentencePooling(weighting)
        if not pooling.needs_frequencies:
            weightings[weighting] = pooling
        elif elmo.model.vocabulary is not None:
            for smoothing in smoothings:
                name = weighting if len(smoothings) == 1 else f"{weighting} {smoothing:g}"
                weightings[name] = dataclasses.replace(pooling, smoothing=smoothing)
    return weightings


def _pool(
    elmo: Elmo, embedders: Mapping[Pooling, SentenceEmbedder], sentences: Sequence[list[str]]
) -> dict[Pooling, NDArray[np.float32]]:
    """Pool the vectors of sentences ``(sentences, dim)`` by each embedder. Layers above 0 are computed once for all."""
    groups: dict[bool, dict[Pooling, SentenceEmbedder]] = {False: {}, True: {}}
    for pooling, embedder in embedders.items():
        groups[embedder.pooling.is_context_free][pooling] = embedder
    pooled = _pool_group(elmo, groups[False], sentences, "all") | _pool_group(elmo, groups[True], sentences, [0])
    return {pooling: pooled[pooling] for pooling in embedders}


def _pool_group(
    elmo: Elmo, embedders: Mapping[Pooling, SentenceEmbedder], sentences: Sequence[list[str]], layers: Any
) -> dict[Pooling, NDArray[np.float32]]:
    """Pool by embedders that read the same layers of the same tokens."""
    if not embedders:
        return {}
    # For context-free vectors, some words are lower-cased.
    any_embedder = next(iter(embedders.values()))
    folded = [list(any_embedder.fold(tokens)) for tokens in sentences]
    rows: dict[Pooling, list[NDArray[np.float32]]] = defaultdict(list)
    for tokens, vectors in zip(folded, elmo.embed(iter(folded), layers=layers), strict=True):
        for pooling, embedder in embedders.items():
            selection = select_layers(embedder.pooling.layers, len(vectors), None, "The model")
            (selected,) = selection.apply([vectors[list(selection.computed)]])
            rows[pooling].append(embedder.pool(tokens, selected))
    return {pooling: np.stack(vectors) for pooling, vectors in rows.items()}


def _layers_name(layers: Any) -> str:
    return ", ".join(map(str, layers)) if isinstance(layers, tuple) else str(layers)


def _sentences(pairs: Iterable[ScoredPair]) -> Iterator[list[str]]:
    return (sentence for pair in pairs for sentence in (pair.first, pair.second))


def _defined(poolings: Iterable[PoolingScore]) -> list[PoolingScore]:
    """Return the poolings that have a correlation."""
    return [score for score in poolings if not math.isnan(score.spearman)]


def _check_scores(pairs: Sequence[ScoredPair]) -> None:
    scores = {pair.score for pair in pairs}
    if len(scores) < 2 or not all(map(math.isfinite, scores)):
        raise TextError(
            f"A correlation needs finite scores that differ; the first of {len(pairs)} pairs have: "
            f"{', '.join(str(pair.score) for pair in pairs[:5])}."
        )


def _agreement(vectors: NDArray[np.float32], pairs: Sequence[ScoredPair]) -> SimilarityScores:
    """Compare cosines with scores. Vectors are ``(2 * pairs, dim)``: of the first and second sentence of each pair."""
    scores = np.array([pair.score for pair in pairs])
    unit = unit_vectors(vectors)
    first, second = unit[0::2].astype(np.float64), unit[1::2]
    cosines = (first * second).sum(axis=1)
    rounded = cosines.round(COSINE_DIGITS)
    spearman = _correlation(_ranks(rounded), _ranks(scores))
    return SimilarityScores(cosines, spearman, pearson=_correlation(rounded, scores))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank the values; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    after = np.cumsum(counts)
    ranks: NDArray[np.float64] = (after - (counts - 1) / 2)[inverse]
    return ranks


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Compute the linear correlation; NaN if ``x`` does not vary."""
    if np.ptp(x) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])
