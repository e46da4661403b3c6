"""``elmokit evaluate all``: write a report about a model."""

from __future__ import annotations

from pathlib import Path

from elmokit.cli.parameters import Device, Json, Model, ModelOptions, Output
from elmokit.cli.running import echo_json, print_note, resumable_command
from elmokit.storage.progress import ProgressBar


def evaluate_all(
    *,
    model: Model = None,
    options: ModelOptions = None,
    data: Path,
    report: Output,
    only: tuple[str, ...] = (),
    json: Json = False,
    device: Device = None,
    overwrite: bool = False,
) -> None:
    """Evaluate a model with everything for which there is data, and write a report in Markdown.

    A directory with the name of the report without its extension gets the figures (PNG and SVG) and all numbers
    (results.json). If the command is interrupted, run it again to resume.

    \b
    Sections and their files in --data (they can be compressed); what is missing is left out:
      perplexity     */test.txt
      minimal-pairs  blimp/*.jsonl and blimp/published.tsv
      reading-times  natural-stories/*; lm-*/train* for word frequencies and a 5-gram
      similarity     sts-benchmark/test.csv or dev.csv, word-similarity/*
      pos            ud-english-ewt/*-train.conllu and *-dev.conllu
      wsd            wsd/semcor/*.data.xml, wsd/*/*.data.xml, wsd/sense-inventory.tsv

    Args:
        data: The directory of the data.
        report: The report to write, such as report.md.
        only (NAME): Write this section only, such as minimal-pairs; can be repeated.
        overwrite: Start anew: replace an existing or partial report.

    Examples:
        elmokit evaluate all --data evaluation --report en-mini.md
        elmokit evaluate all --model my-run --data evaluation --report my-run.md --only perplexity --only pos
    """
    from elmokit.evaluation import report as reports

    with resumable_command(), ProgressBar("") as progress:
        facts = reports.evaluate_all(
            model,
            data,
            report,
            only=only,
            options=options,
            device=device,
            overwrite=overwrite,
            progress=progress,
            on_section=lambda name: progress.write(f"Section {name}"),
        )
    if json:
        echo_json(facts)
    else:
        print_note(f"wrote {report} with {', '.join(facts)}")
