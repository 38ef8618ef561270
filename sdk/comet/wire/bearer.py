"""What a client presents in place of a certificate, with each call and over TLS: `authorization: Bearer TEXT`.

    comet_3f9a51c07d42_mJ4c…    an access key: `comet_`, its id, `_`, and 32 random bytes
    eyJhbGciOi….eyJpc3Mi….…     a token (JWT) that an issuer has signed

Of an access key, brokers know the id and the SHA-256. Keys are listed and revoked by the id, which is not a secret.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from comet.errors import InvalidArgument, Unavailable
from comet.wire.pasted import check_path

HEADER: Final = "authorization"
SCHEME: Final = "Bearer "
ID: Final = re.compile(r"[0-9a-f]{12}")
DIGEST_BYTES: Final = 32  # of SHA-256
_TEXT: Final = re.compile(rf"comet_({ID.pattern})_[A-Za-z0-9_-]{{43}}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
TOKEN_BYTES_MAX: Final = 8192  # gRPC takes no more of all metadata of a call


class Bearer(Protocol):
    """The credential of a client. Safe in any thread."""

    def text(self) -> str:
        """The text to present now. Raises Unavailable if it cannot be read, or is not fetched yet."""

    async def ready(self) -> None:
        """Waits until there is a text to present. Raises Unavailable or CredentialsRefused if there will be none."""

    async def renewed(self, refused: str) -> bool:
        """Whether there is another text than one that a broker refused, fetched now if need be."""

    async def keep(self) -> None:
        """Renews the text before it expires. Runs until it is cancelled, or returns if there is nothing to do."""


@dataclass(frozen=True, slots=True)
class FileBearer:
    """A file of an access key or token, which its owner or an agent may replace."""

    path: Path

    def text(self) -> str:
        try:
            return read_bearer(self.path)
        except InvalidArgument as error:  # it may be about to be replaced
            raise Unavailable(error.message) from None

    async def ready(self) -> None:
        """A file is read when it is presented."""

    async def renewed(self, refused: str) -> bool:
        return self.text() != refused

    async def keep(self) -> None:
        """An agent renews the file."""


def make_access_key() -> str:
    """The text of a new key."""
    return f"comet_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"


def id_of(text: str) -> str | None:
    """The id of a key; None: the text is not one.

    >>> id_of("comet_3f9a51c07d42_" + 43 * "x"), id_of("secret")
    ('3f9a51c07d42', None)
    """
    found = _TEXT.fullmatch(text)
    return None if found is None else found[1]


def digest_of(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def is_token(text: str) -> bool:
    """Whether the text has the form of a JWT.

    >>> is_token("eyJhbGciOiJub25lIn0.e30."), is_token("eyJhbGciOiJFUzI1NiJ9.e30.c2ln")
    (False, True)
    """
    return len(text) <= TOKEN_BYTES_MAX and _TOKEN.fullmatch(text) is not None


def read_access_key(path: Path) -> str:
    """The key in a file. Raises InvalidArgument, which does not show the file's content."""
    text = _read(path, "access key")
    if id_of(text) is None:
        raise InvalidArgument(f"{path} does not hold an access key, as `comet key create` prints one: comet_ID_SECRET")
    return text


def read_token(path: Path) -> str:
    """The JWT in a file. Raises InvalidArgument, which does not show the file's content."""
    text = _read(path, "token")
    if not is_token(text):
        raise InvalidArgument(f"{path} does not hold a token: a JWT of at most {TOKEN_BYTES_MAX} bytes")
    return text


def read_bearer(path: Path) -> str:
    """The key or token in a file. Raises InvalidArgument."""
    text = _read(path, "access key or token")
    if id_of(text) is None and not is_token(text):
        raise InvalidArgument(f"{path} holds neither an access key nor a token (JWT)")
    return text


def _read(path: Path, what: str) -> str:
    check_path(path, what)
    try:
        with path.open("rb") as file:
            data = file.read(TOKEN_BYTES_MAX + 2)
    except OSError as error:
        raise InvalidArgument(f"cannot read the {what} file {path}: {error.strerror or error}") from None
    return data.decode("ascii", errors="replace").strip()
