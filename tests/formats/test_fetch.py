"""Downloads: whole or not at all, taken up where they broke, checked whenever they are opened again."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest

from elmokit.errors import ConfigError, FormatError, ModelNotFoundError, OutputError
from elmokit.formats import fetch as fetching
from elmokit.formats.fetch import N_TRIES, fetch, is_url, normalize_url, url_file_name
from elmokit.storage.cache import cache_dir
from tests.helpers.http_server import BODY, Answer, Handler, Server


def files_in_cache() -> list[str]:
    return sorted(path.name for path in cache_dir().rglob("*") if path.is_file())


@pytest.fixture
def address(server: Server) -> str:
    """Where the server has a file."""
    server.answers["/w"] = Handler.give
    return server.address("/w")


def test_a_file_is_downloaded_once_and_kept_under_its_name(server: Server) -> None:
    server.answers["/models/weights.hdf5"] = Handler.give
    first, second = (fetch(server.address("/models/weights.hdf5")) for _ in range(2))
    assert first == second
    assert first.name == "weights.hdf5"
    assert first.read_bytes() == BODY
    assert cache_dir() in first.parents
    assert len(server.seen) == 1
    assert files_in_cache() == ["download.json", "weights.hdf5"]


def test_the_checksum_is_recorded_and_checked(address: str) -> None:
    path = fetch(address)
    note = json.loads((path.parent / "download.json").read_text())
    assert (note["sha256"], note["n_bytes"]) == (hashlib.sha256(BODY).hexdigest(), len(BODY))
    path.write_bytes(BODY[:-1] + b"!")
    with pytest.raises(FormatError, match=rf"has changed since it was downloaded\. Delete the directory {path.parent}"):
        fetch(address)


@pytest.mark.parametrize("record", [None, "{", "{}"])
def test_a_file_without_its_record_is_downloaded_again(address: str, record: str | None) -> None:
    path = fetch(address)
    (path.parent / "download.json").unlink()
    if record is not None:
        (path.parent / "download.json").write_text(record)
    path.write_bytes(b"half")
    assert fetch(address).read_bytes() == BODY


def test_a_checksum_in_the_url_is_checked(address: str) -> None:
    right, wrong = hashlib.sha256(BODY).hexdigest(), "0" * 64
    with pytest.raises(FormatError, match=f"expected {wrong}"):
        fetch(f"{address}#sha256={wrong}")
    assert files_in_cache() == []
    assert fetch(f"{address}#sha256={right}").read_bytes() == BODY
    with pytest.raises(FormatError, match="not the requested file"):
        fetch(f"{address}#sha256={wrong}")
    with pytest.raises(ConfigError, match="after '#'"):
        fetch(f"{address}#md5=1")


def chunked(handler: Handler) -> None:
    """Break off in the middle of a response in chunks."""
    handler.protocol_version = "HTTP/1.1"
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"3e8\r\n" + BODY[:500])
    handler.close_connection = True


def other_part(handler: Handler) -> None:
    """Send different part of the file than was requested."""
    if handler.headers.get("Range") is None:
        handler.give(BODY[:1000], length=len(BODY), ETag='"one"')
    else:
        handler.give(BODY[:10], status=206, Content_Range="bytes 0-9/256000", ETag='"one"')


def to(address: str) -> Answer:
    return lambda handler: handler.give(b"", status=302, Location=address)


# What the server answers, how often it is asked, and what the error says.
DEAD: list[tuple[Answer, int, str]] = [
    *((lambda handler, code=code: handler.send_error(code), 1, f"{code}.*by hand") for code in (403, 404, 410)),
    *((lambda handler, code=code: handler.send_error(code), N_TRIES, f"{code}") for code in (500, 503)),
    (lambda handler: handler.give(b"<!DOCTYPE html><title>Buy this domain</title>"), 1, "a web page"),
    (lambda handler: handler.give(b"\xef\xbb\xbf\r\n <HTML lang=en>"), 1, "a web page"),
    (lambda handler: handler.give(b"<?xml version='1.0'?><Error>"), 1, "a web page"),
    (lambda handler: handler.give(BODY[:1000], length=len(BODY)), N_TRIES, "only 1,000 of 256,000 bytes"),
    (chunked, N_TRIES, "IncompleteRead"),
    (other_part, N_TRIES, "different part"),
    (to("file:///etc/hostname"), 1, "file:"),
    (to("http://[x/w"), 1, "URL"),
    (to("http://127.0.0.1:99999/w"), 1, "URL"),
    (to("http://a..b/w"), 1, "URL"),
    (to("/w"), 5, "redirect"),
]


@pytest.mark.parametrize(("answer", "n_asked", "name"), DEAD, ids=range(len(DEAD)))
def test_what_is_no_whole_file_is_named_and_never_kept(
    server: Server, answer: Answer, n_asked: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching.time, "sleep", lambda _: None)
    server.answers["/w"] = answer
    with pytest.raises(ModelNotFoundError, match=f"/w cannot be downloaded.*{name}"):
        fetch(server.address("/w"))
    assert len(server.seen) == n_asked
    assert files_in_cache() == []


def test_a_permanent_error_is_not_retried(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(fetching.time, "sleep", waits.append)
    with Server() as other:
        refused = other.address("/w")
    with pytest.raises(ModelNotFoundError):
        fetch(refused)

    def unknown(*arguments: object, **more: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(ModelNotFoundError, match="Name or service not known"):
        fetch("http://elmokit.invalid/w")
    assert waits == []
    assert files_in_cache() == []


def test_an_interrupted_download_is_resumed_where_it_broke(server: Server) -> None:
    def answer(handler: Handler) -> None:
        wanted = handler.headers.get("Range")
        if wanted is None:
            handler.give(BODY[:70_000], length=len(BODY), ETag='"one"')
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        assert handler.headers["If-Range"] == '"one"'
        part = BODY[start : start + 100_000]
        rest = {"Content_Range": f"bytes {start}-{len(BODY) - 1}/{len(BODY)}", "ETag": '"one"'}
        handler.give(part, length=len(BODY) - start, status=206, **rest)

    server.answers["/w"] = answer
    assert fetch(server.address("/w")).read_bytes() == BODY
    assert [wanted for _, wanted in server.seen] == [None, "bytes=70000-", "bytes=170000-"]


@pytest.mark.parametrize("mark", [{"ETag": '"old"'}, {"ETag": 'W/"weak"'}, {}])
def test_versions_of_a_file_are_never_joined(server: Server, mark: dict[str, str]) -> None:
    """The server sends the whole new version, as ``If-Range`` asks; without a strong ETag, the download restarts."""
    is_strong = mark.get("ETag") == '"old"'

    def answer(handler: Handler) -> None:
        if len(server.seen) == 1:
            handler.give(b"o" * 2000, length=5000, **mark)
        else:
            assert handler.headers["If-Range"] == (mark["ETag"] if is_strong else None)
            handler.give(b"n" * 6000, ETag='"new"')

    server.answers["/w"] = answer
    assert fetch(server.address("/w")).read_bytes() == b"n" * 6000
    assert [wanted for _, wanted in server.seen] == [None, "bytes=2000-" if is_strong else None]


def test_a_file_that_has_become_shorter_is_downloaded_anew(server: Server) -> None:
    answers = iter(
        [
            lambda handler: handler.give(b"o" * 2000, length=5000, ETag='"old"'),
            lambda handler: handler.send_error(416),
            lambda handler: handler.give(b"n" * 1000, ETag='"new"'),
        ]
    )
    server.answers["/w"] = lambda handler: next(answers)(handler)
    assert fetch(server.address("/w")).read_bytes() == b"n" * 1000
    assert [wanted for _, wanted in server.seen] == [None, "bytes=2000-", None]


@pytest.mark.parametrize("length", [None, "x"])
def test_a_response_without_a_length_is_read_to_its_end(server: Server, length: str | None) -> None:
    more = {} if length is None else {"Content_Length": length}
    server.answers["/w"] = lambda handler: handler.give(with_length=False, **more)
    assert fetch(server.address("/w")).read_bytes() == BODY


def test_a_redirect_is_followed(server: Server) -> None:
    server.answers |= {"/new": Handler.give, "/old": to("/new")}
    assert fetch(server.address("/old")).read_bytes() == BODY


def test_a_redirect_from_https_to_http_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unencrypted(urllib.request.AbstractHTTPHandler):
        """Lets the test's server speak for an https one."""

        def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(http.client.HTTPConnection, request)

    monkeypatch.setattr(urllib.request, "HTTPSHandler", Unencrypted)
    secure = server.address("").replace("http:", "https:")
    server.answers |= {
        "/new": Handler.give,
        "/down": lambda handler: handler.give(b"", status=302, Location=server.address("/new")),
        "/within": lambda handler: handler.give(b"", status=302, Location=f"{secure}/new"),
        "/up": lambda handler: handler.give(b"", status=302, Location=f"{secure}/within"),
    }
    with pytest.raises(ModelNotFoundError, match="redirects from https to http:"):
        fetch(f"{secure}/down")
    assert [path for path, _ in server.seen] == ["/down"]
    assert fetch(server.address("/up")).read_bytes() == BODY


def test_a_url_with_non_ascii_letters_is_quoted(server: Server) -> None:
    server.answers["/w%C3%A9ights.hdf5?a=%C3%A9&b=%20c"] = Handler.give
    path = fetch(server.address("/w\u00e9ights.hdf5?a=\u00e9&b=%20c"))
    assert path.read_bytes() == BODY
    assert path.name == "w\u00e9ights.hdf5"


@pytest.mark.parametrize(
    ("address", "error"),
    [
        *((f"http://{rest}", ConfigError) for rest in ("[x", "[x/a.hdf5", "host:port/a", "host:99999/a")),
        *((address, ConfigError) for address in ("ftp://127.0.0.1/w", "data:,x", "/a/path")),
        *((f"http://{rest}", ModelNotFoundError) for rest in ("a..b/a.zip", "\udce9/\udce9", "127.0.0.1:1/\udce9")),
        *((f"file://{rest}", ModelNotFoundError) for rest in ("/no/such/file", "elsewhere/a.hdf5")),
    ],
    ids=ascii,
)
def test_an_address_that_leads_nowhere_is_named(
    address: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(error, match=re.escape(address)):
        fetch(address)


def test_a_url_passed_as_a_path_is_normalized() -> None:
    assert normalize_url(Path("https://host/a/b")) == "https://host/a/b"
    assert all(map(is_url, (Path("http://host/a"), "file:///a", "HTTPS://host/a")))
    assert not any(map(is_url, ("a/b", "//[x/y", "https", "C:\\models\\a")))


def test_the_name_of_a_cached_file_is_a_plain_name() -> None:
    names = {"a/w.hdf5?dl=1": "w.hdf5", "é" * 5000: "é" * 100, "%2e%2e%2fetc%2fpasswd": "passwd", "..": "download"}
    for name, kept in (names | {"": "download", "a%20b%00.json": "a_b_.json"}).items():
        assert url_file_name(f"https://host/{name}") == kept


@pytest.mark.parametrize("cache", ["{folder}/file", "~nosuchuser/cache"])
def test_a_cache_that_cannot_be_written_says_what_to_do(
    address: str, cache: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ELMOKIT_CACHE", cache.format(folder=tmp_path))
    with pytest.raises(OutputError, match="Set ELMOKIT_CACHE"):
        fetch(address)
