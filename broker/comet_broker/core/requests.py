"""Requests with an idempotency key: their numbers in the log, and the table of them that one partition remembers.

    producer id     the request: a hash of topic and key      base sequence   its content: a hash of all its records
    id ─► digest, record count, offset, append time

    unknown id                                   to be written
    the same digest and count                    Duplicate: the offset of the first one is the answer
    another digest or count                      KeyReused
    only 32 bits of the digest are known         SequenceTooOld if they are the same, else KeyReused

Both numbers are 62 bits of a hash, and are in the header of the batch beside the flag KEYED, so that the table is
derived from the log: a follower, or a broker that restarts, has the leader's table. Beyond REQUESTS_MAX, the request
furthest back in the log keeps its id and 32 bits of the digest: the last 262,144 such requests are refused rather than
written again, see forgotten.py. proto/BATCH.md specifies the hashes.

Pure; part of the partition's ProducerTable, on the loop's thread.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from comet.errors import KeyReused, SequenceTooOld
from comet.records import BatchHeader, Content, content_bytes, digest_number
from comet_broker.core.forgotten import NEVER, Forgotten, ForgottenSnapshot

REQUESTS_MAX: Final = 4096  # per partition, with their offsets: 1 MiB; and 3.5 MiB for those before them
MAC_BYTES: Final = range(16, 65)
KEY_CHARS_MAX: Final = 200

_REQUEST: Final = struct.Struct("<qIqq")  # digest, record count, offset, append time
_ENTRY: Final = struct.Struct("<q28s")
_TAG: Final = (1 << 32) - 1
_COUNT: Final = struct.Struct("<I")


class Duplicate(NamedTuple):
    """The offset and append time of a repeated batch's first copy."""

    base_offset: int
    append_time_us: int


def id_of(topic: str, key: str) -> int:
    """The number of a request among those to a topic.

    >>> id_of("quotes", "order 4711") == id_of("quotes", "order 4711") != id_of("trades", "order 4711")
    True
    """
    return _number(topic.encode() + b"\0" + key.encode())


def digest_of(records: Iterable[Content]) -> int:
    """The digest of a request's records, in their order."""
    return _number(content_bytes(records))


def digest_of_mac(mac: bytes) -> int:
    """The digest of a request whose client encrypts its values. A hash, so that readers of the log cannot send it."""
    return digest_number(blake2b(mac, digest_size=8, person=b"content_mac").digest())


def _number(data: bytes) -> int:
    return digest_number(blake2b(data, digest_size=8).digest())


class Requests:
    """The requests of one partition, the last one written at the end. Packed, for a fourth of the memory."""

    __slots__ = ("_forgotten", "_known")

    def __init__(self) -> None:
        self._known: OrderedDict[int, bytes] = OrderedDict()
        self._forgotten = Forgotten()

    def __len__(self) -> int:
        return len(self._known)

    def check(self, header: BatchHeader) -> Duplicate | None:
        """None if the batch may be written, a Duplicate if it was; raises KeyReused or SequenceTooOld."""
        known = self._known.get(header.producer_id)
        if known is None:
            self._check_forgotten(header)
            return None
        digest, count, base_offset, append_time_us = _REQUEST.unpack(known)
        if (digest, count) != (header.base_sequence, header.span):
            raise KeyReused(
                "the idempotency key was used with other content before, at offset "
                f"{base_offset} (or the topic was given more partitions since); this request was not written",
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
                f"its offset is no longer known, and this request was not written"
            )
        raise KeyReused(
            "the idempotency key was used with other content before (or the topic was given more partitions since); "
            "this request was not written"
        )

    def record(self, header: BatchHeader, base_offset: int, append_time_us: int) -> None:
        """Notes a batch that is in the log now. It counts even if `check` would refuse it: the log is right."""
        known = self._known
        known[header.producer_id] = _REQUEST.pack(header.base_sequence, header.span, base_offset, append_time_us)
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
        """The decoded requests, and their end in the data. Raises struct.error if they are cut off."""
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
