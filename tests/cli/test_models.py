"""``elmokit models``: the names, and what is known about each."""

from __future__ import annotations

import json

import pytest

from elmokit.formats import sources
from elmokit.formats.fetch import fetch
from elmokit.formats.sources import ModelLocation, PublishedModel, find_published, named_models
from tests.helpers.http_server import Handler, Server
from tests.helpers.shell import Shell


def test_models_lists_every_name_with_its_language_and_size(shell: Shell) -> None:
    lines = shell("models").out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].split()[:5] == ["en-mini", "English,", "16", "MB,", "included:"]
    assert any(line.startswith("original ") and " English, 374 MB: " in line for line in lines)
    text = " ".join(lines)
    assert "*" not in next(line for line in lines if line.startswith("original "))
    assert " slovenian, swedish*" in text
    facts = json.loads(shell("models", "--json").out)
    assert facts[0]["name"] == "en-mini"
    assert all(f" {fact['name'].rpartition(':')[2]}" in f" {text}" for fact in facts)
    assert {"name", "language", "about", "megabytes", "available", "url", "address", "other_names"} == facts[0].keys()
    assert all(find_published(fact["name"]) for fact in facts[1:])


def test_a_model_whose_files_were_downloaded_is_cached(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers |= {"/w.hdf5": Handler.give, "/o.json": Handler.give}
    location = ModelLocation(server.address("/w.hdf5"), server.address("/o.json"))
    tiny = PublishedModel("tiny", "none", "nothing", (location,), "here")
    monkeypatch.setattr(sources, "all_models", lambda: [tiny])
    for url in (location.weights, location.options):
        assert named_models()[1].available == "download"
        assert url is not None
        fetch(url)
    assert named_models()[1].available == "cached"
