"""``elmokit serve`` as a process of its own, with the real ``openai`` client."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")

from elmokit import Elmo, SentenceEmbedder
from elmokit.engine.unit_vectors import unit_vectors
from elmokit.formats.save import save_model
from tests.conftest import random_model
from tests.helpers.server_process import Process, serving
from tests.helpers.shell import Shell

TOKEN = "a-token-that-nobody-knows"
TEXTS = ["the cat sat on the mat .", "the dog ran ."]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    save_model(random_model(), path)
    return path


def test_the_openai_client_gets_the_vectors(model: Path) -> None:
    openai = pytest.importorskip("openai")
    expected = unit_vectors(SentenceEmbedder(Elmo.from_pretrained(model)).embed([text.split() for text in TEXTS]))
    with serving(model, ELMOKIT_SERVE_TOKEN=TOKEN) as server:
        address = f"http://127.0.0.1:{server.port}/v1"
        with openai.OpenAI(base_url=address, api_key=TOKEN, max_retries=0) as client:
            found = client.embeddings.create(model="tiny", input=TEXTS)
            assert np.array_equal(np.array([one.embedding for one in found.data], np.float32), expected)
            assert (found.model, found.usage.prompt_tokens) == ("tiny", 11)
            as_floats = client.embeddings.create(model="tiny", input=TEXTS[0], encoding_format="float")
            assert as_floats.data[0].embedding == found.data[0].embedding
            of_tokens = client.embeddings.create(model="tiny", input=[text.split() for text in TEXTS])
            assert [one.embedding for one in of_tokens.data] == [one.embedding for one in found.data]
            assert [one.id for one in client.models.list()] == ["tiny"]
            assert client.models.retrieve("tiny").owned_by == "elmokit"
            with pytest.raises(openai.NotFoundError) as unknown:
                client.embeddings.create(model="text-embedding-3-small", input=TEXTS)
            assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
            with pytest.raises(openai.UnprocessableEntityError, match="Text 0 of input is empty"):
                client.embeddings.create(model="tiny", input="")
        stranger = openai.OpenAI(base_url=address, api_key="wrong", max_retries=0)
        with stranger, pytest.raises(openai.AuthenticationError):
            stranger.models.list()


def test_the_openai_client_tries_again_when_the_queue_is_full(model: Path) -> None:
    openai = pytest.importorskip("openai")
    with serving(model, "--queue-requests", "1", "--batch-wait-ms", "200") as server:
        address = f"http://127.0.0.1:{server.port}/v1"
        client = openai.OpenAI(base_url=address, api_key="none", max_retries=9)
        with client, ThreadPoolExecutor(3) as pool:
            answers = pool.map(lambda text: client.embeddings.create(model="tiny", input=text), ["a", "b", "c"])
            assert [answer.usage.prompt_tokens for answer in answers] == [1, 1, 1]
        assert 'status="429"' in server.get("/metrics").content.decode()


class Clients:
    """Clients that send one request after another."""

    def __init__(self, server: Process, n: int) -> None:
        self.server, self.outcomes, self.is_over = server, list[Any](), threading.Event()
        self.threads = [threading.Thread(target=self.send, args=(number,)) for number in range(n)]
        for thread in self.threads:
            thread.start()

    def send(self, number: int) -> None:
        while not self.is_over.is_set():
            try:
                answer = self.server.post("/v1/surprisal", {"input": [f"the cat {number}"] * 200})
                self.outcomes.append(answer.status if len(answer.json()["data"]) == 200 else answer.content)
            except Exception as error:
                self.outcomes.append(error)

    def join(self) -> None:
        for thread in self.threads:
            thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--drain-seconds", "0.5"), ("--workers", "2")])
def test_accepted_requests_are_answered_after_sigterm(model: Path, options: tuple[str, ...]) -> None:
    with serving(model, *options) as server:
        clients = Clients(server, 8)
        while len(clients.outcomes) < 16:
            time.sleep(0.01)
        # A connection that the server has not accepted when it stops is reset, so no new ones from here on.
        clients.is_over.set()
        time.sleep(0.05)
        n_before = len(clients.outcomes)
        code, printed = server.stop()
        clients.join()
    assert (code, printed) == (0, "Stopped.\n")
    assert len(clients.outcomes) > n_before
    assert set(clients.outcomes) == {200}


@pytest.mark.slow
def test_a_stopping_server_is_not_ready_and_closes_connections(model: Path) -> None:
    with serving(model, "--drain-seconds", "30") as server:
        assert server.get("/readyz").status == 200
        assert "connection" not in server.get("/healthz").headers
        server.process.send_signal(signal.SIGTERM)
        while server.get("/readyz").status == 200:
            time.sleep(0.01)
        assert server.get("/readyz").status == 503
        answer = server.post("/v1/embeddings", {"input": "the cat"})
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        code, _ = server.stop()  # the second signal does not wait
    assert code == 0


@pytest.mark.slow
def test_workers_share_the_weights_and_are_replaced(model: Path) -> None:
    with serving(model, "--workers", "2") as server:
        while len(first := server.children()) < 2:
            time.sleep(0.05)
        with ThreadPoolExecutor(8) as pool:
            bodies = [{"input": text, "encoding_format": "base64"} for text in TEXTS * 20]
            answers = [answer.content for answer in pool.map(lambda body: server.post("/v1/tokens", body), bodies)]
        assert len(set(answers)) == 2
        # Both processes count in the same metrics.
        assert 'elmokit_requests_total{path="/v1/tokens",status="200"} 40.0' in server.get("/metrics").content.decode()
        os.kill(first[0], signal.SIGKILL)
        while len(server.children()) < 2 or first[0] in server.children():
            time.sleep(0.05)
        assert server.post("/v1/tokens", bodies[0]).content == answers[0]
        code, _ = server.stop()
    assert code == 0


@pytest.mark.slow
def test_weights_are_in_memory_once(tmp_path: Path) -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("needs Linux")
    from elmokit.engine.config import BiLMConfig

    save_model(random_model(BiLMConfig(hidden_dim=2048, projection_dim=256)), tmp_path / "tiny")
    n_bytes = (tmp_path / "tiny" / "model.safetensors").stat().st_size
    assert n_bytes > 60 << 20
    with serving(tmp_path / "tiny", "--workers", "2") as server:
        while len(server.children()) < 2:
            time.sleep(0.05)
        for _ in range(10):
            assert server.post("/v1/tokens", {"input": "the cat", "layers": "top"}).status == 200
        private = [
            int(re.search(r"Private_Dirty: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text())[1]) << 10  # type: ignore[index]
            for pid in server.children()
        ]
    assert max(private) < n_bytes


@pytest.mark.slow
def test_a_port_that_is_taken_is_reported_in_one_line(model: Path, shell: Shell) -> None:
    with serving(model) as server:
        result = shell("serve", "--model", str(model), "--port", str(server.port))
    assert result.code == 2
    assert result.err.startswith(f"elmokit: Cannot listen on 127.0.0.1, port {server.port}: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "0"], "--workers is 0; it must be a whole number of at least 1."),
        (["--port", "70000"], "--port is 70,000. It can be at most 65,535."),
        (["--token-file", "missing"], "Cannot read the token in missing"),
        (["--token-file", "short"], "must have at least 16 printable ASCII characters"),
        (["--host", "256.0.0.1"], "Cannot listen on 256.0.0.1"),
        (["--host", "elmo..example"], "Cannot listen on elmo..example, port 0: no host can have this name."),
        (["--batch-wait-ms", "1e300"], "It can be at most 60,000."),
        (["--index", "missing"], "missing"),
        (["--model", "nothing"], "No model found for 'nothing'"),
    ],
)
def test_a_wrong_setting_is_reported_in_one_line(shell: Shell, options: list[str], message: str) -> None:
    Path("short").write_text("short\n")
    result = shell("serve", "--port", "0", *options)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert message in result.err


@pytest.mark.slow
def test_answers_are_not_delayed_by_nagles_algorithm(model: Path) -> None:
    with serving(model) as server:
        seconds = []
        for _ in range(20):
            started = time.perf_counter()
            server.get("/healthz")
            seconds.append(time.perf_counter() - started)
    # A delayed acknowledgment takes 40 ms.
    assert min(seconds) < 0.03
