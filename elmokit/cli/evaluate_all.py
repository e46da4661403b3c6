"""``elmokit evaluate all``: write a report about a model."""

from __future__ import annotations

from pathlib import Path

import click

from elmokit.cli.common import (
    device_option,
    echo_json,
    json_option,
    model_option,
    options_option,
    overwrite_option,
    resumable_command,
    this_command,
)
from elmokit.cli.options import GroupedCommand, OutputPath
from elmokit.storage.progress import ProgressBar


@click.command("all", cls=GroupedCommand, short_help="Write a report with every evaluation for which there is data.")
@model_option
@options_option
@click.option("--data", required=True, type=click.Path(path_type=Path), help="The directory of the data.")
@click.option("--report", required=True, type=OutputPath(), help="The report to write, such as report.md.")
@click.option(
    "--only", multiple=True, metavar="NAME", help="Write this section only, such as minimal-pairs; can be repeated."
)
@json_option
@device_option
@overwrite_option
def all_(
    model: str | None,
    data: Path,
    report: Path,
    only: tuple[str, ...],
    options: str | None,
    as_json: bool,
    device: str | None,
    overwrite: bool,
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

    \b
    Examples:
      elmokit evaluate all --data evaluation --report en-mini.md
      elmokit evaluate all --model my-run --data evaluation --report my-run.md --only perplexity --only pos
    """
    from elmokit.evaluation.report import evaluate_all

    with resumable_command(this_command), ProgressBar("") as progress:
        facts = evaluate_all(
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
    if as_json:
        echo_json(facts)
    else:
        click.echo(f"{report} is written, with sections {', '.join(facts)}.", err=True)
