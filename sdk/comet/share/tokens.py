"""Tokens: text that names one acquired record, for any program or gateway that acknowledges it.

    version 1 | checksum 4 | lock 8 | topic id 16 | partition 4 | offset 8 | length of group 1 | group | topic

Little-endian, in URL-safe base64 without padding. Opaque to users, and parsed strictly: a token that was cut, mistyped
or made elsewhere is refused. A lock is guarded by its number, 64 random bits.

Pure.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from typing import Final, NamedTuple, Self
from zlib import crc32

from comet.errors import InvalidArgument
from comet.types import check_topic_name

VERSION: Final = 1
CHARS_MAX: Final = 1_000
_FIXED: Final = struct.Struct("<BIQ16sIqB")
_CHECKED: Final = struct.Struct("<BI").size  # the checksum is over the rest


class Token(NamedTuple):
    """The record, group and lock number of an acquisition."""

    group: str
    topic: str
    topic_id: bytes
    partition: int
    lock: int
    offset: int

    def text(self) -> str:
        group = self.group.encode()
        names = group + self.topic.encode()
        fixed = _FIXED.pack(VERSION, 0, self.lock, self.topic_id, self.partition, self.offset, len(group))
        data = fixed + names
        checksum = crc32(data[_CHECKED:]).to_bytes(4, "little")
        return urlsafe_b64encode(data[:1] + checksum + data[_CHECKED:]).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a token. Raises InvalidArgument for a text that `text` did not make."""
        token = cls._parse(text) if isinstance(text, str) and len(text) <= CHARS_MAX else None
        if token is None or token.text() != text:
            raise InvalidArgument("invalid lock token: use the token that came with the record")
        return token

    @classmethod
    def _parse(cls, text: str) -> Self | None:
        try:
            data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            version, _, lock, topic_id, partition, offset, size = _FIXED.unpack_from(data)
            names = data[_FIXED.size :].decode("ascii")
            group, topic = check_topic_name(names[:size]), check_topic_name(names[size:])
        except (Error, struct.error, ValueError, InvalidArgument):
            return None
        return cls(group, topic, topic_id, partition, lock, offset) if version == VERSION and offset >= 0 else None
