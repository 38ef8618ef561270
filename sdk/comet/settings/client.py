"""The environment variables of clients: where their cluster is, and what they present to it. The names of contexts'
settings are the keys of `VARIABLES`."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from comet.errors import InvalidArgument

BOOTSTRAP_VARIABLE: Final = "COMET_BOOTSTRAP"
CONTEXT_VARIABLE: Final = "COMET_CONTEXT"
DEFAULT_BOOTSTRAP: Final = "localhost:9092"  # where nothing names a cluster
CA_VARIABLE: Final = "COMET_CLIENT_CA"
CERT_VARIABLE: Final = "COMET_CLIENT_CERT"
KEY_VARIABLE: Final = "COMET_CLIENT_KEY"
ACCESS_KEY_VARIABLE: Final = "COMET_CLIENT_ACCESS_KEY"
TOKEN_VARIABLE: Final = "COMET_CLIENT_TOKEN"  # noqa: S105 - of a path
TRANSPORT_VARIABLE: Final = "COMET_TRANSPORT"
# Of client credentials, by the field of ClientCredentials.
OAUTH_VARIABLES: Final = {
    "token_url": "COMET_CLIENT_OAUTH_URL",
    "client_id": "COMET_CLIENT_OAUTH_ID",
    "client_secret_file": "COMET_CLIENT_OAUTH_SECRET",
    "scope": "COMET_CLIENT_OAUTH_SCOPE",
    "audience": "COMET_CLIENT_OAUTH_AUDIENCE",
    "auth": "COMET_CLIENT_OAUTH_AUTH",
    "ca": "COMET_CLIENT_OAUTH_CA",
}
# Files, by the option of Bootstrap.
FILE_VARIABLES: Final = {
    "ca": CA_VARIABLE,
    "cert": CERT_VARIABLE,
    "key": KEY_VARIABLE,
    "access_key": ACCESS_KEY_VARIABLE,
    "token": TOKEN_VARIABLE,
}
VARIABLES: Final = {
    "bootstrap": BOOTSTRAP_VARIABLE,
    **FILE_VARIABLES,
    **{name.removeprefix("COMET_CLIENT_").lower(): name for name in OAUTH_VARIABLES.values()},
}
# What a client presents: one of them, so that none is replaced without the others.
CREDENTIALS: Final = frozenset(VARIABLES) - {"bootstrap", "ca"}
PATHS: Final = frozenset({*FILE_VARIABLES, "oauth_secret", "oauth_ca"})

Transport: TypeAlias = Literal["auto", "wire", "grpc"]  # see client.wires
TRANSPORTS: Final[tuple[Transport, ...]] = ("auto", "wire", "grpc")


def check_transport(name: str) -> Transport:
    """Raises InvalidArgument."""
    for known in TRANSPORTS:
        if name == known:
            return known
    raise InvalidArgument(f"the transport is one of {', '.join(TRANSPORTS)}, not {name!r}")
