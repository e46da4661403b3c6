"""Run the server: open the model, and let Granian answer with one or several processes until SIGTERM or Ctrl-C."""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops
from granian.http import HTTP1Settings
from granian.log import LogLevels

from elmokit.embedding.elmo import Elmo
from elmokit.engine.threads import n_threads, set_threads
from elmokit.errors import ConfigError
from elmokit.serve.serve_config import ServeConfig
from elmokit.serve.served_model import ServedModel

TOKEN_VARIABLE = "ELMOKIT_SERVE_TOKEN"
METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # processes add up their metrics in this directory
MIN_TOKEN = 16
MAX_HEADER_BYTES = 1 << 14
BACKLOG = 2048  # connections that wait until they are accepted
MAX_CONNECTIONS = 896
"""Of each process. Without open files for them, of which 1,024 are usually allowed, it could not accept any."""
FORKS = sys.platform == "linux"
"""Whether processes are forked, and so share the memory of the weights. The libraries of macOS may not survive that."""
LOG = {
    "console": {"class": "logging.StreamHandler", "formatter": "generic"},
    "access": {"class": "logging.StreamHandler", "formatter": "access"},
}
"""Granian's log, on standard error. Its own handlers write to standard output."""


def serve(
    open_elmo: Callable[[], Elmo],  # called once the settings are checked
    config: ServeConfig,
    report: Callable[[str], None],  # called with the address once connections are accepted
    threads: int | None = None,  # of each process; None divides the cores among the processes
) -> None:
    """Serve a model until SIGTERM or Ctrl-C, then answer the accepted requests."""
    token = _read_token(config)
    with tempfile.TemporaryDirectory(prefix="elmokit-serve-") as name, _bind(config) as listener:
        folder = Path(name)
        threads = threads or max(1, n_threads() // config.workers)
        set_threads(1)  # threads do not survive a fork, so none may be started before
        model = ServedModel(open_elmo(), config, folder)
        is_on_cpu = model.elmo.computer.network.computation().device == "cpu"
        if config.workers > 1 and not is_on_cpu:
            raise ConfigError("Several workers compute on the CPU only. Leave out --workers, or --device.")
        os.environ[METRICS_VARIABLE] = name
        # Once for all processes, and here, because prometheus_client reads the variable when it is imported.
        importlib.import_module("elmokit.serve.app")
        forks = FORKS and is_on_cpu
        multiprocessing.set_start_method("fork" if forks else "spawn", force=True)
        load = partial(_load, model if forks else None, open_elmo, config, folder, token, threads)
        address = listener.getsockname()
        server = _granian(config, address)
        server.on_startup(partial(_report_listening, listener.family, address, model.name, report))
        del model  # processes that are not forked open it themselves
        gc.freeze()  # a collection in a process would write to the objects that it shares, and so copy their memory
        listener.close()  # Granian opens a socket of its own
        if isinstance(address, str):
            Path(address).unlink()
        server.serve(target_loader=load, wrap_loader=False)
    report("Stopped.")


def _granian(config: ServeConfig, address: Any) -> Any:
    """Create the server for an address: the path of a Unix socket, or host and port."""
    place: Any = {"uds": Path(address)} if isinstance(address, str) else {"address": address[0], "port": address[1]}
    header_milliseconds = int(1000 * config.header_timeout_seconds)
    return Granian(
        "elmokit",
        **place,
        interface=Interfaces.ASGI,
        loop=Loops.asyncio,
        http=HTTPModes.http1,
        websockets=False,
        workers=config.workers,
        backlog=BACKLOG,
        backpressure=MAX_CONNECTIONS,
        http1_settings=HTTP1Settings(header_read_timeout=header_milliseconds, max_buffer_size=MAX_HEADER_BYTES),
        respawn_failed_workers=True,
        respawn_interval=0.5,
        workers_kill_timeout=config.stop_timeout_seconds,
        log_level=LogLevels.error,  # its warnings are of processes that it kills, and sometimes they have just ended
        log_dictconfig={"handlers": LOG},
    )


def _load(
    model: ServedModel | None,  # None for a process that opens it itself
    open_elmo: Callable[[], Elmo],
    config: ServeConfig,
    folder: Path,
    token: str | None,
    threads: int,
) -> Any:
    """Create the app, in a process that answers requests."""
    from elmokit.serve.app import create_app
    from elmokit.serve.metrics import forget_ended_processes

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # until Granian handles them; those of the parent would do nothing here
    threading.Thread(target=_stop_with_parent, args=(config.stop_timeout_seconds,), daemon=True).start()
    forget_ended_processes(os.environ[METRICS_VARIABLE])
    set_threads(threads)
    return create_app(model or ServedModel(open_elmo(), config, folder / str(os.getpid())), config, token)


def _stop_with_parent(timeout_seconds: float) -> None:
    """Wait until the parent has ended, however that comes, and stop this process as the parent would have done."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(timeout_seconds)
        os._exit(1)


def _report_listening(family: socket.AddressFamily, address: Any, name: str, report: Callable[[str], None]) -> None:
    """Say where a model is served, once connections are accepted."""
    if isinstance(address, str):
        shown = address
    else:
        host, port = address[:2]
        shown = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        # Not every system connects to the address that stands for all of its own.
        address = ({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)

    def wait() -> None:
        while True:
            with socket.socket(family) as connection:
                if not connection.connect_ex(address):
                    break
            time.sleep(0.02)
        report(f"Serving {name} at {shown} (stop with Ctrl-C)")

    threading.Thread(target=wait, daemon=True).start()


def _bind(config: ServeConfig) -> socket.socket:
    """Take the address, so that it is known and no other program takes it while the model is opened."""
    place = f"{config.host}, port {config.port}" if config.unix_socket is None else config.unix_socket
    try:
        with contextlib.ExitStack() as on_error:
            if config.unix_socket is None:
                found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
                listener = on_error.enter_context(socket.socket(found[0], socket.SOCK_STREAM))
                if os.name == "posix":  # elsewhere it would allow an address that is taken
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(found[4])
            else:
                listener = on_error.enter_context(socket.socket(socket.AF_UNIX))
                # A server that was killed has left its socket behind.
                if Path(place).is_socket() and listener.connect_ex(place) == errno.ECONNREFUSED:
                    Path(place).unlink()
                listener.bind(place)
            on_error.pop_all()
            return listener
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no host can have this name"
        raise ConfigError(f"Cannot listen on {place}: {reason}.") from None


def _read_token(config: ServeConfig) -> str | None:
    """Return the bearer token of the settings or the environment."""
    token, where = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
    if config.token_file is not None:
        where = str(config.token_file)
        try:
            token = Path(config.token_file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"Cannot read the token in {where}: {reason}. Give a file that contains it.") from None
    if token is None:
        return None
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"The token in {where} must have at least {MIN_TOKEN} printable ASCII characters and no space. Create one "
            "with: openssl rand -hex 32"
        )
    return token
