"""``elmokit probe``: what the layers know."""

from __future__ import annotations

from pathlib import Path

import click

from elmokit.cli.common import model_option, options_option
from elmokit.errors import ConfigError


@click.group(short_help="Measure what the layers know.")
def probe() -> None:
    """Measure what the layers know."""


@probe.command(short_help="Parts of speech, by a linear classifier on each layer.")
@click.argument("train", type=click.Path(path_type=Path))
@click.argument("test", type=click.Path(path_type=Path))
@model_option
@options_option
@click.option("--sentences", type=int, help="Train on the first so many sentences only.")
def pos(train: Path, test: Path, model: str | None, options: str | None, sentences: int | None) -> None:
    """Accuracy of a linear part-of-speech probe on each layer; TRAIN and TEST are CoNLL-U files (.gz and .xz too)."""
    from elmokit.embedder import Elmo
    from elmokit.probe.pos import probe_pos, read_conllu

    if sentences is not None and sentences < 1:
        raise ConfigError(f"--sentences is {sentences}; it must be at least 1.")
    parts = list(read_conllu(train))[:sentences], list(read_conllu(test))
    for layer, accuracy in enumerate(probe_pos(Elmo.from_pretrained(model, options=options), *parts)):
        click.echo(f"layer {layer}  {accuracy:.2%}")
