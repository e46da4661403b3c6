"""Run the server: open the model, listen, and stop gracefully."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from elmokit.embedder import Elmo
from elmokit.errors import ConfigError
from elmokit.serve.app import create_app
from elmokit.serve.config import ServeConfig
from elmokit.serve.served_model import ServedModel

TOKEN_VARIABLE = "ELMOKIT_SERVE_TOKEN"
MIN_TOKEN = 16
BACKLOG = 2048
KEEP_ALIVE_SECONDS = 75  # longer than a reverse proxy's, which might otherwise use a connection that was just closed


def serve(elmo: Elmo, config: ServeConfig, report: Callable[[str], None]) -> None:
    """Serve a model until SIGTERM or Ctrl-C, then answer the accepted requests.

    Args:
        elmo: The model.
        config: The settings.
        report: Called with the address once the server listens.

    Raises:
        ConfigError: The address cannot be used, or another setting is not valid.
    """
    if config.workers > 1:
        raise ConfigError("Several workers are not possible yet. Leave out --workers.")
    token = _read_token(config)
    listener = _listen(config)
    model = ServedModel(elmo, config)
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    app = create_app(model, config, token)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=config.stop_timeout_seconds,
        )
    )
    report(f"Serving {model.name} at {address} (stop with Ctrl-C)")
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:  # raised again by uvicorn after a graceful stop
        report("Stopped.")


def _listen(config: ServeConfig) -> socket.socket:
    """Open the listening socket, before the model, which takes longer."""
    try:
        family = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((config.host, config.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {config.host}, port {config.port}: {error.strerror}. Choose another --port or --host."
        ) from None
    return listener


def _read_token(config: ServeConfig) -> str | None:
    """Return the bearer token of the settings or the environment.

    Raises:
        ConfigError: The file cannot be read, or the token is too short to be secret.
    """
    token, where = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
    if config.token_file is not None:
        where = str(config.token_file)
        try:
            token = Path(config.token_file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"Cannot read the token in {where}: {error}.") from None
    if token is None:
        return None
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"The token in {where} must have at least {MIN_TOKEN} printable ASCII characters and no space. Create one "
            "with: openssl rand -hex 32"
        )
    return token
