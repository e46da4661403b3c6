"""``elmokit info``: show a model's architecture, size and provenance."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import click

from elmokit.cli.parameters import Json, Model, ModelOptions
from elmokit.cli.running import echo_json

WIDTH = 100
MAX_VALUES = 8


def info(*, model: Model = None, options: ModelOptions = None, json: Json = False) -> None:
    """Show the format, architecture, size, vocabulary and provenance of a model.

    Examples:
        elmokit info
        elmokit info --model elmo_weights.hdf5 --json
    """
    from elmokit.formats.model import describe
    from elmokit.formats.open import open_model

    facts = describe(open_model(model, options=options))
    if json:
        echo_json(facts)
        return
    card = facts.pop("card")
    click.echo(format_facts(facts))
    if card:
        click.echo(f"\nModel card\n{format_facts(card)}")


def format_facts(facts: Mapping[str, Any]) -> str:
    """Format named facts as two aligned columns. Long values continue on the next line."""
    shown = {name: _format(value) for name, value in facts.items()}
    indent = max(map(len, shown)) + 2
    lines = []
    for name, value in shown.items():
        wrapped = textwrap.wrap(value, WIDTH - indent, break_long_words=False, break_on_hyphens=False) or [""]
        lines += [f"{name:<{indent}}{wrapped[0]}", *(f"{'':{indent}}{line}" for line in wrapped[1:])]
    return "\n".join(lines)


def _format(value: Any) -> str:
    """Format a value; of a long list or a large table, only how many values there are."""
    if isinstance(value, Mapping | list | tuple) and len(value) > MAX_VALUES:
        return f"{len(value)} values, which --json shows"
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name} ({_format(inner)})" if isinstance(inner, Mapping) else f"{name} {_format(inner)}"
            for name, inner in value.items()
        )
    if isinstance(value, list | tuple):
        return " / ".join(map(_format, value))
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
