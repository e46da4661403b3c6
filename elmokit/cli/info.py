"""``elmokit info``: what a model is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.common import options_option

if TYPE_CHECKING:
    from elmokit.weights.model import PretrainedBiLM


@click.command(short_help="What a model is.")
@click.argument("model", required=False)
@options_option
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def info(model: str | None, options: str | None, as_json: bool) -> None:
    """Say what MODEL is: format, sizes, parameters, vocabulary, where from (default: the one inside the package)."""
    from elmokit.weights.open import open_model

    facts = describe(open_model(model, options=options))
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    card = facts.pop("card")
    for name, value in facts.items():
        click.echo(f"{name:<17} {value}")
    for name, value in card.items():
        click.echo(f"card: {name:<11} {json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value}")


def describe(model: PretrainedBiLM) -> dict[str, Any]:
    """The facts of a model, by the names that a reader sees."""
    config = model.bilm.config
    cnn = config.char_cnn
    if cnn is not None:
        filters = " ".join(f"{count}x{width}" for width, count in cnn.filters)
        tokens = f"at most {cnn.max_chars} characters: filters {filters}, {cnn.activation}, {cnn.n_highway} highway"
    else:
        tokens = f"words: a table of {config.n_words:,}" if config.n_words is not None else ""
    if config.word_features is not None:
        words = f"words: a table of {config.word_features.n_words:,} x {config.word_features.word_dim}"
        tokens = f"{words}; {tokens}" if tokens else words
    entries = () if model.lexicon is None else (("words", model.lexicon.words), ("characters", model.lexicon.chars))
    clips = " and ".join("none" if clip is None else f"{clip:g}" for clip in (config.cell_clip, config.projection_clip))
    softmax = model.softmax
    warm = "stored with the model" if model.warm_state is not None else "made from the sentence boundaries"
    return {
        "path": str(model.source),
        "format": model.family,
        "tokens": tokens,
        "layers": f"layer 0 and {config.n_layers} LSTM, {'two directions' if config.bidirectional else 'forward only'}",
        "sizes": f"hidden {config.hidden_dim}, projection {config.projection_dim}, vectors {config.output_dim}",
        "clips": f"{clips} (cell, projection)",
        "skip connections": "yes" if config.skip_connections else "no",
        "parameters": f"{model.bilm.n_parameters:,}",
        "lexicon": ", ".join(f"{len(rows):,} {name}" for name, rows in entries if rows is not None) or "none",
        "vocabulary": "none" if model.vocabulary is None else f"{len(model.vocabulary):,} words",
        "softmax": "none" if softmax is None else f"{sum(part.numel() for part in softmax.parameters()):,} parameters",
        "warm state": warm,
        "card": model.card,
    }
