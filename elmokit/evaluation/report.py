"""A report about a model: every evaluation for which there is data, one after another; and one evaluation alone.

``table.py`` lists the evaluations. This module finds their data in one directory, runs them, and writes Markdown,
figures and JSON. Finished sections, and the finished parts of the section that is running, are kept in a directory
next to the report until it is written, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import platform
import shlex
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from elmokit.config import check_choice, encode_json
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.fingerprint import prediction_settings
from elmokit.engine.threads import n_threads
from elmokit.errors import ConfigError, OutputError, TextError, install_command
from elmokit.evaluation.figures import can_draw
from elmokit.evaluation.result import Result
from elmokit.evaluation.speed import processor_name
from elmokit.evaluation.table import EVALUATIONS, Evaluation, EvaluationRun, Files, load_evaluation
from elmokit.evaluation.tables import Table, escape_markdown
from elmokit.formats.folder import DEFAULT_MODEL
from elmokit.formats.model import PretrainedBiLM, describe
from elmokit.formats.open import open_model
from elmokit.storage.atomic import atomic_write, check_output_path
from elmokit.storage.checksums import file_digest
from elmokit.storage.part_results import PartResults
from elmokit.storage.progress import ProgressCallback, count_of
from elmokit.version import __version__

if TYPE_CHECKING:
    import torch

FACTS = "results.json"


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
        data: The directory of the data; each evaluation says in its ``layout`` which names it looks for. What is
            missing is left out.
        report: The report, such as ``report.md``.
        only: The names of the sections to write; empty for all.
        options: As in ``open_model``.
        device: Where to compute, such as "cuda", which needs PyTorch; None for the CPU.
        overwrite: Start anew: replace an existing or partial report.
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
    for name in only:
        check_choice("section", name, EVALUATIONS)
    folder = report.with_name(report.stem)
    if folder == report:
        raise OutputError(f"The report {report} needs an extension, such as {report}.md.")
    check_output_path(report, overwrite)
    work = report.with_name(f"{report.name}.partial")
    pictured = work / "pictured"  # exists once an interrupted run has written its figures, but not its report
    replace_folder = overwrite or pictured.exists()
    check_output_path(folder, replace_folder, folder=True, parts=["*.png", "*.svg", FACTS])

    model = open_model(source, options=options)
    evaluations = {name: load_evaluation(name) for name in EVALUATIONS if not only or name in only}
    inputs: dict[str, Files] = {}
    left_out: list[str] = []
    for name, evaluation in evaluations.items():
        files = evaluation.find(data)
        if problem := _why_not(evaluation, files, model):
            left_out.append(f"{name}: {problem}.")
        elif files is not None:
            inputs[name] = files
    if not inputs:
        raise TextError(f"There is nothing to evaluate with {data}: {' '.join(left_out)}")
    if device is not None:
        model.to(device)
    settings = {
        **prediction_settings(model, "warm"),
        "sections": ", ".join(inputs),
        # After "sections", so that an error names other sections first: they always have other files.
        "the content of the data": _digest(inputs.values(), data),
    }
    with PartResults(work / "results", settings, overwrite=overwrite) as parts:
        run = EvaluationRun(Elmo(model), work, parts, progress)
        sections = {}
        for name, files in inputs.items():
            title = f"section {name}"
            if on_section is not None and title not in parts:
                on_section(name)
            compute = partial(_section, name, evaluations[name], run, files, folder.name)
            sections[name] = Section(**parts.compute(title, compute))
        facts = {name: section.facts for name, section in sections.items()}
        model_name = str(source or DEFAULT_MODEL)
        with atomic_write(folder, replace_folder, folder=True) as temporary:
            if (work / "figures").is_dir():
                for path in sorted((work / "figures").iterdir()):
                    shutil.copyfile(path, temporary / path.name)
            (temporary / FACTS).write_text(encode_json(facts), encoding="utf-8")
        pictured.touch()
        with atomic_write(report, overwrite) as temporary:
            text = _markdown(model_name, describe(model), sections, left_out, report, only)
            temporary.write_text(text, encoding="utf-8", newline="\n")
    shutil.rmtree(work)
    return facts


def evaluate_one(
    name: str,
    source: str | Path | None,
    data: str | Path,
    *,
    options: str | Path | None = None,
    device: str | torch.device | None = None,
    keep: str | Path | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> Result:
    """Run one evaluation with a directory of data, as :func:`evaluate_all` does.

    Args:
        name: The name of the evaluation.
        source, data, options, device, progress: As in :func:`evaluate_all`.
        keep: Keep finished parts in this directory, so that an interrupted run can be resumed; None to keep nothing.
        overwrite: Compute again what is kept.

    Raises:
        ConfigError: The evaluation is unknown, it cannot evaluate the model, or the directory has no data for it.
        TextError: A file cannot be read.
        OutputError: What is kept is from another model or other data.
    """
    check_choice("evaluation", name, EVALUATIONS)
    data, evaluation = Path(data), load_evaluation(name)
    model = open_model(source, options=options)
    files = evaluation.find(data)
    problem = _why_not(evaluation, files, model)
    if files is None or problem:
        raise ConfigError(f"The evaluation {name} cannot run with {data}: {problem}.")
    if device is not None:
        model.to(device)
    settings = {**prediction_settings(model, "warm"), "the content of the data": _digest([files], data)}
    with tempfile.TemporaryDirectory(prefix="elmokit-evaluation-") as temporary:
        work = Path(temporary if keep is None else keep)
        with PartResults(None if keep is None else work / "results", settings, overwrite=overwrite) as parts:
            return evaluation.run(EvaluationRun(Elmo(model), work, parts, progress), files)


def _why_not(evaluation: Evaluation, files: Files | None, model: PretrainedBiLM) -> str:
    """Say why an evaluation cannot run; empty if it can."""
    if files is None:
        return f"the data has no {evaluation.layout}"
    if evaluation.predicts and not model.can_predict:
        return "the model has no softmax and vocabulary"
    if evaluation.trains and not _has_torch():
        return f"PyTorch is not installed ({install_command('torch')})"
    return ""


def _section(name: str, evaluation: Evaluation, run: EvaluationRun, files: Files, folder_name: str) -> dict[str, Any]:
    result = evaluation.run(run, files)
    images = {}
    figures = run.work / "figures"
    for part, shown in result.figures().items() if can_draw() else ():
        stem, title = (f"{name}-{part}", f"{shown.figure_title}, {part}") if part else (name, shown.figure_title)
        figures.mkdir(exist_ok=True)
        shown.draw(figures / stem, overwrite=True)
        images[part] = f"![{title}]({quote(folder_name)}/{stem}.svg)"
    headlines = [list(line) for line in result.headlines()]
    return dataclasses.asdict(Section(evaluation.title, result.to_markdown(images), headlines, result.to_dict()))


def _digest(inputs: Collection[Files], data: Path) -> str:
    """Identify the content of files."""
    identities = [
        [str(path.relative_to(data)), file_digest(path)]
        for files in inputs
        for paths in files.values()
        for path in paths
    ]
    return hashlib.sha256(json.dumps(identities).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _markdown(
    name: str,
    model: dict[str, Any],
    sections: Mapping[str, Section],
    left_out: Sequence[str],
    report: Path,
    only: Collection[str],
) -> str:
    card = {key: text for key, text in model["card"].items() if isinstance(text, str) and key != "name"}
    known = {key: fact for key, fact in model.items() if key not in ("path", "card") and fact}
    shown = [[key, " ".join(str(fact).split())] for key, fact in (known | card).items()]
    call = shlex.join(["elmokit", "evaluate", "all", "--model", name, "--data", "DIR", "--report", report.name])
    call += "".join(f" --only {chosen}" for chosen in only)
    headlines = [line for section in sections.values() for line in section.headlines]
    lines = [f"# Evaluation of {name}", "", f"Made by `{call}`.", ""]
    lines += [Table(["number", "value"], headlines).to_markdown(), ""]
    for section in sections.values():
        lines += [f"## {section.title}", "", section.text, ""]
    lines += ["## Model", "", Table(["fact", "value"], shown).to_markdown(), ""]
    lines += ["## How it was measured", ""]
    libraries = f"NumPy {version('numpy')}" + (f", PyTorch {version('torch')}" if _has_torch() else "")
    lines += [
        f"elmokit {__version__}, {libraries}, Python {platform.python_version()}, {processor_name()}, "
        f"{count_of(n_threads(), 'thread')}.",
        "",
    ]
    if left_out:
        lines += ["Left out:", "", *(f"- {escape_markdown(reason)}" for reason in left_out), ""]
    return "\n".join(lines)
