"""The command ``elmokit task import``: convert configs of AllenNLP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from elmokit.cli.command import Flag
from elmokit.errors import ConfigError


def import_(
    file: Path,
    *,
    var: Annotated[tuple[str, ...], Flag("Set an external variable of a Jsonnet file.", metavar="NAME=VALUE")] = (),
) -> None:
    """Print the AllenNLP config FILE (JSON or Jsonnet) as TOML for `elmokit task train`.

    Settings without a counterpart are listed on standard error. FILE can also be a fragment: a text_field_embedder, its
    token_embedders, or the token_indexers, with or without outer braces.

    Examples:
        elmokit task import ner_elmo.jsonnet > ner.toml
        elmokit task import ner_elmo.jsonnet --var NER_TRAIN_DATA_PATH=train.txt > ner.toml
    """
    from elmokit.tasks.allennlp_import.importer import import_config

    variables = {}
    for variable in var:
        name, sign, value = variable.partition("=")
        if not sign or not name:
            raise ConfigError(f"--var is {variable!r}; expected NAME=VALUE.")
        variables[name] = value
    toml, report = import_config(file, variables)
    click.echo(toml, nl=False)
    for line in report.unsupported:
        click.echo(f"{file.name}: not supported: {line}", err=True)
