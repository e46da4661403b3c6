"""The command ``elmokit task open``: open trained models of AllenNLP."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from elmokit.cli.common import echo_json, json_option
from elmokit.cli.options import GroupedCommand, OutputPath
from elmokit.cli.task import run_facts


@click.command("open", cls=GroupedCommand, short_help="Open a trained model of AllenNLP (model.tar.gz).")
@click.argument("archive", type=click.Path(path_type=Path))
@click.option("--run", type=OutputPath(), help="Write the model as a run directory.")
@click.option(
    "--start",
    type=click.Choice(["allennlp", "zero", "warm"]),
    default="allennlp",
    show_default=True,
    help="LSTM state of ELMo that sentences start from: as in AllenNLP's first batch, zero, or a typical one.",
)
@click.option(
    "--options",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The options file of its ELMo, if the archive does not hold it (its activation and clips).",
)
@json_option
def open_(
    archive: Path,
    run: Path | None,
    start: Literal["allennlp", "zero", "warm"],
    options: Path | None,
    as_json: bool,
) -> None:
    """Open ARCHIVE, a model that AllenNLP trained for one of the six tasks, check it and describe it.

    ARCHIVE is model.tar.gz or the directory of an unpacked one. `elmokit task predict` and `task evaluate` take it
    directly, too; a run directory opens faster, and its settings can be edited.

    \b
    Examples:
      elmokit task open ner-elmo.tar.gz
      elmokit task open ner-elmo.tar.gz --run ner
      elmokit task open ner-elmo.tar.gz --options options.json --run ner
    """
    from elmokit.tasks.allennlp_archive.as_run import describe_archive, save_as_run
    from elmokit.tasks.allennlp_archive.opened import open_task_archive

    opened = open_task_archive(archive, start, options)
    facts = describe_archive(opened)
    if run is not None:
        save_as_run(opened, run, run_facts())
        facts["run"] = str(run)
    if as_json:
        echo_json({**facts, "notes": opened.notes})
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {_format(value)}")
    for note in opened.notes:
        click.echo(f"{archive.name}: {note}", err=True)


def _format(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format(one)}" for name, one in value.items())
    if isinstance(value, list):
        return f"{len(value)}: {', '.join(value[:20])}{' ...' if len(value) > 20 else ''}"
    return f"{value:,}" if isinstance(value, int) else str(value)
