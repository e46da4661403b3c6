"""The server's processes end when they should, and its connections never stop the service."""

from __future__ import annotations

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
from tests.helpers.server_process import serving

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
