"""Reads of the log for subscribers that the ring does not serve: at their start, and while they are behind the ring.

All of the gateway's subscribers read through one Log. Subscribers at the same position at the same time, as after a
restart, share a read; it is cancelled when the last of them leaves. Without a broker they wait; new subscribers wait
for `feed_start_s`.

    deleted      the log start offset is behind the position     continues at the log start offset
    truncated    the log was truncated before the position       continues where it was truncated
    damaged      the records cannot be read                      continues behind them
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import uniform
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

import comet
from comet.consumer.ranges import RangeSpec
from comet.errors import (
    CometError,
    NotLeader,
    OffsetOutOfRange,
    PartitionNotFound,
    Timeout,
    Unavailable,
)
from comet.types import AtOffset, Earliest, Position
from comet_gateway.http.client_disconnect import Flight, together
from comet_gateway.push.chunk import Source
from comet_gateway.push.events import Missing
from comet_gateway.push.ring import Ring
from comet_gateway.records.cursor import INT64_MAX, Cursor, CursorPosition

if TYPE_CHECKING:
    from comet_gateway.brokers.backend import Backend
    from comet_gateway.config import Limits

log = logging.getLogger("comet.gateway")

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 2.0
_PATIENCE_S: Final = 1.0
_UNKNOWN_S: Final = 5.0  # during which an unknown partition is retried: it may have just been added
_SHARES: Final = 4  # one topic may use this share of all reads
_WAIT_MS: Final = 100  # for records that should arrive in a moment
RECREATED: Final = "topic recreated"

_Key = tuple[str, bytes, int, CursorPosition, int]  # topic, its id, partition, position, bytes at most


class Piece(NamedTuple):
    """The records read at a position, or the gap there; and the next position."""

    sources: list[Source]
    following: CursorPosition
    missing: Missing | None = None


class Beginning(NamedTuple):
    """Start positions of a subscriber; `recovered` only for one that reconnects."""

    positions: dict[int, CursorPosition]
    recovered: bool | None
    missing: tuple[Missing, ...]


class Log:
    """Shared reads of the log. Owned by the hub."""

    def __init__(self, backend: Backend, limits: Limits) -> None:
        self.reads = 0
        self._reader = backend.reader
        self._admin = backend.admin
        self._limits = limits
        self._room = asyncio.Semaphore(limits.reads_max)
        self._flights: dict[_Key, Flight[Piece]] = {}
        # A topic that cannot be read must not use all slots.
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def close(self) -> None:
        await asyncio.gather(*(flight.close() for flight in list(self._flights.values())))

    @property
    def waiting(self) -> int:
        """Reads that wait for a broker for a long time."""
        now = asyncio.get_running_loop().time()
        return sum(now - flight.began_s > _PATIENCE_S for flight in self._flights.values())

    # ---- start positions

    async def begin(self, ring: Ring, start: Position, partitions: frozenset[int] | None) -> Beginning:
        """The start positions for a start other than latest. Offsets are checked; gaps are reported."""
        chosen = sorted(ring.positions if partitions is None else partitions)
        if isinstance(start, AtOffset):
            pieces = await together(self.check(ring, index, CursorPosition(start.offset)) for index in chosen)
            for index, piece in zip(chosen, pieces, strict=True):
                if piece.missing is not None and piece.missing.reason == "truncated":
                    end = piece.following.offset
                    raise OffsetOutOfRange(
                        f"{ring.topic}/{index} holds records up to {end}, not {start.offset}",
                        details={"log_end": str(end), "partition": str(index)},
                    )
            missing = tuple(piece.missing for piece in pieces if piece.missing is not None)
            return Beginning(
                {index: piece.following for index, piece in zip(chosen, pieces, strict=True)}, None, missing
            )
        offsets = await self._offsets(ring.topic, start)
        return Beginning({index: CursorPosition(offsets[index]) for index in chosen if index in offsets}, None, ())

    async def resume(self, ring: Ring, cursor: Cursor, partitions: frozenset[int] | None) -> Beginning:
        """The start positions of a cursor, with the gaps since."""
        chosen = sorted(ring.positions if partitions is None else partitions)
        if cursor.topic_id != ring.topic_id:
            # The end of the old topic is unknown.
            lost = [
                Missing(index, cursor.positions[index].offset, INT64_MAX, RECREATED)
                for index in sorted(cursor.positions)
            ]
            found = await self._pieces(ring, dict.fromkeys(chosen, CursorPosition(0)))
            return Beginning(found.positions, False, (*lost, *found.missing))
        wanted = {index: cursor.positions.get(index, CursorPosition(0)) for index in chosen}
        if partitions is None and not cursor.positions.keys() <= ring.positions.keys():
            # Another gateway has noticed added partitions first.
            async with self._soon(ring.topic):
                info = await self._admin.describe_topic(ring.topic)
            wanted |= {index: position for index, position in cursor.positions.items() if index < len(info.partitions)}
        return await self._pieces(ring, wanted)

    async def _pieces(self, ring: Ring, wanted: Mapping[int, CursorPosition]) -> Beginning:
        unsure = [index for index, position in wanted.items() if not ring.vouches(index, position)]
        pieces = await together(self.check(ring, index, wanted[index]) for index in unsure)
        found = dict(wanted) | {index: piece.following for index, piece in zip(unsure, pieces, strict=True)}
        missing = tuple(piece.missing for piece in pieces if piece.missing is not None)
        return Beginning(found, not missing, missing)

    async def check(self, ring: Ring, partition: int, position: CursorPosition) -> Piece:
        """Checks that the log can be read at a position. Raises Unavailable if no broker answers for long."""
        async with self._soon(f"{ring.topic}/{partition}"):
            piece = await self._shared(ring, partition, position, 0)
        return piece if piece.missing is not None else Piece([], position)

    async def earliest(self, topic: str) -> dict[int, int]:
        """The log start offset of each partition. Raises Unavailable as `check` does."""
        return await self._offsets(topic, Earliest())

    async def _offsets(self, topic: str, at: Position) -> dict[int, int]:
        async with self._soon(topic):
            return await self._admin.offsets(topic, at)

    @asynccontextmanager
    async def _soon(self, what: str) -> AsyncIterator[None]:
        """Bounds the wait of a new subscriber, as for the first subscriber of a topic."""
        try:
            async with asyncio.timeout(self._limits.feed_start_s):
                yield
        except (TimeoutError, Timeout, NotLeader):
            raise Unavailable(f"{what} cannot be read now: no leader answers", retry_after_ms=1000) from None

    # ---- reading

    async def read(self, ring: Ring, partition: int, position: CursorPosition) -> Piece:
        """Reads a piece of a partition. Waits for brokers without a bound. Raises permanent errors."""
        return await self._shared(ring, partition, position, self._limits.delivery_bytes)

    async def read_soon(self, ring: Ring, partition: int, position: CursorPosition, bytes_max: int) -> Piece:
        """Reads a piece with records for a new subscriber. Raises Unavailable as `check` does."""
        async with self._soon(f"{ring.topic}/{partition}"):
            while True:
                piece = await self._shared(ring, partition, position, bytes_max)
                if piece.following != position:
                    return piece

    async def _shared(self, ring: Ring, partition: int, position: CursorPosition, bytes_max: int) -> Piece:
        key = (ring.topic, ring.topic_id, partition, position, bytes_max)
        flight = self._flights.get(key)
        if flight is None or flight.over:
            name = f"gateway: read {ring.topic}/{partition}"
            flight = Flight(self._until_answered(*key), name, lambda landed: self._landed(key, landed))
            self._flights[key] = flight
        return await flight.wait()

    def _landed(self, key: _Key, flight: Flight[Piece]) -> None:
        if self._flights.get(key) is flight:  # and not one that started while this one was ending
            del self._flights[key]

    async def _until_answered(
        self, topic: str, topic_id: bytes, partition: int, position: CursorPosition, bytes_max: int
    ) -> Piece:  # fmt: skip
        wait_s = _BACKOFF_FIRST_S
        loop = asyncio.get_running_loop()
        unknown_until: float | None = None
        share = self._shares.get(topic)
        if share is None:
            share = self._shares[topic] = asyncio.Semaphore(max(self._limits.reads_max // _SHARES, 1))
        while True:
            try:
                async with share, self._room:
                    return await self._once(topic, topic_id, partition, position, bytes_max)
            except CometError as error:
                if isinstance(error, PartitionNotFound):
                    unknown_until = loop.time() + _UNKNOWN_S if unknown_until is None else unknown_until
                    if loop.time() >= unknown_until:
                        raise
                elif error.retriable or isinstance(error, Timeout):
                    unknown_until = None
                else:
                    raise
                log.debug(
                    "gateway: %s/%d at %d: %s",
                    topic,
                    partition,
                    position.offset,
                    error,
                    extra={"topic": topic, "partition": partition, "offset": position.offset},
                )
                pause_s = max(error.retry_after_ms / 1000, uniform(wait_s / 2, wait_s))
            await asyncio.sleep(pause_s)
            wait_s = min(wait_s * 2, _BACKOFF_MAX_S)

    async def _once(
        self, topic: str, topic_id: bytes, partition: int, position: CursorPosition, bytes_max: int
    ) -> Piece:
        self.reads += 1
        spec = RangeSpec(
            topic, partition, position.offset, None, topic_id=topic_id, epoch=position.epoch,
            step_records_first=self._limits.records_max if bytes_max else 1, step_bytes=bytes_max or 1,
            first_wait_ms=_WAIT_MS if bytes_max else 0,
        )  # fmt: skip
        reading = comet.RangeReader(self._reader, spec)
        sources: list[Source] = []
        for part in await reading.step():
            if isinstance(part, comet.Gap):
                return Piece(
                    [], CursorPosition(part.next_offset), Missing(partition, part.first, part.end, part.reason)
                )
            sources.append(Source(part))
        assert reading.position is not None
        epoch = position.epoch if reading.position == position.offset else reading.epoch
        return Piece(sources, CursorPosition(reading.position, epoch))
