"""Download models into the cache.

A file is downloaded completely or not at all. Its SHA-256 is recorded next to it, and checked each time it is opened.

Why not ``pooch``? It restarts broken downloads from the beginning, and the published models are files of up to 1.6 GB
on slow university servers; it also expects a checksum for each file, and none were published for these.
``huggingface_hub`` resumes downloads, but only from its own servers.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import socket
import ssl
import string
import time
import urllib.request
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, quote, unquote, urldefrag, urlsplit

from elmokit.config import read_json, write_json
from elmokit.errors import ConfigError, FormatError, ModelError, ModelNotFoundError, OutputError
from elmokit.formats.format import is_web_page
from elmokit.storage.atomic import atomic_write
from elmokit.storage.cache import cache_dir
from elmokit.storage.progress import ProgressBar
from elmokit.storage.text_files import expand_user

TIMEOUT_SECONDS = 30.0  # without a single byte
N_TRIES = 4
LONGEST_NAME = 200  # bytes; file systems allow 255, and a download in progress has a longer name

_BLOCK = 1 << 20
_WAIT_SECONDS = 1.0  # before the second try; doubled before each further one
# Statuses that may be temporary, or gone when downloading from the start (416), and errors that are permanent.
_RETRY_STATUS = (408, 416, 425, 429, 500, 502, 503, 504)
_PERMANENT_ERRORS = (
    str,  # the reason of an error of urllib itself
    ValueError,
    http.client.InvalidURL,
    ConnectionRefusedError,
    socket.gaierror,
    ssl.SSLCertVerificationError,
)
_URL = re.compile(r"\s*(https?|file):", re.IGNORECASE)
_DIGEST = re.compile(r"sha256=[0-9a-f]{64}|")


def is_url(text: str | Path) -> bool:
    """Check for an ``http``, ``https`` or ``file`` URL, as opposed to a path."""
    return _URL.match(str(text)) is not None


def normalize_url(url: str | Path) -> str:
    """Restore the ``//`` of a URL passed as a ``Path``, which collapses it into one slash."""
    return re.sub(r"^(https?|file):/(?!/)", r"\1://", str(url))


def url_file_name(url: str) -> str:
    """Return the file name at the end of a URL, safe to use on this machine."""
    name = unquote(split_url(url).path).rsplit("/", 1)[-1]
    end = re.sub(r"[^\w.+-]", "_", name).encode()[-LONGEST_NAME:].decode(errors="ignore")
    return end.lstrip(".") or "download"


def local_path(path: str | Path) -> Path:
    """Return the local path for a path or URL: URLs are downloaded, and ``~`` is expanded."""
    return fetch(path) if is_url(path) else expand_user(path, ModelNotFoundError)


def fetch(url: str | Path) -> Path:
    """Return the file at a URL, from the cache or downloaded into it.

    Broken downloads are resumed up to ``N_TRIES`` times. To require a checksum, end the URL with ``#sha256=...``.

    Raises:
        ModelNotFoundError: The URL leads to nothing or to a web page, the server does not answer, or the download does
            not complete.
        FormatError: The checksum is wrong, or a cached file has changed since it was downloaded.
        OutputError: The cache is not writable, or the disk is full.
        ConfigError: The URL cannot be parsed, or is not an http, https or file URL.
    """
    url, fragment = urldefrag(normalize_url(url))
    scheme = split_url(url).scheme
    if _DIGEST.fullmatch(fragment) is None:
        raise ConfigError(f"{url}#{fragment}: after '#', only sha256= and 64 hexadecimal digits are allowed.")
    if scheme not in ("http", "https", "file"):
        raise ConfigError(f"{url} cannot be downloaded: expected an http, https or file URL.")
    sha256 = fragment.removeprefix("sha256=")
    if scheme == "file":
        path = Path(urllib.request.url2pathname(urlsplit(url).path))
        if not path.exists():
            raise ModelNotFoundError(f"There is no file {path} ({url}).")
    else:
        path, record = _cached_files(url)
        recorded = _recorded_sha256(record) if path.is_file() else None
        if recorded is None:
            _download_to(url, path, record, sha256)
            return path
        remedy = f"It has changed since it was downloaded. Delete the directory {path.parent} to download it again."
        _check(path, recorded, path, remedy)
    if sha256:
        _check(path, sha256, path, f"It is not the requested file. Check the URL {url}.")
    return path


def cached_file(url: str) -> Path | None:
    """Return the cached file of a URL without reading it; None if it has not been downloaded."""
    path, record = _cached_files(urldefrag(url)[0])
    if path.is_file() and record.is_file():
        return path
    return None


def _cached_files(url: str) -> tuple[Path, Path]:
    """Return the cache paths of a URL's file and of its download record."""
    # A file only counts with its record; otherwise, a process died before writing the checksum.
    # One directory per URL: many published files have the same name, such as options.json.
    folder = cache_dir() / "downloads" / hashlib.sha256(url.encode(errors="backslashreplace")).hexdigest()[:16]
    return folder / url_file_name(url), folder / "download.json"


def split_url(url: str) -> SplitResult:
    """Split a URL into its parts, or raise a ConfigError."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # parsed when accessed
    except ValueError as error:
        raise ConfigError(f"{url} is not a valid URL: {error}.") from None
    return parts


def _recorded_sha256(record: Path) -> str | None:
    """Return a download's checksum; None if it was not recorded completely."""
    try:
        return str(read_json(record)["sha256"])
    except (ModelError, KeyError):
        return None


def _check(path: Path, sha256: str, what: object, problem: str) -> str:
    """Return a file's SHA-256, or raise a FormatError if it differs from the expected one, if any."""
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 not in ("", actual):
        raise FormatError(f"{what} has the SHA-256 {actual}; expected {sha256}. {problem}")
    return actual


def _download_to(url: str, path: Path, record: Path, sha256: str) -> None:
    """Download a file, and record its checksum."""
    # The record is written last. A file without one counts as not downloaded, so an interruption in between costs a
    # download but never yields an unchecked file.
    try:
        with atomic_write(path, overwrite=True) as temporary:
            with temporary.open("wb") as file:
                _download(url, file)
            actual = _check(temporary, sha256, url, "The download was discarded.")
            note = {"address": url, "sha256": actual, "n_bytes": temporary.stat().st_size}
        write_json(record, note)
    except OutputError as error:
        raise OutputError(f"{error} Set ELMOKIT_CACHE to use another directory for the cache.") from None


def _download(url: str, file: IO[bytes]) -> None:
    """Download a URL into a file, resuming broken connections."""
    problem: str | None = None
    etag: str | None = None
    for attempt in range(N_TRIES):
        if attempt:
            time.sleep(_WAIT_SECONDS * 2 ** (attempt - 1))  # gives an overloaded server some time
        try:
            request = _request(url, file.tell(), etag)
            with urllib.request.build_opener(_SecureRedirects).open(request, timeout=TIMEOUT_SECONDS) as response:
                etag = _strong_mark(response.headers)
                problem = _receive(url, response, file)
            if problem is None:
                return
        except (URLError, TimeoutError, ConnectionError, ssl.SSLError, http.client.HTTPException, ValueError) as error:
            problem = str(error) or type(error).__name__
            if isinstance(error, HTTPError):
                error.close()
                if error.code == 416:  # the requested range does not exist: the file has changed
                    etag = None
            if not _may_pass(error):
                break
    raise _download_error(url, problem)


def _request(url: str, start: int, etag: str | None) -> urllib.request.Request:
    """Request a file from byte ``start`` if the server still has the same version, otherwise the whole file."""
    # If the file has changed, the server sends all of it (If-Range), so parts of two versions are never joined.
    # "identity", because lengths and ranges of a compressed response would be those of the compressed bytes.
    headers = {"User-Agent": "elmokit", "Accept-Encoding": "identity"}
    if etag is not None and start:
        headers |= {"Range": f"bytes={start}-", "If-Range": etag}
    return urllib.request.Request(_quoted(url), headers=headers)


def _strong_mark(headers: Any) -> str | None:
    """Return an identifier of a file's version that If-Range accepts, or None."""
    # RFC 9110, section 13.1.5: a strong ETag or a date, never a weak ETag (W/).
    mark: str = headers.get("ETag") or headers.get("Last-Modified") or ""
    if not mark or mark.startswith("W/"):
        return None
    return mark


def _may_pass(error: Exception) -> bool:
    """Check whether another attempt may succeed."""
    if isinstance(error, HTTPError):
        return error.code in _RETRY_STATUS
    reason = error.reason if isinstance(error, URLError) else error
    return not isinstance(reason, _PERMANENT_ERRORS)


def _download_error(url: str, problem: str | None) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{url} cannot be downloaded: {problem}. If the URL is dead, download the file by hand from elsewhere and pass "
        "its path."
    )


def _quoted(url: str) -> str:
    """Percent-encode non-ASCII characters, as HTTP requires. Parts that are already encoded stay unchanged."""
    parts = split_url(url)
    path = quote(parts.path, safe=string.punctuation, errors="replace")
    query = quote(parts.query, safe=string.punctuation, errors="replace")
    return parts._replace(path=path, query=query).geturl()


class _SecureRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https, and from https only to https."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("https", req.type):
            raise URLError(f"the server redirects from {req.type} to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _receive(url: str, response: Any, file: IO[bytes]) -> str | None:
    """Write a response: append a partial one (status 206) to the file, and overwrite it with a complete one.

    Returns:
        The problem, if another attempt may help.
    """
    start = 0
    if response.status == 206:
        start = file.tell()
        if not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            return "the server sent a different part of the file than requested"
    file.seek(start)
    file.truncate()
    total = None
    if response.length is not None:  # what is left of the body, as its header says
        total = start + response.length
    name = url_file_name(url)
    with ProgressBar("B") as progress:
        progress(name, start, total)
        while block := response.read(_BLOCK):
            if file.tell() == 0 and is_web_page(block):  # a frequent answer of expired domains and login pages
                raise _download_error(url, "the server sends a web page")
            file.write(block)
            progress(name, file.tell(), total)
    if total is not None and file.tell() < total:
        return f"only {file.tell():,} of {total:,} bytes arrived"
    return None
