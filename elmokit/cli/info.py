"""``elmokit info``: show a model's architecture, size and provenance."""

from __future__ import annotations

import json

import click

from elmokit.cli.common import options_option


@click.command()
@click.argument("model", required=False)
@options_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(model: str | None, options: str | None, as_json: bool) -> None:
    """Show the format, architecture, size, vocabulary and provenance of MODEL.

    MODEL is a path, a URL, a published name or a Hub id (default: the model inside the package).
    """
    from elmokit.weights.describe import describe
    from elmokit.weights.open import open_model

    facts = describe(open_model(model, options=options))
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    card = facts.pop("card")
    for name, value in facts.items():
        click.echo(f"{name:<17} {value}")
    if card:
        click.echo("\nModel card")
    for name, value in card.items():
        shown = f"(a table of {len(value)} values; see --json)" if isinstance(value, dict) else value
        click.echo(f"{name:<17} {shown}")
