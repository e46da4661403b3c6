"""The recipe ``mcp_server.py``, through the client of the official SDK over standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import Elmo, LanguageModel, tokenize
from tests.helpers.hosts import need_host

need_host("mcp")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]

from mcp import Client, StdioServerParameters, stdio_client  # noqa: E402

RECIPE = Path(__file__).parents[2] / "recipes" / "mcp_server.py"
RIVER, MUD, MONEY = (
    "They sat on the bank of the river and watched the boats.",
    "A heron stood on the muddy bank and waited for fish.",
    "She opened an account at the bank near the station.",
)


def test_a_client_gets_the_numbers_of_the_library() -> None:
    questions = [
        ("surprisal", {"sentence": RIVER}),
        ("substitutes", {"sentence": "The dog ___ at the cat.", "word": "___"}),
        ("compare_uses", {"word": "bank", "sentence": RIVER, "other": MUD}),
        ("compare_uses", {"word": "bank", "sentence": RIVER, "other": MONEY}),
        ("compare_uses", {"word": "boat", "sentence": RIVER, "other": MUD}),
    ]

    async def ask() -> list[Any]:
        command = StdioServerParameters(command=sys.executable, args=[str(RECIPE)], env=dict(os.environ))
        async with Client(stdio_client(command)) as client:
            assert all(tool.description for tool in (await client.list_tools()).tools)
            return [await client.call_tool(name, arguments) for name, arguments in questions]

    *answers, refused = asyncio.run(ask())
    assert refused.is_error
    assert "'boat' is not among the tokens They | sat" in refused.content[0].text
    surprisal, substitutes, same, other = (found(answer) for answer in answers)

    model = LanguageModel.from_pretrained()
    (expected,) = model.surprisal(tokenize(RIVER))
    assert [token for token, *_ in surprisal] == list(expected.tokens[1:-1])
    np.testing.assert_allclose([nats for _, *nats in surprisal], expected.nats[:, 1:-1].T, atol=6e-3)
    words = model.substitutes(["The", "dog", "___", "at", "the", "cat", "."], 2, "both", 10)
    assert substitutes == {one.word: round(one.probability, 4) for one in words}
    left, right = (Elmo(model.model).embed(tokenize(text))[0][:, position] for text, position in ((RIVER, 4), (MUD, 6)))
    cosines = (left * right).sum(axis=-1) / np.linalg.norm(left, axis=-1) / np.linalg.norm(right, axis=-1)
    np.testing.assert_allclose(same, cosines, atol=6e-4)
    assert same[0] == other[0] == 1
    assert same[2] > other[2]  # the same sense is more similar


def found(answer: Any) -> Any:
    """Return what a tool returned."""
    assert not answer.is_error, answer.content
    value = answer.structured_content
    if value is None:
        return json.loads(answer.content[0].text)
    return value["result"] if set(value) == {"result"} else value
