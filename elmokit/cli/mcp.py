"""``elmokit mcp``: answer a language model that calls tools."""

from __future__ import annotations

from typing import Any

import click

from elmokit.cli.command import setting_options, with_settings
from elmokit.cli.parameters import Device, Model, ModelOptions, ModelPrecision, Threads
from elmokit.cli.serve import serve_config


def mcp_settings() -> list[click.Option]:
    """Make an option for each setting of the server that does not belong to HTTP."""
    from elmokit.serve.config import ServeConfig

    return setting_options(ServeConfig, names=("index", "tokenize"))


@with_settings(mcp_settings)
def mcp(
    *,
    model: Model = None,
    options: ModelOptions = None,
    device: Device = None,
    precision: ModelPrecision = None,
    threads: Threads = None,
    **settings: Any,
) -> None:
    """Answer a language model that calls tools (Model Context Protocol, over standard input and output).

    The tools are surprisal, substitutes (which words fit in a position), neighbors (similar occurrences in a corpus)
    and compare_senses. The client starts this command (docs/how-to/integrations/mcp.md).

    Args:
        threads: CPU threads.  [default: all cores]

    Examples:
        elmokit mcp
        elmokit mcp --model original --index my-index
    """
    from elmokit.embedding.elmo import Elmo
    from elmokit.engine.threads import set_threads
    from elmokit.serve.mcp import run_server

    config = serve_config(settings)
    if threads is not None:
        set_threads(threads)
    run_server(Elmo.from_pretrained(model, options=options, device=device, precision=precision), config)
