"""``elmokit serve``: answer requests over HTTP."""

from __future__ import annotations

from typing import Any

import click

from elmokit.cli.common import options_option, precision_option
from elmokit.cli.options import SettingsCommand, name_flags, setting_options
from elmokit.cli.train import given_options, threads_option
from elmokit.errors import MissingExtraError


class ServeCommand(SettingsCommand):
    """``serve`` with an option for each setting of the server."""

    @staticmethod
    def setting_options() -> list[click.Option]:
        """Return the options."""
        from elmokit.serve.config import ServeConfig

        return setting_options(ServeConfig)


@click.command(cls=ServeCommand)
@click.argument("model", required=False)
@options_option
@click.option("--device", help="Where to compute: cpu, cuda, cuda:1, ...")
@precision_option
@threads_option
def serve(
    model: str | None,
    options: str | None,
    device: str | None,
    precision: Any,
    **settings: Any,
) -> None:
    """Answer requests over HTTP, and show a page for exploring MODEL in a browser.

    MODEL is a path, a URL, a published name or a Hub id (default: the model inside the package). The server prints its
    address. The page is at /, the list of requests at /docs, and POST /v1/embeddings is compatible with the OpenAI API.
    docs/serve.md says how to use it behind a reverse proxy, with a token, with Prometheus, and in a container.

    \b
    Examples:
      elmokit serve
      elmokit serve original --port 9000 --index my-index
      ELMOKIT_SERVE_TOKEN=... elmokit serve my-model --host 0.0.0.0 --workers 4 --threads 1
    """
    try:
        from elmokit.serve import server
    except ImportError as error:
        if not str(error.name).startswith(("fastapi", "uvicorn", "prometheus_client", "pydantic", "starlette")):
            raise
        raise MissingExtraError("elmokit serve", "serve") from None
    from elmokit.config import from_dict
    from elmokit.embedder import Elmo
    from elmokit.serve.config import ServeConfig

    given = given_options(settings)
    with name_flags(given):
        config = from_dict(ServeConfig, given, "")
    elmo = Elmo.from_pretrained(model, options=options, device=device, precision=precision)
    server.serve(elmo, config, lambda text: click.echo(text, err=True))
