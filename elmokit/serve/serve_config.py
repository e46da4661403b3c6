"""The settings of ``elmokit serve``."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

from elmokit.config import check_at_least, check_at_most, check_choice, check_not_negative, check_positive, setting
from elmokit.errors import SettingError
from elmokit.pretrained.pooling_names import POOLING_NAMES, PoolingName

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
MAX_HEADER_SECONDS = 60
"""The maximum in Granian."""
ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#A-Z]+")
HOST = re.compile(r"\*|\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]*]+")


@dataclass(frozen=True)
class ServeConfig:
    """The server's address, limits and batching."""

    host: str = setting("127.0.0.1", "Address to listen on. 0.0.0.0 accepts requests from other machines.")
    port: int = setting(8000, "Port to listen on. 0 picks a free one, which is printed.")
    unix_socket: str | None = setting(None, "Listen on a Unix socket at this path instead of a port.", is_path=True)
    token_file: str | None = setting(
        None,
        "File with a token that requests to /v1 and /metrics must send as `Authorization: Bearer TOKEN`. The token can "
        "also be set with the environment variable ELMOKIT_SERVE_TOKEN.",
        is_path=True,
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Accept requests to this host name besides localhost, 127.0.0.1 and [::1], such as elmo.example.org; * for "
        "any. Can be repeated. By default, a server on a loopback address accepts no others, and other servers accept "
        "all.",
    )
    cors_origins: tuple[str, ...] = setting(
        (),
        "Accept browser requests from web pages of this origin, such as https://example.org; * for any. Can be "
        "repeated.",
    )
    name: str | None = setting(None, "Name of the model in requests. By default, its file name.")
    pooling: PoolingName = setting(
        "auto",
        "How /v1/embeddings combines token vectors (docs/how-to/compare-sentences.md). By default, the model's "
        "whitening, else sif, else mean.",
    )
    index: str | None = setting(
        None,
        "Index to search for neighbors, made by `elmokit neighbors index`. By default, one of the example sentences.",
        is_path=True,
    )
    tokenize: bool = setting(
        True, "Split texts into sentences and tokens, or only at spaces.", off_flag="--split-at-spaces"
    )
    batch_tokens: int = setting(8192, "Maximum number of queued tokens that are computed together.")
    batch_wait_ms: float = setting(2.0, "How long a request waits for others to be computed together, in milliseconds.")
    queue_requests: int = setting(2048, "Maximum number of requests in progress. Further ones get status 429.")
    queue_tokens: int = setting(262_144, "Maximum number of tokens in progress. Further requests get status 429.")
    max_body_mib: int = setting(8, "Maximum size of a request body, in MiB.")
    max_texts: int = setting(2048, "Maximum number of texts in a request.")
    max_text_characters: int = setting(65_536, "Maximum length of a text, in characters.")
    max_request_tokens: int = setting(65_536, "Maximum number of tokens in a request.")
    timeout_seconds: float = setting(60.0, "Maximum time to answer a request, including the time in the queue.")
    header_timeout_seconds: float = setting(
        10.0, "Maximum time for a client to send a request's headers, or its next request."
    )
    body_timeout_seconds: float = setting(30.0, "Maximum time for a client to send a request's body.")
    stop_timeout_seconds: int = setting(30, "Maximum time to answer accepted requests after SIGTERM or Ctrl-C.")

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, POOLING_NAMES)
        for name in ("batch_tokens", "queue_requests", "queue_tokens", "max_body_mib", "max_texts"):
            check_at_least(name, getattr(self, name), 1)
        for name in ("max_text_characters", "max_request_tokens", "stop_timeout_seconds"):
            check_at_least(name, getattr(self, name), 1)
        for name, given, form, expected in (
            ("allowed_hosts", self.allowed_hosts, HOST, "a host without scheme and port, such as elmo.example.org"),
            ("cors_origins", self.cors_origins, ORIGIN, "scheme and host as browsers send them: https://example.org"),
        ):
            for value in given:
                if not form.fullmatch(value):
                    raise SettingError(name, f"has {value!r}; it must be {expected}.")
        check_at_least("port", self.port, 0)
        check_at_most("port", self.port, 65_535)
        check_not_negative("batch_wait_ms", self.batch_wait_ms)
        check_at_most("batch_wait_ms", self.batch_wait_ms, 1000 * MAX_HEADER_SECONDS)
        check_positive("timeout_seconds", self.timeout_seconds)
        check_positive("header_timeout_seconds", self.header_timeout_seconds)
        check_at_most("header_timeout_seconds", self.header_timeout_seconds, MAX_HEADER_SECONDS)
        check_positive("body_timeout_seconds", self.body_timeout_seconds)

    @property
    def accepted_hosts(self) -> frozenset[str] | None:
        """The accepted host names, in lower case; None for all."""
        # Another site can point its own host name to 127.0.0.1 (DNS rebinding). The browser then treats the server as
        # part of that site; only the host name in the requests reveals it.
        if "*" in self.allowed_hosts or not (self.allowed_hosts or _is_loopback(self.host)):
            return None
        own = f"[{self.host}]" if ":" in self.host else self.host
        return frozenset(name.lower() for name in (*LOCAL_HOSTS, own, *self.allowed_hosts))


def _is_loopback(host: str) -> bool:
    """Check whether a host is a loopback address, including short forms such as 127.1, and names."""
    try:
        address = str(socket.getaddrinfo(host, None)[0][4][0])
    except (OSError, UnicodeError):
        return False
    found = ipaddress.ip_address(address)
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback  # ::ffff:127.0.0.1 is 127.0.0.1
