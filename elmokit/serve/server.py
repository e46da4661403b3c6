"""Run the server: listen, compute with one or several processes, and stop gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from elmokit.embedding.elmo import Elmo
from elmokit.engine.threads import n_threads, set_threads
from elmokit.errors import ConfigError
from elmokit.serve.config import ServeConfig
from elmokit.serve.lifecycle import METRICS_VARIABLE, Lifecycle
from elmokit.serve.served_model import ServedModel
from elmokit.serve.workers import run_workers
from elmokit.storage.bounded import read_bounded

TOKEN_VARIABLE = "ELMOKIT_SERVE_TOKEN"
MIN_TOKEN = 16
MAX_TOKEN_FILE = 1 << 16
BACKLOG = 2048
ACCEPTED_AT_ONCE = 16  # connections that asyncio accepts before the limit of their number is looked at
READ_AT_ONCE = 64  # connections whose requests are read in one turn of the event loop, when the server stops
RESERVED_FILES = 128  # besides connections: the model, metrics, the event loop, and connections accepted at once
LAST_READ_SECONDS = 0.2  # for requests of new connections to arrive
MAX_LAST_READ_SECONDS = 5.0  # for those that have arrived to be read, if the machine is busy
GRACE_SECONDS = 3.0  # for the computation of a batch to end, when the accepted requests have been given up
KILL_AFTER_SECONDS = GRACE_SECONDS + 2
MAX_DISCARDED = 1 << 20  # bytes of a request that is refused unread
KEEP_ALIVE_SECONDS = 75  # longer than a reverse proxy's, which might otherwise use a connection that was just closed


def serve(
    open_elmo: Callable[[], Elmo],  # called once the settings are checked
    config: ServeConfig,
    report: Callable[[str], None],  # called with the address once the model is open
    threads: int | None = None,  # of each process; None divides the cores among the processes
) -> None:
    """Serve a model until SIGTERM or Ctrl-C, then answer the accepted requests."""
    token = _read_token(config)
    with _listen(config) as listener, tempfile.TemporaryDirectory(prefix="elmokit-serve-") as folder:
        if threads is None:
            threads = max(1, n_threads() // config.workers)
        if config.workers > 1:
            if not hasattr(os, "fork"):
                raise ConfigError("Several workers need fork, which this system does not have. Leave out --workers.")
            # Threads do not survive a fork, so none may be started before.
            set_threads(1)
        else:
            set_threads(threads)
        if config.workers > 1:
            metrics = Path(folder) / "metrics"
            metrics.mkdir()
            os.environ[METRICS_VARIABLE] = str(metrics)
        # Here, because prometheus_client reads the variable when it is imported; and before the processes are forked,
        # so that they start at once.
        importlib.import_module("elmokit.serve.app")
        elmo = open_elmo()
        if config.workers > 1 and elmo.model.network.computation().device != "cpu":
            raise ConfigError("Several workers compute on the CPU only. Leave out --workers, or --device.")
        model = ServedModel(elmo, config, Path(folder))
        config = replace(config, max_connections=_allow_connections(config.max_connections, report))
        host, port = listener.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        is_listening = partial(report, f"Serving {model.name} at {address} (stop with Ctrl-C)")
        work = partial(_run, model, config, token, listener, threads)
        if config.workers == 1:
            work(is_listening)
        else:
            is_listening()  # connections wait until the first process is ready
            limit = config.drain_seconds + config.stop_timeout_seconds + MAX_LAST_READ_SECONDS + KILL_AFTER_SECONDS
            from prometheus_client.multiprocess import mark_process_dead

            # What waited in a process that has ended waits no more; its other metrics still count.
            run_workers(config.workers, work, listener.close, mark_process_dead, limit)
        report("Stopped.")


def _run(
    model: ServedModel,
    config: ServeConfig,
    token: str | None,
    listener: socket.socket,
    threads: int,
    is_listening: Callable[[], object],
) -> None:
    """Serve with this process."""
    from elmokit.serve.app import create_app
    from elmokit.serve.connections import Connection

    set_threads(threads)
    lifecycle = Lifecycle()
    connection: Any = partial(
        Connection, header_seconds=config.header_timeout_seconds, max_connections=config.max_connections
    )
    settings = uvicorn.Config(
        create_app(model, config, token, lifecycle),
        log_level="warning",
        access_log=False,
        server_header=False,
        http=connection,
        ws="none",
        backlog=ACCEPTED_AT_ONCE,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=config.stop_timeout_seconds,
    )
    server = _Server(settings, lifecycle, config.drain_seconds, is_listening)
    is_over = threading.Event()
    threading.Thread(target=_end_late_process, args=(server, is_over), daemon=True).start()
    try:
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again after a graceful stop
            server.run(sockets=[listener])
    finally:
        is_over.set()


class _Server(uvicorn.Server):
    """uvicorn's server, which also accepts requests for a while after SIGTERM, and reads all that it accepted."""

    def __init__(
        self, config: uvicorn.Config, lifecycle: Lifecycle, drain_seconds: float, is_listening: Callable[[], object]
    ) -> None:
        super().__init__(config)
        self.lifecycle, self.drain_seconds, self.is_listening = lifecycle, drain_seconds, is_listening
        self.stop_timeout_seconds = MAX_LAST_READ_SECONDS + (config.timeout_graceful_shutdown or 0)
        self.stop_at: float | None = None
        self.end_at: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept requests."""
        from elmokit.serve.connections import QuietAccept

        asyncio.get_running_loop().set_exception_handler(QuietAccept())
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # asyncio has set the number that may wait to the number that it accepts at once
        self.is_listening()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal. A second one stops at once."""
        if self.end_at is None:
            self.end_at = time.monotonic() + self.drain_seconds + self.stop_timeout_seconds + GRACE_SECONDS
        if self.drain_seconds and not self.lifecycle.is_stopping:
            self.lifecycle.is_stopping = True
            self.stop_at = time.monotonic() + self.drain_seconds
            return
        self.lifecycle.is_stopping = True
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Check, ten times a second, whether to stop."""
        if self.stop_at is not None and time.monotonic() > self.stop_at:
            self.should_exit = True
        return bool(await super().on_tick(counter))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the accepted requests and stop."""
        started = time.monotonic()
        # Connections that the system has established, but asyncio has not accepted, would be reset.
        accepted = [connection for listener in sockets or () for connection in _accept_waiting(listener)]
        for server in self.servers:
            server.close()
        # Half of the time, so that the other half is left to compute.
        allowed = 0.0 if self.end_at is None else (self.end_at - started) / 2
        await self._read_waiting(accepted, started + max(MAX_LAST_READ_SECONDS, allowed))
        _refuse_unread(accepted)
        self._leave_time_for_refusals()
        await super().shutdown(sockets)

    async def _read_waiting(self, accepted: list[socket.socket], deadline: float) -> None:
        """Read the requests of connections until the deadline, and take those connections off the list."""
        connect = asyncio.get_running_loop().connect_accepted_socket
        # A turn of the event loop reads all requests that have arrived. Those of a thousand connections at once take
        # longer on a busy machine than the process has; one after the other, they wait for thousands of turns.
        while accepted and time.monotonic() < deadline:
            few = [accepted.pop(0) for _ in accepted[:READ_AT_ONCE]]
            # An error is that of a client that has left.
            await asyncio.gather(
                *(connect(self._create_connection, connection) for connection in few), return_exceptions=True
            )
        # uvicorn closes connections without a request at once, but the request of a new one may not have been read yet.
        await asyncio.sleep(LAST_READ_SECONDS)
        deadline = time.monotonic() + MAX_LAST_READ_SECONDS - LAST_READ_SECONDS
        while self._has_unread_requests() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    def _leave_time_for_refusals(self) -> None:
        """Let uvicorn wait for answers only as long as there is time left to refuse the rest."""
        allowed = self.config.timeout_graceful_shutdown
        if self.end_at is not None and allowed is not None:
            remaining = int(self.end_at - 2 * GRACE_SECONDS - time.monotonic())
            self.config.timeout_graceful_shutdown = max(0, min(allowed, remaining))

    def _has_unread_requests(self) -> bool:
        """Return whether a connection that waits for a request has bytes that were not read yet."""
        waiting: list[Any] = [one for one in self.server_state.connections if getattr(one, "is_waiting", False)]
        with selectors.DefaultSelector() as selector:
            for connection in waiting:
                if not connection.transport.is_closing():
                    selector.register(connection.transport.get_extra_info("socket").fileno(), selectors.EVENT_READ)
            return bool(selector.get_map()) and bool(selector.select(0))

    def _create_connection(self) -> asyncio.Protocol:
        """Create a connection as uvicorn does, which has no method for it."""
        create: Any = self.config.http_protocol_class
        connection: asyncio.Protocol = create(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return connection


def _accept_waiting(listener: socket.socket) -> list[socket.socket]:
    """Accept the connections that wait at this moment."""
    accepted = []
    with contextlib.suppress(OSError):  # BlockingIOError when there are no more; others if the system has no more room
        for _ in range(BACKLOG):
            accepted.append(listener.accept()[0])
    return accepted


def _refuse_unread(connections: list[socket.socket]) -> None:
    """Refuse the requests that there was no time to read, and close their connections."""
    from elmokit.serve.connections import refusal
    from elmokit.serve.problems import Problem

    answer = refusal(Problem.stopping())
    for connection in connections:
        with connection, contextlib.suppress(OSError):  # among them BlockingIOError, where no request has arrived
            connection.setblocking(False)
            # Bytes that were not taken would let the system reset the connection, and the client would lose the answer.
            if connection.recv(MAX_DISCARDED):
                connection.send(answer)


def _allow_connections(n: int, report: Callable[[str], None]) -> int:
    """Raise the limit of open files as far as connections need it, and return how many connections it allows."""
    try:
        import resource
    except ImportError:  # Windows has no limit
        return n
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= n + RESERVED_FILES:
        return n
    limit = n + RESERVED_FILES if hard == resource.RLIM_INFINITY else min(n + RESERVED_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit < n + RESERVED_FILES:
        n = max(1, limit - RESERVED_FILES)
        report(f"The limit of open files (ulimit -n) is {limit}, so at most {n} connections are open at once.")
    return n


def _end_late_process(server: _Server, is_over: threading.Event) -> None:
    """End the process if it has not stopped in time after a signal, because a computation does not end."""
    # A thread that was started before: a handler of signals must not take locks, and so not start threads.
    while not is_over.wait(0.5):
        if server.end_at is not None and time.monotonic() > server.end_at:
            print("elmokit: a computation did not end in time; stopping without it.", file=sys.stderr, flush=True)
            os._exit(1)


def _listen(config: ServeConfig) -> socket.socket:
    """Open the listening socket, before the model, which takes longer."""
    with contextlib.ExitStack() as on_error:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                config.host, config.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
            )[0]
            # With the protocol given: asyncio turns Nagle's algorithm off only where it knows that a socket is TCP.
            # Otherwise every answer, which uvicorn sends in two pieces, takes 40 ms more (delayed acknowledgment).
            listener = on_error.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no host can have this name"
            raise ConfigError(
                f"Cannot listen on {config.host}, port {config.port}: {reason}. Choose another --port or --host."
            ) from None
        on_error.pop_all()
        return listener


def _read_token(config: ServeConfig) -> str | None:
    """Return the bearer token of the settings or the environment."""
    token, where = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
    if config.token_file is not None:
        where = str(config.token_file)
        try:
            token = read_bounded(config.token_file, MAX_TOKEN_FILE).decode("utf-8").strip()
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
