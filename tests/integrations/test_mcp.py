"""``elmokit mcp``, through the client of the official SDK: over standard input and output, and in memory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import Elmo, LanguageModel
from tests.conftest import random_model
from tests.helpers.hosts import need_host
from tests.helpers.without_pytorch import HIDE

need_host("mcp")
pytestmark = pytest.mark.filterwarnings("default")

from mcp import Client, StdioServerParameters, stdio_client  # noqa: E402

from elmokit.serve.config import ServeConfig  # noqa: E402
from elmokit.serve.mcp import create_server  # noqa: E402
from elmokit.serve.served_model import ServedModel  # noqa: E402

RIVER, MUD, MONEY = (
    "They sat on the bank of the river and watched the boats.",
    "A heron stood on the muddy bank and waited for fish.",
    "She opened an account at the bank near the station.",
)

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def lines_of(*messages: dict[str, Any] | bytes) -> bytes:
    as_bytes = (message if isinstance(message, bytes) else json.dumps(message).encode() for message in messages)
    return b"".join(line + b"\n" for line in as_bytes)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return ServedModel(Elmo.from_pretrained(precision="float32"), ServeConfig(), tmp_path_factory.mktemp("served"))


def ask(server: Any, question: Callable[[Client], Awaitable[Any]]) -> Any:
    async def asked() -> Any:
        async with Client(server) as client:
            return await question(client)

    return asyncio.run(asked())


def call(model: ServedModel, tool: str, **arguments: Any) -> Any:
    answer = ask(create_server(model), lambda client: client.call_tool(tool, arguments))
    assert not answer.is_error, answer.content
    return answer.structured_content


def refusal(model: ServedModel, tool: str, **arguments: Any) -> str:
    answer = ask(create_server(model), lambda client: client.call_tool(tool, arguments))
    assert answer.is_error
    return str(answer.content[0].text)


def test_a_client_over_standard_input_and_output_gets_answers_without_pytorch() -> None:
    code = f"{HIDE}import sys\nsys.argv = ['elmokit', 'mcp']\nfrom elmokit.cli.main import main\nmain()"
    server = stdio_client(StdioServerParameters(command=sys.executable, args=["-c", code], env=dict(os.environ)))

    async def question(client: Client) -> Any:
        tools = (await client.list_tools()).tools
        return tools, await client.call_tool("compare_senses", {"word": "bank", "sentences": [RIVER, MUD, MONEY]})

    tools, answer = ask(server, question)
    assert [tool.name for tool in tools] == ["surprisal", "substitutes", "neighbors", "compare_senses"]
    assert all(tool.description and tool.annotations.read_only_hint for tool in tools)
    cosines = answer.structured_content["layers"]["2"]
    assert cosines[0][1] > cosines[0][2]  # the same sense is more similar


def test_surprisals_are_those_of_the_language_model(model: ServedModel) -> None:
    (sentence,) = call(model, "surprisal", sentences=["The zxqv barked."])["sentences"]
    (expected,) = LanguageModel(model.elmo.model).surprisal([["The", "zxqv", "barked", "."]])
    assert [token["token"] for token in sentence["tokens"]] == ["The", "zxqv", "barked", "."]
    assert [token["in_vocabulary"] for token in sentence["tokens"]] == [True, False, True, True]
    nats = [[token["forward"], token["backward"]] for token in sentence["tokens"]]
    np.testing.assert_allclose(nats, expected.nats[:, 1:-1].T, atol=6e-4)
    np.testing.assert_allclose(list(sentence["total"].values()), expected.total_nats, atol=6e-4)


def test_substitutes_are_those_of_the_language_model_and_do_not_see_the_word(model: ServedModel) -> None:
    gap = call(model, "substitutes", sentence="The dog ___ at the cat.", word="___", n=4)
    assert gap["position"] == "The dog [___] at the cat ."
    seen = call(model, "substitutes", sentence="The dog ran at the cat.", word="ran", n=4)
    assert gap["expected"] == seen["expected"]
    for direction, words in gap["expected"].items():
        tokens = ["The", "dog", "ran", "at", "the", "cat", "."]
        expected = LanguageModel(model.elmo.model).substitutes(tokens, 2, direction, n=4)
        assert words == {word.word: round(word.probability, 4) for word in expected}


def test_neighbors_are_those_of_the_index(model: ServedModel) -> None:
    answer = call(model, "neighbors", sentence="The river broke its bank.", word="Bank", n=2)
    words = ["The", "river", "broke", "its", "bank", "."]
    expected = model.index.neighbors(model.elmo, words, 4, n_neighbors=2)
    assert answer["corpus"] == "example sentences"
    assert [one["occurrence"] for one in answer["similar_words"]] == [one.word for one in expected.context_free]
    for layer, occurrences in answer["layers"].items():
        assert [one["cosine"] for one in occurrences] == [
            round(one.similarity, 3) for one in expected.layers[int(layer)]
        ]
        assert all("[bank]" in one["occurrence"] for one in occurrences)


def test_the_occurrence_of_a_word_can_be_chosen(model: ServedModel) -> None:
    first, second = (
        call(model, "substitutes", sentence="the dog saw the cat", word="the", occurrence=number)["position"]
        for number in (1, 2)
    )
    assert (first, second) == ("[the] dog saw the cat", "the dog saw [the] cat")


def test_senses_are_compared_by_the_cosines_of_the_layers(model: ServedModel) -> None:
    answer = call(model, "compare_senses", word="bank", sentences=[RIVER, MONEY])
    left, right = model.elmo.embed([[*text[:-1].split(), "."] for text in (RIVER, MONEY)])
    for layer, cosines in answer["layers"].items():
        one, other = left[int(layer), 4], right[int(layer), 6]
        expected = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        np.testing.assert_allclose(cosines, [[1, expected], [expected, 1]], atol=6e-4)


def test_errors_tell_the_client_what_to_change(model: ServedModel) -> None:
    error = refusal(model, "neighbors", sentence="The dog ran.", word="cat")
    assert "'cat' occurs 0 times among the tokens The | dog | ran | ." in error
    assert "less than or equal to 100" in refusal(model, "substitutes", sentence="a b", word="a", n=101)
    assert "sentences" in refusal(model, "compare_senses", word="bank", sentences=[RIVER])
    assert "surprisals" in refusal(model, "surprisals", sentences=[RIVER])


def test_a_model_without_softmax_has_no_tools_that_predict(tmp_path: Path) -> None:
    without = ServedModel(Elmo(random_model().replace(softmax=None)), ServeConfig(), tmp_path)
    assert not without.can_predict
    tools = ask(create_server(without), lambda client: client.list_tools()).tools
    assert [tool.name for tool in tools] == ["neighbors", "compare_senses"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_while_it_waits_for_its_client(number: signal.Signals, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    server = subprocess.Popen([sys.executable, "-m", "elmokit", "mcp"], stdin=subprocess.PIPE, env=environment)
    try:
        while not list(tmp_path.glob("elmokit-mcp-*/index/journal.json")):  # the model is open, the handlers are set
            time.sleep(0.05)
            assert server.poll() is None
        time.sleep(0.5)
        server.send_signal(number)
        assert server.wait(10) == 130
    finally:
        server.kill()
        server.wait()
    assert not list(tmp_path.glob("elmokit-mcp-*"))


def test_a_client_that_closes_the_output_gets_no_traceback() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with subprocess.Popen(
        [sys.executable, "-m", "elmokit", "mcp"], stdin=subprocess.PIPE, stdout=write_end, stderr=subprocess.PIPE
    ) as server:
        os.close(write_end)
        _, errors = server.communicate(lines_of(INITIALIZE), timeout=60)
    assert (server.returncode, errors) == (1, b"")


def test_lines_that_are_no_requests_do_not_end_the_server() -> None:
    bad = [
        b"{not json",
        b"",
        b"[]",
        b"null",
        b"\xff\xfe\0",
        b"[" * 100_000 + b"]" * 100_000,
        b'{"id": 7, "method": "x"}',
    ]
    question = {"name": "surprisal", "arguments": {"sentences": ["A cat sat ."]}}
    lines = lines_of(
        INITIALIZE, INITIALIZED, *bad, {"jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": question}
    )
    with subprocess.Popen(
        [sys.executable, "-m", "elmokit", "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(lines)
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in range(2)]
        server.stdin.close()
        assert server.wait(60) == 0
    assert [answer["id"] for answer in answers] == [0, 8]
    assert answers[1]["result"]["structuredContent"]["sentences"]
