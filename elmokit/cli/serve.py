"""``elmokit serve``: serve a model over HTTP."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.command import HeadedOption, setting_options, with_settings
from elmokit.cli.parameters import Device, Model, ModelOptions, ModelPrecision, StartName, Threads
from elmokit.cli.running import given_settings
from elmokit.errors import MissingExtraError

if TYPE_CHECKING:
    from elmokit.serve.serve_config import ServeConfig


def serve_settings() -> list[HeadedOption]:
    """Make an option for each server setting."""
    from elmokit.serve.serve_config import ServeConfig

    return setting_options(ServeConfig)


def serve_config(settings: dict[str, Any]) -> ServeConfig:
    """Make the server's config from the settings given on the command line."""
    from elmokit.config import from_dict
    from elmokit.serve.serve_config import ServeConfig

    given = given_settings(settings)
    for name, value in given.items():
        if isinstance(value, Path):
            given[name] = str(value)
    return from_dict(ServeConfig, given, "")


@with_settings(serve_settings)
def serve(
    *,
    model: Model = None,
    options: ModelOptions = None,
    device: Device = None,
    precision: ModelPrecision = None,
    start: StartName = "warm",
    threads: Threads = None,
    **settings: Any,
) -> None:
    """Serve a model over HTTP, with a page for exploring it in a browser.

    The server prints its address. The page is at /, the API description at /openapi.json, and POST /v1/embeddings is
    compatible with the OpenAI API. docs/how-to/deploy.md shows how to run it behind a reverse proxy, with a token, with
    Prometheus, and in a container.

    Args:
        host, port, token_file, index:

    More options:
        start: LSTM state that each sentence starts from: the model's start state (warm), or zero, as in TF-Hub's ELMo.
        threads: Number of CPU threads.  [default: all cores]

    Examples:
        elmokit serve
        elmokit serve --model original --port 9000 --index my-index
        ELMOKIT_SERVE_TOKEN=... elmokit serve --model my-model --host 0.0.0.0
    """
    if not all(importlib.util.find_spec(name) for name in ("fastapi", "granian", "prometheus_client")):
        raise MissingExtraError("elmokit serve", "serve")
    from elmokit.embedding.elmo import Elmo
    from elmokit.engine.threads import set_threads
    from elmokit.serve.server import serve as serve_model

    config = serve_config(settings)
    if threads is not None:
        set_threads(threads)
    open_elmo = partial(Elmo.from_pretrained, model, options=options, device=device, precision=precision, start=start)
    serve_model(open_elmo, config, partial(click.echo, err=True))
