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
"""Granian allows no more."""
ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#A-Z]+")
HOST = re.compile(r"\*|\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]*]+")


@dataclass(frozen=True)
class ServeConfig:
    """Address, limits and batching of the server."""

    host: str = setting("127.0.0.1", "Address to listen on. 0.0.0.0 accepts requests from other machines.")
    port: int = setting(8000, "Port to listen on. 0 takes a free one, which is printed.")
    unix_socket: str | None = setting(None, "Listen on a Unix socket at this path, and not on a port.", is_path=True)
    token_file: str | None = setting(
        None,
        "File with a token that requests to /v1 and /metrics must send as `Authorization: Bearer TOKEN`. The "
        "environment variable ELMOKIT_SERVE_TOKEN sets it too.",
        is_path=True,
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Host name that requests may name besides localhost, 127.0.0.1 and [::1], such as elmo.example.org; * for any. "
        "Can be repeated. By default, no other on a loopback address, and any on other addresses.",
    )
    cors_origins: tuple[str, ...] = setting(
        (),
        "Origin of a web page that browsers may send requests from, such as https://example.org; * for any. Can be "
        "repeated.",
    )
    name: str | None = setting(None, "Name of the model in requests. By default, that of its file.")
    pooling: PoolingName = setting(
        "auto",
        "How /v1/embeddings combines the vectors of tokens (docs/how-to/compare-sentences.md). By default, the "
        "whitening that is stored with the model, else sif, else mean.",
    )
    index: str | None = setting(
        None,
        "Index to search for neighbors, from `elmokit neighbors index`. By default, one over the example sentences.",
        is_path=True,
    )
    tokenize: bool = setting(
        True, "Split texts into sentences and tokens; otherwise at spaces only.", off_flag="--split-at-spaces"
    )
    batch_tokens: int = setting(8192, "Tokens that are taken from the queue to be computed together.")
    batch_wait_ms: float = setting(2.0, "How long the first request waits for others to join it.")
    queue_requests: int = setting(2048, "Requests that may wait or be computed. More are answered with 429.")
    queue_tokens: int = setting(262_144, "Tokens that may wait or be computed. More are answered with 429.")
    max_body_mib: int = setting(8, "Largest body of a request, in MiB.")
    max_texts: int = setting(2048, "Most texts in a request.")
    max_text_characters: int = setting(65_536, "Longest text.")
    max_request_tokens: int = setting(65_536, "Most tokens in a request.")
    timeout_seconds: float = setting(60.0, "Longest time that a request may wait and be computed.")
    header_timeout_seconds: float = setting(
        10.0, "Longest time that a client may take to send the headers of a request, or its next request."
    )
    body_timeout_seconds: float = setting(30.0, "Longest time that a client may take to send a body.")
    stop_timeout_seconds: int = setting(30, "Longest time to answer the accepted requests after SIGTERM or Ctrl-C.")

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
        """The hosts that requests may name, in lower case; None for all."""
        # A page of another site can let its own name lead to 127.0.0.1 (DNS rebinding). Its browser then takes the
        # server for a part of that site, and only the name in the requests is different.
        if "*" in self.allowed_hosts or not (self.allowed_hosts or _is_loopback(self.host)):
            return None
        own = f"[{self.host}]" if ":" in self.host else self.host
        return frozenset(name.lower() for name in (*LOCAL_HOSTS, own, *self.allowed_hosts))


def _is_loopback(host: str) -> bool:
    """Return whether the server listens on a loopback address: also by a short form, as 127.1, or by a name."""
    try:
        address = str(socket.getaddrinfo(host, None)[0][4][0])
    except (OSError, UnicodeError):
        return False
    found = ipaddress.ip_address(address)
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback  # ::ffff:127.0.0.1 leads to 127.0.0.1
