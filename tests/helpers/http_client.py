"""Run ``elmokit serve``'s app in a thread, and send requests to a server."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
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
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", access_log=False, ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield Client(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()
