"""``elmokit serve`` as a process of its own, with the real ``openai`` client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("granian")
pytest.importorskip("prometheus_client")

from elmokit import Elmo, SentenceEmbedder
from elmokit.engine.state import unit_vectors
from elmokit.formats.save import save_model
from tests.conftest import random_model
from tests.helpers.server_process import serving
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "4"], "elmokit.serve.app:create_app"),
        (["--port", "70000"], "--port is 70,000; it must be at most 65,535."),
        (["--token-file", "missing"], "Cannot read the token in missing"),
        (["--token-file", "short"], "must have at least 16 printable ASCII characters"),
        (["--host", "256.0.0.1"], "Cannot listen on 256.0.0.1"),
        (["--host", "elmo..example"], "Cannot listen on elmo..example, port 0: this is not a valid host name."),
        (["--unix-socket", "missing/socket"], "Cannot listen on missing/socket: No such file"),
        (["--header-timeout-seconds", "61"], "--header-timeout-seconds is 61"),
        (["--batch-wait-ms", "1e300"], "it must be at most 60,000."),
        (["--index", "missing"], "missing"),
        (["--model", "nothing"], "No model found for 'nothing'"),
    ],
)
def test_a_wrong_setting_is_reported_in_one_line(shell: Shell, options: list[str], message: str) -> None:
    Path("short").write_text("short\n")
    result = shell("serve", "--port", "0", *options)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert message in result.err
