"""Requests with an idempotency key, as the log knows them: by which numbers, and what one partition remembers of them.

    producer id     which request: of topic and key        base sequence   what it asked for: of all its records
    id ─► digest, record count, offset, append time

    nothing is known of the id                   to be written
    the same digest and count                    Duplicate: where the first one was written is the answer
    another digest or count                      KeyReused
    no more than 32 bits of the digest is known  SequenceTooOld if they are the same, else KeyReused

Both numbers are 62 bits of a hash, and stand in the header of the batch beside the flag KEYED, so that what a partition
remembers is derived from its log: a follower, or a broker that starts again, knows what the leader knew. Beyond
REQUESTS_MAX, of the one that lies furthest back in the log the id and 32 bits of the digest stay: the last 262,144 such
requests are refused rather than written again, see forgotten.py. proto/BATCH.md specifies the hashes.

Pure; part of the partition's ProducerTable, on the loop's thread.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from comet.errors import KeyReused, SequenceTooOld
from comet.records import BatchHeader
from comet_broker.core.forgotten import NEVER, Forgotten, ForgottenSnapshot

REQUESTS_MAX: Final = 4096  # per partition, with where they were written: 1 MiB; and 3.5 MiB for those before them
KEY_CHARS_MAX: Final = 200

_REQUEST: Final = struct.Struct("<qIqq")  # digest, record count, offset, append time
_ENTRY: Final = struct.Struct("<q28s")
_TAG: Final = (1 << 32) - 1
_COUNT: Final = struct.Struct("<I")
_CONTENT: Final = struct.Struct("<qqiiI")  # partition, timestamp, bytes of key and value, headers; -1: none
_HEADER: Final = struct.Struct("<II")  # bytes of name and value


class Duplicate(NamedTuple):
    """Where a repeated batch was written the first time."""

    base_offset: int
    append_time_us: int


class Content(NamedTuple):
    """A record as it was asked for."""

    partition: int  # -1: not named
    timestamp_us: int  # 0: not given
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


def id_of(topic: str, key: str) -> int:
    """The number of a request among those to a topic.

    >>> id_of("quotes", "order 4711") == id_of("quotes", "order 4711") != id_of("trades", "order 4711")
    True
    """
    return _number(topic.encode() + b"\0" + key.encode())


def digest_of(records: Iterable[Content]) -> int:
    """The same for the same records in the same order, and in all likelihood for no others."""
    parts: list[bytes] = []
    for partition, timestamp_us, key, value, headers in records:
        sizes = (-1 if key is None else len(key), -1 if value is None else len(value))
        parts.append(_CONTENT.pack(partition, timestamp_us, *sizes, len(headers)))
        parts += (key or b"", value or b"")
        for name, content in headers:
            encoded = name.encode()
            parts += (_HEADER.pack(len(encoded), len(content)), encoded, content)
    return _number(b"".join(parts))


def _number(data: bytes) -> int:
    """62 bits, never 0."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") >> 2 or 1


class Requests:
    """The requests of one partition, the last one written at the end. Packed, for a fourth of the memory."""

    __slots__ = ("_forgotten", "_known")

    def __init__(self) -> None:
        self._known: OrderedDict[int, bytes] = OrderedDict()
        self._forgotten = Forgotten()

    def __len__(self) -> int:
        return len(self._known)

    def check(self, header: BatchHeader) -> Duplicate | None:
        """None if the batch may be written; where it was; or KeyReused."""
        known = self._known.get(header.producer_id)
        if known is None:
            self._check_forgotten(header)
            return None
        digest, count, base_offset, append_time_us = _REQUEST.unpack(known)
        if (digest, count) != (header.base_sequence, header.record_count):
            raise KeyReused(
                "the idempotency key has come with another content before, at offset "
                f"{base_offset} (or the topic was given more partitions since); this one was not written",
                details={"offset": str(base_offset)},
            )
        return Duplicate(base_offset, append_time_us)

    def _check_forgotten(self, header: BatchHeader) -> None:
        tag = self._forgotten.find(header.producer_id)
        if tag is None:
            return
        if tag == header.base_sequence & _TAG:
            raise SequenceTooOld(
                f"a request with this idempotency key was written before the last {REQUESTS_MAX} of the partition; "
                f"where is no longer known, and this one was not written"
            )
        raise KeyReused(
            "the idempotency key has come with another content before (or the topic was given more partitions since); "
            "this one was not written"
        )

    def record(self, header: BatchHeader, base_offset: int, append_time_us: int) -> None:
        """A batch is in the log now, whatever `check` would have said: the log is right."""
        known = self._known
        known[header.producer_id] = _REQUEST.pack(
            header.base_sequence, header.record_count, base_offset, append_time_us
        )
        known.move_to_end(header.producer_id)
        if len(known) > REQUESTS_MAX:
            number, packed = known.popitem(last=False)
            self._forgotten.add(number, _REQUEST.unpack(packed)[0] & _TAG, NEVER)

    # ---- snapshots

    def snapshot(self) -> list[tuple[int, bytes]]:
        """A quick copy, to be encoded elsewhere."""
        return list(self._known.items())

    def snapshot_forgotten(self) -> ForgottenSnapshot:
        return self._forgotten.snapshot()

    def restore_forgotten(self, data: bytes, at: int) -> int:
        self._forgotten, at = Forgotten.restore(data, at)
        return at

    @classmethod
    def restore(cls, data: bytes, at: int) -> tuple[Requests, int]:
        """What was encoded, and where it ends in the data. Raises struct.error if it is cut off."""
        one = cls()
        (count,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        for _ in range(count):
            number, known = _ENTRY.unpack_from(data, at)
            one._known[number] = known
            at += _ENTRY.size
        return one, at


def encode(snapshot: Sequence[tuple[int, bytes]]) -> Iterable[bytes]:
    yield _COUNT.pack(len(snapshot))
    for entry in snapshot:
        yield _ENTRY.pack(*entry)


assert _REQUEST.size == _ENTRY.size - 8
