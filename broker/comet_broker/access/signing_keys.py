"""The keys with which an issuer signs its tokens: a JWK set, at a URL or in a file.

Keys for other algorithms, those without a `kid`, and secret ones are left out. Needs the package pyjwt, which only
brokers that take tokens import.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from comet.errors import InvalidArgument, Unavailable
from comet.settings.hosts import is_loopback

ALGORITHMS: Final = ("RS256", "PS256", "ES256", "EdDSA")
FETCH_S_MAX: Final = 5.0  # of each step of a request
BYTES_MAX: Final = 1 << 20


class SigningKey(NamedTuple):
    text: str  # the JWK: keys with the same one verify the same
    key: Any  # jwt.PyJWK


SigningKeys: TypeAlias = "Mapping[str, SigningKey]"  # by kid


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Another address could be a plain one."""

    def redirect_request(self, *_: Any) -> None:
        """None: it is not followed."""


def is_url(source: str) -> bool:
    return source.startswith(("https://", "http://"))


def check_source(source: str) -> None:
    """Raises InvalidArgument for keys that others could replace on the way."""
    if not is_url(source):
        return
    url = urlsplit(source)
    if not url.hostname or (url.scheme == "http" and not is_loopback(url.hostname)):
        raise InvalidArgument(f"jwt_keys must be an https URL, or a file, not {source!r}")


def read_signing_keys(source: str) -> SigningKeys:
    """The keys at an address, or in a file. Blocks. Raises Unavailable."""
    try:
        return parse_signing_keys(_fetch(source) if is_url(source) else Path(source).read_bytes())
    except (OSError, HTTPException, InvalidArgument) as error:
        raise Unavailable(f"cannot read the issuer's keys from {source}: {error}") from None


def _fetch(url: str) -> bytes:
    opener = urllib.request.build_opener(_NoRedirects)
    with opener.open(url, timeout=FETCH_S_MAX) as answer:
        data: bytes = answer.read(BYTES_MAX + 1)
    if len(data) > BYTES_MAX:
        raise InvalidArgument(f"they are larger than {BYTES_MAX} bytes")
    return data


def parse_signing_keys(data: bytes) -> SigningKeys:
    """Raises InvalidArgument."""
    from jwt import PyJWK, PyJWTError

    try:
        rows = json.loads(data)["keys"]
        found: dict[str, SigningKey] = {}
        for row in rows:
            if not isinstance(row.get("kid"), str) or row.get("use", "sig") != "sig":
                continue
            try:
                key = PyJWK.from_dict(row)
            except PyJWTError:
                continue  # of a kind that this version does not know
            if key.algorithm_name in ALGORITHMS:
                found[row["kid"]] = SigningKey(json.dumps(row, sort_keys=True), key)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidArgument(f"they are not a JWK set: {type(error).__name__}") from None
    if not found:
        raise InvalidArgument(f"the JWK set has no key with a kid for {', '.join(ALGORITHMS)}")
    return found
