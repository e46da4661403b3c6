"""Perplexity of one or more texts, for the report; ``elmokit evaluate perplexity`` is ``LanguageModel.perplexity``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from elmokit.evaluation.result import NO_IMAGES, Images, Record, TableResult, paragraphs, value
from elmokit.evaluation.table import Evaluation, EvaluationRun, Files, existing_files
from elmokit.evaluation.tables import escape_markdown
from elmokit.lm.language_model import LanguageModel
from elmokit.lm.perplexity import unknown_words_warning
from elmokit.storage.progress import ProgressCallback
from elmokit.storage.text_files import TEXT_SUFFIXES


@dataclass(frozen=True)
class TextPerplexity(Record):
    """The perplexity of one text."""

    name: str = value("text")
    n_predictions: int = value("predictions", ",")
    unknown_ratio: float = value("unknown words", ".1%")
    per_direction: dict[str, float | None] = value("", ".2f")
    """None, as for the mean, where it is infinite."""
    mean: float | None = value("mean", ".2f")
    bits_per_character: dict[str, float] = value("bits per character", ".3f")


@dataclass(frozen=True)
class PerplexityResult(TableResult):
    """The perplexity of texts."""

    texts: dict[str, dict[str, Any]]
    """By name, what ``Perplexity.to_dict`` returns."""

    def table_rows(self) -> list[TextPerplexity]:
        """Return the numbers of each text."""
        rows = []
        for name, facts in self.texts.items():
            bits, mean = facts["bits_per_character"], facts["perplexity"]["geometric_mean"]
            directions = {direction: facts["perplexity"][direction] for direction in bits}
            numbers = facts["n_predictions"], facts["unknown_ratio"]
            rows.append(TextPerplexity(name, *numbers, directions, mean, bits))
        return rows

    def to_dict(self) -> dict[str, Any]:
        return self.texts

    def notes(self) -> list[str]:
        warnings = [
            f"{name}: {warning}"
            for name, facts in self.texts.items()
            if (warning := unknown_words_warning(facts["unknown_ratio"])) is not None
        ]
        return [
            "Full softmax; each token and each sentence end counts once; each sentence starts from the model's start "
            "state. The mean is geometric. Compare perplexities only between models with the same vocabulary; bits per "
            "character include the spelling of unknown words.",
            *warnings,
        ]

    def to_markdown(self, images: Images = NO_IMAGES) -> str:
        notes = map(escape_markdown, self.notes())  # each warning in a paragraph of its own
        return paragraphs(self.table().to_markdown(), *notes)

    def headlines(self) -> list[tuple[str, str]]:
        """Return the mean of each text."""
        means = {row.name: row.mean for row in self.table_rows() if row.mean is not None}
        return [(f"perplexity, {name}, mean of directions", f"{mean:.2f}") for name, mean in means.items()]


def _find(data: Path) -> Files | None:
    found = existing_files(data, *(f"*/test{suffix}" for suffix in TEXT_SUFFIXES))
    # One text of each directory, whose name it gets: the first, test.txt, of one that is there compressed, too.
    texts = {path.parent: path for path in reversed(found)}
    return {"texts": sorted(texts.values())} if texts else None


def _run(run: EvaluationRun, files: Files) -> PerplexityResult:
    language_model = LanguageModel(run.elmo.model)
    texts = {}
    for path in files["texts"]:
        stage = f"perplexity {path.parent.name}/{path.name}"
        texts[path.parent.name] = run.parts.compute(stage, partial(_score, language_model, path, stage, run.progress))
    return PerplexityResult(texts)


def _score(language_model: LanguageModel, path: Path, stage: str, progress: ProgressCallback | None) -> dict[str, Any]:
    def report(_: str, done: int, total: int | None) -> None:
        if progress is not None:
            progress(stage, done, total)  # a name of its own, so that the time left is that of this text

    return language_model.perplexity(path, progress=report).to_dict()


EVALUATION = Evaluation("Perplexity", "*/test.txt", _find, _run, predicts=True)
