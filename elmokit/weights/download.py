"""Addresses to files on this machine: downloaded once, checked, kept in a cache.

A file is downloaded whole or not at all. Its SHA-256 is remembered beside it and checked whenever it is opened again.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import string
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import SplitResult, quote, unquote, urldefrag, urljoin, urlsplit

from elmokit.errors import ConfigError, FormatError, ModelNotFoundError, OutputError
from elmokit.io.cache import cache_dir

TIMEOUT_SECONDS = 30.0  # without a single byte
N_TRIES = 4
MAX_BYTES = 64 * 2**30
_BLOCK = 1 << 20
_WAIT_SECONDS = 1.0  # before the second try; doubled before each further one
_TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_HOPELESS = (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)  # the next try ends like this one
_WEB_PAGE = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--", b"<error")
_USER_AGENT = "elmokit"
_FOLDED = re.compile(r"^(https?|file):/(?!/)")
_ADDRESS = re.compile(r"\s*(https?|file):", re.IGNORECASE)
_DIGEST = re.compile(r"^sha256=([0-9a-f]{64})$")


class _CutShortError(Exception):
    """A download that stopped before its end; what there is, is kept for the next try."""


def is_address(text: str | Path) -> bool:
    """Whether this is an ``http``, ``https`` or ``file`` address rather than a path."""
    return _ADDRESS.match(str(text)) is not None


def unfolded(address: str | Path) -> str:
    """An address as text; ``pathlib`` folds the two slashes of one that went through a ``Path``."""
    return _FOLDED.sub(r"\1://", str(address))


def sibling(address: str, name: str) -> str:
    """The address of another file in the same place."""
    return urljoin(address, name)


def name_in(address: str) -> str:
    """The file name that an address ends in."""
    name = unquote(_parts(address).path).rsplit("/", 1)[-1]
    return re.sub(r"[^\w.+-]", "_", name).lstrip(".") or "download"


def _parts(address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        _ = parts.port  # is only looked at when asked for
    except ValueError as error:
        raise ConfigError(f"{address} is no address that can be read: {error}. Check it for slips.") from None
    return parts


def fetch(address: str | Path) -> Path:
    """The file at an address, from the cache or downloaded into it.

    A connection that breaks is taken up where it broke, up to ``N_TRIES`` times. ``#sha256=...`` at the end of an
    address is what the file must hash to.

    Raises:
        ModelNotFoundError: nothing is at the address but a web page, no answer comes, or none comes whole.
        FormatError: what came is not what was asked for, or a cached file changed since its download.
        OutputError: the cache cannot be written, or has too little room.
        ConfigError: the address is of a kind that cannot be downloaded, or cannot be read.
    """
    _parts(unfolded(address))
    address, fragment = urldefrag(unfolded(address))
    wanted = _DIGEST.match(fragment)
    if fragment and not wanted:
        raise ConfigError(f"{address}#{fragment}: after '#' only sha256= and 64 hexadecimal digits can stand.")
    scheme = _parts(address).scheme
    if scheme == "file":
        path = _local(address)
        if wanted:
            _check(path, wanted[1], "It is not the file that was asked for.")
        return path
    if scheme not in ("http", "https"):
        raise ConfigError(f"{address} cannot be downloaded: give an http, https or file address.")
    folder = cache_dir() / "downloads" / hashlib.sha256(address.encode(errors="backslashreplace")).hexdigest()[:16]
    path, record = folder / name_in(address), folder / "download.json"
    if path.is_file() and record.is_file():
        mend = f"Delete the folder {folder}; it will be downloaded anew."
        _check(path, _remembered(record, mend), f"It changed since it was downloaded. {mend}")
    else:
        _download_to(address, path, record, wanted[1] if wanted else None)
    if wanted:
        _check(path, wanted[1], f"It is not the file that was asked for. Check the address {address}.")
    return path


def _local(address: str) -> Path:
    parts = urlsplit(address)
    if parts.netloc not in ("", "localhost"):
        raise ConfigError(f"{address} names another machine, {parts.netloc}; a file address is file:///path.")
    path = Path(urllib.request.url2pathname(parts.path))
    if not path.exists():
        raise ModelNotFoundError(f"There is no file {path} ({address}).")
    return path


def _remembered(record: Path, mend: str) -> str:
    try:
        return str(json.loads(record.read_text(encoding="utf-8"))["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        raise FormatError(f"{record}, the note on a download, cannot be read. {mend}") from None


def _check(path: Path, sha256: str, problem: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise FormatError(f"{path} has the SHA-256 {found}, expected {sha256}. {problem}")


def _download_to(address: str, path: Path, record: Path, wanted: str | None) -> None:
    """Download beside the place, then rename: the file first, the note that makes it count last."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".part-", dir=path.parent)
    except OSError as error:
        raise OutputError(
            f"Cannot write to the cache {path.parent}: {error.strerror}. Set ELMOKIT_CACHE to a folder that you may "
            "write to."
        ) from None
    part = Path(name)
    try:
        with os.fdopen(handle, "r+b") as file:
            _download(address, file)
            file.seek(0)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if wanted is not None and sha256 != wanted:
            raise FormatError(f"{address} gave a file with the SHA-256 {sha256}, expected {wanted}. Nothing was kept.")
        note = {"address": address, "sha256": sha256, "n_bytes": part.stat().st_size}
        part.chmod(0o644)
        part.replace(path)
        beside = record.with_name(f".{os.getpid()}.{record.name}")
        beside.write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
        beside.replace(record)
    except OSError as error:
        raise OutputError(f"Writing {path} failed: {error.strerror or error}. Nothing was kept.") from None
    finally:
        part.unlink(missing_ok=True)


def _download(address: str, file: IO[bytes]) -> None:
    """Fill a file from an address; a broken connection is taken up where it broke."""
    problem = ""
    came = False
    mark: str | None = None  # what says that the rest is of the same file
    for attempt in range(N_TRIES):
        if attempt:
            time.sleep(_WAIT_SECONDS * 2 ** (attempt - 1))
        try:
            with _asked(address, file.tell(), mark) as answer:
                came = True
                mark = _strong_mark(answer.headers)
                _receive(address, answer, file)
            return
        except urllib.error.HTTPError as error:
            with error:
                problem = f"the server answers {error.code} {error.reason}"
            if error.code == 416:  # the rest that was asked for is not there: the file changed
                mark = None
            elif error.code not in _TRY_AGAIN:
                break
        except urllib.error.URLError as error:
            problem = f"no connection ({error.reason})"
            if isinstance(error.reason, (str, *_HOPELESS)):
                break
        except (http.client.InvalidURL, UnicodeError) as error:
            problem = f"the address cannot be read ({error})"
            break
        except _CutShortError as error:
            problem = str(error)
        except (TimeoutError, ConnectionError, ssl.SSLError, http.client.HTTPException) as error:
            problem = f"the connection broke ({error or type(error).__name__})"
        except (ValueError, OverflowError) as error:
            problem = f"the server redirects to what is no address ({error})"
            break
        if mark is None:
            _start_anew(file)
    raise _not_there(address, problem, whole=not came)


def _not_there(address: str, problem: str, whole: bool = True) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{address} cannot be downloaded{'' if whole else ' whole'}: {problem}. If the address is dead, download the "
        "file by hand from another place and give its path."
    )


def _strong_mark(headers: Any) -> str | None:
    """What a server calls this very version of a file, for ``If-Range``; None where it has no exact name for it."""
    mark = headers.get("ETag") or headers.get("Last-Modified")
    return None if mark is None or mark.startswith("W/") else str(mark)


@contextlib.contextmanager
def _asked(address: str, start: int, mark: str | None) -> Iterator[Any]:
    headers = {"User-Agent": _USER_AGENT, "Accept-Encoding": "identity"}
    if start and mark is not None:
        headers |= {"Range": f"bytes={start}-", "If-Range": mark}
    request = urllib.request.Request(_quoted(address), headers=headers)
    with _opener().open(request, timeout=TIMEOUT_SECONDS) as answer:
        yield answer


def _quoted(address: str) -> str:
    """An address whose path and query are ASCII, as HTTP asks for; what is quoted already stays as it is."""
    parts = _parts(address)
    path, query = (quote(part, safe=string.punctuation, errors="replace") for part in (parts.path, parts.query))
    return parts._replace(path=path, query=query).geturl()


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but none that gives up encryption."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            raise urllib.error.URLError(f"the server redirects from https to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """Like urllib's own, without ftp, data and file addresses, to which a redirection could lead."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        _Redirects,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _receive(address: str, answer: Any, file: IO[bytes]) -> None:
    """Write an answer's body at the file's end (a partial answer) or over it (a whole one)."""
    from tqdm import tqdm

    start = file.tell()
    if answer.status == 206:
        found = re.match(rf"bytes {start}-", answer.headers.get("Content-Range", ""))
        if found is None:
            _start_anew(file)
            raise _CutShortError("the server sent another part of the file than was asked for")
    else:
        start = 0
        _start_anew(file)
        if answer.headers.get_content_type() == "text/html":
            raise _not_there(address, "the server sends a web page")
    length = answer.headers.get("Content-Length")
    if length is not None and not length.isdecimal():
        raise FormatError(f"{address}: the server says a length of {length!r}. Nothing was kept.")
    total = None if length is None else start + int(length)
    _check_room(address, total, file)
    shown = tqdm(
        total=total,
        initial=start,
        unit="B",
        unit_scale=True,
        desc=name_in(address),
        leave=False,
        disable=not sys.stderr.isatty(),
    )
    with shown:
        while block := answer.read(_BLOCK):
            if file.tell() == 0 and block.lstrip(b"\xef\xbb\xbf \t\r\n")[:9].lower().startswith(_WEB_PAGE):
                raise _not_there(address, "the server sends a web page")
            file.write(block)
            shown.update(len(block))
            if file.tell() > MAX_BYTES:
                raise FormatError(f"{address} sends more than {MAX_BYTES:,} bytes; no ELMo is that large.")
    if total is not None and file.tell() < total:
        raise _CutShortError(f"{file.tell():,} of {total:,} bytes came")


def _check_room(address: str, total: int | None, file: IO[bytes]) -> None:
    if total is None:
        return
    if total > MAX_BYTES:
        raise FormatError(f"{address} says it has {total:,} bytes; no ELMo is that large. Nothing was kept.")
    folder = cache_dir()
    free = shutil.disk_usage(folder).free
    if total - file.tell() > free:
        raise OutputError(
            f"{address} has {total:,} bytes and {folder} has room for {free:,}. Make room, or set ELMOKIT_CACHE to a "
            "folder elsewhere."
        )


def _start_anew(file: IO[bytes]) -> None:
    file.seek(0)
    file.truncate()
