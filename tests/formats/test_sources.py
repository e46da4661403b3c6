"""Open a model from every kind of source: paths, URLs, published names, ids on the Hub."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elmokit.compat import tfhub as hub
from elmokit.engine.architecture import PRESETS
from elmokit.errors import ConfigError, MissingExtraError, ModelNotFoundError
from elmokit.formats import sources
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.formats.sources import (
    ModelLocation,
    PublishedModel,
    archive_url,
    cached_module,
    elmo_version,
    find_published,
    is_hub_address,
    many_languages,
    module_folder,
    published_families,
    published_models,
    published_names,
)
from elmokit.network.bilm import BiLM
from tests.conftest import random_model
from tests.helpers.http_server import Server
from tests.helpers.paths import DATA
from tests.helpers.tf_hub_files import pack_module, write_module
from tests.helpers.tf_names import module_tensors
from tests.helpers.weights import same_weights


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """A small published model's files by name."""
    folder = tmp_path / "made"
    save_model(random_model(), folder / "elmo_weights.hdf5")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def serve(server: Server, folder: str, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        server.answers[f"{folder}/{name}"] = lambda handler, content=content: handler.give(content)
    return server.address(folder)


def test_a_url_opens_with_the_options_next_to_it(server: Server, files: dict[str, bytes]) -> None:
    there = serve(server, "/named", files)
    assert same_weights(open_model(f"{there}/elmo_weights.hdf5"), random_model())
    plain = {"elmo_weights.hdf5": files["elmo_weights.hdf5"], "options.json": files["elmo_options.json"]}
    assert same_weights(open_model(f"{serve(server, '/plain', plain)}/elmo_weights.hdf5"), random_model())
    with pytest.raises(ModelNotFoundError, match=r"options\.json"):
        open_model(f"{serve(server, '/none', {'weights.hdf5': b''})}/weights.hdf5")


def test_a_file_url_and_a_home_path_open(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert same_weights(open_model((tmp_path / "made" / "elmo_weights.hdf5").as_uri()), random_model())
    assert same_weights(open_model((tmp_path / "made").as_uri()), random_model())
    monkeypatch.setenv("HOME", str(tmp_path))
    assert same_weights(open_model("~/made", options="~/made/elmo_options.json"), random_model())


def publish(monkeypatch: pytest.MonkeyPatch, *folders: str) -> None:
    """Publish a model at some addresses, as "tiny-test" alone."""
    locations = tuple(ModelLocation(f"{there}/elmo_weights.hdf5", f"{there}/elmo_options.json") for there in folders)
    model = PublishedModel("tiny-test", "none", "nothing", locations, "this test")
    monkeypatch.setattr(sources, "published_models", lambda: (model,))


@pytest.mark.parametrize(
    "page", [None, b"<!DOCTYPE html><title>Buy this domain</title>", b"GIF89a: this domain is for sale"]
)
def test_a_published_name_opens_from_the_first_location_that_has_it(
    server: Server, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, page: bytes | None
) -> None:
    first = server.address("/first") if page is None else serve(server, "/first", dict.fromkeys(files, page))
    publish(monkeypatch, first, serve(server, "/mirror", files))
    for _ in range(2):
        model = open_model("Tiny-Test")
        assert same_weights(model, random_model())
        assert model.card["name"] == "tiny-test"
        assert model.card["from"] == server.address("/mirror/elmo_weights.hdf5")
    publish(monkeypatch, first, server.address("/dead"))
    with pytest.raises(ModelNotFoundError, match=r"tiny-test .*/first/.*/dead/.*by hand.*--options") as error:
        open_model("tiny-test")
    assert f"{first}/elmo_options.json" in str(error.value)


def test_a_published_checkpoint_opens_from_its_files_with_the_softmax(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = serve(server, "/elmo", {file.name: file.read_bytes() for file in (DATA / "bilm-tf-run").iterdir()})
    name = "model.ckpt-207"
    location = ModelLocation(
        f"{there}/{name}.index", f"{there}/options.json", f"{there}/vocab.txt", (f"{there}/{name}.data-00000-of-00001",)
    )
    model = PublishedModel("tiny-test", "none", "nothing", (location,), "this test")
    monkeypatch.setattr(sources, "published_models", lambda: (model,))
    for _ in range(2):
        opened = open_model("tiny-test")
        assert opened.family == "tf-checkpoint"
        assert opened.softmax is not None
        assert opened.card["from"] == location.weights
    assert model.files == f"the files {', '.join(location.urls)}, all into one directory,"


def test_a_path_comes_before_a_published_name(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").rename(tmp_path / "original")
    monkeypatch.chdir(tmp_path)
    assert same_weights(open_model("original"), random_model())


def test_the_table_of_published_models_is_complete() -> None:
    taken = published_names()
    assert len(taken) == len(set(taken))
    for model in published_models():
        assert find_published(model.name) is model
        assert all(find_published(name) is model for name in model.also)
        assert model.about
        assert model.read_on
        for place in model.locations:
            assert all(address.startswith("https://") for address in place.urls)
            assert place.options or place.weights.endswith((".zip", ".tar.gz"))
    families = {"embeddia": 7, "indian": 14, "many-langs": 44}
    assert {family: len(languages) for family, languages in published_families().items()} == families
    wanted = {"original-checkpoint", "polish", "bioelmo", "embeddia:croatian", "indian:hindi"}
    assert wanted <= set(taken)
    wanted = {"small", "medium", "original", "original-5.5b", "portuguese", "japanese", "german", "basque", "pubmed"}
    assert wanted <= set(taken)


@pytest.mark.parametrize("name", ["small", "medium", "original"])
def test_sizes_in_the_table_are_those_of_the_presets(name: str) -> None:
    import torch

    model = find_published(name)
    with torch.device("meta"):
        n_parameters = BiLM(PRESETS[name]).n_parameters
    assert model.megabytes == pytest.approx(n_parameters * 4 / 1e6, abs=1)
    assert f"hdf5 ({model.megabytes} MB) and the options" in model.files


def test_models_of_the_nlpl_repository_have_names() -> None:
    assert (many_languages()["arabic"], many_languages()["dutch"], many_languages()["chinese"]) == (136, 164, 179)
    found = find_published("nlpl:210")
    assert found.locations == (ModelLocation("https://vectors.nlpl.eu/repository/20/210.zip"),)
    finnish, number = find_published("many-langs:finnish"), find_published("nlpl:149")
    assert finnish.locations == number.locations
    assert len(finnish.locations) == 2
    assert find_published("nlpl:x") is find_published("many-langs:klingon") is find_published("nothing") is None


def fake_hub(monkeypatch: pytest.MonkeyPatch, answer: object) -> list[tuple[str, str | None]]:
    """A stand-in for ``huggingface_hub`` that answers with a folder or an error."""
    asked: list[tuple[str, str | None]] = []

    def snapshot_download(repo_id: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((repo_id, revision))
        assert "*.hdf5" in allow_patterns
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    hub = types.ModuleType("huggingface_hub")
    hub.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    return asked


def test_a_hub_id_opens_the_folder_that_huggingface_hub_gives(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = fake_hub(monkeypatch, tmp_path / "made")
    for name in ("hf:owner/name", "owner/name", "hf:owner/name@v1"):
        assert same_weights(open_model(name), random_model())
    assert asked == [("owner/name", None), ("owner/name", None), ("owner/name", "v1")]


MISSING_EXTRA = r"pip install '(elmokit|\.)\[huggingface-hub\]'"
# What a user opens, what the Hub answers (None: without its package), the error, and the name that it mentions.
REFUSED: list[tuple[str, Exception | None, type[Exception], str]] = [
    ("portugese", None, ModelNotFoundError, "'portugese'.*Did you mean 'portuguese'"),
    ("en-minni", None, ModelNotFoundError, "Did you mean 'en-mini'"),
    ("en_mini", None, ModelNotFoundError, "Did you mean 'en-mini'"),
    ("/no/such/file", None, ModelNotFoundError, "No model found for '/no/such/file'"),
    ("//[x/y", None, ModelNotFoundError, "No model found for"),
    ("x" * 300, None, ModelNotFoundError, "No model found for"),
    ("", None, ModelNotFoundError, "empty"),
    ("~nosuchuser/m", None, ModelNotFoundError, "~nosuchuser"),
    ("http://[x", None, ConfigError, "not a valid URL"),
    ("http://[x/w.hdf5", None, ConfigError, "not a valid URL"),
    ("https://[x?tf-hub-format=compressed", None, ConfigError, "not a valid URL"),
    ("hf:owner/name", OSError("401 Client Error.\nNot Found"), ModelNotFoundError, "401 Client Error.*by hand"),
    ("hf:owner/name", None, MissingExtraError, MISSING_EXTRA),
    ("models/foo", None, ModelNotFoundError, f"^There is no file or directory models/foo.*{MISSING_EXTRA}"),
    ("models/foo", OSError("404 Client Error"), ModelNotFoundError, "^There is no file or directory models/foo.* 404"),
]


@pytest.mark.parametrize(("name", "answer", "error", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_names_no_model_is_refused(
    name: str, answer: Exception | None, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is None:
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    else:
        fake_hub(monkeypatch, answer)
    with pytest.raises(error, match=message):
        open_model(name)


TINY = dataclasses.replace(PRESETS["tiny"], dropout=0.0)
TFHUB = "https://tfhub.dev/google/elmo/"
QUERY = "?tf-hub-format=compressed"


def write_elmo(folder: Path, seed: int = 0) -> Path:
    return write_module(folder, module_tensors(random_model(TINY, seed)), "tfhub_module.pb")


def is_elmo(model: Any, seed: int = 0) -> bool:
    return same_weights(model, random_model(TINY, seed))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of tensorflow_hub."""
    monkeypatch.setenv("TFHUB_CACHE_DIR", str(tmp_path / "tfhub_modules"))
    return tmp_path / "tfhub_modules"


@pytest.fixture
def elmo_urls(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[str]]:
    """The URLs of a version's archive: on this server, in place of TF-Hub, Kaggle and their storage."""
    monkeypatch.setitem(
        sources._content()["tf_hub"],
        "urls",
        urls := [server.address(f"/{place}/google/elmo/{{version}}{QUERY}") for place in ("tfhub.dev", "kaggle.com")],
    )
    return lambda version: [url.format(version=version) for url in urls]


# An address, the version of google/elmo that it names, and whether it is one of TF-Hub.
ADDRESSES = [
    *((f"{TFHUB}{version}", int(version), True) for version in "123"),
    (f"{TFHUB}2/", 2, True),
    (f"{TFHUB}2{QUERY}", 2, True),
    (f"{TFHUB}2?tf-hub-format=uncompressed", 2, True),
    ("http://tfhub.dev/google/elmo/2", 2, True),
    (TFHUB.rstrip("/"), 3, True),
    ("https://tfhub.dev/google/nnlm-en-dim128/2", None, True),
    ("https://tfhub.dev/google/elmo/2/x", None, True),
    ("https://www.kaggle.com/models/google/elmo/TensorFlow1/elmo/2", None, False),
    ("https://example.com/google/elmo/2", None, False),
    ("https://tfhub.dev.example.com/google/elmo/2", None, False),
]


@pytest.mark.parametrize(("url", "version", "is_hub"), ADDRESSES)
def test_addresses_of_elmo_are_recognized_with_their_versions(url: str, version: int | None, is_hub: bool) -> None:
    assert (elmo_version(url), is_hub_address(url)) == (version, is_hub)


def test_the_archive_of_an_address_is_at_its_query() -> None:
    for url in (TFHUB + "2", TFHUB + "2" + QUERY, TFHUB + "2?tf-hub-format=uncompressed"):
        assert archive_url(url) == TFHUB + "2" + QUERY
    assert archive_url("http://h/m?a=b") == "http://h/m?a=b&tf-hub-format=compressed"


def test_the_name_in_the_cache_is_that_of_tensorflow_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module_folder(TFHUB + "2") == cache / "9bb74bc86f9caffc8c47dd7b33ec4bb354d9602d"
    monkeypatch.delenv("TFHUB_CACHE_DIR")
    assert module_folder(TFHUB + "2").parent == Path(tempfile.gettempdir()) / "tfhub_modules"


def test_a_module_in_the_cache_of_tensorflow_hub_opens_by_the_address_as_the_program_wrote_it(cache: Path) -> None:
    address = f"{TFHUB}2{QUERY}"
    write_elmo(cache / hashlib.sha1(address.encode()).hexdigest())
    assert is_elmo(open_model(address))
    assert cached_module(f"{TFHUB}3") is None


def test_an_address_on_kaggle_is_answered_with_that_of_tf_hub() -> None:
    with pytest.raises(ModelNotFoundError, match=r"use one of TF-Hub, such as https://tfhub\.dev/google/elmo/3"):
        open_model("https://www.kaggle.com/models/google/elmo/TensorFlow1/elmo/3")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_address_is_downloaded_once_and_opens(
    server: Server, elmo_urls: Callable[[int], list[str]], tmp_path: Path, version: int
) -> None:
    content = pack_module(write_elmo(tmp_path / "module"), tmp_path / "module.tar.gz").read_bytes()
    server.answers[elmo_urls(version)[0].removeprefix(server.address(""))] = lambda handler: handler.give(content)
    for url in (f"{TFHUB}{version}", f"{TFHUB}{version}{QUERY}"):
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
    assert "pass the path instead" in message
    assert f"unpack it into the directory {module_folder(TFHUB + '2')}" in message
    write_elmo(module_folder(TFHUB + "2"))
    assert is_elmo(hub.Module(TFHUB + "2").elmo.model)


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
