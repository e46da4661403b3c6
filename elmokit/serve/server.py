"""Run the server: one process opens the model and answers with Granian until SIGTERM or Ctrl-C.

For several processes, use an ASGI server with :func:`elmokit.serve.app.create_app`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.embed import Server
from starlette.types import ASGIApp

from elmokit.embedding.elmo import Elmo
from elmokit.errors import ConfigError
from elmokit.serve.app import application
from elmokit.serve.serve_config import ServeConfig
from elmokit.serve.served_model import ServedModel
from elmokit.serve.token import read_token

MAX_HEADER_BYTES = 1 << 14
BACKLOG = 2048  # connections waiting to be accepted
MAX_CONNECTIONS = 896
"""Usually, 1,024 open files are allowed. If connections used all of them, the process could not accept any."""
LOG = {
    "console": {"class": "logging.StreamHandler", "formatter": "generic"},
    "access": {"class": "logging.StreamHandler", "formatter": "access"},
}
"""Granian's log, on standard error. Its own handlers write to standard output."""
RETRY_SECONDS = 0.02


def serve(
    open_elmo: Callable[[], Elmo],  # called after checking the settings and that the address is free
    config: ServeConfig,
    report: Callable[[str], None],  # called with the address once connections are accepted
) -> None:
    """Serve a model until SIGTERM or Ctrl-C, then answer the accepted requests."""
    token = read_token(config)
    with _bind(config) as listener:
        model = ServedModel(open_elmo(), config)
        family, address = listener.family, listener.getsockname()
    if isinstance(address, str):
        Path(address).unlink()  # Granian opens a socket of its own
    server = _granian(application(model, config, token), config, address)
    is_accepted = partial(_is_accepted, family, _connectable(address))
    report_address = partial(report, f"Serving {model.name} at {_shown(address)} (stop with Ctrl-C)")
    asyncio.run(_answer(server, is_accepted, report_address, config.stop_timeout_seconds))
    report("Stopped.")


def _granian(app: ASGIApp, config: ServeConfig, address: Any) -> Server:
    """Create the server for an address: the path of a Unix socket, or host and port."""
    place: Any = {"uds": Path(address)} if isinstance(address, str) else {"address": address[0], "port": address[1]}
    header_milliseconds = int(1000 * config.header_timeout_seconds)
    return Server(
        app,
        **place,
        interface=Interfaces.ASGI,
        http=HTTPModes.http1,
        websockets=False,
        backlog=BACKLOG,
        backpressure=MAX_CONNECTIONS,
        http1_settings=HTTP1Settings(header_read_timeout=header_milliseconds, max_buffer_size=MAX_HEADER_BYTES),
        log_level=LogLevels.error,
        log_dictconfig={"handlers": LOG},
    )


async def _answer(
    server: Server,
    is_accepted: Callable[[], bool],  # whether connections are accepted
    report_address: Callable[[], None],
    stop_timeout_seconds: float,
) -> None:
    """Answer requests until a signal arrives, and then the requests already accepted."""
    loop = asyncio.get_running_loop()

    def stop(*_signal: Any) -> None:
        loop.call_soon_threadsafe(server.stop)
        # A computation that does not end keeps its thread, and therefore the process, alive.
        last_resort = threading.Timer(stop_timeout_seconds, os._exit, [1])
        last_resort.daemon = True
        last_resort.start()

    serving = asyncio.create_task(server.serve())
    while not serving.done() and not await asyncio.to_thread(is_accepted):
        await asyncio.sleep(RETRY_SECONDS)
    if serving.done():  # another program may have taken the address while the model was being opened
        reason = str(serving.exception()).partition("\n")[0]
        raise ConfigError(f"The server cannot listen: {reason}. Choose another address.")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    report_address()
    await serving


def _shown(address: Any) -> str:
    """Format the address for people."""
    if isinstance(address, str):
        return address
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _connectable(address: Any) -> Any:
    """Return an address to connect to: not every system can connect to a wildcard address."""
    if isinstance(address, str):
        return address
    host, port = address[:2]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port


def _is_accepted(family: socket.AddressFamily, address: Any) -> bool:
    with socket.socket(family) as connection:
        return connection.connect_ex(address) == 0


def _bind(config: ServeConfig) -> socket.socket:
    """Bind the address, so it is known and no other program takes it while the model is being opened."""
    place = f"{config.host}, port {config.port}" if config.unix_socket is None else config.unix_socket
    try:
        with contextlib.ExitStack() as on_error:
            if config.unix_socket is None:
                found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
                listener = on_error.enter_context(socket.socket(found[0], socket.SOCK_STREAM))
                if os.name == "posix":  # elsewhere, it would allow an address that is in use
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(found[4])
            else:
                listener = on_error.enter_context(socket.socket(socket.AF_UNIX))
                # A killed server leaves its socket behind.
                if Path(place).is_socket() and listener.connect_ex(place) == errno.ECONNREFUSED:
                    Path(place).unlink()
                listener.bind(place)
            on_error.pop_all()
            return listener
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "this is not a valid host name"
        raise ConfigError(f"Cannot listen on {place}: {reason}.") from None
