"""How to reach a cluster: the addresses of some of its brokers, the files of TLS, and an access key or tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comet.errors import InvalidArgument
from comet.settings.client import (
    BOOTSTRAP_VARIABLE,
    FILE_VARIABLES,
    OAUTH_VARIABLES,
    TOKEN_VARIABLE,
    TRANSPORT_VARIABLE,
    Transport,
    check_transport,
)
from comet.wire.pasted import check_path

if TYPE_CHECKING:
    from comet.security.client_credentials import ClientCredentials
    from comet.security.token_source import TokenProvider
    from comet.wire.bearer import Bearer
    from comet.wire.tls import TlsFiles


@dataclass(frozen=True, slots=True, init=False)
class Bootstrap:
    """Brokers' addresses, the files of TLS in PEM, and that of an access key or token; stands wherever brokers'
    addresses are taken.

    ca           the authorities that sign the brokers' certificates
    cert         this client's certificate, with its `key`, for brokers that demand one
    access_key   this client's access key, for brokers that demand one; without `ca`, the system's authorities count
    token        a JWT of this client, in place of an access key: a file, which its issuer or an agent renews; or a
                 ClientCredentials; or a function, async or not, that returns one

    transport    of streams: "auto" takes the wire where a broker serves it and answers, and gRPC elsewhere; "wire" and
                 "grpc" take one of them. Without it COMET_TRANSPORT counts

    A token that is not in a file is fetched for the first connection, and again before it expires.

    Where none are given, a client connects to the cluster of COMET_BOOTSTRAP, else to that of the context that
    COMET_CONTEXT names or `comet context use` chose, with its files, else to localhost:9092.

    Where only addresses are given, the files are those that COMET_CLIENT_CA, COMET_CLIENT_CERT, COMET_CLIENT_KEY,
    COMET_CLIENT_ACCESS_KEY and COMET_CLIENT_TOKEN name, and the fields of ClientCredentials those of
    COMET_CLIENT_OAUTH_URL, _ID, _SECRET (a file), _SCOPE, _AUDIENCE, _AUTH and _CA; without any of them connections are
    not encrypted. Replaced files count from the next connection on.

    >>> Bootstrap("a:9092, b").addresses
    ('a:9092', 'b:9092')
    """

    addresses: tuple[str, ...]
    tls: TlsFiles | None
    bearer: Bearer | None  # the access key or token
    transport: Transport

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        ca: str | Path | None = None,
        cert: str | Path | None = None,
        key: str | Path | None = None,
        access_key: str | Path | None = None,
        token: str | Path | TokenProvider | None = None,
        transport: str | None = None,
    ) -> None:
        object.__setattr__(self, "addresses", parse_addresses(addresses))
        check_path(access_key, "access key")
        if isinstance(token, str | Path):
            check_path(token, "token")
        if access_key and token:
            shown = token if isinstance(token, str | Path) else "the token provider"
            raise InvalidArgument(f"a client presents an access key or a token: give {access_key} or {shown}, not both")
        paths = [Path(one).expanduser() if one else None for one in (ca, cert, key)]
        tls: TlsFiles | None = None
        if any(paths) or access_key or token:
            from comet.wire.tls import TlsFiles

            tls = TlsFiles(*paths)
            tls.read()
        bearer = _bearer(access_key, token)
        object.__setattr__(self, "tls", tls)
        object.__setattr__(self, "bearer", bearer)
        object.__setattr__(
            self, "transport", check_transport(transport or os.environ.get(TRANSPORT_VARIABLE) or "auto")
        )

    @classmethod
    def of(cls, addresses: Addresses) -> Bootstrap:
        """The same; or that of plain addresses, with the files that the environment names; or without any, the cluster
        that COMET_BOOTSTRAP names, else the context, else localhost:9092."""
        if isinstance(addresses, Bootstrap):
            return addresses
        if addresses is None:
            from comet.client.default_cluster import default_variables

            variables = default_variables(os.environ)
            return cls.named_by(variables, variables[BOOTSTRAP_VARIABLE])
        return cls.named_by(os.environ, addresses)

    @classmethod
    def named_by(cls, environ: Mapping[str, str], addresses: str | Sequence[str]) -> Bootstrap:
        """That of plain addresses, with the files and the issuer that variables name."""
        found, issuer = environment_files(environ), environment_credentials(environ)
        if issuer is not None:
            if found["token"] is not None:
                both = f"{TOKEN_VARIABLE} and {OAUTH_VARIABLES['token_url']}"
                raise InvalidArgument(f"{both} name two tokens: unset one of them")
            found["token"] = issuer
        return cls(addresses, **found)

    def __str__(self) -> str:
        return ",".join(self.addresses)


Addresses = str | Sequence[str] | Bootstrap | None  # None: the cluster that the environment names


def _bearer(access_key: str | Path | None, token: str | Path | TokenProvider | None) -> Bearer | None:
    """The credential of a client. Raises InvalidArgument for a file that does not hold one."""
    if not access_key and not token:
        return None
    if token and not isinstance(token, str | Path):
        if not callable(token):
            raise InvalidArgument(
                f"token must be a file, or a function that returns a token, not {type(token).__name__}"
            )
        from comet.security.token_source import TokenSource

        return TokenSource.of(token)
    from comet.wire.bearer import FileBearer, read_access_key, read_token

    path = Path(access_key or str(token)).expanduser()
    read_access_key(path) if access_key else read_token(path)
    return FileBearer(path)


def environment_credentials(environ: Mapping[str, str] = os.environ) -> ClientCredentials | None:
    """The client credentials that the environment names; None without a URL. Raises InvalidArgument."""
    given: dict[str, Any] = {field: environ[name] for field, name in OAUTH_VARIABLES.items() if environ.get(name)}
    if "token_url" not in given:
        return None
    missing = [OAUTH_VARIABLES[field] for field in ("client_id", "client_secret_file") if field not in given]
    if missing:
        raise InvalidArgument(f"{OAUTH_VARIABLES['token_url']} needs {' and '.join(missing)} as well")
    from comet.security.client_credentials import ClientCredentials

    return ClientCredentials(**given)


def environment_files(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The files that the environment names: ca, cert, key, access_key and token."""
    return {kind: environ.get(name) for kind, name in FILE_VARIABLES.items()}


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
