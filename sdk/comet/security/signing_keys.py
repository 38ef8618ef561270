"""The keys with which an issuer signs its tokens: a JWK set, at a URL or in a file.

Keys for other algorithms, those without a `kid`, and secret ones are left out. Needs the package pyjwt, which only
servers that take tokens import.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from comet.errors import InvalidArgument, Unavailable
from comet.security.fetch import fetch

ALGORITHMS: Final = ("RS256", "PS256", "ES256", "EdDSA")


class SigningKey(NamedTuple):
    text: str  # the JWK: keys with the same one verify the same
    key: Any  # jwt.PyJWK


SigningKeys: TypeAlias = "Mapping[str, SigningKey]"  # by kid


def is_url(source: str) -> bool:
    return source.startswith(("https://", "http://"))


def read_signing_keys(source: str) -> SigningKeys:
    """The keys at an address, or in a file. Blocks. Raises Unavailable."""
    try:
        return parse_signing_keys(fetch(source).content() if is_url(source) else Path(source).read_bytes())
    except (OSError, InvalidArgument, Unavailable) as error:
        raise Unavailable(f"cannot read the issuer's keys from {source}: {error}") from None


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
