"""The tools of ``elmokit mcp`` without a client, also where its SDK is not installed. tests/integrations has one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pydantic")

from elmokit import Elmo
from elmokit.errors import ConfigError
from elmokit.serve.config import ServeConfig
from elmokit.serve.served_model import ServedModel
from tests.conftest import random_model

NAME = "elmokit.serve.mcp"
IMPORTED = {
    "mcp": (),
    "mcp.server": ("MCPServer",),
    "mcp.server.mcpserver": (),
    "mcp.server.mcpserver.exceptions": ("ToolError",),
    "mcp.types": ("ToolAnnotations",),
}


@pytest.fixture(scope="module")
def mcp() -> Iterator[Any]:
    """Import the module, with names in the place of those of the SDK if that is not installed."""
    if importlib.util.find_spec("mcp") is not None:
        yield importlib.import_module(NAME)
        return
    with pytest.MonkeyPatch.context() as patch:
        for module, names in IMPORTED.items():
            stub: Any = ModuleType(module)
            for name in names:
                setattr(stub, name, type(name, (Exception,), {"__class_getitem__": lambda item: item}))
            patch.setitem(sys.modules, module, stub)
        yield importlib.import_module(NAME)
        del sys.modules[NAME]  # others skip or refuse it without the SDK
        import elmokit.serve

        del elmokit.serve.mcp


@pytest.fixture
def tools(mcp: Any, tmp_path: Path) -> Any:
    return mcp.Tools(ServedModel(Elmo(random_model()), ServeConfig(), tmp_path))


def test_sentences_that_are_too_long_together_are_refused_in_one_line(tools: Any, mcp: Any) -> None:
    longest = "a " * (mcp.MAX_TEXT // 2)
    sentences = [longest] * (mcp.MAX_TEXTS // mcp.MAX_TEXT) + ["a"]
    for call in (lambda: tools.surprisal(sentences), lambda: tools.compare_senses("a", sentences)):
        with pytest.raises(ConfigError, match=r"100,001 characters together, and 100,000 are allowed") as error:
            call()
        assert "\n" not in str(error.value)


def test_sentences_that_have_as_many_characters_as_are_allowed_are_answered(
    tools: Any, mcp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = ["the cat sat", "a cat ran ."]
    monkeypatch.setattr(mcp, "MAX_TEXTS", sum(map(len, sentences)))
    assert len(tools.surprisal(sentences).sentences) == 2
    np.testing.assert_allclose(np.diag(tools.compare_senses("cat", sentences).layers["0"]), 1)
    monkeypatch.setattr(mcp, "MAX_TEXTS", sum(map(len, sentences)) - 1)
    with pytest.raises(ConfigError, match="characters together"):
        tools.surprisal(sentences)


def test_an_error_quotes_only_the_beginning_of_a_long_sentence(tools: Any, mcp: Any) -> None:
    for call in (
        lambda: tools.surprisal([" " * mcp.MAX_TEXT]),
        lambda: tools.substitutes(" " * mcp.MAX_TEXT, "a"),
    ):
        with pytest.raises(ConfigError, match="has no words") as error:
            call()
        assert len(str(error.value)) < mcp.MAX_SHOWN + 100
    with pytest.raises(ConfigError, match="occurs 0 times") as error:
        tools.substitutes("a " * (mcp.MAX_TEXT // 2), "b" * mcp.MAX_TEXT)
    assert len(str(error.value)) < 2 * mcp.MAX_SHOWN + 200


def test_an_occurrence_that_is_missing_is_counted(tools: Any) -> None:
    with pytest.raises(ConfigError, match=r"'cat' occurs 1 time among the tokens the \| cat, but occurrence is 2"):
        tools.substitutes("the cat", "cat", 2)


def test_the_sentences_of_a_text_are_read_by_themselves(tools: Any) -> None:
    first, second, both = tools.surprisal(["the cat sat.", "the dog ran.", "the cat sat. the dog ran."]).sentences
    assert both.tokens == first.tokens + second.tokens
    assert both.total["forward"] == pytest.approx(first.total["forward"] + second.total["forward"], abs=2e-3)
    whole = tools.substitutes("the cat sat. the dog ran.", "the", 2)
    assert whole == tools.substitutes("the dog ran.", "the")
