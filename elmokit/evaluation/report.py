"""A report about a model: every evaluation for which there is data, one after another.

Each evaluation is a function in ``evaluation/`` or ``lm/``, and a section of the report
(``evaluation/report_sections.py``). This module finds their data in one directory, runs them, and writes Markdown,
figures and JSON. Finished sections, and the finished parts of the section that is running, are kept in a directory
next to the report until it is written, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import platform
import shutil
from collections.abc import Callable, Collection, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.fingerprint import RESTORE, prediction_settings
from elmokit.engine.threads import n_threads
from elmokit.errors import ConfigError, MissingExtraError, OutputError, TextError
from elmokit.evaluation.figures import check_can_draw
from elmokit.evaluation.report_sections import SECTIONS, TEXT_NAME, Files, ReportRun, Section
from elmokit.evaluation.speed import processor_name
from elmokit.evaluation.tables import Table
from elmokit.formats.folder import DEFAULT_MODEL
from elmokit.formats.model import describe
from elmokit.formats.open import open_model
from elmokit.storage.atomic import atomic_write, check_output_path
from elmokit.storage.checksums import file_digest
from elmokit.storage.part_results import PartResults
from elmokit.storage.progress import ProgressCallback

if TYPE_CHECKING:
    import torch

FACTS = "results.json"


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
        data: The directory of the data; see ``report_sections.SECTIONS`` for the names in it. What is missing is left
            out.
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
    inputs: dict[str, Files] = {}
    for name, files in found.items():
        if files is None:
            continue
        if chosen[name].predicts and not predicts:
            left_out.append(f"{name}: the model has no softmax and vocabulary.")
        elif chosen[name].trains and not _has_torch():
            left_out.append(f"{name}: PyTorch is not installed (pip install 'elmokit[torch]').")
        else:
            inputs[name] = files
    if not inputs:
        raise TextError(f"There is nothing to evaluate with {data}. {' '.join(left_out)}")
    if device is not None:
        model.to(device)
    settings = {
        **prediction_settings(model, "warm"),
        "sections": ", ".join(inputs),
        # After "sections", so that an error names other sections first: they always have other files.
        "the content of the data": _digest(
            [_identify(path, data) for files in inputs.values() for paths in files.values() for path in paths]
        ),
    }
    work = report.with_name(f"{report.name}.partial")
    elmo = Elmo(model)
    with PartResults(work / "results", settings, RESTORE, overwrite=overwrite) as parts:
        run = ReportRun(elmo, work, folder, _can_draw(), parts, progress)
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


def _as_json(evaluate: Callable[[ReportRun, Files], Section], run: ReportRun, files: Files) -> dict[str, Any]:
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


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


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
    threads = n_threads()
    libraries = f"NumPy {version('numpy')}" + (f", PyTorch {version('torch')}" if _has_torch() else "")
    lines += [
        f"elmokit {version('elmokit')}, {libraries}, Python {platform.python_version()}, {processor_name()}, "
        f"{threads} thread{'s' * (threads != 1)}.",
        "",
    ]
    if left_out:
        lines += ["Left out:", "", *(f"- {reason}" for reason in left_out), ""]
    return "\n".join(lines)
