"""A WebSocket as a member of a group: delivers records, and handles the client's acknowledgements.

    consumer group records ─► `ack` with a frame's cursor commits up to it; with `auto` delivered records are
                   committed at the next delivery. Rebalances: `assigned`, `revoked`
    share group    records with their delivery_count ─► `ack`, `nack`, `reject`, `extend` for each

A member leaves with its subscription or connection: its unacknowledged records go to others at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple

import comet
from comet.errors import CometError
from comet.types import Gap, TopicPartition
from comet_gateway.brokers.backend import Backend
from comet_gateway.config import Limits
from comet_gateway.http.problems import Problem
from comet_gateway.http.wire import Frame, Gone, Wire
from comet_gateway.push import frames
from comet_gateway.push.parse_subscribe import Joined
from comet_gateway.records.cursor import Cursor, CursorPosition
from comet_gateway.records.record_json import Values, each

NOTES_MAX: Final = 1_000  # that wait to be sent; beyond it the connection is cut
RUN_RECORDS: Final = 64  # encoded at a time
HANDOVER_S: Final = 1.0  # for a client to acknowledge records of a partition being revoked


class Permits:
    """The number of records that may still be sent; None: any number."""

    def __init__(self, count: int | None) -> None:
        self.left = count
        self._more = asyncio.Event()

    def grant(self, count: int) -> None:
        if self.left is not None:
            self.left += count
            self._more.set()

    async def some(self, wanted: int) -> int:
        """Waits for at least one permit; takes up to `wanted`, and returns their number."""
        while self.left == 0:
            self._more.clear()
            await self._more.wait()
        if self.left is None:
            return wanted
        taken = min(self.left, wanted)
        self.left -= taken
        return taken


class Notes:
    """Notifications in order with the records: written before the next records, or by themselves."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._waiting: deque[bytes] = deque()
        self._flushing: asyncio.Task[None] | None = None

    def add(self, frame: frames.ServerFrame) -> None:
        if len(self._waiting) >= NOTES_MAX:
            self._wire.abort()  # the client has not read for very long
            return
        self._waiting.append(frames.encode(frame))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        with suppress(Gone):  # the reader notices, too
            await self._wire.room()
            await self._wire.write(self.taken())
        self._flushing = None

    def taken(self) -> list[Frame]:
        found: list[Frame] = [[one] for one in self._waiting]
        self._waiting.clear()
        return found

    def close(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()


Written = tuple[int, bytes]  # the offset behind a record, and its JSON


def pieces(batch: comet.RecordBatch[bytes], values: Values, bytes_max: int) -> Iterator[list[Written]]:
    """A batch in parts that fit into a frame each, encoded lazily, because a batch may be large."""
    piece: list[Written] = []
    size = 0
    records = batch.records()
    while run := list(islice(records, RUN_RECORDS)):
        for record, one in zip(run, each(run, values), strict=True):
            if size and size + len(one) > bytes_max:
                yield piece
                piece, size = [], 0
            piece.append((record.offset + 1, one))
            size += len(one)
    if piece:
        piece[-1] = batch.next_offset, piece[-1][1]
        yield piece


class Delivery(NamedTuple):
    """Records of one frame."""

    tp: TopicPartition
    topic_id: bytes
    records: list[Written]


class GroupMembership:
    """A member of a consumer group, as a source of frames."""

    def __init__(self, id_: str, joined: Joined, backend: Backend, wire: Wire, limits: Limits) -> None:
        self._id = id_
        self._joined = joined
        self._limits = limits
        self._admin = backend.admin
        self._permits = Permits(joined.permits)
        self._notes = Notes(wire)
        self._topic_ids: dict[str, bytes] = {}
        self._sent: dict[TopicPartition, int] = {}  # the offset behind the delivered records
        self._acked: dict[TopicPartition, int] = {}
        self._heard = asyncio.Event()
        self._leaving = False
        self._head = b'{"type":"records","id":%b,"topic":' % frames.encode(id_)
        assert isinstance(joined.options, comet.GroupOptions)
        self._deliveries = self._deliver()
        self._delivery: Delivery | None = None  # the next one, until it can be sent
        self._consumer = comet.GroupConsumer(
            backend.bootstrap,
            *joined.topics,
            group=joined.group.name,
            options=joined.options,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            on_lost=self._lost,
            on_gap=self._gap,
            buffer_bytes=limits.member_bytes,
            name="gateway",
        )

    def grant(self, count: int) -> None:
        self._permits.grant(count)

    async def begin(self) -> None:
        await self._consumer.start()
        self._notes.add(frames.Subscribed(self._id, group=self._consumer.group, member=self._consumer.member))

    async def ready(self) -> None:
        self._delivery = await anext(self._deliveries)

    async def take(self) -> list[Frame]:
        delivery = self._delivery
        assert delivery is not None
        tp, records = delivery.tp, delivery.records
        if tp not in self._consumer.assignment():
            return []  # revoked meanwhile: another member gets them
        end = self._sent[tp] = records[-1][0]
        cursor = str(Cursor(delivery.topic_id, {tp.partition: CursorPosition(end)}))
        before = b'%b%b,"partition":%d,"records":[' % (self._head, frames.encode(tp.topic), tp.partition)
        body = b",".join([one for _, one in records])
        return [*self._notes.taken(), [before, body, b'],"cursor":"%b"}' % cursor.encode()]]

    async def close(self) -> None:
        self._leaving = True
        self._heard.set()
        self._notes.close()
        await self._deliveries.aclose()
        await self._consumer.close()

    async def _deliver(self) -> AsyncGenerator[Delivery]:
        while True:
            batch = await self._consumer.get_batch()
            assert batch is not None
            async for delivery in self._parts(batch):
                yield delivery

    async def _parts(self, batch: comet.RecordBatch[bytes]) -> AsyncGenerator[Delivery]:
        """The records of a batch that fit into a frame and are permitted, until its partition is revoked."""
        tp = TopicPartition(batch.topic, batch.partition)
        topic_id = await self._topic_id(batch.topic)
        for piece in pieces(batch, self._joined.values, self._limits.delivery_bytes):
            rest = piece
            while rest:
                taken = await self._permits.some(len(rest))
                now, rest = rest[:taken], rest[taken:]
                yield Delivery(tp, topic_id, now)
                if tp not in self._consumer.assignment():
                    return

    async def _topic_id(self, topic: str) -> bytes:
        found = self._topic_ids.get(topic)
        if found is None:
            info = await self._admin.describe_topic(topic)
            found = self._topic_ids[topic] = info.id
        return found

    # ---- what the client says

    async def commit(self, text: str) -> frames.ServerFrame:
        """Commits up to a cursor, and returns the answer. Raises Problem, CometError."""
        cursor = Cursor.parse(text)
        topic = next((name for name, known in self._topic_ids.items() if known == cursor.topic_id), None)
        if topic is None:
            raise Problem("MALFORMED_CURSOR", "the cursor is of a topic without delivered records on this subscription")
        wanted: dict[TopicPartition, int] = {}
        for partition, at in cursor.positions.items():
            tp = TopicPartition(topic, partition)
            if at.offset > self._sent.get(tp, -1):
                raise Problem("INVALID_ARGUMENT", f"{topic}/{partition} was not delivered up to {at.offset}")
            wanted[tp] = at.offset
        await self._consumer.commit(wanted)
        for tp, offset in wanted.items():
            self._acked[tp] = max(offset, self._acked.get(tp, 0))
        self._heard.set()
        return frames.Acked(self._id, "ack", cursor=text)

    # ---- from the group

    def _assigned(self, tps: list[TopicPartition]) -> None:
        for topic in {tp.topic for tp in tps}:
            self._topic_ids.pop(topic, None)  # it may have been deleted and created again
        self._notes.add(frames.Assigned(self._id, _owned(tps)))

    async def _revoked(self, tps: list[TopicPartition]) -> None:
        if self._leaving:
            return
        self._notes.add(frames.Revoked(self._id, _owned(tps), lost=False))
        # Records acknowledged now are not delivered again to the next member.
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if self._consumer.auto_commit else HANDOVER_S):
                while not self._leaving and any(map(self._open, tps)):
                    self._heard.clear()
                    await self._heard.wait()
        for tp in tps:
            self._sent.pop(tp, None)
            self._acked.pop(tp, None)

    def _open(self, tp: TopicPartition) -> bool:
        return self._sent.get(tp, 0) > self._acked.get(tp, 0)

    def _lost(self, tps: list[TopicPartition]) -> None:
        for tp in tps:
            self._sent.pop(tp, None)
            self._acked.pop(tp, None)
        if not self._leaving:
            self._notes.add(frames.Revoked(self._id, _owned(tps), lost=True))

    def _gap(self, gap: Gap) -> None:
        missing = frames.MissingItem(gap.partition, str(gap.first), str(gap.end), gap.reason)
        self._notes.add(frames.LostFrame(self._id, gap.topic, gap.end - gap.first, [missing]))


def _owned(tps: Iterable[TopicPartition]) -> list[frames.Owned]:
    return [frames.Owned(topic, partition) for topic, partition in sorted(tps)]


Key = tuple[str, int, int]  # topic, partition, offset


class ShareMember:
    """A member of a share group, as a source of frames."""

    def __init__(self, id_: str, joined: Joined, backend: Backend, limits: Limits) -> None:
        self._id = id_
        self._joined = joined
        self._notices: list[Frame] = []
        self._record: comet.ShareRecord[bytes] | None = None  # the next one, until it can be sent
        self._limits = limits
        assert isinstance(joined.options, comet.ShareOptions)
        self._lock_s = joined.options.lock_ms / 1000
        # Records that the client has acquired: at most `in_flight`, until their locks expire.
        self._held: OrderedDict[Key, tuple[float, comet.ShareRecord[bytes]]] = OrderedDict()
        self._head = b'{"type":"records","id":%b,"topic":' % frames.encode(id_)
        self._consumer = comet.ShareConsumer(
            backend.bootstrap, *joined.topics, group=joined.group.name, options=joined.options, name="gateway"
        )

    async def begin(self) -> None:
        await self._consumer.start()
        begun = frames.Subscribed(self._id, group=self._consumer.group, member=self._consumer.member)
        self._notices.append([frames.encode(begun)])

    async def ready(self) -> None:
        if not self._notices:
            self._record = await self._next()

    async def take(self) -> list[Frame]:
        """The record and those already received, as frames: one for each run of the same topic."""
        taken, self._notices = self._notices, []
        record, self._record = self._record, None
        run: list[bytes] = []
        topic, size = "", 0
        while record is not None:
            if run and record.topic != topic:
                taken.append(self._frame(topic, run))
                run = []
            topic = record.topic
            run.append(self._written(record))
            size += len(run[-1])
            self._hold(record)
            record = await self._next(timeout_s=0) if size < self._limits.delivery_bytes else None
        if run:
            taken.append(self._frame(topic, run))
        return taken

    async def close(self) -> None:
        self._held.clear()
        await self._consumer.close()

    async def _next(self, timeout_s: float | None = None) -> comet.ShareRecord[bytes] | None:
        """The next record; None: none now, or records are damaged, which a notice reports."""
        try:
            return await self._consumer.get(timeout_s)
        except comet.CorruptRecords as error:  # its records are rejected
            details = error.details
            missing = frames.MissingItem(int(details["partition"]), details["first"], details["end"], "damaged")
            count = int(details["end"]) - int(details["first"])
            self._notices.append([frames.encode(frames.LostFrame(self._id, details["topic"], count, [missing]))])
            return None

    def _frame(self, topic: str, run: list[bytes]) -> Frame:
        return [self._head, frames.encode(topic), b',"records":[', b",".join(run), b"]}"]

    def _written(self, record: comet.ShareRecord[bytes]) -> bytes:
        (one,) = each([record], self._joined.values)
        return b'%b,"delivery_count":%d}' % (one[:-1], record.delivery_count)

    def _hold(self, record: comet.ShareRecord[bytes]) -> None:
        now = asyncio.get_running_loop().time()
        while self._held:
            key, (until, _) = next(iter(self._held.items()))
            if until > now:
                break
            del self._held[key]
        key = record.topic, record.partition, record.offset
        self._held[key] = now + self._lock_s, record
        self._held.move_to_end(key)

    # ---- what the client says

    async def acknowledge(self, frame: frames.Acknowledge) -> frames.ServerFrame:
        """Acknowledges records, and returns the answer."""
        assert frame.records is not None
        waiting: list[tuple[Key, Awaitable[None] | None]] = []
        # All are checked before any is acknowledged: a refused frame changes nothing.
        keys = [(self._topic(one), one.partition, int(one.offset)) for one in frame.records]
        for key in keys:
            held = self._held.get(key)
            waiting.append((key, None if held is None else self._acknowledge(frame, key, held[1])))
        results = [await _acknowledged(key, what) for key, what in waiting]
        return frames.Acked(self._id, of=_ACKNOWLEDGE[type(frame)][0], results=results)

    def _topic(self, one: frames.RecordId) -> str:
        if one.topic is not None:
            return one.topic
        if len(self._joined.topics) != 1:
            raise Problem("INVALID_ARGUMENT", "give the topic of each record: the subscription has several")
        return self._joined.topics[0]

    def _acknowledge(self, frame: frames.Acknowledge, key: Key, record: comet.ShareRecord[bytes]) -> Awaitable[None]:
        if isinstance(frame, frames.Extend):
            self._held[key] = asyncio.get_running_loop().time() + self._lock_s, record
            self._held.move_to_end(key)
        else:
            del self._held[key]
        return _ACKNOWLEDGE[type(frame)][1](frame, record)


_ACKNOWLEDGE: Final[dict[type, tuple[Any, Callable[[Any, Any], Awaitable[None]]]]] = {
    frames.Ack: ("ack", lambda _, record: record.ack()),
    frames.NackFrame: ("nack", lambda frame, record: record.nack(frame.delay_ms)),
    frames.RejectFrame: ("reject", lambda frame, record: record.reject(frame.reason)),
    frames.Extend: ("extend", lambda _, record: record.extend()),
}


async def _acknowledged(key: Key, what: Awaitable[None] | None) -> frames.AcknowledgedItem:
    topic, partition, offset = key
    problem: Problem | None = None
    if what is None:
        problem = Problem(
            "LOCK_EXPIRED", f"record {offset} of {topic}/{partition} is not acquired here, or its lock has expired"
        )
    else:
        try:
            await what
        except CometError as error:
            problem = Problem.of(error)
    return frames.AcknowledgedItem(topic, partition, str(offset), None if problem is None else problem.document())
