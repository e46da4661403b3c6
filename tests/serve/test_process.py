"""The server's processes end when they should, and its connections never stop the service."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")

from elmokit.formats.save import save_model
from tests.conftest import random_model
from tests.helpers.http_client import open_connection, read_until_closed
from tests.helpers.server_process import Process, serving

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


@pytest.mark.slow
def test_a_computation_that_does_not_end_cannot_keep_the_process_alive(model: Path) -> None:
    with serving(model, "--stop-timeout-seconds", "1", before=HANGING) as server:
        answers = []
        client = threading.Thread(target=lambda: answers.append(server.post("/v1/embeddings", {"input": "the cat"})))
        client.start()
        while "elmokit_queue_requests 1.0" not in server.get("/metrics").content.decode():
            time.sleep(0.01)
        code, printed = server.stop()
        client.join()
    assert [(answer.status, answer.json()["error"]["code"]) for answer in answers] == [(503, "stopping")]
    assert code == 1
    assert printed.endswith("elmokit: a computation did not end in time; stopping without it.\n")
    assert "Traceback" not in printed


STOPPED_AT_ITS_START = """
import uvicorn
run = uvicorn.Server.serve
def serve(server, sockets):
    result = run(server, sockets)  # the coroutine exists, and does not run yet
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    return result
import os, signal, time
uvicorn.Server.serve = serve
"""


@pytest.mark.slow
def test_a_worker_that_is_stopped_while_it_starts_ends_quietly(model: Path) -> None:
    with serving(model, "--workers", "2", before=STOPPED_AT_ITS_START) as server:
        time.sleep(1)
        assert server.stop() == (0, "Stopped.\n")


@pytest.mark.slow
def test_workers_that_die_do_not_prevent_a_clean_stop(model: Path) -> None:
    with serving(model, "--workers", "3") as server:
        first = all_workers(server, 3)
        server.process.send_signal(signal.SIGSTOP)  # until both have ended, so that it sees both at once
        for pid in first[:2]:
            os.kill(pid, signal.SIGKILL)
        while any(map(is_running, first[:2])):
            time.sleep(0.01)
        server.process.send_signal(signal.SIGCONT)
        time.sleep(0.5)  # now it waits before it replaces them, because they died young
        code, printed = server.stop()
        assert (code, printed) == (0, "Stopped.\n")
        assert not any(map(is_running, first))
        with pytest.raises(ConnectionRefusedError):
            server.get("/healthz")


@pytest.mark.slow
def test_the_queue_is_that_of_all_workers_that_run(model: Path) -> None:
    """Whichever of the workers is asked, and without what waited in one that has died."""
    with serving(model, "--workers", "2", before=HANGING) as server:
        workers = all_workers(server, 2)
        body = {"input": "the cat"}
        with contextlib.ExitStack() as clients:
            for _ in range(6):
                client = clients.enter_context(contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)))
                client.request("POST", "/v1/embeddings", json.dumps(body), {"Content-Type": "application/json"})
            assert wait_for_queue(server, 6)
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
            assert wait_for_queue(server, 0)
        server.process.kill()


def wait_for_queue(server: Process, n_requests: int) -> bool:
    """Return whether all workers agree, within 20 seconds, on the number of requests that wait."""
    for _ in range(100):
        with contextlib.suppress(OSError):  # of a worker that has just been killed
            texts = [server.get("/metrics").content.decode() for _ in range(8)]
            if all(f"elmokit_queue_requests {n_requests}.0" in text for text in texts):
                return True
        time.sleep(0.2)
    return False


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(model: Path) -> None:
    with serving(model, "--workers", "2") as server:
        workers = all_workers(server, 2)
        assert server.get("/healthz").status == 200
        server.process.kill()
        server.process.wait(30)
        for _ in range(200):
            if not any(map(is_running, workers)):
                break
            time.sleep(0.05)
        assert not any(map(is_running, workers))
        with pytest.raises(ConnectionRefusedError):
            server.get("/healthz")


def all_workers(server: Process, n: int) -> list[int]:
    """Return the ids of the workers once all are started."""
    for _ in range(200):
        if len(found := server.children()) == n:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{server.children()} are not {n} processes")


def is_running(pid: int) -> bool:
    """Return whether a process runs. One that has ended and that nobody has waited for does not."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip() != "" and not found.stdout.startswith("Z")


HALF_A_REQUEST = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"


Connect = Callable[..., socket.socket]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Opens a connection to a server and sends it bytes. The connections are closed after the test."""
    with contextlib.ExitStack() as connections:

        def connect(server: Process, content: bytes = b"") -> socket.socket:
            return connections.enter_context(open_connection(server.port, content))

        yield connect


def is_closed_while_sending(connection: socket.socket) -> bool:
    """Send a byte from time to time, and return whether the server closes the connection within 20 seconds."""
    for _ in range(200):
        try:
            connection.sendall(b"x")
        except OSError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_a_request_that_never_arrives_does_not_keep_its_connection(model: Path, connect: Connect) -> None:
    with serving(model, "--header-timeout-seconds", "0.5", "--body-timeout-seconds", "0.5") as server:
        whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        silent, half = connect(server), connect(server, HALF_A_REQUEST)
        after_another = connect(server, whole + b"\r\n" + HALF_A_REQUEST)
        # Answered without its body, which then never ends.
        body = connect(server, whole + b"Content-Length: 100\r\n\r\nx")
        assert read_until_closed(silent) == b""
        assert read_until_closed(half).startswith(b"HTTP/1.1 408 ")
        assert body.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        body.sendall(b"x")
        assert read_until_closed(body) == b""
        assert after_another.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        after_another.sendall(b"X: 1\r\n")
        assert read_until_closed(after_another).startswith(b"HTTP/1.1 408 ")
        # A client that sends a little from time to time has no more time.
        assert is_closed_while_sending(connect(server, HALF_A_REQUEST))
        assert server.stop() == (0, "Stopped.\n")


def large_answer(headers: bytes = b"") -> bytes:
    """Return the bytes of a request whose answer does not fit into the buffers of the system."""
    body = json.dumps({"input": [["a"] * 20_000]}).encode()
    head = HALF_A_REQUEST.replace(b"embeddings", b"tokens") + b"Content-Type: application/json\r\n" + headers
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.slow
def test_an_answer_that_a_client_does_not_read_is_not_kept(model: Path, connect: Connect) -> None:
    once, closing = large_answer(), large_answer(b"Connection: close\r\n")
    with serving(model, before="import elmokit.serve.server as s; s.KEEP_ALIVE_SECONDS = 1") as server:
        silent = [connect(server, request) for request in (once, closing, 2 * once)]
        found = [connection.recv(1) for connection in silent]  # when an answer begins, all of it is in memory
        slow, parts = connect(server, closing), [b"x"]
        while parts[-1]:  # reads for more than a second, but always something
            time.sleep(0.02)
            parts.append(slow.recv(1 << 20))
        whole = b"".join(parts)[1:]
        assert whole.endswith(b"}")
        time.sleep(2)
        for number, connection in enumerate(silent):
            with contextlib.suppress(ConnectionResetError):
                found[number] += read_until_closed(connection)
        assert all(len(answer) < len(whole) for answer in found)
        assert server.stop() == (0, "Stopped.\n")


@pytest.mark.slow
def test_what_is_not_http_is_refused_and_logged_in_one_line(model: Path, connect: Connect) -> None:
    chunked = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    upgrade = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    with serving(model) as server:
        refused = read_until_closed(connect(server, b"hello\r\n\r\n"))
        assert refused.startswith(b"HTTP/1.1 400 ")
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
        answered = connect(server, chunked)
        first = answered.recv(1 << 16)
        answered.sendall(b"not a chunk\r\n")
        assert re.findall(rb"HTTP/1.1 \d+", first + read_until_closed(answered)) == [b"HTTP/1.1 404"]
        assert read_until_closed(connect(server, upgrade)).startswith(b"HTTP/1.1 200 ")
        code, printed = server.stop()
    assert (code, printed.splitlines()) == (0, ["WARNING:  Invalid HTTP request received."] * 2 + ["Stopped."])


@pytest.mark.slow
def test_half_sent_requests_do_not_keep_others_out(model: Path, connect: Connect) -> None:
    with serving(model, "--max-connections", "20") as server:
        for _ in range(200):
            connect(server, HALF_A_REQUEST)
        for _ in range(3):
            assert server.post("/v1/embeddings", {"input": "the cat"}).status == 200
        assert server.stop() == (0, "Stopped.\n")


@pytest.mark.slow
def test_headers_that_are_too_large_are_refused(model: Path, connect: Connect) -> None:
    with serving(model) as server:
        whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        large = connect(server, whole + b"X: " + b"x" * 60_000)
        with contextlib.suppress(OSError):  # it may be closed before all is sent
            large.sendall(b"x" * 60_000)
        with contextlib.suppress(ConnectionResetError):
            assert read_until_closed(large).startswith(b"HTTP/1.1 4")
        assert server.get("/healthz").status == 200


@pytest.mark.slow
def test_by_default_the_server_listens_on_a_loopback_address_only(model: Path) -> None:
    with serving(model) as server:
        listening = subprocess.run(
            ["ss", "-Hltn", f"sport = :{server.port}"], capture_output=True, text=True, check=False
        ).stdout.split()
        if not listening:
            pytest.skip("needs ss, which lists sockets")
        assert listening[3] == f"127.0.0.1:{server.port}"


@pytest.mark.slow
def test_a_connection_without_room_is_refused_if_all_others_wait_for_answers(model: Path, connect: Connect) -> None:
    with serving(model, "--max-connections", "2", "--stop-timeout-seconds", "1", before=HANGING) as server:
        body = b'{"input": "a"}'
        request = HALF_A_REQUEST + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        for _ in range(2):
            connect(server, request)
        time.sleep(2)  # asking whether they have been read would take a connection
        refused = server.get("/healthz")
        assert (refused.status, refused.json()["error"]["code"]) == (503, "too_many_connections")
        assert refused.headers["retry-after"] == "1"
        server.process.kill()


@pytest.mark.slow
def test_a_lack_of_files_is_logged_in_one_line(model: Path, connect: Connect) -> None:
    few_files = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))"
    many_reserved = "import elmokit.serve.server as s; s._allow_connections = lambda n, report: n"
    with serving(model, before=f"{few_files}\n{many_reserved}") as server:
        held = [connect(server, HALF_A_REQUEST) for _ in range(300)]
        time.sleep(3)
        for connection in held:
            connection.close()
        assert server.get("/healthz").status == 200
        code, printed = server.stop()
    lines = printed.splitlines()
    assert (code, lines[-1], len(lines)) == (0, "Stopped.", 2)
    assert "refuses to open more (Too many open files)" in lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.2, 0.0])  # a machine that is busy for all of this time
def test_connections_at_the_moment_of_sigterm_are_answered_or_refused(
    model: Path, connect: Connect, seconds: float
) -> None:
    with serving(model, before=f"import elmokit.serve.server as s; s.LAST_READ_SECONDS = {seconds}") as server:
        idle, half = connect(server), connect(server, HALF_A_REQUEST)
        assert server.get("/healthz").status == 200  # the others are accepted
        server.process.send_signal(signal.SIGSTOP)
        # The system establishes these, but the server cannot accept them before it gets the signal.
        whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        waiting = [connect(server, whole) for _ in range(50)]
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGCONT)
        answers = [read_until_closed(connection) for connection in waiting]
        assert all(answer.startswith(b"HTTP/1.1 200 ") and b"connection: close" in answer for answer in answers)
        assert read_until_closed(idle) == b""
        assert read_until_closed(half).startswith(b"HTTP/1.1 503 ")
        _, printed = server.process.communicate(timeout=60)
    assert (server.process.returncode, printed) == (0, "Stopped.\n")


SLOW_TURNS = """
import asyncio, threading, time
turn = asyncio.BaseEventLoop._run_once
def slow_turn(loop):
    time.sleep(0.04)  # as if other processes had their turn first
    turn(loop)
asyncio.BaseEventLoop._run_once = slow_turn
"""


@pytest.mark.slow
def test_many_connections_at_the_moment_of_sigterm_are_answered_on_a_busy_machine(
    model: Path, connect: Connect
) -> None:
    asked = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    asked += b"Content-Length: 16\r\n\r\n" + b'{"input": "cat"}'
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(model, "--stop-timeout-seconds", "1", before=SLOW_TURNS + HANGING) as server:
        server.process.send_signal(signal.SIGSTOP)
        waiting = [connect(server, whole if number % 2 else asked) for number in range(200)]
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGCONT)
        answers = [read_until_closed(connection) for connection in waiting]
        server.process.communicate(timeout=60)  # the computation is ended
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers[1::2])
    refused = [answer for answer in answers[::2] if answer.startswith(b"HTTP/1.1 503 ") and b'"stopping"' in answer]
    assert len(refused) == 100


@pytest.mark.slow
def test_an_answer_that_a_client_still_reads_at_sigterm_is_sent_whole(model: Path, connect: Connect) -> None:
    body = json.dumps({"input": [["a"] * 20_000]}).encode()
    with serving(model) as server:
        request = HALF_A_REQUEST.replace(b"embeddings", b"tokens") + b"Content-Type: application/json\r\n"
        slow = connect(server, request + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = slow.recv(1 << 16)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(1)
        answer += read_until_closed(slow)
        _, printed = server.process.communicate(timeout=60)
    assert (server.process.returncode, printed) == (0, "Stopped.\n")
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert len(content) > 10_000_000
    assert [one["shape"][1] for one in json.loads(content)["data"]] == [20_000]
