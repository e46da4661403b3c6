"""Addresses of Google's ELMo on TF-Hub and Kaggle, and the directories in which its modules are kept on this machine.

What it is based on, all of it read in the source of the package ``tensorflow_hub`` (0.1.0 to 0.16.1):

- An address such as ``https://tfhub.dev/google/elmo/2`` becomes a download by adding ``?tf-hub-format=compressed``,
  whatever the server. The answer is a tar.gz of the module.
- The module is unpacked into ``TFHUB_CACHE_DIR/SHA1``, by default ``/tmp/tfhub_modules/SHA1``. It is the hash of the
  address exactly as the program wrote it, before the query is added.
- With ``TFHUB_MODEL_LOAD_FORMAT=UNCOMPRESSED``, TensorFlow reads the same module file by file from Google's servers and
  keeps nothing. elmokit always downloads the archive.

In November 2023 tfhub.dev became a redirection to Kaggle Models, whose addresses ``tensorflow_hub`` treats in the same
way. ``kagglehub`` keeps a module in ``KAGGLEHUB_CACHE/models/google/elmo/tensorFlow1/elmo/VERSION``.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from elmokit.formats import tf_hub
from elmokit.formats.archives import is_archive
from elmokit.formats.fetch import split_url
from elmokit.storage.bounded import whole_number

LATEST = 3
"""The version that an address without a version means. Google published versions 1 to 3."""

_FORMAT = "tf-hub-format"
# One pattern per server, for an address without its query. On the first two, the version may be left out. Kaggle wrote
# its addresses in a long form, with the names of the levels, and later in a short form.
_ELMO = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"https?://(?:www\.)?(?:tfhub\.dev|hub\.tensorflow\.google\.cn)/google/elmo(?:/(\d+))?/?$",
        r"https?://(?:www\.)?kaggle\.com/models/google/elmo(?:(?:/frameworks)?/tensorflow1(?:/variations)?/elmo"
        r"(?:(?:/versions)?/(\d+))?)?/?$",
        r"https?://(?:www\.)?kaggle\.com/api/v1/models/google/elmo/tensorflow1/elmo/(\d+)/download$",
        r"https?://storage\.googleapis\.com/tfhub-modules/google/elmo/(\d+)\.tar\.gz$",
    )
]
_HUB = re.compile(
    r"https?://(?:www\.)?(?:tfhub\.dev|hub\.tensorflow\.google\.cn|kaggle\.com/models)/[^/?#]+/[^?#]+", re.IGNORECASE
)
# How programs wrote the address, on which the name in the cache depends.
_SPELLINGS = (
    "https://tfhub.dev/google/elmo/{version}",
    "http://tfhub.dev/google/elmo/{version}",
    "https://www.kaggle.com/models/google/elmo/frameworks/TensorFlow1/variations/elmo/versions/{version}",
    "https://kaggle.com/models/google/elmo/frameworks/TensorFlow1/variations/elmo/versions/{version}",
    "https://www.kaggle.com/models/google/elmo/TensorFlow1/elmo/{version}",
    "https://www.kaggle.com/models/google/elmo/tensorFlow1/elmo/{version}",
    "https://storage.googleapis.com/tfhub-modules/google/elmo/{version}.tar.gz",
)


def elmo_version(url: str) -> int | None:
    """Return the version of ``google/elmo`` that an address names, or None for any other address."""
    address = _with_format(url, None)
    for pattern in _ELMO:
        if match := pattern.match(address):
            return LATEST if match[1] is None else whole_number(match[1])
    return None


def is_hub_address(url: str) -> bool:
    """Check for the address of any module on TF-Hub or Kaggle Models, as opposed to the URL of a file."""
    return elmo_version(url) is not None or _HUB.match(url) is not None


def archive_url(url: str) -> str:
    """Return the URL at which a TF-Hub server has the archive of a module."""
    return _with_format(url, "compressed")


def module_folder(url: str) -> Path:
    """Return the directory in which ``tensorflow_hub`` keeps the module of an address, spelled in this way."""
    root = os.environ.get("TFHUB_CACHE_DIR") or Path(tempfile.gettempdir()) / "tfhub_modules"
    return Path(root) / hashlib.sha1(url.encode(errors="replace"), usedforsecurity=False).hexdigest()


def cached_module(url: str) -> Path | None:
    """Find the module of an address, or its archive, that ``tensorflow_hub`` or ``kagglehub`` downloaded."""
    for folder in _folders(url):
        if tf_hub.FORMAT.recognizes(folder):
            return folder
        for archive in (folder.with_name(f"{folder.name}{suffix}") for suffix in (".tar.gz", ".tgz", ".tar", "")):
            if archive.is_file() and is_archive(archive):
                return archive
    return None


def _folders(url: str) -> Iterator[Path]:
    version = elmo_version(url)
    spellings = [] if version is None else [spelling.format(version=version) for spelling in _SPELLINGS]
    for spelling in (url, _with_format(url, None), *spellings):
        yield module_folder(spelling)
        yield module_folder(archive_url(spelling))  # a program may have written the query too
    if version is not None:
        root = os.environ.get("KAGGLEHUB_CACHE") or os.path.expanduser("~/.cache/kagglehub")  # noqa: PTH111 (never raises)
        for framework in ("tensorFlow1", "TensorFlow1"):
            yield Path(root) / "models" / "google" / "elmo" / framework / "elmo" / str(version)


def _with_format(url: str, value: str | None) -> str:
    """Return a URL with another value for the query that asks for a format, or without that query."""
    parts = split_url(url)
    query = [(name, given) for name, given in parse_qsl(parts.query, keep_blank_values=True) if name != _FORMAT]
    if value is not None:
        query.append((_FORMAT, value))
    return parts._replace(query=urlencode(query)).geturl()
