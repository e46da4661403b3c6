"""A report about a model: every evaluation for which there is data, one after another.

Each evaluation is a function in ``scoring/`` or ``probes/``, and a section of the report. This module finds their data
in one directory, runs them, and writes Markdown, figures and JSON. Finished sections, and the finished parts of the
section that is running, are kept in a directory next to the report until it is written, so that an interrupted run can
be resumed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch

from elmokit.embedder import Elmo
from elmokit.errors import ConfigError, MissingExtraError, OutputError, TextError
from elmokit.fingerprint import prediction_fingerprint
from elmokit.io.atomic import atomic_write, check_output_path
from elmokit.io.checksums import file_digest
from elmokit.io.figures import check_can_draw
from elmokit.io.part_results import PartResults
from elmokit.io.progress import ProgressCallback
from elmokit.io.tables import Table
from elmokit.io.text_files import TEXT_SUFFIXES
from elmokit.nn.devices import parse_device
from elmokit.probes.pos import probe_pos
from elmokit.probes.sense_files import DATA, find_sense_set, read_inventory
from elmokit.probes.senses import probe_senses
from elmokit.probes.tagged import TaggedSentence, read_tagged
from elmokit.scoring.language_model import LanguageModel
from elmokit.scoring.minimal_pairs import (
    evaluate_minimal_pairs,
    read_minimal_pairs,
    read_published_accuracies,
)
from elmokit.scoring.natural_stories import (
    LARGE_MODEL,
    READING_TIMES,
    WORDS,
    read_large_model,
    read_natural_stories,
)
from elmokit.scoring.reading_times import LARGE_MODEL_NAME, evaluate_reading_times
from elmokit.scoring.similarity import evaluate_similarity, read_scored_pairs
from elmokit.speed import processor_name
from elmokit.text.tokenize import treebank_tokenizer
from elmokit.weights.describe import describe
from elmokit.weights.listing import DEFAULT_MODEL
from elmokit.weights.open import open_model

FACTS = "results.json"
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
class _Run:
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


def evaluate_all(
    source: str | Path | None,
    data: str | Path,
    report: str | Path,
    *,
    only: Collection[str] = (),
    options: str | Path | None = None,
    device: str | torch.device | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
    on_section: Callable[[str], object] | None = None,
) -> dict[str, Any]:
    """Evaluate a model with everything for which there is data, and write a report.

    The report is Markdown. Next to it, a directory with the name of the report without its extension holds the figures
    (if matplotlib is installed) and all numbers (``results.json``). If the run is interrupted, call the function again
    with the same arguments: finished parts are kept in ``REPORT.partial`` until then, and the report is the same.

    Args:
        source: The model, as in ``open_model``. Without its softmax, only its vectors are evaluated.
        data: The directory of the data; see ``SECTIONS`` for the names in it. What is missing is left out.
        report: The report, such as ``report.md``.
        only: The names of the sections to write; empty for all.
        options: As in ``open_model``.
        device: Where to compute, such as "cuda"; None for the CPU.
        overwrite: Replace an existing report.
        progress: Called as in each of the evaluations.
        on_section: Called with the name of each section before it is computed.

    Returns:
        All numbers, by section.

    Raises:
        ConfigError: A section does not exist.
        TextError: There is no data for any section, or a file cannot be read.
        OutputError: The report exists and ``overwrite`` is False, or what is kept is from another model or other data.
    """
    data, report = Path(data), Path(report)
    if unknown := sorted(set(only) - SECTIONS.keys()):
        raise ConfigError(f"There is no section {unknown[0]!r}. Choose from: {', '.join(SECTIONS)}.")
    if not data.is_dir():
        raise TextError(f"The directory of data {data} does not exist.")
    folder = report.with_name(report.stem)
    if folder == report:
        raise OutputError(f"The report {report} needs an extension, such as {report}.md.")
    check_output_path(report, overwrite)
    check_output_path(folder, overwrite, folder=True, parts=["*.png", "*.svg", FACTS])

    model = open_model(source, options=options)
    chosen = {name: section for name, section in SECTIONS.items() if not only or name in only}
    found = {name: section.find(data) for name, section in chosen.items()}
    left_out = [f"{name}: the data has no {chosen[name].layout}." for name, files in found.items() if files is None]
    predicts = model.softmax is not None and model.vocabulary is not None
    left_out += [
        f"{name}: the model has no softmax and vocabulary."
        for name, files in found.items()
        if files is not None and chosen[name].predicts and not predicts
    ]
    inputs = {
        name: files for name, files in found.items() if files is not None and (predicts or not chosen[name].predicts)
    }
    if not inputs:
        raise TextError(f"There is nothing to evaluate with {data}. {' '.join(left_out)}")
    settings = {
        "model": prediction_fingerprint(model, "warm"),
        "sections": ", ".join(inputs),
        # After "sections" in the alphabet, so that an error names other sections first: they always have other files.
        "the content of the data": _digest(
            [_identify(path, data) for files in inputs.values() for paths in files.values() for path in paths]
        ),
    }
    work = report.with_name(f"{report.name}.partial")
    if device is not None:
        for module in (model.bilm, model.softmax):
            if module is not None:
                module.to(parse_device(device))
    elmo = Elmo(model)
    with PartResults(work / "results", settings) as parts:
        run = _Run(elmo, work, folder, _can_draw(), parts, progress)
        sections = {}
        for name, files in inputs.items():
            title = f"section {name}"
            if on_section is not None and title not in parts:
                on_section(name)
            compute = partial(_as_json, chosen[name].evaluate, run, files)
            sections[name] = Section(**parts.compute(title, compute))
        facts = {name: section.facts for name, section in sections.items()}
        name = str(source or DEFAULT_MODEL)
        with atomic_write(folder, overwrite, folder=True) as temporary:
            if (work / "figures").is_dir():
                for path in sorted((work / "figures").iterdir()):
                    shutil.copyfile(path, temporary / path.name)
            (temporary / FACTS).write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        with atomic_write(report, overwrite) as temporary:
            text = _markdown(name, describe(model), sections, left_out, report, only)
            temporary.write_text(text, encoding="utf-8", newline="\n")
    shutil.rmtree(work)
    return facts


def _as_json(evaluate: Callable[[_Run, Files], Section], run: _Run, files: Files) -> dict[str, Any]:
    return dataclasses.asdict(evaluate(run, files))


def _identify(path: Path, data: Path) -> list[Any]:
    """Return what shows whether a file has changed between two runs."""
    name = str(path.relative_to(data))
    return [name, path.stat().st_size if path.name.startswith(TEXT_NAME) else file_digest(path)]


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _can_draw() -> bool:
    try:
        check_can_draw()
    except MissingExtraError:
        return False
    return True


def _markdown(
    name: str,
    model: dict[str, Any],
    sections: dict[str, Section],
    left_out: Sequence[str],
    report: Path,
    only: Collection[str],
) -> str:
    """Return the text of the report."""
    card = {key: value for key, value in model["card"].items() if isinstance(value, str) and key != "name"}
    known = {key: value for key, value in model.items() if key not in ("path", "card") and value}
    shown = [[key, " ".join(str(value).split())] for key, value in (known | card).items()]
    call = f"elmokit evaluate all --model {name} --data DIR --report {report.name}"
    for chosen in only:
        call += f" --only {chosen}"
    lines = [f"# Evaluation of {name}", "", f"Made by `{call}`.", ""]
    lines += [Table(["number", "value"], [row for one in sections.values() for row in one.headlines]).to_markdown(), ""]
    for section in sections.values():
        lines += [f"## {section.title}", "", section.text, ""]
    lines += ["## Model", "", Table(["fact", "value"], shown).to_markdown(), ""]
    lines += ["## How it was measured", ""]
    lines += [
        f"elmokit {version('elmokit')}, PyTorch {torch.__version__}, Python {platform.python_version()}, "
        f"{processor_name()}, {torch.get_num_threads()} threads.",
        "",
    ]
    if left_out:
        lines += ["Left out:", "", *(f"- {reason}" for reason in left_out), ""]
    return "\n".join(lines)


def _join(*parts: str) -> str:
    return "\n\n".join(filter(None, (part.strip("\n") for part in parts)))


def _existing(data: Path, *patterns: str) -> list[Path]:
    return sorted({path for pattern in patterns for path in data.glob(pattern) if path.is_file()})


def _find_perplexity(data: Path) -> Files | None:
    texts = _existing(data, *(f"*/test{suffix}" for suffix in TEXT_SUFFIXES))
    return {"texts": texts} if texts else None


def _perplexity(run: _Run, files: Files) -> Section:
    language_model = LanguageModel(run.elmo.model)
    rows, headlines, facts = [], [], {}
    names = run.elmo.model.bilm.config.direction_names
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
        "Full softmax; each token and each sentence end counts once; each sentence starts from the fixed initial "
        "state. The mean is geometric. Compare perplexities only between models with the same vocabulary; bits per "
        "character include the spelling of unknown words."
    )
    return Section("Perplexity", _join(Table(head, rows).to_markdown(), note), headlines, facts)


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


def _minimal_pairs(run: _Run, files: Files) -> Section:
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


def _reading_times(run: _Run, files: Files) -> Section:
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


def _similarity(run: _Run, files: Files) -> Section:
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


def _pos(run: _Run, files: Files) -> Section:
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


def _senses(run: _Run, files: Files) -> Section:
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
class _SectionKind:
    """How a section finds its data and what it needs."""

    layout: str
    """The files in the directory of data."""
    predicts: bool
    """Whether the model needs its softmax and vocabulary."""
    find: Callable[[Path], Files | None]
    evaluate: Callable[[_Run, Files], Section]


SECTIONS = {
    "perplexity": _SectionKind("*/test.txt", True, _find_perplexity, _perplexity),
    "minimal-pairs": _SectionKind("blimp/*.jsonl", True, _find_minimal_pairs, _minimal_pairs),
    "reading-times": _SectionKind(f"natural-stories/{WORDS}", True, _find_reading_times, _reading_times),
    "similarity": _SectionKind(
        "sts-benchmark/test.csv or dev.csv, and no word-similarity/*", False, _find_similarity, _similarity
    ),
    "pos": _SectionKind("ud-english-ewt/*-train.conllu and *-dev.conllu", False, _find_pos, _pos),
    "wsd": _SectionKind(f"wsd/semcor/*{DATA} and wsd/*/*{DATA}", False, _find_senses, _senses),
}
"""The sections by name, in the order of the report."""
