"""The envelope: an encrypted value, as it is stored in a record. Pure.

    magic        4   FF 43 45 01: FF begins no UTF-8 text, "CE", and the version
    key id       1 + n   length, and the id of the wrapping key
    topic        1 + n   length, and the topic that the value was encrypted for
    wrapped key  2 + n   length (big-endian), and the data key as the wrapping key's owner wrapped it
    nonce        12      random
    ciphertext   n       AES-256-GCM, as long as the value
    tag          16

All before the nonce is the prefix, the same for all values of a data key. Prefix and record key are authenticated with
the value, so that neither can be changed or exchanged.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MAGIC: Final = b"\xffCE\x01"
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
DATA_KEY_BYTES: Final = 32


class Prefix(NamedTuple):
    """The part of an envelope that is the same for all values of a data key."""

    key_id: str
    topic: str
    wrapped: bytes

    def encode(self) -> bytes:
        key_id, topic, size = self.key_id.encode(), self.topic.encode(), len(self.wrapped)
        return b"".join(
            (
                MAGIC, bytes([len(key_id)]), key_id, bytes([len(topic)]), topic,
                size.to_bytes(2, "big"), self.wrapped,
            )
        )  # fmt: skip


class MalformedEnvelope(ValueError):
    """Bytes that begin like an envelope and are none."""


def prefix_of(value: bytes) -> tuple[bytes, Prefix]:
    """The prefix of a value that begins with MAGIC, as bytes and decoded. Raises MalformedEnvelope."""
    at = len(MAGIC)
    key_id, at = _part(value, at, 1)
    topic, at = _part(value, at, 1)
    wrapped, at = _part(value, at, 2)
    if len(value) < at + NONCE_BYTES + TAG_BYTES:
        raise MalformedEnvelope("it is cut off")
    try:
        return value[:at], Prefix(key_id.decode(), topic.decode(), wrapped)
    except UnicodeDecodeError:
        raise MalformedEnvelope("its key id or topic is not UTF-8") from None


def key_id_of(value: bytes | None) -> str | None:
    """The id of the key that wraps an encrypted value's data key; None: the value is not encrypted.

    >>> key_id_of(b"1.08") is None
    True
    """
    if value is None or not value.startswith(MAGIC):
        return None
    try:
        return prefix_of(value)[1].key_id
    except MalformedEnvelope:
        return None


def associated(prefix: bytes, key: bytes | None) -> bytes:
    """The bytes that are authenticated with a value. The prefix ends itself, so its end is not ambiguous."""
    return prefix + b"\x00" if key is None else b"".join((prefix, b"\x01", key))


def _part(value: bytes, at: int, size_bytes: int) -> tuple[bytes, int]:
    begin = at + size_bytes
    end = begin + int.from_bytes(value[at:begin], "big")
    if begin > len(value) or end > len(value):
        raise MalformedEnvelope("it is cut off")
    return value[begin:end], end
