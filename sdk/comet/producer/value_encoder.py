"""Values as bytes: bytes and None as they are, models by the serde of their type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from comet.encryption.encryptor import Encryptor
from comet.encryption.keyring import Stored


class ValueEncoder:
    """Owned by a producer. Looks the serde of a type up once. With `check`, it checks fields against their
    annotations. With an `encryptor`, the producer encrypts the bytes.

    >>> ValueEncoder().encode("EURUSD")
    b'EURUSD'
    """

    __slots__ = ("_check", "_encoders", "encryptor")

    def __init__(self, encryptor: Encryptor | None = None, *, check: bool = True) -> None:
        self._check = check
        self.encryptor = encryptor
        self._encoders: dict[type, Callable[[Any], bytes]] = {Stored: _as_it_is}

    def encode(self, value: Any) -> bytes | None:
        if value is None or value.__class__ is bytes:
            plain: bytes | None = value
            return plain
        encoder = self._encoders.get(value.__class__)
        if encoder is None:
            from comet.serde import serde_for

            serde = serde_for(value.__class__)
            encoder = self._encoders[value.__class__] = serde.encode_checked if self._check else serde.encode
        return encoder(value)

    def encode_all(self, values: Sequence[Any]) -> Sequence[bytes | None]:
        if not isinstance(values, list | tuple):
            values = list(values)
        if list(map(type, values)).count(bytes) == len(values):  # the fastest check
            return values
        encode = self.encode
        return [value if value.__class__ is bytes else encode(value) for value in values]


def _as_it_is(value: bytes) -> bytes:
    return value
