"""``elmokit models``, ``info``, ``convert`` and ``bench``: commands about a model itself."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from elmokit.cli.command import Flag
from elmokit.cli.parameters import Json, Model, ModelOptions, ModelPrecision, Output, Overwrite, StartName, Threads
from elmokit.cli.running import check_apart, echo_json, print_note
from elmokit.formats.format import Storage
from elmokit.storage.progress import ProgressBar, StageCounter, count_of

if TYPE_CHECKING:
    from elmokit.evaluation.bench import Speed, SpeedReport
    from elmokit.formats.sources import NamedModel
    from elmokit.pretrained.model import PretrainedBiLM


def models(*, json: Json = False) -> None:
    """List the models that can be opened by name.

    A model is downloaded when it is first used, and shown as "cached" from then on. --model also accepts paths, URLs,
    Hugging Face Hub ids, and nlpl:NUMBER for the ELMo models of vectors.nlpl.eu.

    Examples:
        elmokit models
        elmokit embed corpus.txt vectors.hdf5 --model original
    """
    from elmokit.formats.sources import named_models

    named = named_models()
    if json:
        echo_json([asdict(model) for model in named])
        return
    shown: dict[str, str] = {}
    for model in named:
        family, _, language = model.name.partition(":")
        if not language:
            shown[model.name] = _describe_model(model)
            continue
        name = f"{family}:LANGUAGE"
        about, _, _ = model.about.partition(", ")
        shown[name] = f"{shown[name]}, " if name in shown else f"{about}: "
        shown[name] += f"{language}{_inferred_mark(model)}{_cached_note(model)}"
    click.echo(format_facts(shown))
    click.echo(
        "\nThese addresses have not been tested. They come from public pages, except those marked *, which\n"
        "follow the pattern of the publisher's other addresses."
    )


def _describe_model(model: NamedModel) -> str:
    """Describe a model that is not part of a family."""
    facts = [model.language]
    if model.megabytes is not None:
        facts.append(f"{model.megabytes} MB")
    if model.available == "included":
        facts.append("included")
    return f"{', '.join(facts)}{_cached_note(model)}: {model.about}{_inferred_mark(model)}"


def _inferred_mark(model: NamedModel) -> str:
    return "*" if model.address == "inferred" else ""


def _cached_note(model: NamedModel) -> str:
    return " (cached)" if model.available == "cached" else ""


WIDTH, MIN_WIDTH = 100, 40
MAX_VALUES = 8
MAIN_FACTS = ("path", "format", "tokens", "layers", "parameters", "vocabulary")


def info(*, model: Model = None, options: ModelOptions = None, all_: bool = False, json: Json = False) -> None:
    """Show the architecture, size and vocabulary of a model.

    Args:
        all_: Also show the format, the start state and more, and the whole model card: text, commands, settings,
            results.

    Examples:
        elmokit info
        elmokit info --model my-run --all
        elmokit info --model elmo_weights.hdf5 --json
    """
    from elmokit.formats.open import open_model
    from elmokit.pretrained.model import describe

    facts = describe(open_model(model, options=options))
    if json:
        echo_json(facts)
    elif all_:
        card = facts.pop("card")
        click.echo("\n\n".join([format_facts(facts), *_card_tables(card)]))
    else:
        facts["layers"] += f"; {facts['sizes']}"
        click.echo(format_facts({name: facts[name] for name in MAIN_FACTS} | {"more": "with --all"}))


def format_facts(facts: Mapping[str, Any]) -> str:
    """Format named facts as two aligned columns. Long values continue on the next line."""
    indent = max(map(len, facts)) + 2
    width = max(WIDTH - indent, MIN_WIDTH)  # a name can be long, such as a path or sentence
    lines = []
    for name, value in facts.items():
        wrapped = textwrap.wrap(_format(value), width, break_long_words=False, break_on_hyphens=False)
        first, *others = wrapped or [""]
        lines.append(f"{name:<{indent}}{first}")
        lines += [" " * indent + line for line in others]
    return "\n".join(lines)


def _card_tables(card: Mapping[str, Any], title: str = "Model card") -> Iterator[str]:
    """Format a model card as a table, and each nested table as a separate one."""
    facts: dict[str, Any] = {}
    tables: dict[str, Mapping[str, Any]] = {}
    for name, value in card.items():
        if isinstance(value, Mapping) and value:
            tables[name] = value
        else:
            facts[name] = value
    if facts:
        yield f"{title}\n{format_facts(facts)}"
    for name, table in tables.items():
        yield from _card_tables(table, f"{title}, {name}")


def _format(value: Any) -> str:
    """Format a value; for a long list, show only the number of values."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, list | tuple):
        if len(value) > MAX_VALUES:
            return f"{len(value)} values (see --json)"
        return " / ".join(map(_format, value))
    return str(value)


@dataclass(frozen=True)
class ModelChanges:
    """Changes that ``convert`` makes to a model."""

    precision: ModelPrecision = None
    start: StartName | None = None
    exact_marks: bool = False
    calibrate: Path | None = None
    whiten: Path | None = None
    alignment: tuple[str, ...] = ()


def convert(
    source: str,
    target: Output,
    *,
    options: ModelOptions = None,
    changes: ModelChanges,
    storage: Annotated[
        Storage,
        Flag("Data type of the tensors in an elmokit directory; int8 needs a quarter of the space of float32."),
    ] = "float32",
    overwrite: Overwrite = False,
) -> None:
    """Convert the model SOURCE to TARGET.

    SOURCE is a path, a URL, a published name or a Hub id. From a training run, the best model is converted.

    If TARGET ends in .hdf5 or .h5, HDF5 weights for AllenNLP and bilm-tf are written, with an options file next to
    them: X_options.json for X.hdf5 and X_weights.hdf5. A TARGET without an extension becomes an elmokit directory, the
    only format that also stores the softmax, its words, the start state, the whitening and trained head for sentence
    vectors, and the alignment. If TARGET ends in .onnx, a graph for ONNX Runtime is written that maps char ids to the
    vectors of all layers.

    Args:
        storage, overwrite:
        precision: Default precision for computing the vectors of an elmokit directory.  [default: that of SOURCE]
        start: Store the state that sentences start from. warm: the model's own, or else the state after an empty
            sentence. zero: as in TF-Hub's ELMo. (AllenNLP and bilm-tf carry the state from sentence to sentence, like
            embed with --start stateful.)
        exact_marks: Make the model read typographic marks unchanged, like bilm-tf and AllenNLP, instead of as ASCII.
        calibrate (TEXT): Tokenized sentences in the model's language. The mean state after a sentence is stored as the
            start state.
        whiten (TEXT): Tokenized sentences like those to be compared. A whitening of sentence vectors is fitted and
            stored.
        alignment (FILE): Alignment matrix saved with torch.save, such as those published for AllenNLP's
            ElmoTokenEmbedderMultiLang: one for all layers, or one per layer from layer 0 (repeat the option).

    Examples:
        elmokit convert elmo_weights.hdf5 my-elmo
        elmokit convert my-elmo back_weights.hdf5
        elmokit convert en-mini en-mini.onnx
    """
    from elmokit.embedding.computer import Computer
    from elmokit.embedding.start_state import calibrated, note_start, with_start_state
    from elmokit.formats.open import open_model
    from elmokit.formats.save import format_to_write, save_model
    from elmokit.text.text import Text

    if target.suffix == ".onnx":
        check_apart("A target named .onnx", True, {"--storage": storage != "float32"} | _not_in_onnx(changes))
        _write_onnx(source, target, options, changes.start or "warm", overwrite)
        return
    check_apart("--start", changes.start, {"--calibrate": changes.calibrate})  # both store a start state
    target_format = format_to_write(target, [".onnx"])
    if not target_format.is_complete:
        check_apart(f"A target named {target.suffix}", True, {f"--storage {storage}": storage != "float32"})
    target_format.check_target(target, overwrite)
    model = open_model(source, options=options, precision=changes.precision, exact_marks=changes.exact_marks)
    if changes.start is not None:
        model = with_start_state(model, changes.start)
    if changes.calibrate is not None:
        model = calibrated(Computer(model), list(Text(changes.calibrate).token_lists()), changes.calibrate.name)
    if changes.alignment:
        model = _aligned(model, changes.alignment)
    if changes.whiten is not None:
        model = _whitened(model, changes.whiten)
    if target_format.is_complete:
        note_start(model)
    for path in save_model(model, target, storage=storage, overwrite=overwrite):
        print_note(f"wrote {path}")
    if not target_format.is_complete:
        _report_lost(model, target.suffix)


def _not_in_onnx(changes: ModelChanges) -> dict[str, object]:
    """Return the flags that a .onnx target does not support."""
    return {
        "--precision": changes.precision,
        "--calibrate": changes.calibrate,
        "--whiten": changes.whiten,
        "--alignment": changes.alignment,
        "--exact-marks": changes.exact_marks,
    }


def _write_onnx(source: str, target: Path, options: str | None, start: StartName, overwrite: bool) -> None:
    """Convert a model to a graph for ONNX Runtime."""
    from elmokit.formats.open import open_model
    from elmokit.integrations.onnx import export_onnx
    from elmokit.storage.atomic import check_output_path

    check_output_path(target, overwrite)
    model = open_model(source, options=options)
    print_note(f"wrote {export_onnx(model, target, start=start, overwrite=overwrite)}")


def _aligned(model: PretrainedBiLM, matrices: Sequence[str]) -> PretrainedBiLM:
    """Return the model with an alignment, without the maps fitted to the unaligned vectors."""
    from elmokit.formats.torch_save import read_alignment

    if model.fitted_maps:
        print_note(f"left out: {', '.join(model.fitted_maps)}; fitted to the vectors before the alignment")
    model = model.without_fitted_maps()
    card = {**model.card, "alignment": {"matrices": [Path(matrix).name for matrix in matrices]}}
    return model.replace(alignment=read_alignment(matrices, model.config), card=card)


def _whitened(model: PretrainedBiLM, text: Path) -> PretrainedBiLM:
    """Return the model with a whitening of sentence vectors fitted on a text."""
    from elmokit.embedding.elmo import Elmo
    from elmokit.embedding.sentence_vectors import SentenceEmbedder, default_weighting
    from elmokit.pretrained.sentence_pooling import SentencePooling
    from elmokit.text.text import Text

    counter = StageCounter(None, "sentences", None)

    def sentences() -> Iterator[list[str]]:
        for sentence in Text(text).token_lists():
            counter()
            yield sentence

    embedder = SentenceEmbedder(Elmo(model), SentencePooling(default_weighting(model)))
    whitened = embedder.fit(sentences()).elmo.model
    assert whitened.whitening is not None
    n_kept = whitened.whitening.projection.shape[1]
    if n_kept >= counter.done - 1:
        click.echo(
            f"The whitening keeps {count_of(n_kept, 'dimension')}, the most that {counter.done:,} sentences allow. "
            "Use a few thousand sentences.",
            err=True,
        )
    return whitened.replace(card={**whitened.card, "whitening": f"sentence vectors of {text.name}"})


def _report_lost(model: PretrainedBiLM, suffix: str) -> None:
    """Report the parts of a model that the target's format cannot hold."""
    parts = {
        "softmax, vocabulary": model.softmax,
        "start state": model.start_state,
        "whitening": model.whitening,
        "sentence head": model.sentence_head,
        "letters": model.letters,
        "alignment": model.alignment,
        "precision": model.precision,
        "exact marks": model.exact_marks or None,
    }
    lost = [name for name, part in parts.items() if part is not None]
    if lost:
        click.echo(f"Not saved ({suffix} files cannot hold it): {', '.join(lost)}", err=True)


def bench(*, model: Model = None, options: ModelOptions = None, threads: Threads = None, json: Json = False) -> None:
    """Measure how fast this machine computes a model, in every precision and in plain NumPy.

    Rows are sentences of 20 tokens that are computed together, without cached tokens.

    Run it on an idle machine: other programs slow down all threads.

    Args:
        threads: Number of CPU threads.  [default: all cores]

    Examples:
        elmokit bench
        elmokit bench --model original --threads 4
        elmokit bench --model my-model --json > speed.json
    """
    if threads is not None:
        # NumPy reads it when it is imported; its products are measured, too.
        os.environ["OMP_NUM_THREADS"] = str(threads)
    from elmokit.engine.threads import set_threads
    from elmokit.evaluation.bench import measure_speed
    from elmokit.formats.open import open_model

    if threads is not None:
        set_threads(threads)
    opened = open_model(model, options=options)
    with ProgressBar("") as progress:
        report = measure_speed(opened, progress=progress)
    if json:
        echo_json({"model": str(opened.source), **report.as_dict()})
        return
    click.echo("\n".join(_report_lines(report, str(opened.source), opened.n_parameters)))


def _report_lines(report: SpeedReport, source: str, n_parameters: int) -> list[str]:
    machine = report.machine
    kernels = f"{machine['used']}, {machine['library']}" if machine["used"] else f"none: {machine['why_no_library']}"
    threads = count_of(machine["threads"], "thread")
    lines = [
        f"model             {source}, {n_parameters:,} parameters",
        f"processor         {machine['processor']}, {threads}, NumPy {machine['numpy']}",
        f"instruction sets  {', '.join(machine['instruction_sets'])}",
        f"kernels           {kernels}",
        "",
        f"{'requested':<12}{'rows':>5}  {'backend':<23}{'weights':<20}{'tokens/s':>10}{'/ NumPy':>11}",
    ]
    notes: list[str] = []
    for speed in report.speeds:
        ratio = speed.tokens_per_second / report.speed("reference", speed.n_rows).tokens_per_second
        lines.append(
            f"{_name(speed):<12}{speed.n_rows:>5}  {speed.backend:<23}{' and '.join(speed.computed_in):<20}"
            f"{speed.tokens_per_second:>10,.0f}{ratio:>11.1f}"
        )
        note = _note(speed)
        if note and note not in notes:
            notes.append(note)
    return [*lines, "", *notes] if notes else lines


def _name(speed: Speed) -> str:
    return "NumPy" if speed.request == "reference" else speed.request


def _note(speed: Speed) -> str:
    """Return a note if a higher precision than requested is used, or an empty text."""
    if speed.request == "reference" or speed.computed_in == (speed.request,):
        return ""
    better = " and ".join(precision for precision in speed.computed_in if precision != speed.request)
    some = "layers" if speed.request not in speed.computed_in else "some layers"
    return f"{speed.request}: {some} computed in {better}, because {speed.request} is not faster there."
