"""Requests to an identity provider: over TLS or on loopback, without redirects, with limits of time and size."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

from comet.errors import InvalidArgument
from comet.settings.hosts import is_loopback

FETCH_S_MAX: Final = 5.0  # of each step of a request
BODY_S_MAX: Final = 10.0  # of the whole answer, however slowly it comes
BYTES_MAX: Final = 1 << 20
_CHUNK_BYTES: Final = 1 << 16


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Another address could be a plain one."""

    def redirect_request(self, *_: Any) -> None:
        """None: it is not followed."""


def is_private(url: str) -> bool:
    """Whether others can neither read nor replace an answer of this URL.

    >>> [is_private(url) for url in ("https://login.example", "http://127.0.0.1:9", "http://login.example", "https://")]
    [True, True, False, False]
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host or "")))


def fetch(url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    """The answer of a GET, or with a body of a POST. Blocks. Raises OSError, HTTPException, InvalidArgument."""
    opener = urllib.request.build_opener(_NoRedirects)
    request = urllib.request.Request(url, body, dict(headers or {}))  # noqa: S310 - callers check the URL
    with opener.open(request, timeout=FETCH_S_MAX) as answer:
        return _read(answer)


def _read(answer: Any) -> bytes:
    end, data = monotonic() + BODY_S_MAX, b""
    while chunk := answer.read1(_CHUNK_BYTES):
        data += chunk
        if len(data) > BYTES_MAX:
            raise InvalidArgument(f"the answer is larger than {BYTES_MAX} bytes")
        if monotonic() > end:
            raise InvalidArgument(f"the answer takes longer than {BODY_S_MAX:g} s")
    return data
