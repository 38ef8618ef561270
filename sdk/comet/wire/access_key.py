"""The text of an access key, by which a client says who it is: `comet_`, its id, `_`, and 32 random bytes.

    comet_3f9a51c07d42_mJ4c…    sent with each call, over TLS, as `authorization: Bearer …`

Brokers know its id and SHA-256 alone. The id is no secret: keys are listed and revoked by it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from pathlib import Path
from typing import Final

from comet.errors import InvalidArgument

HEADER: Final = "authorization"
SCHEME: Final = "Bearer "
ID: Final = re.compile(r"[0-9a-f]{12}")
DIGEST_BYTES: Final = 32  # of SHA-256
_TEXT: Final = re.compile(rf"comet_({ID.pattern})_[A-Za-z0-9_-]{{43}}")
_FILE_BYTES_MAX: Final = 1024


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


def read_access_key(path: Path) -> str:
    """The key in a file. Raises InvalidArgument, which does not show the file's content."""
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidArgument(f"cannot read the access key file {path}: {error.strerror or error}") from None
    text = data.decode("ascii", errors="replace").strip()
    if id_of(text) is None:
        raise InvalidArgument(f"{path} does not hold an access key, as `comet key create` prints one: comet_ID_SECRET")
    return text
