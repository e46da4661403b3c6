"""``elmokit task import``: AllenNLP's configs."""

from __future__ import annotations

from pathlib import Path

import click

from elmokit.errors import ConfigError


@click.command("import", short_help="An AllenNLP config to one of ours.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--var", "variables", multiple=True, metavar="NAME=VALUE", help="An external variable of a Jsonnet file.")
def import_(file: Path, variables: tuple[str, ...]) -> None:
    """Print the AllenNLP config FILE (JSON or Jsonnet) as TOML; what has no counterpart is told on standard error.

    FILE may also be a fragment: a text_field_embedder, its token_embedders, or the token_indexers.
    """
    from elmokit.tasks.allennlp import import_config

    given = {}
    for variable in variables:
        name, sign, value = variable.partition("=")
        if not sign or not name:
            raise ConfigError(f"--var takes NAME=VALUE; given {variable!r}.")
        given[name] = value
    toml, findings = import_config(file, given)
    click.echo(toml, nl=False)
    for line in findings.without:
        click.echo(f"{file.name}: no counterpart: {line}", err=True)
