"""``elmokit info``: show a model's architecture, size and provenance."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import click

from elmokit.cli.parameters import Json, Model, ModelOptions
from elmokit.cli.running import echo_json

WIDTH, MIN_WIDTH = 100, 40
MAX_VALUES = 8
MAX_LENGTH = 200
"""Longer texts of the model card, such as commands, are shown with --all only."""


def info(*, model: Model = None, options: ModelOptions = None, all_: bool = False, json: Json = False) -> None:
    """Show the format, architecture, size and vocabulary of a model, and what its model card says.

    Args:
        all_: Show the whole model card, with what the model was made from: text, commands, settings, earlier models.

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
        return
    card = facts.pop("card")
    shown = card if all_ else {name: value for name, value in card.items() if _is_short(value)}
    tables = [format_facts(facts), *_card_tables(shown)]
    if hidden := [name for name in card if name not in shown]:
        tables.append(f"--all also shows: {', '.join(hidden)}")
    click.echo("\n\n".join(tables))


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


def _is_short(value: Any) -> bool:
    return not isinstance(value, Mapping) and len(_format(value)) <= MAX_LENGTH


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
