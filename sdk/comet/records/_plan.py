"""Compaction plans: the control batches by which the leader of a partition has all replicas compact alike.

    header    CONTROL, without a producer, one record
    value      0  version u8          0
               1  kind u8             2
               2  six zero bytes
               8  clean_end i64       of the records below it, only the last one of each key stays
              16  now_us i64          records that have expired by then go
              24  tombstones_end i64  tombstones below it go
              32  checked i64         the offset of an earlier plan; -1: none
              40  digest u32          of the offsets that stayed with that plan
              44  rounds u32          n
              48  (i64, i64)[n]       clean_end and now_us of the plans up to this one, as far as tombstones need them

A plan is not data: consumers skip it.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from comet.errors import CorruptBatch, InvalidArgument, UnsupportedVersion
from comet.records._batch import Batch
from comet.records._encode import seal
from comet.records._header import (
    CONTROL,
    INT64_MAX,
    PLAN_BODY_BYTES_MAX,
    PLAN_BODY_BYTES_MIN,
    TAIL,
    VERSION,
)
from comet.records._marker import Marker, marker_of

_HEAD: Final = struct.Struct("<BB6sqqqqII")
_ROUND: Final = struct.Struct("<qq")
_PLAN_VERSION: Final = 0
_KIND: Final = 2
ROUNDS_MAX: Final = 64

assert 8 + _HEAD.size == PLAN_BODY_BYTES_MIN
assert PLAN_BODY_BYTES_MIN + ROUNDS_MAX * _ROUND.size == PLAN_BODY_BYTES_MAX


class CompactionRound(NamedTuple):
    """An earlier plan, for the age of tombstones: those between the ends of two rounds were first seen by the later."""

    clean_end: int
    now_us: int


class CompactionPlan(NamedTuple):
    """What a compaction removes. The result depends on the plan and on the records alone."""

    clean_end: int
    now_us: int
    tombstones_end: int = 0
    checked: int = -1
    digest: int = 0
    rounds: tuple[CompactionRound, ...] = ()


def encode_plan(plan: CompactionPlan) -> bytes:
    """The unstamped batch with a plan.

    >>> from comet.records import CompactionPlan, decode, encode_plan, control_of
    >>> control_of(decode(encode_plan(CompactionPlan(100, 1_700_000_000_000_000)))).clean_end
    100
    """
    if not (0 <= plan.tombstones_end <= plan.clean_end <= INT64_MAX and len(plan.rounds) <= ROUNDS_MAX):
        raise InvalidArgument(f"invalid plan: {plan}")
    rounds = b"".join(_ROUND.pack(*one) for one in plan.rounds)
    head = _HEAD.pack(_PLAN_VERSION, _KIND, bytes(6), *plan[:5], len(plan.rounds))
    value = head + rounds
    tail = TAIL.pack(VERSION, 0, CONTROL, 1, 0, 0, plan.now_us, plan.now_us, 0, 0, 8 + len(value), 0)
    return b"".join(seal(tail, [struct.pack("<ii", 0, len(value)), value]))


def control_of(batch: Batch) -> Marker | CompactionPlan:
    """The content of a batch with the CONTROL flag."""
    if batch.header.transactional:
        return marker_of(batch)
    value = batch.values[0]
    if value is None or len(value) < _HEAD.size:
        raise CorruptBatch("a compaction plan has the wrong length")
    version, kind, zero, *fields, count = _HEAD.unpack_from(value)
    if version != _PLAN_VERSION:
        raise UnsupportedVersion(f"compaction plan version {version}; this is a reader of version {_PLAN_VERSION}")
    clean_end, now_us, tombstones_end, checked, digest = fields
    if (
        kind != _KIND
        or zero != bytes(6)
        or len(value) != _HEAD.size + _ROUND.size * count
        or not 0 <= tombstones_end <= clean_end
        or checked < -1
    ):
        raise CorruptBatch(f"invalid compaction plan: kind {kind}, clean end {clean_end}, {count} rounds")
    rounds = (CompactionRound(*one) for one in _ROUND.iter_unpack(value[_HEAD.size :]))
    return CompactionPlan(clean_end, now_us, tombstones_end, checked, digest, tuple(rounds))
