"""The sections of a report: for each evaluation, the data that it needs and what the report says about its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from elmokit.embedding.elmo import Elmo
from elmokit.evaluation.minimal_pairs import (
    evaluate_minimal_pairs,
    read_minimal_pairs,
    read_published_accuracies,
)
from elmokit.evaluation.natural_stories import (
    LARGE_MODEL,
    READING_TIMES,
    WORDS,
    read_large_model,
    read_natural_stories,
)
from elmokit.evaluation.pos import probe_pos
from elmokit.evaluation.reading_times import LARGE_MODEL_NAME, evaluate_reading_times
from elmokit.evaluation.sense_files import DATA, find_sense_set, read_inventory
from elmokit.evaluation.senses import probe_senses
from elmokit.evaluation.similarity import evaluate_similarity, read_scored_pairs
from elmokit.evaluation.tables import Table
from elmokit.evaluation.tagged import TaggedSentence, read_tagged
from elmokit.lm.language_model import LanguageModel
from elmokit.lm.perplexity import unknown_words_warning
from elmokit.storage.part_results import PartResults
from elmokit.storage.progress import ProgressCallback
from elmokit.storage.text_files import TEXT_SUFFIXES
from elmokit.text.tokenize import treebank_tokenizer

POS_SEEDS = 3
TEXT_NAME = "train"
"""The start of the names of training text. It is large, so its size identifies it instead of its content."""
Files = dict[str, list[Path]]


@dataclass(frozen=True)
class Section:
    """A finished section of the report."""

    title: str
    text: str
    """Markdown, without the title."""
    headlines: list[list[str]]
    """The most important numbers, for the table at the top: what it is, and its value."""
    facts: dict[str, Any]
    """All numbers, as JSON values."""


class Drawable(Protocol):
    """A result that has a figure."""

    def draw(self, path: str | Path, overwrite: bool = False) -> tuple[Path, Path]:
        """Draw the figure as PNG and SVG."""


@dataclass(frozen=True)
class ReportRun:
    """What the sections need."""

    elmo: Elmo
    work: Path
    figures: Path
    can_draw: bool
    parts: PartResults
    progress: ProgressCallback | None

    def figure(self, result: Drawable, name: str, title: str) -> str:
        """Draw a figure, if matplotlib is installed, and return the Markdown that shows it."""
        if not self.can_draw:
            return ""
        folder = self.work / "figures"
        folder.mkdir(exist_ok=True)
        result.draw(folder / name, overwrite=True)
        return f"![{title}]({self.figures.name}/{name}.svg)\n\n"


def _join(*parts: str) -> str:
    return "\n\n".join(filter(None, (part.strip("\n") for part in parts)))


def _existing(data: Path, *patterns: str) -> list[Path]:
    return sorted({path for pattern in patterns for path in data.glob(pattern) if path.is_file()})


def _find_perplexity(data: Path) -> Files | None:
    texts = _existing(data, *(f"*/test{suffix}" for suffix in TEXT_SUFFIXES))
    return {"texts": texts} if texts else None


def _perplexity(run: ReportRun, files: Files) -> Section:
    language_model = LanguageModel(run.elmo.model)
    rows, headlines, facts = [], [], {}
    names = run.elmo.model.config.direction_names
    for path in files["texts"]:
        name = path.parent.name
        stage = f"perplexity {name}/{path.name}"
        found = run.parts.compute(stage, partial(_score_text, language_model, path, stage, run.progress))
        facts[name] = found
        values = [f"{found['perplexity'][direction]:.2f}" for direction in names]
        bits = [f"{found['bits_per_character'][direction]:.3f}" for direction in names]
        mean = f"{found['perplexity']['geometric_mean']:.2f}"
        rows.append([name, f"{found['n_predictions']:,}", f"{found['unknown_ratio']:.1%}", *values, mean, *bits])
        headlines.append([f"perplexity, {name}, mean of directions", mean])
    head = ["text", "predictions", "unknown words", *names, "mean", *(f"bits per character, {name}" for name in names)]
    note = (
        "Full softmax; each token and each sentence end counts once; each sentence starts from the model's start "
        "state. The mean is geometric. Compare perplexities only between models with the same vocabulary; bits per "
        "character include the spelling of unknown words."
    )
    warnings = [
        f"{name}: {warning}"
        for name, found in facts.items()
        if (warning := unknown_words_warning(found["unknown_ratio"])) is not None
    ]
    return Section("Perplexity", _join(Table(head, rows).to_markdown(), note, *warnings), headlines, facts)


def _score_text(
    language_model: LanguageModel, path: Path, stage: str, progress: ProgressCallback | None
) -> dict[str, Any]:
    def report(_: str, done: int, total: int | None) -> None:
        if progress is not None:
            progress(stage, done, total)  # a name of its own, so that the time left is that of this text

    return language_model.perplexity(path, progress=report).to_dict()


def _find_minimal_pairs(data: Path) -> Files | None:
    pairs = _existing(data, "blimp/*.jsonl*")
    return {"pairs": pairs, "published": _existing(data, "blimp/published.tsv")} if pairs else None


def _minimal_pairs(run: ReportRun, files: Files) -> Section:
    published = read_published_accuracies(files["published"][0]) if files["published"] else None
    result = evaluate_minimal_pairs(
        run.elmo.model,
        read_minimal_pairs(files["pairs"]),
        treebank_tokenizer(),
        published=published,
        parts=run.parts,
        progress=run.progress,
    )
    text = _join(
        run.figure(result, "minimal-pairs", "Accuracy by phenomenon"),
        result.table().to_markdown(),
        " ".join(result.notes()) + " Accuracies are means over paradigms.",
        result.table(by_paradigm=True).to_markdown(),
    )
    headlines = [[f"BLiMP, {choice} (%)", f"{100 * result.accuracy(choice):.1f}"] for choice in result.choices]
    return Section("Minimal pairs (BLiMP)", text, headlines, result.to_dict())


def _find_reading_times(data: Path) -> Files | None:
    stories = _existing(data, *(f"natural-stories/{name}*" for name in (WORDS, READING_TIMES, LARGE_MODEL)))
    text = _existing(data, *(f"lm-*/{TEXT_NAME}*{suffix}" for suffix in TEXT_SUFFIXES))
    return {"stories": stories, "text": text} if stories else None


def _reading_times(run: ReportRun, files: Files) -> Section:
    folder = files["stories"][0].parent
    stories = read_natural_stories(folder)
    large = read_large_model(folder, stories)
    result = evaluate_reading_times(
        run.elmo.model,
        stories,
        text=files["text"],
        others=None if large is None else {LARGE_MODEL_NAME: large},
        parts=run.parts,
        progress=run.progress,
    )
    text = _join(
        run.figure(result, "reading-times", "Gain in log-likelihood"),
        result.table().to_markdown(),
        " ".join(result.notes()),
    )
    headlines = [
        [f"reading times, {effect.name}, gain in nats per 1,000 words", f"{1000 * effect.gain:.2f}"]
        for effect in result.effects[:1]
    ]
    return Section("Reading times (Natural Stories)", text, headlines, result.to_dict())


def _find_similarity(data: Path) -> Files | None:
    sentences = _existing(data, "sts-benchmark/test.csv*") or _existing(data, "sts-benchmark/dev.csv*")
    pairs = sentences + _existing(data, "word-similarity/*")
    return {"pairs": pairs} if pairs else None


def _similarity(run: ReportRun, files: Files) -> Section:
    tokenize = treebank_tokenizer()
    pairs = {f"{path.parent.name}/{path.name}": read_scored_pairs(path, tokenize) for path in files["pairs"]}
    result = evaluate_similarity(run.elmo, pairs, parts=run.parts, progress=run.progress)
    tables = [part for name in pairs for part in (*result.notes(name), result.table(name).to_markdown())]
    text = _join(run.figure(result, "similarity", "Spearman correlation by pooling"), *tables)
    headlines = [[f"similarity, {name}, best pooling", f"{result.best(name).spearman:.3f}"] for name in pairs]
    return Section("Similarity", text, headlines, result.to_dict())


def _find_pos(data: Path) -> Files | None:
    train, test = _existing(data, "ud-english-ewt/*-train.conllu*"), _existing(data, "ud-english-ewt/*-dev.conllu*")
    return {"train": train[:1], "test": test[:1]} if train and test else None


def _pos(run: ReportRun, files: Files) -> Section:
    texts, headlines, facts = [], [], {}
    for tags in ("upos", "xpos"):
        train, test = (list(read_tagged(files[part][0], tags)) for part in ("train", "test"))
        if not _has_tags(train) or not _has_tags(test):
            continue
        result = probe_pos(
            run.elmo,
            train,
            test,
            seeds=range(POS_SEEDS),
            control=tags == "upos",
            folder=run.work / "pos",
            progress=run.progress,
        )
        layers = [row for row in result.rows if row.name.isdigit()]
        best = max(layers, key=lambda row: row.accuracy)
        texts += [
            f"Tags: {tags.upper()}.",
            run.figure(result, f"pos-{tags}", f"Accuracy by layer, {tags}"),
            result.table().to_markdown(),
            " ".join(result.notes()),
        ]
        headlines.append([f"part-of-speech probe, {tags}, best layer ({best.name}) (%)", f"{100 * best.accuracy:.1f}"])
        facts[tags] = result.to_dict()
    return Section("Parts of speech (linear probe)", _join(*texts), headlines, facts)


def _has_tags(sentences: Sequence[TaggedSentence]) -> bool:
    return any(tag is not None for sentence in sentences for tag in sentence.tags)


def _find_senses(data: Path) -> Files | None:
    train = _existing(data, f"wsd/semcor/*{DATA}*")
    tests = [path for path in _existing(data, f"wsd/*/*{DATA}*") if path not in train]
    if not train or not tests:
        return None
    return {"train": train[:1], "tests": tests, "inventory": _existing(data, "wsd/sense-inventory.tsv*")}


def _senses(run: ReportRun, files: Files) -> Section:
    inventory = read_inventory(files["inventory"][0]) if files["inventory"] else None
    result = probe_senses(
        run.elmo,
        find_sense_set(files["train"][0]),
        [find_sense_set(path) for path in files["tests"]],
        inventory,
        run.work / "senses.safetensors",
        run.progress,
    )
    text = _join(run.figure(result, "senses", "F1 by layer"), result.table().to_markdown(), " ".join(result.notes()))
    last = list(result.rows[0].scores)[-1]  # all sets together, if there are several
    best = max((row for row in result.rows if row.name.isdigit()), key=lambda row: row.scores[last].f1)
    headlines = [[f"word senses, {last}, best layer ({best.name}) (F1, %)", f"{100 * best.scores[last].f1:.1f}"]]
    return Section("Word senses (nearest mean)", text, headlines, result.to_dict())


@dataclass(frozen=True)
class SectionKind:
    """How a section finds its data and what it needs."""

    layout: str
    """The files in the directory of data."""
    predicts: bool
    """Whether the model needs its softmax and vocabulary."""
    find: Callable[[Path], Files | None]
    evaluate: Callable[[ReportRun, Files], Section]
    trains: bool = False
    """Whether it trains a classifier, which needs PyTorch."""


SECTIONS = {
    "perplexity": SectionKind("*/test.txt", True, _find_perplexity, _perplexity),
    "minimal-pairs": SectionKind("blimp/*.jsonl", True, _find_minimal_pairs, _minimal_pairs),
    "reading-times": SectionKind(f"natural-stories/{WORDS}", True, _find_reading_times, _reading_times),
    "similarity": SectionKind(
        "sts-benchmark/test.csv or dev.csv, and no word-similarity/*", False, _find_similarity, _similarity
    ),
    "pos": SectionKind("ud-english-ewt/*-train.conllu and *-dev.conllu", False, _find_pos, _pos, trains=True),
    "wsd": SectionKind(f"wsd/semcor/*{DATA} and wsd/*/*{DATA}", False, _find_senses, _senses),
}
"""The sections by name, in the order of the report."""
