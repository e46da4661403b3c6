"""The command ``elmokit task open``: open trained models of AllenNLP."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from elmokit.cli.parameters import Json, OptionalOutput
from elmokit.cli.running import echo_json


def open_(
    archive: Path,
    *,
    run: OptionalOutput = None,
    start: Literal["allennlp", "zero", "warm"] = "allennlp",
    options: Path | None = None,
    json: Json = False,
) -> None:
    """Open ARCHIVE, a model that AllenNLP trained for one of the six tasks, check it and describe it.

    ARCHIVE is model.tar.gz or the directory of an unpacked one. `elmokit task predict` and `task evaluate` take it
    directly, too; a run directory opens faster, and its settings can be edited.

    Args:
        run: Write the model as a run directory.
        start: LSTM state of ELMo that sentences start from: as in AllenNLP's first batch, zero, or a typical one.
        options (FILE): The options file of its ELMo, if the archive does not hold it (its activation and clips).

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
        save_as_run(opened, run)
        facts["run"] = str(run)
    if json:
        echo_json({**facts, "notes": opened.notes})
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {_format(value)}")
    for note in opened.notes:
        click.echo(f"{archive.name}: {note}", err=True)


def _format(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return f"{len(value)}: {', '.join(value[:20])}{' ...' if len(value) > 20 else ''}"
    return f"{value:,}" if isinstance(value, int) else str(value)
