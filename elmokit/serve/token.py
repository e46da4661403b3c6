"""The bearer token that requests must send."""

from __future__ import annotations

import os
from pathlib import Path

from elmokit.errors import ConfigError
from elmokit.serve.serve_config import ServeConfig

TOKEN_VARIABLE = "ELMOKIT_SERVE_TOKEN"
MIN_TOKEN = 16


def read_token(config: ServeConfig) -> str | None:
    """Return the bearer token from the settings or the environment; None if requests do not need one."""
    token, where = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
    if config.token_file is not None:
        where = str(config.token_file)
        try:
            token = Path(config.token_file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"Cannot read the token in {where}: {reason}. Pass a file that contains it.") from None
    if token is None:
        return None
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"The token in {where} must have at least {MIN_TOKEN} printable ASCII characters and no space. Create one "
            "with: openssl rand -hex 32"
        )
    return token
