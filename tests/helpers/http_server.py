"""An HTTP server on this machine whose answers a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TypeVar

BODY = bytes(range(256)) * 1000
MAX_REQUESTS = 50
Answer = Callable[["Handler"], None]
AnyServer = TypeVar("AnyServer", bound=ThreadingHTTPServer)


class Handler(BaseHTTPRequestHandler):
    """Answers each path with the function that a test set for it; never more than ``MAX_REQUESTS``."""

    answers: dict[str, Answer]
    seen: list[tuple[str, str | None]]  # path and Range of each request
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Range")))
        if len(self.seen) > MAX_REQUESTS:
            raise AssertionError("too many requests")
        self.answers.get(self.path, lambda handler: handler.send_error(404))(self)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""

    def give(
        self, body: bytes = BODY, length: int | None = None, status: int = 200, with_length: bool = True, **headers: str
    ) -> None:
        self.send_response(status)
        if with_length:
            self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def served(server: AnyServer) -> Iterator[AnyServer]:
    """Let a server answer requests in a thread."""
    with server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.seen: list[tuple[str, str | None]] = []
        handler = type("TestHandler", (Handler,), {"answers": self.answers, "seen": self.seen})
        super().__init__(("127.0.0.1", 0), handler)

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of the tests."""
