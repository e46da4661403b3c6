"""The server answers as the library computes, and survives every bad request."""

from __future__ import annotations

import base64
import http.client
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("granian")

from elmokit import Elmo, LanguageModel, SentenceEmbedder
from elmokit.engine.state import unit_vectors
from elmokit.evaluation.neighbors import Neighbors
from elmokit.formats.tf_hub import MIX
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.serve.app import PAGE_FILES, application
from elmokit.serve.examples import EXAMPLES, SENTENCES
from elmokit.serve.serve_config import ServeConfig
from elmokit.serve.served_model import ServedModel
from tests.conftest import random_model
from tests.helpers.http_client import AppClient, Client, asking, running

TEXTS = ["the cat sat on the mat .", "the dog ran .", "a"]
TOKENS = [text.split() for text in TEXTS]
TOKEN = "a-token-that-nobody-knows"


def served(model: PretrainedBiLM | None = None, **settings: Any) -> ServedModel:
    return ServedModel(Elmo(model or random_model()), ServeConfig(name="tiny", **settings))


@pytest.fixture(scope="module")
def model() -> ServedModel:
    return served()


def test_every_number_starts_from_the_chosen_state() -> None:
    elmo = Elmo(random_model(), start="zero")
    served_model = ServedModel(elmo, ServeConfig(name="tiny"))
    lm = LanguageModel(elmo.model, start="zero")
    ((surprisal,),) = served_model.surprisals([TOKENS[:1]])
    (expected,) = lm.surprisal(TOKENS[:1])
    np.testing.assert_array_equal(surprisal.nats, expected.nats)
    (vectors,) = served_model.token_vectors("top")([TOKENS[:1]])
    np.testing.assert_array_equal(vectors, elmo.embed(TOKENS[:1], layers="top")[0])


@pytest.fixture(scope="module")
def client(model: ServedModel) -> Iterator[AppClient]:
    config = ServeConfig(max_texts=100, max_text_characters=2000, max_request_tokens=1000, max_body_mib=1)
    with asking(application(model, config)) as client:
        yield client


def decoded(text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), "<f4")


def test_embeddings_are_those_of_the_sentence_embedder(client: Client, model: ServedModel) -> None:
    expected = unit_vectors(SentenceEmbedder(model.elmo).embed(TOKENS))
    answer = client.post("/v1/embeddings", {"input": TEXTS, "model": "tiny", "encoding_format": "base64"}).json()
    assert np.array_equal([decoded(one["embedding"]) for one in answer["data"]], expected)
    assert [one["index"] for one in answer["data"]] == [0, 1, 2]
    assert answer["usage"] == {"prompt_tokens": 12, "total_tokens": 12}
    as_numbers = client.post("/v1/embeddings", {"input": TOKENS}).json()
    assert np.array_equal(np.array([one["embedding"] for one in as_numbers["data"]], np.float32), expected)
    # Some clients of the OpenAI API send null for what their user has not chosen.
    unchosen = {"encoding_format": None, "dimensions": None, "user": None, "model": None}
    (single,) = client.post("/v1/embeddings", {"input": TEXTS[0], **unchosen}).json()["data"]
    assert single == as_numbers["data"][0]


def test_dimensions_keep_the_first_ones_of_whitened_vectors() -> None:
    elmo = Elmo(random_model())
    SentenceEmbedder(elmo).fit([sentence.split() for sentence in SENTENCES], 8)
    with asking(application(ServedModel(elmo, ServeConfig()), ServeConfig())) as client:
        (whole,) = client.post("/v1/embeddings", {"input": "the cat"}).json()["data"]
        (part,) = client.post("/v1/embeddings", {"input": "the cat", "dimensions": 3}).json()["data"]
        unit = np.array(whole["embedding"][:3]) / np.linalg.norm(whole["embedding"][:3])
        assert np.allclose(part["embedding"], unit, atol=1e-6)
        too_many = client.post("/v1/embeddings", {"input": "the cat", "dimensions": 9})
        assert (too_many.status, "dimensions is 9" in too_many.message()) == (422, True)


@pytest.mark.parametrize("layers", ["all", "top", "average", 0, 1, [0, 2]])
def test_token_vectors_are_those_of_elmo(client: Client, model: ServedModel, layers: Any) -> None:
    expected = model.elmo.embed(TOKENS, layers=layers)
    body = {"input": TEXTS, "layers": layers, "encoding_format": "base64"}
    answer = client.post("/v1/tokens", body).json()
    for one, array, tokens in zip(answer["data"], expected, TOKENS, strict=True):
        assert one["tokens"] == tokens
        assert np.array_equal(decoded(one["vectors"]).reshape(one["shape"]), array)
    in_numbers = client.post("/v1/tokens", {**body, "encoding_format": "float"}).json()
    assert np.array_equal(np.array(in_numbers["data"][0]["vectors"], np.float32), expected[0])


def test_token_vectors_as_an_arrow_stream(client: Client, model: ServedModel) -> None:
    pa = pytest.importorskip("pyarrow")
    media_type = "application/vnd.apache.arrow.stream"
    answer = client.post("/v1/tokens", {"input": TEXTS}, Accept=f"{media_type}, application/json;q=0.5")
    assert answer.headers["content-type"] == media_type
    rows = pa.ipc.open_stream(answer.content).read_all().to_pylist()
    for row, array, tokens in zip(rows, model.elmo.embed(TOKENS), TOKENS, strict=True):
        assert row["tokens"] == tokens
        assert np.array_equal(np.array(row["vectors"], np.float32).reshape(row["shape"]), array)


def test_the_models_own_mix_is_used() -> None:
    bilm = random_model()
    bilm.card[MIX] = {"weights": [0.0, 1.0, -1.0], "gamma": 2.0}
    served_model = served(bilm)
    with asking(application(served_model, ServeConfig())) as client:
        body = {"input": "the cat", "layers": "mix", "encoding_format": "base64"}
        (one,) = client.post("/v1/tokens", body).json()["data"]
        (facts,) = client.get("/v1/models").json()["data"]
    (layers,) = served_model.elmo.embed([["the", "cat"]])
    weights = np.exp([0.0, 1.0, -1.0]) / np.exp([0.0, 1.0, -1.0]).sum()
    assert np.allclose(decoded(one["vectors"]).reshape(2, -1), 2 * np.tensordot(weights, layers, 1), atol=1e-5)
    assert np.allclose(facts["mix"]["weights"], weights)
    assert facts["mix"]["gamma"] == 2.0


def test_the_same_sentence_has_the_same_vectors_whatever_it_is_computed_with(client: Client) -> None:
    rng = np.random.default_rng(0)
    sentences = [list(rng.choice(["the", "cat", "sat", "mat", "."], size=rng.integers(1, 30))) for _ in range(60)]

    def ask(sentence: list[str]) -> str:
        body = {"input": [sentence], "encoding_format": "base64"}
        return str(client.post("/v1/tokens", body).json()["data"][0]["vectors"])

    alone = [ask(sentence) for sentence in sentences]
    with ThreadPoolExecutor(30) as pool:
        assert list(pool.map(ask, sentences)) == alone


def test_surprisal_is_that_of_the_language_model(client: Client, model: ServedModel) -> None:
    language_model = LanguageModel(model.elmo.model)
    answer = client.post("/v1/surprisal", {"input": TEXTS, "n_expected": 2}).json()
    for one, found in zip(answer["data"], language_model.surprisal(TOKENS), strict=True):
        assert one["tokens"] == found.tokens[1:-1]
        assert np.allclose([one["forward"], one["backward"]], found.nats[:, 1:-1])
        assert np.allclose(one["both"], found.nats[:, 1:-1].mean(axis=0))
        assert np.allclose([one["total"]["forward"], one["total"]["backward"]], found.total_nats)
        assert one["is_unknown"] == found.is_unknown[1:-1].tolist()
    for direction in ("forward", "backward", "both"):
        at_cat = answer["data"][0]["expected"][direction][1]
        words = language_model.substitutes(TOKENS[0], 1, direction, 2)  # type: ignore[arg-type]
        assert [one["word"] for one in at_cat] == [one.word for one in words]
        assert np.allclose([one["probability"] for one in at_cat], [one.probability for one in words])
    assert "expected" not in client.post("/v1/surprisal", {"input": TEXTS}).json()["data"][0]


DOCUMENT = [TOKENS[0], TOKENS[2], TOKENS[1]]


def test_a_document_has_the_same_vectors_whatever_it_is_computed_with(client: Client, model: ServedModel) -> None:
    body = {"input": [DOCUMENT, TOKENS[1]], "encoding_format": "base64"}
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(client.post, "/v1/tokens", {**body, "documents": documents}) for documents in [True, False] * 8
        ]
    answers = [answer.result().json()["data"] for answer in asked]
    expected = [np.concatenate(arrays, axis=1) for arrays in model.elmo.embed_documents([DOCUMENT, TOKENS[1:2]])]
    for answer in answers[::2]:
        for one, array in zip(answer, expected, strict=True):
            assert np.array_equal(decoded(one["vectors"]).reshape(one["shape"]), array)
    (alone, single) = answers[1]
    assert alone["sentence_lengths"] == list(map(len, DOCUMENT))
    assert not np.array_equal(decoded(alone["vectors"]), expected[0].ravel())
    assert np.array_equal(decoded(single["vectors"]), expected[1].ravel())


def test_a_document_is_predicted_and_searched_from_sentence_to_sentence(client: Client, model: ServedModel) -> None:
    lm = LanguageModel(model.elmo.model)
    body = {"input": [DOCUMENT], "documents": True, "n_expected": 3}
    (one,) = client.post("/v1/surprisal", body).json()["data"]
    (scored,) = lm.surprisal_documents([DOCUMENT])
    inner = np.concatenate([sentence.nats[:, 1:-1] for sentence in scored], axis=1)
    assert np.allclose([one["forward"], one["backward"]], inner)
    position = sum(map(len, DOCUMENT[:2])) + 1
    asked = {"sentence": DOCUMENT, "position": position, "documents": True, "n": 3}
    words = [one.word for one in lm.substitutes(DOCUMENT[2], 1, n=3, before=DOCUMENT[:2])]
    substitutes = client.post("/v1/substitutes", asked).json()["both"]
    for found in (substitutes, one["expected"]["both"][position]):
        assert [one["word"] for one in found] == words
    (vectors,) = model.elmo.embed_documents([DOCUMENT])
    searches = model.index.searches(vectors[2], DOCUMENT[2], 1, None, 3, "any", 1)
    expected = Neighbors.from_layers(DOCUMENT[2], 1, {layer: search() for layer, search in searches.items()}).to_dict()
    assert client.post("/v1/neighbors", asked).json()["layers"] == expected["layers"]


def test_the_words_of_a_document_are_expected_again(client: Client, model: ServedModel) -> None:
    lm = LanguageModel(model.elmo.model)
    document = [["the", "zebra", "sat"], ["the", "zebra", "and", "a", "gnu"]]
    reading = {"documents": True, "cache": True}
    (one,) = client.post("/v1/surprisal", {"input": [document], **reading, "n_expected": 50}).json()["data"]
    (scored,) = lm.surprisal_documents([document], cache=True)
    nats = np.concatenate([sentence.nats[:, 1:-1] for sentence in scored], axis=1)
    assert np.allclose([one["forward"], one["backward"]], nats)
    spelling = np.concatenate([sentence.spelling_nats[1:-1] for sentence in scored])  # type: ignore[index]
    assert np.allclose(one["spelling_nats"], spelling)
    assert one["spelling_nats"][1] > 0
    assert one["spelling_nats"][4] == 0
    asked = {"sentence": document, "position": 4, **reading, "n": 40}
    words = [one.word for one in lm.substitutes(document[1], 1, n=40, before=document[:1], cache=True)]
    assert "zebra" in words
    assert [one["word"] for one in client.post("/v1/substitutes", asked).json()["both"]] == words
    assert [one["word"] for one in one["expected"]["both"][4]][:40] == words


def test_words_have_their_places_in_the_text_and_the_sums_of_their_tokens(client: Client, model: ServedModel) -> None:
    text = "The cat didn't sit (on the mat). A dog ran."
    rows = LanguageModel(model.elmo.model).word_surprisal([text], documents=True)
    (one,) = client.post("/v1/surprisal", {"input": text, "documents": True, "words": True}).json()["data"]
    assert [row["word"] for row in one["words"]] == text.split()
    for found, row in zip(one["words"], rows, strict=True):
        assert found == {name: pytest.approx(getattr(row, name)) for name in found}
        assert text[found["start"] : found["stop"]] == found["word"]
    assert sum(row["n_tokens"] for row in one["words"]) == len(one["tokens"])


def test_substitutes_are_those_of_the_language_model(client: Client, model: ServedModel) -> None:
    answer = client.post("/v1/substitutes", {"sentence": TOKENS[0], "position": 2, "n": 3}).json()
    assert (answer["token"], answer["tokens"]) == ("sat", TOKENS[0])
    for direction in ("forward", "backward", "both"):
        words = LanguageModel(model.elmo.model).substitutes(TOKENS[0], 2, direction, 3)  # type: ignore[arg-type]
        assert [one["word"] for one in answer[direction]] == [one.word for one in words]


def test_neighbors_are_those_of_the_index(client: Client, model: ServedModel) -> None:
    answer = client.post("/v1/neighbors", {"sentence": "the river bank", "position": 2, "n": 4}).json()
    expected = model.index.neighbors(model.elmo, ["the", "river", "bank"], 2, n_neighbors=4).to_dict()
    assert answer["layers"] == expected["layers"]
    assert answer["context_free"] == expected["context_free"]
    assert answer["index"] == "example sentences"


def test_models_and_examples_are_listed(client: Client) -> None:
    (listed,) = client.get("/v1/models").json()["data"]
    assert listed == client.get("/v1/models/tiny").json()
    assert (listed["id"], listed["n_layers"], listed["directions"]) == ("tiny", 3, ["forward", "backward"])
    assert listed["index"]["n_sentences"] == len(SENTENCES)
    examples = client.get("/v1/examples").json()
    assert examples["senses"] == EXAMPLES["senses"]
    for word, senses in EXAMPLES["senses"].items():
        assert all(word in sentence.split() for sense in senses for sentence in sense)
    assert all(example["position"] < len(example["text"].split()) for example in examples["sentences"])


BAD: list[tuple[str, Any, int, str]] = [
    ("embeddings", {"input": ""}, 422, "Text 0 of input"),
    ("tokens", {"input": ["the", "  "]}, 422, "Text 1 of input"),
    ("tokens", {"input": [[]]}, 422, "Text 0 of input"),
    ("tokens", {"input": []}, 422, "input"),
    ("embeddings", {"input": "a " * 5000}, 422, "--max-text-characters"),
    ("tokens", {"input": [["a" * 100_000]]}, 422, "100,001 characters"),
    ("embeddings", {"input": ["a"] * 101}, 422, "--max-texts"),
    ("embeddings", {"input": ["a " * 900] * 2}, 422, "--max-request-tokens"),
    ("embeddings", {"input": "a " * 600_000}, 413, "--max-body-mib"),
    ("embeddings", b'{"input": "\xff"}', 400, "UTF-8"),
    (
        "embeddings",
        b'{"input": ["a", "smile \\ud83d"]}',
        422,
        "character 6 of text 1 is half of a surrogate pair (\\ud83d)",
    ),
    ("embeddings", b'{"input": ', 400, "JSON"),
    ("embeddings", b"[" * 100_000 + b"]" * 100_000, 400, "recursion"),
    ("substitutes", b'{"sentence": "a", "position": 1' + b"0" * 5000 + b"}", 400, "digits"),
    ("embeddings", b"", 422, "JSON object"),
    ("embeddings", [1], 422, "JSON object"),
    ("embeddings", {}, 422, "input"),
    ("embeddings", {"input": [1, 2]}, 422, "words, not ids"),
    ("embeddings", {"input": [["a", 2]]}, 422, "text 0"),
    ("embeddings", {"input": {}}, 422, "input"),
    ("tokens", {"input": "a", "layer": 1}, 422, "layer: This request has no such field"),
    ("embeddings", {"input": "a", "model": "gpt"}, 404, "'tiny'"),
    ("tokens", {"input": "a", "layers": 9}, 422, "Layer 9"),
    ("tokens", {"input": "a", "layers": []}, 422, "layers"),
    ("tokens", {"input": "a", "layers": True}, 422, "layers"),
    ("tokens", {"input": "a", "layers": "mix"}, 422, "mix"),
    ("neighbors", {"sentence": "a", "position": 0, "layers": ["1"]}, 422, "layers"),
    ("tokens", {"input": "a", **{f"a{n}": 0 for n in range(50_000)}}, 422, "50,001 fields"),
    ("embeddings", {"input": "a", "encoding_format": "hex"}, 422, "encoding_format"),
    ("embeddings", {"input": "a", "dimensions": 0}, 422, "dimensions"),
    ("embeddings", {"input": "a", "dimensions": 2}, 422, "not whitened"),
    ("substitutes", {"sentence": "a b", "position": 2}, 422, "position"),
    ("neighbors", {"sentence": "a b", "position": -1}, 422, "position"),
    ("neighbors", {"sentence": "a b", "position": "1"}, 422, "position"),
    ("neighbors", {"sentence": "a", "position": 0, "layers": [0]}, 422, "layer 0"),
    ("surprisal", {"input": "a", "n_expected": 51}, 422, "n_expected"),
    ("surprisal", {"input": [["a"]], "words": True}, 422, "raw texts"),
    ("surprisal", {"input": "a", "cache": True}, 422, "documents: true"),
    ("substitutes", {"sentence": "a", "position": 0, "cache": True}, 422, "documents: true"),
    ("tokens", {"input": [[["a"], []]]}, 422, "has an empty sentence"),
    ("tokens", {"input": "a", "documents": 1}, 422, "documents"),
]
"""The path and the body of a request, the status of its answer, and what the message mentions."""


@pytest.mark.parametrize(("path", "body", "status", "mentioned"), BAD, ids=range(len(BAD)))
def test_a_bad_request_has_a_clear_answer_and_the_next_is_served(
    client: Client, path: str, body: Any, status: int, mentioned: str
) -> None:
    answer = client.post(f"/v1/{path}", body)
    assert answer.status == status, answer.content
    assert mentioned in answer.message()
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert client.post("/v1/embeddings", {"input": "the cat"}).status == 200


def test_a_path_has_its_methods_and_head_wherever_there_is_get(client: Client) -> None:
    for path in (*PAGE_FILES, "/openapi.json", "/healthz", "/v1/examples", "/v1/models/tiny"):
        get, head = client.get(path), client.send("HEAD", path, None, {})
        assert (get.status, head.status, head.headers) == (200, 200, get.headers), path
    refused = {path: client.get(path).status for path in ("/v2/embeddings", "/v1/embeddings", "/../../etc/passwd")}
    assert list(refused.values()) == [404, 405, 404]
    assert set(client.post("/healthz", {}).headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_a_body_that_is_not_declared_as_json_is_refused(client: Client) -> None:
    # A web page of another site can send such a request without asking.
    answer = client.post("/v1/embeddings", {"input": "the cat"}, **{"Content-Type": "text/plain"})
    assert (answer.status, "Content-Type: application/json" in answer.message()) == (422, True)


class Slow:
    """Makes a method wait."""

    def __init__(self, owner: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_compute, self.is_computing, self.n_calls = threading.Event(), threading.Event(), 0
        original = getattr(owner, name)

        def compute(*arguments: Any) -> Any:
            self.n_calls += 1
            self.is_computing.set()
            assert self.may_compute.wait(30)
            return original(*arguments)

        monkeypatch.setattr(owner, name, compute)


@pytest.fixture
def slow_model(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(model, "sentence_vectors", monkeypatch)


@pytest.fixture
def slow_search(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(model.index, "_nearest", monkeypatch)


def test_a_request_that_takes_too_long_is_answered_with_503(model: ServedModel, slow_model: Slow) -> None:
    with asking(application(model, ServeConfig(timeout_seconds=0.1))) as client:
        late = client.post("/v1/embeddings", {"input": "the cat"})
        assert (late.status, late.json()["error"]["code"]) == (503, "timeout")
        slow_model.may_compute.set()
        wait_until_answered(client)


def test_a_request_is_dropped_if_its_client_leaves(model: ServedModel, slow_model: Slow) -> None:
    with running(application(model, ServeConfig())) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, "/v1/embeddings", {"input": "the cat"})
        assert slow_model.is_computing.wait(10)
        leaving = http.client.HTTPConnection("127.0.0.1", client.port)
        leaving.request("POST", "/v1/tokens", b'{"input": "a"}', {"Content-Type": "application/json"})
        wait_for(client, "elmokit_queue_requests 2.0")
        leaving.close()
        wait_for(client, 'elmokit_requests_dropped_total{path="/v1/tokens"} 1.0')
        assert "elmokit_queue_requests 1.0" in client.get("/metrics").content.decode()
        slow_model.may_compute.set()
        assert first.result().status == 200


SEARCH = {"sentence": "the cat", "position": 1}


def test_searches_do_not_hold_up_other_requests(model: ServedModel, slow_search: Slow) -> None:
    with asking(application(model, ServeConfig())) as client, ThreadPoolExecutor(8) as pool:
        searches = [pool.submit(client.post, "/v1/neighbors", SEARCH) for _ in range(8)]
        assert slow_search.is_computing.wait(10)
        # Long enough to be split into tokens in a thread.
        assert client.post("/v1/tokens", {"input": "the cat " * 500, "layers": "top"}).status == 200
        slow_search.may_compute.set()
        assert {search.result().status for search in searches} == {200}


def test_health_says_when_no_request_is_answered(model: ServedModel, slow_model: Slow) -> None:
    with asking(application(model, ServeConfig(timeout_seconds=0.5))) as client:
        assert client.get("/healthz").status == 200
        assert client.post("/v1/embeddings", {"input": "the cat"}).status == 503
        while (sick := client.get("/healthz")).status == 200:
            time.sleep(0.01)  # the computation started after the request
        assert sick.status == 503
        assert re.fullmatch(rb"no answer for \d+ seconds\n", sick.content)
        slow_model.may_compute.set()
        wait_until_answered(client)
        assert client.get("/healthz").status == 200


def wait_until_answered(client: Client) -> None:
    """Ask until an answer is in time, which on a busy machine the first one may not be."""
    while client.post("/v1/embeddings", {"input": "the cat"}).status != 200:
        time.sleep(0.01)


def wait_for(client: Client, line: str) -> None:
    """Wait until the metrics have a line."""
    for _ in range(500):
        if line in client.get("/metrics").content.decode():
            return
        time.sleep(0.01)
    raise AssertionError(client.get("/metrics").content.decode())


def test_an_unexpected_error_shows_no_stack_trace(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(sentences: Any) -> Any:
        raise RuntimeError("secret detail")

    with asking(application(model, ServeConfig())) as client:
        with monkeypatch.context() as patch:
            patch.setattr(model, "sentence_vectors", broken)
            answer = client.post("/v1/embeddings", {"input": "the cat"})
        assert answer.status == 500
        assert b"secret" not in answer.content
        assert b"Traceback" not in answer.content
        assert client.post("/v1/embeddings", {"input": "the cat"}).status == 200
    assert "secret detail" in caplog.text


def test_a_token_protects_everything_but_the_page_and_health(model: ServedModel) -> None:
    with asking(application(model, ServeConfig(), TOKEN)) as client:
        right = {"Authorization": f"Bearer {TOKEN}"}
        for wrong in (
            {},
            {"Authorization": "Bearer x"},
            {"Authorization": TOKEN},
            {"Authorization": f"Basic {TOKEN}"},
            {"Authorization": f"Bearer {TOKEN}x"},
        ):
            refused = client.post("/v1/embeddings", {"input": "the cat"}, **wrong)
            assert (refused.status, refused.json()["error"]["code"]) == (401, "invalid_api_key")
            assert refused.headers["www-authenticate"] == "Bearer"
        assert client.get("/v1/models").status == client.get("/metrics").status == 401
        assert client.get("/v1/../v1/models").status == 401
        for scheme in ("Bearer", "bearer"):  # the name of a scheme has no case (RFC 7235)
            given = {"Authorization": f"{scheme} {TOKEN}"}
            assert client.post("/v1/embeddings", {"input": "the cat"}, **given).status == 200
        assert client.get("/metrics", **right).status == 200
        assert {client.get(path).status for path in ("/", "/openapi.json", "/healthz", "/readyz")} == {200}


@pytest.mark.parametrize("path", ["/", "/v1/models", "/v1/examples", "/metrics", "/openapi.json", "/nothing"])
def test_a_name_that_was_made_to_lead_here_is_refused(client: Client, path: str) -> None:
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "", "[::1]x"):
        refused = client.get(path, Host=host)
        assert (refused.status, refused.json()["error"]["code"]) == (421, "host_not_allowed"), host
    for host in ("localhost", f"LocalHost:{client.port}", "localhost.", "127.0.0.1:1", "[::1]", f"[::1]:{client.port}"):
        assert client.get(path, Host=host).status == (404 if path == "/nothing" else 200), host
    assert client.post("/v1/neighbors", SEARCH, Host="evil.example").status == 421
    assert client.get("/healthz", Host="10.0.0.7:8000").status == 200  # a load balancer asks by any name


def test_named_hosts_are_accepted(model: ServedModel) -> None:
    config = ServeConfig(allowed_hosts=("elmo.example.org", "[fe80::1]"))
    with asking(application(model, config)) as client:
        hosts = ("elmo.example.org", "ELMO.example.org:443", "[fe80::1]:80", "localhost")
        assert {client.get("/v1/models", Host=host).status for host in hosts} == {200}
        assert client.get("/v1/models", Host="www.elmo.example.org").status == 421


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"localhost", "127.0.0.1", "[::1]"}),
        ({"host": "::1"}, {"localhost", "127.0.0.1", "[::1]"}),
        ({"host": "127.1"}, {"localhost", "127.0.0.1", "[::1]", "127.1"}),
        ({"host": "::ffff:127.0.0.1"}, {"localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"}),
        ({"host": "localhost"}, {"localhost", "127.0.0.1", "[::1]"}),
        ({"host": "127.0.0.9"}, {"localhost", "127.0.0.1", "[::1]", "127.0.0.9"}),
        ({"host": "0.0.0.0"}, None),
        ({"host": "0.0.0.0", "allowed_hosts": ("A.org",)}, {"localhost", "127.0.0.1", "[::1]", "0.0.0.0", "a.org"}),
        ({"allowed_hosts": ("*",)}, None),
    ],
)
def test_the_hosts_that_are_accepted_depend_on_the_address(settings: Any, expected: set[str] | None) -> None:
    assert ServeConfig(**settings).accepted_hosts == expected


def test_other_sites_may_not_use_the_server_unless_they_are_named(client: Client, model: ServedModel) -> None:
    origin = {"Origin": "https://example.org"}
    headers = "authorization,content-type,x-stainless-lang"  # as the openai client sends them
    ask = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": headers}
    assert "access-control-allow-origin" not in client.post("/v1/embeddings", {"input": "a"}, **origin).headers
    assert client.send("OPTIONS", "/v1/embeddings", None, ask).status == 405
    config = ServeConfig(cors_origins=("https://example.org",))
    with asking(application(model, config, TOKEN)) as open_client:
        allowed = open_client.send("OPTIONS", "/v1/embeddings", None, ask)
        assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, "https://example.org")
        assert "x-stainless-lang" in allowed.headers["access-control-allow-headers"]
        # An error can be read by the page, too.
        refused = open_client.post("/v1/embeddings", {"input": "a"}, **origin)
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, "https://example.org")
        assert refused.headers["access-control-expose-headers"] == "Retry-After"
        other = open_client.post("/v1/embeddings", {"input": "a"}, Origin="https://example.com")
        assert "access-control-allow-origin" not in other.headers


def test_metrics_count_requests_tokens_and_batches(model: ServedModel) -> None:
    with asking(application(model, ServeConfig())) as client:
        client.post("/v1/embeddings", {"input": TEXTS})
        client.post("/v1/embeddings", {"input": ""})
        client.get("/nothing/here")
        answer = client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        text = answer.content.decode()
    for line in (
        'elmokit_requests_total{path="/v1/embeddings",status="200"} 1.0',
        'elmokit_requests_total{path="/v1/embeddings",status="422"} 1.0',
        'elmokit_requests_total{path="other",status="404"} 1.0',
        'elmokit_tokens_total{path="/v1/embeddings"} 12.0',
        "elmokit_batch_sentences_sum 3.0",
        "elmokit_batch_tokens_sum 18.0",
        "elmokit_batch_requests_count 1.0",
        "elmokit_queue_requests 0.0",
        'elmokit_request_seconds_count{path="/v1/embeddings"} 2.0',
    ):
        assert line in text.splitlines(), line


@pytest.mark.parametrize(
    ("path", "media_type"),
    [("/", "text/html"), ("/style.css", "text/css"), ("/explorer.js", "text/javascript")],
)
def test_pages_load_nothing_from_other_hosts(client: Client, path: str, media_type: str) -> None:
    answer = client.get(path)
    assert answer.status == 200
    assert answer.headers["content-type"] == f"{media_type}; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    text = answer.content.decode()
    assert not re.search(r"""(src|href|url\()\s*=?\s*["']?(https?:)?//""", text)
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=", text)


def test_a_model_that_cannot_predict_says_so() -> None:
    model = random_model()
    model = model.replace(softmax=None, vocabulary=None)
    with pytest.warns(UserWarning, match="plain means"):
        without_words = served(model)
    with asking(application(without_words, ServeConfig())) as client:
        answer = client.post("/v1/surprisal", {"input": "the cat"})
        assert (answer.status, "has no softmax and vocabulary" in answer.message()) == (501, True)
        (facts,) = client.get("/v1/models").json()["data"]
        assert (facts["can_predict"], facts["embeddings"]["pooling"]) == (False, "mean")
        assert client.post("/v1/embeddings", {"input": "the cat"}).status == 200


TWO = "the cat sat. the dog ran."
SPLIT = [["the", "cat", "sat", "."], ["the", "dog", "ran", "."]]


@pytest.mark.parametrize("pooling", ["sif", "mean"])
def test_a_paragraph_has_the_vector_of_all_its_sentences(pooling: Any) -> None:
    model = served(pooling=pooling)
    with asking(application(model, ServeConfig())) as client:
        answer = client.post("/v1/embeddings", {"input": ["a", TWO], "encoding_format": "base64"}).json()
    expected = unit_vectors(model.embedder.embed_texts([[["a"]], SPLIT]))
    assert np.array_equal([decoded(one["embedding"]) for one in answer["data"]], expected)
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}


def test_the_sentences_of_a_text_are_computed_by_themselves(client: Client, model: ServedModel) -> None:
    tokens = SPLIT[0] + SPLIT[1]
    (one,) = client.post("/v1/tokens", {"input": TWO, "encoding_format": "base64"}).json()["data"]
    assert (one["tokens"], one["sentence_lengths"]) == (tokens, [4, 4])
    expected = np.concatenate(model.elmo.embed(SPLIT), axis=1)
    assert np.array_equal(decoded(one["vectors"]).reshape(one["shape"]), expected)

    (one,) = client.post("/v1/surprisal", {"input": TWO, "n_expected": 2}).json()["data"]
    parts = client.post("/v1/surprisal", {"input": SPLIT, "n_expected": 2}).json()["data"]
    assert (one["tokens"], one["sentence_lengths"]) == (tokens, [4, 4])
    for name in ("forward", "backward", "both", "is_unknown", "spelling_nats"):
        assert one[name] == parts[0][name] + parts[1][name]
    assert one["total"]["forward"] == parts[0]["total"]["forward"] + parts[1]["total"]["forward"]
    assert one["expected"]["both"] == parts[0]["expected"]["both"] + parts[1]["expected"]["both"]


@pytest.mark.parametrize("path", ["/v1/substitutes", "/v1/neighbors"])
def test_a_position_counts_the_tokens_of_all_sentences_of_a_text(client: Client, path: str) -> None:
    whole = client.post(path, {"sentence": TWO, "position": 5}).json()
    alone = client.post(path, {"sentence": SPLIT[1], "position": 1}).json()
    assert (whole.pop("tokens"), whole.pop("position")) == (SPLIT[0] + SPLIT[1], 5)
    assert (alone.pop("tokens"), alone.pop("position")) == (SPLIT[1], 1)
    assert whole == alone


def test_texts_are_one_sentence_split_at_spaces_if_asked() -> None:
    with asking(application(served(tokenize=False), ServeConfig())) as client:
        for text in ("It's the cat. a", "It's the\ncat. a\r\n"):
            (one,) = client.post("/v1/surprisal", {"input": text}).json()["data"]
            assert (one["tokens"], one["sentence_lengths"]) == (["It's", "the", "cat.", "a"], [4])
