"""The server's processes end when they should, and its connections never stop the service."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")
pytest.importorskip("nltk")

from elmokit.weights.open import save_model
from tests.conftest import random_model
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
