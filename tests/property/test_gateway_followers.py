"""Subscribers of a topic against a log that is a list: each gets every record once, in order, or is told which not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from comet_gateway.push.chunk import Slice, Source
from comet_gateway.push.events import Lost, Missing
from comet_gateway.push.ring import Ring
from comet_gateway.push.ring_cursor import Read, RingCursor
from comet_gateway.push.subscribe_request import Policy, SubscribeRequest
from comet_gateway.records.cursor import Cursor, CursorPosition
from tests.unit.gateway_world import TOPIC, TOPIC_ID, batch_of

PARTITIONS = 3
DELIVERY_BYTES = 400  # three or four records


@dataclass
class Written:
    offset: int
    epoch: int


@dataclass
class Partition:
    """The log: what is there, and how far the feed has got."""

    records: list[Written] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)
    start: int = 0
    end: int = 0
    epoch: int = 1


@dataclass
class Client:
    """A subscriber, and what it should get next of each partition."""

    follower: RingCursor
    asked: SubscribeRequest
    expected: dict[int, int]
    cursor: str
    read: Read | None = None
    dropped: int = 0


class Hub(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.logs = {index: Partition() for index in range(PARTITIONS)}
        self.ring = Ring(TOPIC, TOPIC_ID, {index: CursorPosition(0) for index in self.logs}, DELIVERY_BYTES)
        self.clients: list[Client] = []
        self.told_first = dict.fromkeys(self.logs, 0)
        self.unnoticed: dict[
            int, list[list[int]]
        ] = {}  # in partitions that were added, and that the feed does not know

    # ---- the log

    @rule(data=st.data(), count=st.integers(1, 9), hidden=st.sampled_from([0, 0, 0, 1, 3]))
    def write(self, data: st.DataObject, count: int, hidden: int) -> None:
        index = data.draw(st.sampled_from(sorted(self.logs)))
        log = self.logs[index]
        offsets = list(range(log.end + hidden, log.end + hidden + count))  # what is hidden is aborted, or a marker
        log.end = offsets[-1] + 1
        log.records += [Written(offset, log.epoch) for offset in offsets]
        if index in self.unnoticed:
            self.unnoticed[index].append(offsets)
        else:
            self.ring.add(Source(batch_of(index, offsets, epoch=log.epoch)))

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        log = self.logs[data.draw(st.sampled_from(sorted(self.logs)))]
        log.start = data.draw(st.integers(log.start, log.end))
        log.records = [one for one in log.records if one.offset >= log.start]

    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """Records that the consumer could not get; nobody can."""
        index = data.draw(st.sampled_from(sorted(self.logs)))
        log = self.logs[index]
        self.notice(index)
        first, log.end = log.end, log.end + 2
        log.damaged.append((first, log.end))
        self.ring.skip(Missing(index, first, log.end, "damaged"))

    @rule()
    def add_partition(self) -> None:
        if len(self.logs) < PARTITIONS + 2:
            self.logs[len(self.logs)] = Partition()
            self.told_first[len(self.logs) - 1] = 0
            self.unnoticed[len(self.logs) - 1] = []

    @rule()
    def notice_all(self) -> None:
        for index in list(self.unnoticed):
            self.notice(index)

    def notice(self, index: int) -> None:
        log = self.logs[index]
        for offsets in self.unnoticed.pop(index, []):
            left = [offset for offset in offsets if offset >= log.start]
            if left:
                self.ring.add(Source(batch_of(index, left, epoch=log.epoch)))

    @rule(part=st.floats(0, 1))
    def evict(self, part: float) -> None:
        tail = self.ring.excess(int(self.ring.bytes * part))
        for client in self.clients:
            follower = client.follower
            if follower.live and follower.number < tail:
                follower.uproot(self.ring.positions_before(follower.number))
        self.ring.evict(tail)

    # ---- subscribers

    def join(self, asked: SubscribeRequest, positions: dict[int, CursorPosition] | None) -> Client:
        follower = RingCursor(self.ring, asked)
        if positions is not None:
            follower.begin_at(positions)
        wanted = asked.partitions
        chosen = [index for index in self.logs if wanted is None or index in wanted]
        ends = {index: 0 if index in self.unnoticed else self.logs[index].end for index in chosen}
        known = {index: position.offset for index, position in (positions or {}).items()}
        expected = (ends | known) if positions is None else {index: known.get(index, 0) for index in chosen}
        client = Client(follower, asked, expected, follower.cursor())
        self.clients.append(client)
        return client

    @precondition(lambda self: len(self.clients) < 6)
    @rule(
        begin=st.sampled_from(["latest", "earliest"]),
        partitions=st.sampled_from([None, None, frozenset({0, 2})]),
        buffer=st.sampled_from([None, None, 5]),
    )
    def subscribe(self, begin: str, partitions: frozenset[int] | None, buffer: int | None) -> None:
        policy = Policy.BLOCK if buffer is None else Policy.DROP_OLDEST
        asked = SubscribeRequest(topics=(TOPIC,), partitions=partitions, policy=policy, buffer=buffer or 10)
        wanted = [index for index in self.ring.positions if partitions is None or index in partitions]
        self.join(
            asked, None if begin == "latest" else {index: CursorPosition(self.logs[index].start) for index in wanted}
        )

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """Its connection is lost, and it comes back with the cursor of the last event that it had. It may have been at
        another gateway meanwhile, which knows of partitions that were added."""
        old = data.draw(st.sampled_from(self.clients))
        self.clients.remove(old)
        cursor = Cursor.parse(old.cursor)
        wanted = old.asked.partitions
        chosen = [index for index in self.ring.positions if wanted is None or index in wanted]
        positions = {index: cursor.positions.get(index, CursorPosition(0)) for index in chosen}
        positions |= cursor.positions if wanted is None else {}
        elsewhere = {
            index: data.draw(st.integers(old.expected.get(index, 0), self.logs[index].end))
            for index in self.unnoticed
            if wanted is None and data.draw(st.booleans())
        }
        new = self.join(old.asked, positions | {index: CursorPosition(offset) for index, offset in elsewhere.items()})
        for index, offset in old.expected.items():
            if index in new.expected and index not in elsewhere:
                first, end = sorted((offset, new.expected[index]))  # offsets of nothing but markers may lie between
                between = [one for one in self.logs[index].records if first <= one.offset < end]
                assert not between, "it would get these twice, or never"
        new.expected = old.expected | {index: 0 for index in chosen if index not in old.expected} | elsewhere

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), permits=st.sampled_from([None, None, 1, 2]), times=st.integers(1, 5))
    def take(self, data: st.DataObject, permits: int | None, times: int) -> None:
        client = data.draw(st.sampled_from(self.clients))
        for _ in range(times):
            if not self.step(client, permits, answer=data.draw(st.booleans())):
                break

    def step(self, client: Client, permits: int | None, *, answer: bool) -> bool:
        """Whether there was something."""
        if client.read is not None:
            if answer:
                self.answer(client, client.read)
                client.read = None
            return answer
        found = client.follower.take(permits)
        match found:
            case None:
                return False
            case Read():
                client.read = found
                return True
            case Slice():
                self.given(client, found, permits)
                client.cursor = found.cursor
            case Lost():
                self.lost(client, found)
                client.cursor = found.cursor
            case _:
                raise AssertionError(found)
        buffer = client.follower.buffer
        if buffer is not None and client.follower.live and isinstance(found, Lost):
            assert client.follower.behind <= buffer or found.missing[0].reason != "dropped"
        return True

    def answer(self, client: Client, read: Read) -> None:
        log = self.logs[read.partition]
        if read.position.offset < log.start:
            missing = Missing(read.partition, read.position.offset, log.start, "deleted")
            client.follower.missed(read, missing, CursorPosition(log.start))
            return
        found = [one for one in log.records if one.offset >= read.position.offset][:4]
        damaged = next(((first, end) for first, end in log.damaged if end > read.position.offset), None)
        if damaged is not None and (not found or damaged[0] < found[0].offset):
            missing = Missing(read.partition, max(damaged[0], read.position.offset), damaged[1], "damaged")
            client.follower.missed(read, missing, CursorPosition(damaged[1]))
            return
        if damaged is not None:
            found = [one for one in found if one.offset < damaged[0]]
        if not found:
            client.follower.filled(read, [], CursorPosition(log.end), DELIVERY_BYTES)
            return
        sources = [Source(batch_of(read.partition, [one.offset], epoch=one.epoch)) for one in found]
        client.follower.filled(read, sources, CursorPosition(found[-1].offset + 1, found[-1].epoch), DELIVERY_BYTES)

    def given(self, client: Client, records: Slice, permits: int | None) -> None:
        index = records.partition
        assert client.asked.partitions is None or index in client.asked.partitions
        assert permits is None or records.count <= permits
        document = json.loads(b"{" + records.members() + b"}")
        assert document["cursor"] == records.cursor
        offsets = [int(record["offset"]) for record in document["records"]]
        assert offsets == list(records.offsets)
        expected = client.expected.setdefault(index, 0)
        assert offsets[0] >= expected, "it had that before"
        skipped = [one for one in self.logs[index].records if expected <= one.offset < offsets[0]]
        assert not skipped, "it was not given these"
        assert offsets == sorted(set(offsets))
        assert [record["text"] for record in document["records"]] == [f"{index}/{offset}/1" for offset in offsets]
        client.expected[index] = offsets[-1] + 1
        ids = [line[4:] for line in records.sse().decode().splitlines() if line.startswith("id: ")]
        assert len(ids) == records.count
        for id_, offset in zip(ids, offsets, strict=True):
            position = Cursor.parse(id_).positions[index]
            assert position.offset > offset
            assert not [one for one in self.logs[index].records if offset < one.offset < position.offset]
        assert Cursor.parse(ids[-1]) == Cursor.parse(records.cursor)

    def lost(self, client: Client, lost: Lost) -> None:
        for partition, first, end, reason in lost.missing:
            assert reason in {"deleted", "damaged", "dropped"}
            assert reason != "dropped" or client.follower.buffer is not None
            expected = client.expected.setdefault(partition, 0)
            assert first >= expected or reason != "dropped", "it had that before"
            skipped = [one for one in self.logs[partition].records if expected <= one.offset < first]
            assert not skipped, "it was not given these, nor told"
            client.expected[partition] = max(end, expected)

    # ---- what must hold

    @invariant()
    def the_ring_adds_up(self) -> None:
        items = [self.ring.at(number) for number in range(self.ring.tail, self.ring.head)]
        assert self.ring.bytes == sum(item.size for item in items)
        assert self.ring.records == sum(getattr(item, "count", 0) for item in items)
        assert self.ring.positions_before(self.ring.head) == self.ring.positions
        assert dict(Cursor.parse(self.ring.cursor()).positions) == self.ring.positions

    def teardown(self) -> None:
        """In the end everybody has everything."""
        self.notice_all()
        for client in self.clients:
            for _ in range(10_000):
                if not self.step(client, None, answer=True):
                    break
            for index, log in self.logs.items():
                if client.asked.partitions is None or index in client.asked.partitions:
                    expected = client.expected.get(index, 0)
                    assert not [one for one in log.records if one.offset >= expected], "it lacks these"
            assert client.follower.live or client.follower.behind == 0


TestHub = Hub.TestCase
TestHub.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
