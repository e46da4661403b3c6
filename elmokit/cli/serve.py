"""``elmokit serve``: answer requests over HTTP."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import click

from elmokit.cli.common import device_option, model_option, options_option, precision_option
from elmokit.cli.options import SettingsCommand, ThreadCount, name_flags, setting_options
from elmokit.errors import MissingExtraError


class ServeCommand(SettingsCommand):
    """``serve`` with an option for each setting of the server."""

    @staticmethod
    def setting_options() -> list[click.Option]:
        """Return the options."""
        from elmokit.serve.config import ServeConfig

        return setting_options(ServeConfig)


@click.command(cls=ServeCommand)
@model_option
@options_option
@device_option
@precision_option
@click.option("--threads", type=ThreadCount(), help="CPU threads of each process.  [default: its part of all cores]")
def serve(
    model: str | None,
    options: str | None,
    device: str | None,
    precision: Any,
    threads: int | None,
    **settings: Any,
) -> None:
    """Answer requests over HTTP, and show a page for exploring the model in a browser.

    The server prints its address. The page is at /, the list of requests at /docs, and POST /v1/embeddings is
    compatible with the OpenAI API. docs/how-to/deploy.md says how to use it behind a reverse proxy, with a token, with
    Prometheus, and in a container.

    \b
    Examples:
      elmokit serve
      elmokit serve --model original --port 9000 --index my-index
      ELMOKIT_SERVE_TOKEN=... elmokit serve --model my-model --host 0.0.0.0 --workers 4 --threads 1
    """
    # Looked up and not imported: prometheus_client must be imported after the number of processes is known.
    if not all(importlib.util.find_spec(name) for name in ("fastapi", "prometheus_client", "uvicorn")):
        raise MissingExtraError("elmokit serve", "serve")
    from elmokit.config import from_dict
    from elmokit.embedding.elmo import Elmo
    from elmokit.serve.config import ServeConfig
    from elmokit.serve.server import serve as serve_model

    given = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in settings.items()
        if value not in (None, ())
    }
    with name_flags(given):
        config = from_dict(ServeConfig, given, "")
    open_elmo = partial(Elmo.from_pretrained, model, options=options, device=device, precision=precision)
    serve_model(open_elmo, config, partial(click.echo, err=True), threads)
