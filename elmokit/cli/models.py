"""``elmokit models``: list the models that can be opened by name."""

from __future__ import annotations

from dataclasses import asdict

import click

from elmokit.cli.parameters import Json
from elmokit.cli.running import echo_json


def models(*, json: Json = False) -> None:
    """List the models that can be opened by name.

    "download" means that a model is downloaded when it is first used; "cached", that it was. An "untried" address was
    found on public pages but never tried; an "inferred" one is formed like others of its publisher.

    Besides these names, --model takes paths, URLs, ids of the Hugging Face Hub, and nlpl:NUMBER for the ELMo models of
    vectors.nlpl.eu.

    Examples:
        elmokit models
        elmokit embed corpus.txt vectors.hdf5 --model original
    """
    from elmokit.evaluation.result import Table
    from elmokit.formats.sources import named_models

    named = named_models()
    if json:
        echo_json([asdict(model) for model in named])
        return
    rows = [
        [
            model.name,
            model.language,
            "?" if model.megabytes is None else f"{model.megabytes} MB",
            model.available,
            model.address or "",
            model.about,
        ]
        for model in named
    ]
    head = ["name", "language", "size", "available", "address", "trained on, published by"]
    click.echo(Table(head, rows, len(head)).to_text())
