"""``elmokit models``, ``info``, ``convert`` and ``bench``: what one does with a model itself."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from elmokit.cli.command import Flag
from elmokit.cli.parameters import Json, Model, ModelOptions, ModelPrecision, Output, Overwrite, StartName, Threads
from elmokit.cli.running import check_apart, echo_json, print_note
from elmokit.formats.format import Storage
from elmokit.storage.progress import ProgressBar, count_of

if TYPE_CHECKING:
    from elmokit.evaluation.speed import Speed, SpeedReport


def models(*, json: Json = False) -> None:
    """List the models that can be opened by name.

    A model is downloaded when it is first used, and "cached" then. Besides these names, --model takes paths, URLs, ids
    of the Hugging Face Hub, and nlpl:NUMBER for the ELMo models of vectors.nlpl.eu.

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
        inferred, cached = "*" * (model.address == "inferred"), " (cached)" * (model.available == "cached")
        if not language:
            size = "" if model.megabytes is None else f", {model.megabytes} MB"
            included = ", included" * (model.available == "included")
            shown[model.name] = f"{model.language}{size}{included}{cached}: {model.about}{inferred}"
            continue
        name = f"{family}:LANGUAGE"
        start = f"{shown[name]}, " if name in shown else f"{model.about.partition(', ')[0]}: "
        shown[name] = f"{start}{language}{inferred}{cached}"
    click.echo(format_facts(shown))
    click.echo(
        "\nNo address could be tried when elmokit was made. They were found on public pages, except those\n"
        "marked *, which are formed like others of their publisher."
    )


WIDTH, MIN_WIDTH = 100, 40
MAX_VALUES = 8
MAIN_FACTS = ("path", "format", "tokens", "layers", "parameters", "vocabulary")


def info(*, model: Model = None, options: ModelOptions = None, all_: bool = False, json: Json = False) -> None:
    """Show the architecture, size and vocabulary of a model.

    Args:
        all_: Show the format, the start state and more, and the whole model card: text, commands, settings, results.

    Examples:
        elmokit info
        elmokit info --model my-run --all
        elmokit info --model elmo_weights.hdf5 --json
    """
    from elmokit.formats.model import describe
    from elmokit.formats.open import open_model

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
    shown = {name: _format(value) for name, value in facts.items()}
    indent = max(map(len, shown)) + 2
    lines = []
    for name, value in shown.items():
        width = max(WIDTH - indent, MIN_WIDTH)  # a name can be a path or a sentence
        wrapped = textwrap.wrap(value, width, break_long_words=False, break_on_hyphens=False) or [""]
        lines += [f"{name:<{indent}}{wrapped[0]}", *(f"{'':{indent}}{line}" for line in wrapped[1:])]
    return "\n".join(lines)


def _card_tables(card: Mapping[str, Any], title: str = "Model card") -> Iterator[str]:
    """Format a model card as a table, and each table in it as one of its own."""
    inner = {name: value for name, value in card.items() if isinstance(value, Mapping) and value}
    if facts := {name: value for name, value in card.items() if name not in inner}:
        yield f"{title}\n{format_facts(facts)}"
    for name, table in inner.items():
        yield from _card_tables(table, f"{title}, {name}")


def _format(value: Any) -> str:
    """Format a value; of a long list, only how many values there are."""
    if isinstance(value, list | tuple):
        return (
            f"{len(value)} values, which --json shows" if len(value) > MAX_VALUES else " / ".join(map(_format, value))
        )
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def convert(
    source: str,
    target: Output,
    *,
    options: ModelOptions = None,
    precision: ModelPrecision = None,
    start: StartName | None = None,
    exact_marks: bool = False,
    calibrate: Path | None = None,
    whiten: Path | None = None,
    alignment: tuple[str, ...] = (),
    storage: Annotated[
        Storage,
        Flag("Type of the tensors in an elmokit directory; int8 takes a quarter of the space of float32."),
    ] = "float32",
    overwrite: Overwrite = False,
) -> None:
    """Convert the model SOURCE to TARGET.

    SOURCE is a path, a URL, a published name or a Hub id; of a training run, the best model is converted.

    If TARGET ends in .hdf5 or .h5, HDF5 weights for AllenNLP and bilm-tf are written, and an options file of the same
    name next to them: X_options.json for X.hdf5 and X_weights.hdf5. A TARGET without an extension becomes an elmokit
    directory, the only format that also keeps the softmax, its words, the start state, the whitening and the
    trained head of sentence vectors, and the alignment. If TARGET ends in .onnx, a graph from char ids to the vectors
    of all layers is written, which ONNX Runtime runs.

    Args:
        storage, overwrite:
        precision: Precision in which an elmokit directory is computed unless its user requests another.  [default: that
            of SOURCE]
        start: Store the state that sentences start from. warm: the model's own, or else the state after an empty
            sentence. zero: as in TF-Hub's ELMo. (AllenNLP and bilm-tf carry the state from sentence to sentence, as
            embed does with --start stateful.)
        exact_marks: Store that typographic marks are read as they are, as bilm-tf and AllenNLP did, and not in ASCII.
        calibrate (TEXT): Tokenized sentences in the model's language: store the mean state after a sentence as the
            start state.
        whiten (TEXT): Tokenized sentences like those to be compared: fit a whitening of sentence vectors and store it.
        alignment (FILE): Alignment matrix saved with torch.save, such as those published for AllenNLP's
            ElmoTokenEmbedderMultiLang: one for all layers; or repeat the option, layer 0 first.

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
        stored: dict[str, object] = {
            "--storage": storage != "float32",
            "--precision": precision,
            "--calibrate": calibrate,
        }
        stored |= {"--whiten": whiten, "--alignment": alignment, "--exact-marks": exact_marks}
        check_apart("A target named .onnx", True, stored)
        from elmokit.integrations.onnx import export_onnx
        from elmokit.storage.atomic import check_output_path

        check_output_path(target, overwrite)
        opened = open_model(source, options=options)
        print_note(f"wrote {export_onnx(opened, target, start=start or 'warm', overwrite=overwrite)}")
        return
    check_apart("--start", start, {"--calibrate": calibrate})  # each stores a start state
    target_format = format_to_write(target, [".onnx"])
    if not target_format.is_complete:
        check_apart(f"A target named {target.suffix}", True, {f"--storage {storage}": storage != "float32"})
    target_format.check_target(target, overwrite)
    model = open_model(source, options=options, precision=precision, exact_marks=exact_marks)
    if start is not None:
        model = with_start_state(model, start)
    if calibrate is not None:
        model = calibrated(Computer(model), list(Text(calibrate).token_lists()), calibrate.name)
    if alignment:
        from elmokit.formats.torch_save import read_alignment

        if model.fitted_maps:
            print_note(f"left out: {', '.join(model.fitted_maps)}; they fit the vectors before the alignment")
        model = model.without_fitted_maps()
        card = {**model.card, "alignment": {"matrices": [Path(matrix).name for matrix in alignment]}}
        model = model.replace(alignment=read_alignment(alignment, model.config), card=card)
    if whiten is not None:
        from elmokit.embedding.elmo import Elmo
        from elmokit.embedding.sentence_vectors import SentenceEmbedder, default_weighting
        from elmokit.formats.sentence_pooling import SentencePooling

        numbers = count(1)
        sentences = (sentence for _, sentence in zip(numbers, Text(whiten).token_lists(), strict=False))
        embedder = SentenceEmbedder(Elmo(model), SentencePooling(default_weighting(model)))
        model = embedder.fit(sentences).elmo.model
        n_sentences = next(numbers) - 2  # one number was taken for the end of the text
        assert model.whitening is not None
        if (n_kept := model.whitening.projection.shape[1]) >= n_sentences - 1:
            click.echo(
                f"The whitening keeps {count_of(n_kept, 'dimension')}, as many as {n_sentences:,} sentences allow. "
                "Some thousands of sentences are better.",
                err=True,
            )
        model = model.replace(card={**model.card, "whitening": f"sentence vectors of {whiten.name}"})
    if target_format.is_complete:
        note_start(model)
    for path in save_model(model, target, storage=storage, overwrite=overwrite):
        print_note(f"wrote {path}")
    parts = {
        "softmax, vocabulary": model.softmax,
        "start state": model.start_state,
        "whitening": model.whitening,
        "sentence head": model.sentence_head,
        "alignment": model.alignment,
        "precision": model.precision,
        "exact marks": model.exact_marks or None,
    }
    lost = [name for name, part in parts.items() if part is not None]
    if lost and not target_format.is_complete:
        click.echo(f"Not saved ({target.suffix} files cannot hold it): {', '.join(lost)}", err=True)


def bench(*, model: Model = None, options: ModelOptions = None, threads: Threads = None, json: Json = False) -> None:
    """Measure how fast this machine computes a model, in every precision and in plain NumPy.

    The rows are sentences of 20 tokens that are computed together; no token is cached.

    Run it on an idle machine: other programs slow down all threads.

    Args:
        threads: Number of CPU threads.  [default: all cores]

    Examples:
        elmokit bench
        elmokit bench --model original --threads 4
        elmokit bench --model my-model --json > speed.json
    """
    if threads is not None:
        # Before NumPy is imported, which reads it: its products are measured, too.
        os.environ["OMP_NUM_THREADS"] = str(threads)
    from elmokit.engine.threads import set_threads
    from elmokit.evaluation.speed import measure_speed
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
    for speed in report.speeds:
        ratio = speed.tokens_per_second / report.speed("reference", speed.n_rows).tokens_per_second
        lines.append(
            f"{_name(speed):<12}{speed.n_rows:>5}  {speed.backend:<23}{' and '.join(speed.computed_in):<20}"
            f"{speed.tokens_per_second:>10,.0f}{ratio:>11.1f}"
        )
    notes = [note for speed in report.speeds if (note := _note(speed))]
    return [*lines, *([""] if notes else []), *dict.fromkeys(notes)]


def _name(speed: Speed) -> str:
    return "NumPy" if speed.request == "reference" else speed.request


def _note(speed: Speed) -> str:
    """Say where a better precision than the requested one computes."""
    if speed.request == "reference" or speed.computed_in == (speed.request,):
        return ""
    better = " and ".join(precision for precision in speed.computed_in if precision != speed.request)
    some = "layers" if speed.request not in speed.computed_in else "some layers"
    return f"{speed.request}: {some} computed in {better}, because {speed.request} is not faster there."
