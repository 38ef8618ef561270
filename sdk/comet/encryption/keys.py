"""Wrapping keys: the keys that wrap data keys, from a file, the environment, or a key management service.

A file, or a variable, has a line for each key: its id, a space, and 32 random bytes in base64. The last line is the
primary key, which wraps new data keys; the others unwrap older ones.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from comet import limits
from comet.encryption.envelope import DATA_KEY_BYTES, NONCE_BYTES
from comet.errors import DecryptionError, InvalidArgument
from comet.security.certificates import require_cryptography
from comet.security.files import read_secret, write_file
from comet.wire.pasted import check_path

VARIABLE: Final = "COMET_ENCRYPTION_KEYS"
_KEY_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,199}")
_PURPOSE: Final = b"comet data key\x00"
_MAC_PURPOSE: Final = b"comet request\x00"


class KeyProvider(Protocol):
    """A service that wraps data keys: implement it for a key management service.

    `unwrap` raises comet.DecryptionError for a key that it does not have, or may not use: the value counts as one that
    cannot be decrypted. Any other exception means that the service cannot be reached: reading stops with
    comet.Unavailable, and the next read asks again.

    Only `publish_once` also needs `async def mac(self, data: bytes) -> bytes`: 16 to 64 bytes, such as an HMAC, by a
    key that stays the same when `primary` changes. By it brokers recognize a repeated request.

    >>> class Vault:
    ...     primary = "orders-2026"
    ...     async def wrap(self, key_id: str, data_key: bytes) -> bytes: ...  # a call of the service
    ...     async def unwrap(self, key_id: str, wrapped: bytes) -> bytes: ...
    >>> comet.Keyring(Vault())
    <Keyring with primary key 'orders-2026'>
    """

    @property
    def primary(self) -> str:
        """The id of the key that wraps new data keys."""

    async def wrap(self, key_id: str, data_key: bytes) -> bytes:
        """The data key, encrypted by the key of that id."""

    async def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """The data key again."""


class LocalKeys:
    """A KeyProvider whose keys are in this process. The last key is the primary, unless another is named."""

    def __init__(self, keys: Mapping[str, bytes], *, primary: str = "") -> None:
        require_cryptography("encryption")
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not keys:
            raise InvalidArgument("no encryption key: make one with comet security key FILE")
        for key_id, key in keys.items():
            check_key_id(key_id)
            if len(key) != DATA_KEY_BYTES:
                raise InvalidArgument(f"encryption key {key_id!r} has {len(key)} bytes, not {DATA_KEY_BYTES}")
        if primary and primary not in keys:
            raise InvalidArgument(f"the primary key {primary!r} is not one of {', '.join(keys)}")
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        # The first key stays until it is removed; the primary changes with each rotation.
        self._mac_key = hmac.digest(next(iter(keys.values())), _MAC_PURPOSE, hashlib.sha256)
        self.primary = primary or list(keys)[-1]

    def __repr__(self) -> str:
        return f"<LocalKeys {', '.join(self._ciphers)}; primary {self.primary}>"

    async def wrap(self, key_id: str, data_key: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._ciphers[key_id].encrypt(nonce, data_key, _PURPOSE + key_id.encode())

    async def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise DecryptionError(f"the keyring does not have the key {key_id!r}")
        try:
            return cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], _PURPOSE + key_id.encode())
        except (InvalidTag, ValueError):
            raise DecryptionError(f"key {key_id!r} does not fit: another key has this id, or it was changed") from None

    async def mac(self, data: bytes) -> bytes:
        """A MAC by a key that is derived from the first key of the ring."""
        return hmac.digest(self._mac_key, data, hashlib.sha256)


def check_key_id(key_id: str) -> str:
    if not _KEY_ID.fullmatch(key_id):
        raise InvalidArgument(f"invalid key id {key_id!r}: letters, digits and ._:/@- only, at most 200")
    return key_id


def keys_of(text: str, source: str) -> dict[str, bytes]:
    """The keys of a text, by id. Raises InvalidArgument, naming its source and line but never its content."""
    found: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            key_id, encoded = words
            key = base64.b64decode(encoded, validate=True)
        except ValueError:
            raise InvalidArgument(f"{source}, line {number}: not a key id and a key in base64") from None
        if not _KEY_ID.fullmatch(key_id) or len(key) != DATA_KEY_BYTES:
            raise InvalidArgument(f"{source}, line {number}: invalid key id, or a key not of {DATA_KEY_BYTES} bytes")
        if key_id in found:
            raise InvalidArgument(f"{source}, line {number}: a key of this id is there already")
        found[key_id] = key
    if len(found) > limits.WRAPPING_KEYS_MAX:
        raise InvalidArgument(f"{source} has more than {limits.WRAPPING_KEYS_MAX} keys")
    return found


def read_keys(path: Path) -> dict[str, bytes]:
    """The keys of a file. Refuses a file that others may read."""
    check_path(path, "keyring")
    data = read_secret(path, limits.KEY_FILE_BYTES_MAX)
    return keys_of(data.decode("utf-8", "replace"), str(path))


def environment_keys(variable: str) -> dict[str, bytes]:
    """The keys of an environment variable, separated by lines or commas."""
    return keys_of(os.environ.get(variable, "").replace(",", "\n"), f"${variable}")


def add_key(path: Path, key_id: str) -> list[str]:
    """Makes a key and adds it to a file, as the primary; the file is made if it is missing. Returns all ids."""
    check_key_id(key_id)
    keys = read_keys(path) if path.exists() else {}
    if key_id in keys:
        raise InvalidArgument(f"{path} has a key {key_id!r} already: choose another id")
    keys[key_id] = secrets.token_bytes(DATA_KEY_BYTES)
    lines = [f"{name} {base64.b64encode(key).decode()}\n" for name, key in keys.items()]
    write_file(path, "".join(lines).encode(), secret=True)
    return list(keys)
