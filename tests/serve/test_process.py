"""``elmokit serve`` as a process, and the servers that start several: they answer what they accepted, and end."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("granian")
pytest.importorskip("prometheus_client")

from elmokit.errors import ConfigError
from elmokit.formats.save import save_model
from elmokit.serve.serve_config import ServeConfig
from elmokit.serve.server import _answer, _granian
from tests.conftest import random_model
from tests.helpers.http_client import Client, open_connection, read_until_closed
from tests.helpers.server_process import Process, serving
from tests.helpers.shell import Shell

pytestmark = pytest.mark.slow
TOKEN = "a-token-that-nobody-knows"
TEXTS = ["the cat sat on the mat .", "the dog ran ."]
HALF_A_REQUEST = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HANGING = """
import time
from elmokit.serve.served_model import ServedModel
ServedModel.sentence_vectors = lambda model, sentences: time.sleep(600)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    save_model(random_model(), path)
    return path


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Process]:
    """A server of one process, which closes the connections of slow clients."""
    limits = ("--header-timeout-seconds", "2", "--body-timeout-seconds", "2", "--max-body-mib", "1")
    with serving(model, *limits) as server:
        yield server
        assert server.stop() == (0, "Stopped.\n")


def wait(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("waited for 30 seconds")


def test_accepted_requests_are_answered_after_sigterm(model: Path) -> None:
    with serving(model) as server, ThreadPoolExecutor(50) as pool:
        body = {"input": ["the cat"] * 200}
        answers = [pool.submit(server.post, "/v1/surprisal", body) for _ in range(50)]
        wait(lambda: any(answer.done() for answer in answers))
        wait(lambda: waiting_requests(server) + sum(answer.done() for answer in answers) >= 50)
        assert server.stop() == (0, "Stopped.\n")
        assert [len(answer.result().json()["data"]) for answer in answers] == [200] * 50
        with pytest.raises(ConnectionRefusedError):
            server.get("/healthz")


def waiting_requests(server: Process) -> float:
    (found,) = re.findall(rb"^elmokit_queue_requests (.*)", server.get("/metrics").content, re.MULTILINE)
    return float(found)


def test_a_computation_that_does_not_end_cannot_keep_the_server_alive(model: Path) -> None:
    with (
        serving(model, "--stop-timeout-seconds", "1", before=HANGING) as server,
        open_connection(server.port, request({"input": "the cat"})),
    ):
        wait(lambda: waiting_requests(server) == 1)
        assert server.stop() == (1, "")


def request(body: object) -> bytes:
    content = json.dumps(body).encode()
    return HALF_A_REQUEST + b"Content-Length: %d\r\n\r\n" % len(content) + content


SERVERS = {
    "granian": [
        *("granian", "--interface", "asgi", "--factory", "--workers", "2", "--workers-kill-timeout", "30"),
        "elmokit.serve.app:create_app",
    ],
    "uvicorn": ["uvicorn", "--factory", "--workers", "2", "elmokit.serve.app:create_app"],
    "gunicorn": [
        *("gunicorn", "--worker-class", "uvicorn_worker.UvicornWorker", "--workers", "2"),
        "elmokit.serve.app:create_app()",
    ],
}
"""Commands of docs/how-to/deploy.md that start several processes."""


@pytest.mark.parametrize("name", SERVERS)
def test_other_servers_start_several_processes_that_count_together(model: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    if name == "gunicorn":
        pytest.importorskip("uvicorn_worker")
    port = free_port()
    place = ["--bind", f"127.0.0.1:{port}"] if name == "gunicorn" else ["--port", str(port)]
    variables = {
        "ELMOKIT_SERVE_MODEL": str(model),
        "ELMOKIT_SERVE_TOKEN": TOKEN,
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    program, *options = SERVERS[name]
    command = [sys.executable, "-m", program, *options, *place]
    client, headers = Client(port), {"Authorization": f"Bearer {TOKEN}"}
    with subprocess.Popen(command, env={**os.environ, **variables}) as process:
        try:
            wait(
                lambda: answers(client) and len(list(tmp_path.glob("histogram_*.db"))) == 2
            )  # both have opened the model
            assert client.post("/v1/tokens", {"input": "the cat"}).status == 401
            with ThreadPoolExecutor(8) as pool:
                asked = [{"input": text, "encoding_format": "base64"} for text in TEXTS * 20]
                found = list(pool.map(lambda body: client.post("/v1/tokens", body, **headers), asked))
            assert {answer.status for answer in found} == {200}
            assert len({answer.content for answer in found}) == 2
            counted = client.get("/metrics", **headers).content.decode()
            assert 'elmokit_requests_total{path="/v1/tokens",status="200"} 40.0' in counted
        finally:
            process.terminate()
            assert process.wait(60) == 0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(client: Client) -> bool:
    """Return whether a server answers yet."""
    try:
        return client.get("/readyz").status == 200
    except OSError:
        return False


def test_the_server_listens_on_a_loopback_address_only_and_shares_it_with_none(server: Process, shell: Shell) -> None:
    result = shell("serve", "--port", str(server.port))
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert result.err.startswith(f"elmokit: Cannot listen on 127.0.0.1, port {server.port}: ")
    try:
        others = {found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    except OSError:
        others = set()
    for address in others - {"127.0.0.1"}:
        with socket.socket() as connection:
            assert connection.connect_ex((str(address), server.port)) != 0, address


def test_a_unix_socket_is_answered_and_removed_at_the_end(model: Path, tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))  # as a server that was killed leaves it
    with serving(model, "--unix-socket", str(path)) as server:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert read_until_closed(connection).startswith(b"HTTP/1.1 200 ")
        assert f"Cannot listen on {path}: " in shell("serve", "--model", str(model), "--unix-socket", str(path)).err
        assert server.stop() == (0, "Stopped.\n")
    assert not path.exists()


def test_a_client_that_sends_too_much_or_too_slowly_does_not_keep_its_connection(server: Process) -> None:
    with contextlib.ExitStack() as connections:
        half, body = (
            connections.enter_context(open_connection(server.port, content))
            for content in (HALF_A_REQUEST, HALF_A_REQUEST + b"Content-Length: 99\r\n\r\n{")
        )
        assert server.post("/v1/embeddings", {"input": "the cat"}).status == 200
        assert read_until_closed(half) == b""
        assert body.recv(1 << 16).startswith(b"HTTP/1.1 408 ")
        large = connections.enter_context(open_connection(server.port, HALF_A_REQUEST + b"X: " + b"x" * 100_000))
        with contextlib.suppress(ConnectionResetError):
            assert read_until_closed(large).startswith(b"HTTP/1.1 431 ")
        assert server.post("/v1/embeddings", b" " * (5 << 20)).status == 413
        chunked = connections.enter_context(contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)))
        chunks = (b" " * 100_000 for _ in range(20))
        headers = {"Content-Type": "application/json"}
        chunked.request("POST", "/v1/embeddings", chunks, headers, encode_chunked=True)
        assert chunked.getresponse().status == 413


def test_500_clients_at_once_get_the_answers_of_one(model: Path) -> None:
    with serving(model) as server:
        alone = server.post("/v1/tokens", {"input": "the cat"}).content
        answers: list[bytes] = []
        barrier = threading.Barrier(500)

        def ask() -> None:
            barrier.wait()
            answers.append(server.post("/v1/tokens", {"input": "the cat"}).content)

        clients = [threading.Thread(target=ask) for _ in range(500)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert answers == [alone] * 500


def test_an_address_that_is_taken_while_the_model_is_opened_is_said_in_one_line(tmp_path: Path) -> None:
    async def answer(scope: object, receive: object, send: object) -> None:
        """Answer nothing."""

    reports: list[str] = []
    server = _granian(answer, ServeConfig(), str(tmp_path / "missing" / "socket"))
    with pytest.raises(ConfigError, match=r"^The server cannot listen: No such file or directory[^\n]*$"):
        asyncio.run(_answer(server, lambda: False, lambda: reports.append("Serving"), 1.0))
    assert not reports
