"""Send requests to ``elmokit serve``'s app: in this process without a server, or over connections."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Answer:
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)

    def message(self) -> str:
        """Return the message of an error."""
        return str(self.json()["error"]["message"])


@dataclass
class Client:
    """Sends each request over a connection of its own."""

    port: int

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, None, headers)

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        """Send a body: bytes as they are, anything else as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", path, content, {"Content-Type": "application/json", **headers})

    def send(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, names, answer.read())
        finally:
            connection.close()


class AppClient(Client):
    """Calls an ASGI app, whose event loop runs in a thread."""

    def __init__(self, app: Any) -> None:
        super().__init__(8000)
        self.app = app
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.run(self._start())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    async def _start(self) -> None:
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.done: asyncio.Queue[Any] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self.lifespan = self.loop.create_task(self.app(scope, self.events.get, self.done.put))
        await self.events.put({"type": "lifespan.startup"})
        assert (await self.done.get())["type"] == "lifespan.startup.complete"

    async def _stop(self) -> None:
        await self.events.put({"type": "lifespan.shutdown"})
        await self.lifespan

    def close(self) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def send(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> Answer:
        answer: Answer = self.run(self._ask(method, path, content or b"", headers))
        return answer

    async def _ask(self, method: str, path: str, content: bytes, headers: dict[str, str]) -> Answer:
        messages = [{"type": "http.request", "body": content, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            if not messages:
                await asyncio.Event().wait()
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        named = {"host": f"127.0.0.1:{self.port}", **{name.lower(): value for name, value in headers.items()}}
        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http"}
        scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "state": {}}
        scope |= {"headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items()]}
        await self.app(scope, receive, send)
        answered = b"".join(message["body"] for message in sent[1:])
        found = {name.decode().lower(): value.decode("latin-1") for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, b"" if method == "HEAD" else answered)


@contextmanager
def asking(app: Any) -> Iterator[AppClient]:
    """Send requests to an ASGI app without a server."""
    client = AppClient(app)
    try:
        yield client
    finally:
        client.close()


def open_connection(port: int, content: bytes = b"") -> socket.socket:
    """Connect to a server on this machine, and send it bytes."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    connection.sendall(content)
    return connection


def read_until_closed(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@contextmanager
def running(app: Any) -> Iterator[Client]:
    """Serve an ASGI app on a free port of this machine."""
    from granian.constants import Interfaces
    from granian.server.embed import Server

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    loop, started, servers = asyncio.new_event_loop(), threading.Event(), []

    async def serve() -> None:
        servers.append(Server(app, port=port, interface=Interfaces.ASGI, websockets=False, log_enabled=False))
        servers[0].on_startup(started.set)
        await servers[0].serve()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(60)
    while True:
        with socket.socket() as connection:
            if not connection.connect_ex(("127.0.0.1", port)):
                break
    try:
        yield Client(port)
    finally:
        loop.call_soon_threadsafe(servers[0].stop)
        thread.join()
        loop.close()
