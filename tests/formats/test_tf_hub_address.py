"""The addresses of google/elmo on TF-Hub and Kaggle, and the caches of tensorflow_hub and kagglehub."""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elmokit.compat import tfhub as hub
from elmokit.engine.config import PRESETS
from elmokit.errors import ModelNotFoundError
from elmokit.formats import published
from elmokit.formats.open import open_model
from elmokit.formats.tf_hub_address import archive_url, cached_module, elmo_version, is_hub_address, module_folder
from tests.conftest import random_model
from tests.helpers.http_server import Server
from tests.helpers.tf_hub_files import pack_module, write_module
from tests.helpers.tf_names import module_tensors
from tests.helpers.weights import same_weights

TINY = dataclasses.replace(PRESETS["tiny"], dropout=0.0)
TFHUB = "https://tfhub.dev/google/elmo/"
KAGGLE = "https://www.kaggle.com/models/google/elmo/"
QUERY = "?tf-hub-format=compressed"
SPELLINGS = [
    TFHUB + "2",
    TFHUB + "2/",
    TFHUB + "2" + QUERY,
    TFHUB + "2?tf-hub-format=uncompressed",
    "http://tfhub.dev/google/elmo/2",
    "https://hub.tensorflow.google.cn/google/elmo/2",
    KAGGLE + "frameworks/TensorFlow1/variations/elmo/versions/2",
    "https://kaggle.com/models/google/elmo/frameworks/tensorFlow1/variations/elmo/versions/2",
    KAGGLE + "TensorFlow1/elmo/2",
    KAGGLE + "tensorFlow1/elmo/2" + QUERY,
    "https://www.kaggle.com/api/v1/models/google/elmo/tensorFlow1/elmo/2/download",
    "https://storage.googleapis.com/tfhub-modules/google/elmo/2.tar.gz",
]


def write_elmo(folder: Path, seed: int = 0) -> Path:
    return write_module(folder, module_tensors(random_model(TINY, seed)), "tfhub_module.pb")


def is_elmo(model: Any, seed: int = 0) -> bool:
    return same_weights(model, random_model(TINY, seed))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of tensorflow_hub, and none of kagglehub."""
    monkeypatch.setenv("TFHUB_CACHE_DIR", str(tmp_path / "tfhub_modules"))
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path / "kagglehub"))
    return tmp_path / "tfhub_modules"


@pytest.fixture
def elmo_urls(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[str]]:
    """The URLs of a version's archive: on this server, in place of TF-Hub, Kaggle and their storage."""
    monkeypatch.setitem(
        published._content()["tf_hub"],
        "urls",
        urls := [server.address(f"/{place}/google/elmo/{{version}}{QUERY}") for place in ("tfhub.dev", "kaggle.com")],
    )
    return lambda version: [url.format(version=version) for url in urls]


@pytest.mark.parametrize("url", SPELLINGS)
def test_every_spelling_of_the_address_is_recognized(url: str) -> None:
    assert (elmo_version(url), is_hub_address(url)) == (2, True)
    assert elmo_version(url.replace("2", "1" * 5000)) is None
    assert [elmo_version(url.replace("2", number)) for number in "13"] == [1, 3]


@pytest.mark.parametrize("url", [TFHUB.rstrip("/"), KAGGLE.rstrip("/"), KAGGLE + "TensorFlow1/elmo"])
def test_an_address_without_a_version_means_the_latest(url: str) -> None:
    assert elmo_version(url) == 3


@pytest.mark.parametrize(
    "url",
    [
        "https://tfhub.dev/google/nnlm-en-dim128/2",
        "https://www.kaggle.com/models/google/nnlm/TensorFlow2/en-dim128/1",
        "https://example.com/google/elmo/2",
        "https://tfhub.dev/google/elmo/2/x",
        "https://tfhub.dev.example.com/google/elmo/2",
    ],
)
def test_other_addresses_are_not_those_of_elmo(url: str) -> None:
    assert elmo_version(url) is None
    assert is_hub_address(url) == ("example" not in url)


def test_the_archive_of_an_address_is_at_its_query() -> None:
    for url in (TFHUB + "2", TFHUB + "2" + QUERY, TFHUB + "2?tf-hub-format=uncompressed"):
        assert archive_url(url) == TFHUB + "2" + QUERY
    assert archive_url("http://h/m?a=b") == "http://h/m?a=b&tf-hub-format=compressed"


def test_the_name_in_the_cache_is_that_of_tensorflow_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module_folder(TFHUB + "2") == cache / "9bb74bc86f9caffc8c47dd7b33ec4bb354d9602d"
    monkeypatch.delenv("TFHUB_CACHE_DIR")
    assert module_folder(TFHUB + "2").parent == Path(tempfile.gettempdir()) / "tfhub_modules"


@pytest.mark.parametrize("kind", ["module", ".tar.gz", ".tgz", ""])
@pytest.mark.parametrize("spelling", [*SPELLINGS[:1], *SPELLINGS[2:3], *SPELLINGS[6:7], *SPELLINGS[8:9]])
def test_a_module_in_the_cache_of_tensorflow_hub_opens_by_every_address(
    cache: Path, tmp_path: Path, spelling: str, kind: str
) -> None:
    folder = cache / hashlib.sha1(spelling.encode()).hexdigest()
    cache.mkdir()
    if kind == "module":  # as tensorflow_hub leaves it
        write_elmo(folder)
        folder.with_name(f"{folder.name}.descriptor.txt").write_text(f"Module: {spelling}")
    else:
        pack_module(write_elmo(tmp_path / "module"), folder.with_name(f"{folder.name}{kind}"))
    assert is_elmo(open_model(TFHUB + "2"))
    for url in (spelling, SPELLINGS[-1]):
        assert cached_module(url) is not None
    assert cached_module(TFHUB + "3") is None


def test_a_module_in_the_cache_of_kagglehub_opens(cache: Path, tmp_path: Path) -> None:
    write_elmo(tmp_path / "kagglehub" / "models" / "google" / "elmo" / "tensorFlow1" / "elmo" / "3")
    assert is_elmo(open_model(TFHUB + "3"))
    assert is_elmo(hub.Module(KAGGLE + "TensorFlow1/elmo/3").elmo.model)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_address_is_downloaded_once_and_opens(
    server: Server, elmo_urls: Callable[[int], list[str]], tmp_path: Path, version: int
) -> None:
    content = pack_module(write_elmo(tmp_path / "module"), tmp_path / "module.tar.gz").read_bytes()
    server.answers[elmo_urls(version)[0].removeprefix(server.address(""))] = lambda handler: handler.give(content)
    for url in (f"{TFHUB}{version}", f"{TFHUB}{version}{QUERY}", f"{KAGGLE}TensorFlow1/elmo/{version}"):
        model = open_model(url)
        assert is_elmo(model)
        assert model.card["name"] == f"google/elmo/{version}"
    assert len(server.seen) == 1


def test_without_any_server_the_error_says_what_to_download_and_where_to_put_it(
    elmo_urls: Callable[[int], list[str]],
) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        hub.Module(TFHUB + "2")
    message = str(caught.value)
    assert all(url in message for url in elmo_urls(2))
    assert f"Download the archive {elmo_urls(2)[0]} (374 MB) by hand" in message
    assert "give the path instead" in message
    assert f"unpack it into the directory {module_folder(TFHUB + '2')}" in message
    write_elmo(module_folder(TFHUB + "2"))
    assert is_elmo(hub.Module(TFHUB + "2").elmo.model)


def test_the_calls_of_the_tutorials_work_verbatim(cache: Path) -> None:
    for version in (1, 2, 3):
        write_elmo(module_folder(f"{TFHUB}{version}"), seed=version)
    elmo = hub.Module("https://tfhub.dev/google/elmo/2", trainable=True)
    embeddings = elmo(["the cat is on the mat", "dogs are in the fog"], signature="default", as_dict=True)["elmo"]
    assert embeddings.shape == (2, 6, 64)
    tokens_input = [["the", "cat", "is", "on", "the", "mat"], ["dogs", "are", "in", "the", "fog", ""]]
    tokens_length = [6, 5]
    embeddings = elmo(inputs={"tokens": tokens_input, "sequence_len": tokens_length}, signature="tokens", as_dict=True)[
        "elmo"
    ]
    assert embeddings.shape == (2, 6, 64)
    named = hub.Module("https://tfhub.dev/google/elmo/3", trainable=False, name="elmo_module", tags=set())
    assert is_elmo(named.elmo.model, seed=3)
    loaded = hub.load("https://tfhub.dev/google/elmo/3", tags=[])
    assert loaded.signatures["default"](["the cat"])["elmo"].shape == (1, 2, 64)


@pytest.mark.parametrize(
    ("version", "arguments", "trains_lstm"),
    [
        (1, {"trainable": True}, True),
        (1, {}, False),
        (1, {"trainable": True, "trainable_lstm": False}, False),
        (2, {"trainable": True}, False),
        (3, {"trainable": True}, False),
        (3, {"trainable_lstm": True}, True),
    ],
)
def test_version_1_trains_the_lstms_too(
    cache: Path, version: int, arguments: dict[str, bool], trains_lstm: bool
) -> None:
    write_elmo(module_folder(f"{TFHUB}{version}"))
    module = hub.Module(f"{TFHUB}{version}", **arguments)
    assert {p.requires_grad for p in module.elmo.bilm.directions.parameters()} == {trains_lstm}
    assert {p.requires_grad for p in module.mix.parameters()} == {arguments.get("trainable", False)}


def test_another_server_of_modules_is_asked_as_tensorflow_hub_asks(server: Server, cache: Path, tmp_path: Path) -> None:
    content = pack_module(write_elmo(tmp_path / "module"), tmp_path / "module.tar.gz").read_bytes()
    server.answers["/me/elmo/1" + QUERY] = server.answers["/elmo.tar.gz"] = lambda handler: handler.give(content)
    for path in ("/me/elmo/1", "/elmo.tar.gz"):
        assert is_elmo(hub.Module(server.address(path)).elmo.model)
    write_elmo(module_folder(server.address("/kept/1")), seed=1)
    assert is_elmo(hub.Module(server.address("/kept/1")).elmo.model, seed=1)
    assert len(server.seen) == 2
