"""How to reach a cluster: the addresses of some of its brokers, and the files of TLS, of an access key or token."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from comet.errors import InvalidArgument
from comet.wire.bearer import read_access_key, read_token
from comet.wire.tls import TlsFiles

CA_VARIABLE: Final = "COMET_CLIENT_CA"
CERT_VARIABLE: Final = "COMET_CLIENT_CERT"
KEY_VARIABLE: Final = "COMET_CLIENT_KEY"
ACCESS_KEY_VARIABLE: Final = "COMET_CLIENT_ACCESS_KEY"
TOKEN_VARIABLE: Final = "COMET_CLIENT_TOKEN"  # noqa: S105 - of a path


@dataclass(frozen=True, slots=True, init=False)
class Bootstrap:
    """Brokers' addresses, the files of TLS in PEM, and that of an access key or token; stands wherever brokers'
    addresses are taken.

    ca           the authorities that sign the brokers' certificates
    cert         this client's certificate, with its `key`, for brokers that demand one
    access_key   this client's access key, for brokers that demand one; without `ca`, the system's authorities count
    token        a JWT of this client, in place of an access key; its issuer or an agent renews the file

    Where only addresses are given, the files are those that COMET_CLIENT_CA, COMET_CLIENT_CERT, COMET_CLIENT_KEY,
    COMET_CLIENT_ACCESS_KEY and COMET_CLIENT_TOKEN name; without any of them connections are not encrypted. Replaced
    files count from the next connection on.

    >>> Bootstrap("a:9092, b").addresses
    ('a:9092', 'b:9092')
    """

    addresses: tuple[str, ...]
    tls: TlsFiles | None
    bearer: Path | None  # the file of the access key or token

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        ca: str | Path | None = None,
        cert: str | Path | None = None,
        key: str | Path | None = None,
        access_key: str | Path | None = None,
        token: str | Path | None = None,
    ) -> None:
        object.__setattr__(self, "addresses", parse_addresses(addresses))
        *paths, access_key, token = [
            Path(one).expanduser() if one else None for one in (ca, cert, key, access_key, token)
        ]
        if access_key and token:
            raise InvalidArgument(f"a client presents an access key or a token: give {access_key} or {token}, not both")
        bearer = access_key or token
        tls = TlsFiles(*paths) if any(paths) or bearer else None
        if tls is not None:
            tls.read()
        if bearer is not None:
            read_access_key(bearer) if access_key else read_token(bearer)
        object.__setattr__(self, "tls", tls)
        object.__setattr__(self, "bearer", bearer)

    @classmethod
    def of(cls, addresses: Addresses) -> Bootstrap:
        """The same, or that of plain addresses, with the files that the environment names."""
        if isinstance(addresses, Bootstrap):
            return addresses
        return cls(addresses, **environment_files())

    def __str__(self) -> str:
        return ",".join(self.addresses)


Addresses = str | Sequence[str] | Bootstrap


def environment_files() -> dict[str, str | None]:
    """The files that the environment names: ca, cert, key, access_key and token."""
    names = {
        "ca": CA_VARIABLE,
        "cert": CERT_VARIABLE,
        "key": KEY_VARIABLE,
        "access_key": ACCESS_KEY_VARIABLE,
        "token": TOKEN_VARIABLE,
    }
    return {kind: os.environ.get(name) for kind, name in names.items()}


def parse_addresses(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """The bootstrap addresses, with the default port added.

    >>> parse_addresses("a:9092, b:9092"), parse_addresses("localhost")
    (('a:9092', 'b:9092'), ('localhost:9092',))
    """
    parts: list[Any] = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    found = tuple(part.strip() for part in parts if isinstance(part, str) and part.strip())
    if not found or len(found) < len(parts):
        raise InvalidArgument(f'invalid broker addresses: {addresses!r}; use HOST:PORT, e.g. "localhost:9092"')
    for part in found:
        if "/" in part:
            raise InvalidArgument(f'invalid broker address: {part!r}; use HOST:PORT, e.g. "localhost:9092"')
    return tuple(dict.fromkeys(part if _has_port(part) else f"{part}:9092" for part in found))


def _has_port(address: str) -> bool:
    host, colon, port = address.rpartition(":")
    return bool(colon) and port.isdecimal() and (":" not in host or host.endswith("]"))
