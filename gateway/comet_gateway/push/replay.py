"""Replay of a time range: at its recorded pace times `speed`, merged over the partitions by timestamp.

    ranges of the partitions ─► merged by timestamp ─► Pace: due? ─► Run

The window is fixed at the start: per partition from the first record of `from` to the first of `to`, or to the log end
offset at that time. A partition keeps its order; a record whose timestamp goes back is due at once. Only records read
ahead are in memory, and no group's committed offset changes.

With a filter only records that match are played, at the distance of their timestamps. Cursors move past the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NamedTuple

import comet
from comet.consumer.options import filter_of_brokers
from comet.consumer.ranges import RangeSpec
from comet.types import AtOffset, AtTime, Latest, Position
from comet_gateway.config import Limits
from comet_gateway.http.client_disconnect import together
from comet_gateway.http.problems import Problem
from comet_gateway.push.events import Begun, Lost, Missing
from comet_gateway.push.parse_subscribe import Played, check_span
from comet_gateway.push.subscribe_request import PASSED_MAX
from comet_gateway.records.cursor import Cursor, CursorPosition, position_text
from comet_gateway.records.merge import selection
from comet_gateway.records.record_json import fragments

Batch = comet.RecordBatch[bytes]

FETCHES_MAX: Final = 8  # of one replay at once
FETCH_BYTES_MIN: Final = 16 * 1024
FETCH_RECORDS: Final = 1_000


class Pace:
    """Computes when a record is due. Pure: `now` is of any clock, in seconds."""

    def __init__(self, speed: float, *, paused: bool) -> None:
        self.speed = speed  # 0: as fast as possible
        self.paused = paused
        self._steps = 0
        self._anchor: tuple[float, float] | None = None  # a clock time, and the timestamp played then, in seconds

    def due(self, at_us: int, now: float) -> float:
        """Seconds until the record is due; inf while paused."""
        if self.paused:
            return 0.0 if self._steps else inf
        if not self.speed:
            return 0.0
        at = at_us / 1_000_000
        if self._anchor is None:
            self._anchor = now, at
        when, playing = self._anchor
        return max(when + (at - playing) / self.speed - now, 0.0)

    def given(self, at_us: int, now: float) -> None:
        """Counts a record as played."""
        if self.paused:
            self._steps -= 1
            self._anchor = now, at_us / 1_000_000

    def pause(self, now: float) -> None:
        if not self.paused:
            self._settle(now)
            self.paused, self._steps = True, 0

    def resume(self, now: float) -> None:
        if self.paused:
            self.paused, self._steps = False, 0
            if self._anchor is not None:
                self._anchor = now, self._anchor[1]

    def step(self, count: int, now: float) -> None:
        self.pause(now)
        self._steps += count

    def set_speed(self, speed: float, now: float) -> None:
        if not self.paused:
            self._settle(now)
        self.speed = speed

    def _settle(self, now: float) -> None:
        """Makes the present position the anchor."""
        if self._anchor is not None and self.speed:
            when, playing = self._anchor
            self._anchor = now, playing + (now - when) * self.speed
        else:
            self._anchor = None  # the next record is due at once, and sets the anchor


class Item(NamedTuple):
    """A record that is due."""

    timestamp_us: int
    offset: int
    written: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event of a replay."""

    topic: str
    cursor: str


class Run:
    """Records that are due, of any partitions, in order. Without a record, only the cursor is news to the client."""

    __slots__ = ("_head", "_items", "_texts", "cursor", "topic")

    def __init__(self, topic: str, head: str, texts: Mapping[int, str], items: Sequence[tuple[int, Item]]) -> None:
        self.topic = topic
        self._head = head
        self._texts = dict(texts)  # positions before
        self._items = items
        after = dict(texts)
        for partition, item in items:
            after.pop(partition, None)
            after[partition] = position_text(partition, item.offset + 1, None)
        self.cursor = ".".join([head, *after.values()])

    @property
    def partition(self) -> int:
        return -1

    @property
    def count(self) -> int:
        return len(self._items)

    def members(self) -> bytes:
        records = b",".join([item.written for _, item in self._items])
        return b'"topic":"%b","records":[%b],"cursor":"%b"' % (self.topic.encode(), records, self.cursor.encode())

    def sse(self) -> bytes:
        if not self._items:
            return b"id: %b\n\n" % self.cursor.encode()
        texts, lines = dict(self._texts), []
        for partition, item in self._items:
            texts.pop(partition, None)
            texts[partition] = position_text(partition, item.offset + 1, None)
            lines.append(b"id: %b\ndata: %b\n\n" % (".".join([self._head, *texts.values()]).encode(), item.written))
        return b"".join(lines)


class Replay:
    """One replay, with the interface of a Subscription. Owned by its reader."""

    def __init__(self, played: Played, info: comet.TopicInfo, reader: comet.Reader, limits: Limits) -> None:
        self._played = played
        self._reader = reader
        self._limits = limits
        self._topic_id = info.id
        self._chosen = [
            one.partition for one in info.partitions if played.partitions is None or one.partition in played.partitions
        ]
        self._pace = Pace(played.speed, paused=played.paused)
        self._next: dict[int, int] = {}  # by partition: the offset to play next
        self._merged = comet.MergedReader([])
        self._encoded: dict[int, tuple[Batch, list[bytes]]] = {}  # by partition: the batch that is played
        self._lost: deque[Lost] = deque()
        self._steered = asyncio.Event()
        self._begun = False
        self._given = 0
        self._cursor_after = 0  # records read when the client last got a cursor
        # The bound on records read ahead is for all partitions together.
        self._fetch_bytes = max(limits.replay_bytes // max(len(self._chosen), 1), FETCH_BYTES_MIN)

    @classmethod
    async def begin(cls, played: Played, admin: comet.Admin, reader: comet.Reader, limits: Limits) -> Replay:
        """Starts a replay. Raises Problem, CometError."""
        info = await admin.describe_topic(played.topic)
        if played.cursor is not None and played.cursor.topic_id != info.id:
            raise Problem("TRUNCATED", f"topic {played.topic!r} was deleted and created again since")
        replay = cls(played, info, reader, limits)
        strange = (played.partitions or frozenset()) - set(replay._chosen)
        if strange:
            raise Problem("PARTITION_NOT_FOUND", f"topic {played.topic!r} has no partitions {sorted(strange)[:10]}")
        await replay._open()
        await replay._fill()
        replay._check_span()
        return replay

    # ---- as a Subscription

    async def next(self) -> Any:
        """The next event: Begun, then Run and Lost, then always Ended."""
        if not self._begun:
            self._begun = True
            return Begun(self._played.topic, self._cursor())
        while True:
            await self._fill()
            if self._lost:
                return self._lost.popleft()
            self._pass_over()
            if self._stale:
                return self._run([])
            if self._merged.done:
                return Ended(self._played.topic, self._cursor())
            loop = asyncio.get_running_loop()
            run, wait = self._due(loop.time())
            if run:
                return self._run(run)
            self._steered.clear()
            try:
                async with asyncio.timeout(None if wait == inf else wait):
                    await self._steered.wait()
            except TimeoutError:
                pass

    def ready(self) -> bool:
        return False

    def permit(self, records: int) -> None:
        raise NotImplementedError("a replay is paused and resumed")

    def close(self) -> None:
        self._merged = comet.MergedReader([])
        self._encoded.clear()

    def statistics(self) -> dict[str, Any]:
        return {"topic": self._played.topic, "given": self._given, "paused": self._pace.paused}

    def steer(self, action: str, count: int, speed: float | None) -> None:
        now = asyncio.get_running_loop().time()
        match action:
            case "pause":
                self._pace.pause(now)
            case "resume":
                self._pace.resume(now)
            case "step":
                self._pace.step(count, now)
            case "speed":
                assert speed is not None
                self._pace.set_speed(speed, now)
        self._steered.set()

    # ---- due records

    def _due(self, now: float) -> tuple[list[tuple[int, Item]], float]:
        """Records that are due, or the seconds until the next one."""
        run: list[tuple[int, Item]] = []
        size, wait = 0, 0.0
        while size < self._limits.delivery_bytes:
            head = self._merged.head()
            if head is None or isinstance(head, comet.Gap):
                break  # read on, or reported, before the next records
            wait = self._pace.due(head.time_us, now)
            if wait > 0:
                break
            self._merged.ready(1)
            self._pace.given(head.time_us, now)
            item = Item(head.time_us, head.offset, self._written(head))
            run.append((head.batch.partition, item))
            size += len(item.written)
        return run, wait

    def _written(self, head: comet.MergedRecord) -> bytes:
        batch = head.batch
        known = self._encoded.get(batch.partition)
        if known is None or known[0] is not batch:
            known = self._encoded[batch.partition] = batch, fragments(batch, self._played.values)
        return known[1][head.number]

    def _run(self, items: list[tuple[int, Item]]) -> Run:
        run = Run(self._played.topic, f"c1.{self._topic_id.hex()}", self._texts(), items)
        for partition, item in items:
            self._next[partition] = item.offset + 1
        self._given += len(items)
        self._cursor_after = self._merged.records
        return run

    @property
    def _stale(self) -> bool:
        """Whether the client needs a cursor behind records that do not match: it does not look at them again when it
        reconnects."""
        return self._played.filter is not None and self._merged.records - self._cursor_after >= PASSED_MAX

    def _pass_over(self) -> None:
        """Moves the positions past records that do not match, up to the next one that does."""
        if self._played.filter is None:
            return
        for partition, source in self._merged.sources.items():
            at = source.position()
            if at is not None and not source.parts:
                self._next[partition] = max(self._next[partition], at[0])

    def _texts(self) -> dict[int, str]:
        return {index: position_text(index, offset, None) for index, offset in self._next.items()}

    def _cursor(self) -> str:
        return str(Cursor(self._topic_id, {index: CursorPosition(offset) for index, offset in self._next.items()}))

    # ---- reading

    async def _open(self) -> None:
        turns = asyncio.Semaphore(FETCHES_MAX)

        async def one(partition: int) -> comet.RangeReader:
            async with turns:
                return comet.RangeReader(self._reader, await self._window(partition))

        ranges = await together(map(one, self._chosen))
        self._next = {one.partition: one.position or 0 for one in ranges}
        self._merged = comet.MergedReader(ranges, select=selection(self._played.filter), at_once=FETCHES_MAX)

    async def _window(self, partition: int) -> RangeSpec:
        """The window in a partition."""
        played, epoch = self._played, None
        # An offset beyond the log end offset is not waited for.
        end = await self._find(partition, Latest() if isinstance(played.end, AtOffset) else played.end)
        if isinstance(played.end, AtOffset):
            end = min(played.end.offset, end)
        known = None if played.cursor is None else played.cursor.positions.get(partition)
        if known is not None:
            start, epoch = known
        else:
            start = await self._find(partition, played.start)
        return RangeSpec(
            played.topic, partition, start, max(start, end), topic_id=self._topic_id, epoch=epoch,
            step_records_first=FETCH_RECORDS, step_records=FETCH_RECORDS, step_bytes=self._fetch_bytes,
            wait_ms=None,  # records of an open transaction come once it is decided
            filter_hint=filter_of_brokers(played.filter),
        )  # fmt: skip

    async def _find(self, partition: int, where: Position) -> int:
        if isinstance(where, AtOffset):
            return where.offset
        try:
            found = await self._reader.fetch(
                self._played.topic, partition, where, records_max=1, topic_id=self._topic_id
            )  # fmt: skip
        except comet.CorruptRecords as error:
            return int(error.details["first"])
        return found.first_offset

    def _check_span(self) -> None:
        """Checks the span of a window whose start is not a time, once it is known."""
        played, head = self._played, self._merged.head()
        if isinstance(played.start, AtTime) or played.cursor is not None or not isinstance(played.end, AtTime):
            return
        if isinstance(head, comet.MergedRecord):
            begin_us = head.time_us
        else:  # so far none matches
            times = [one.time_us for one in self._merged.sources.values() if one.time_us is not None]
            begin_us = min(times, default=played.end.timestamp_us)
        check_span(begin_us, played.end.timestamp_us, self._limits.replay_ms_max)

    async def _fill(self) -> None:
        """Reads until the next record in order is known, or many do not match, and takes the gaps before it."""
        while True:
            head = self._merged.head()
            if isinstance(head, comet.Gap):
                self._merged.ready(1)
                self._pass(head)
            elif head is not None or self._stale or not await self._merged.fill():
                return

    def _pass(self, gap: comet.Gap) -> None:
        """Reports a gap, behind which the replay continues."""
        self._next[gap.partition] = gap.end
        missing = Missing(gap.partition, gap.first, gap.end, gap.reason)
        self._lost.append(Lost(self._played.topic, gap.end - gap.first, [missing], self._cursor()))
