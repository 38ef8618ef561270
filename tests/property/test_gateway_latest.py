"""Tables of latest records against a list of all that was ever written: snapshots, conflation, and what is counted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from comet.filters import Filter, parse
from comet_gateway.push.chunk import Slice, Source
from comet_gateway.push.conflator import Conflator
from comet_gateway.push.events import Latest
from comet_gateway.push.latest_fanout import SnapshotWalk, TableSnapshot, Ticker
from comet_gateway.push.latest_table import ENTRY_OVERHEAD, Encoding, LatestTable
from comet_gateway.push.ring import Ring
from comet_gateway.push.ring_cursor import RingCursor
from comet_gateway.push.subscribe_request import Policy, SubscribeRequest
from comet_gateway.records.cursor import Cursor, CursorPosition
from comet_gateway.records.record_json import Values
from tests.unit.gateway_world import TOPIC, TOPIC_ID, batch_of

DELIVERY_BYTES = 300
CONFLATED = SubscribeRequest(topics=(TOPIC,), policy=Policy.CONFLATE)


@dataclass
class Line:
    key: str
    partition: int
    offset: int
    value: int | None


@dataclass
class Client:
    follower: Conflator | RingCursor
    begin: int  # lines that were there when it began
    partitions: frozenset[int] | None
    state: dict[str, int | None] = field(default_factory=dict)
    tick_keys: set[str] = field(default_factory=set)
    counted: int = 0
    whole: bool = True  # it has had the last part of what it is in
    snapshot: bool = False
    base: dict[str, int | None] = field(default_factory=dict)  # of its snapshot


class Hub(RuleBasedStateMachine):
    """Keys belong to a partition each, as the producers' do."""

    def __init__(self) -> None:
        super().__init__()
        self.filter: Filter | None = None
        self.lines: list[Line] = []
        self.ends = {0: 0, 1: 0}
        self.now = 0.0
        self.ring = Ring(TOPIC, TOPIC_ID, {0: CursorPosition(0), 1: CursorPosition(0)}, DELIVERY_BYTES)
        self.table: LatestTable | None = None
        self.ticker: Ticker | None = None
        self.sources: list[Source] = []
        self.filled = 0  # lines from there on are in the table
        self.clients: list[Client] = []

    @rule(keys=st.lists(st.integers(0, 9), min_size=1, max_size=12), dead=st.sampled_from([None, None, 0]))
    def write(self, keys: list[int], dead: int | None) -> None:
        for partition in (0, 1):
            chosen = [key for key in keys if key % 2 == partition]
            if not chosen:
                continue
            first = self.ends[partition]
            values = [None if index == dead else len(self.lines) + index for index in range(len(chosen))]
            self.lines += [Line(f"k{key}", partition, first + index, values[index]) for index, key in enumerate(chosen)]
            self.ends[partition] = first + len(chosen)
            source = Source(
                batch_of(
                    partition, range(first, first + len(chosen)),
                    [None if value is None else b"%d" % value for value in values],
                    keys=[b"k%d" % key for key in chosen],
                )
            )  # fmt: skip
            self.sources.append(source)
            self.ring.add(source)
            if self.table is not None:
                self.table.apply(source)

    @precondition(lambda self: self.table is None)
    @rule(offsets=st.none() | st.sets(st.integers(0, 40), min_size=1))
    def make_table(self, offsets: set[int] | None) -> None:
        if offsets is not None:
            self.filter = parse(f"@offset in ({', '.join(map(str, offsets))})", now_us=0)
            self.offsets = offsets
        self.table = LatestTable(self.ring, Encoding(Values.AUTO, self.filter), 1000, 1 << 20)
        self.ticker = Ticker(self.table, 1.0, DELIVERY_BYTES, lambda: self.now)
        self.filled = len(self.lines)

    def fill(self, wanted: dict[int, int]) -> None:
        table = self.table
        assert table is not None
        begin = {index: offset for index, offset in wanted.items() if offset < table.filled_from[index]}
        filling = table.filling(begin)
        for source in self.sources:
            if source.partition in begin and source.next_offset > begin[source.partition]:
                part = source.batch.after(begin[source.partition])
                assert part is not None
                filling.apply(Source(part), table.filled_from[source.partition])
        table.filled(filling)
        self.filled = 0

    def truth(self, lines: list[Line], partitions: frozenset[int] | None) -> dict[str, int | None]:
        return {
            line.key: line.value
            for line in lines
            if (partitions is None or line.partition in partitions) and self.matches(line)
        }

    def matches(self, line: Line) -> bool:
        return self.filter is None or line.offset in self.offsets

    def snapshot(self, partitions: frozenset[int] | None) -> dict[str, int | None]:
        """The newest record of each key, where it matches."""
        newest = {line.key: line for line in self.lines}
        return self.truth([line for line in newest.values() if line.value is not None], partitions)

    @precondition(lambda self: self.table is not None and len(self.clients) < 5)
    @rule(
        how=st.sampled_from(["latest", "latest", "snapshot", "snapshot then stream", "cursor"]),
        partitions=st.sampled_from([None, None, frozenset({1})]),
        data=st.data(),
    )
    def subscribe(self, how: str, partitions: frozenset[int] | None, data: st.DataObject) -> None:
        assert self.table is not None
        assert self.ticker is not None
        asked = SubscribeRequest(topics=(TOPIC,), policy=Policy.CONFLATE, partitions=partitions)
        if how == "latest":
            self.clients.append(Client(Conflator(self.ring, asked, self.ticker), len(self.lines), partitions))
            return
        positions: dict[int, CursorPosition] | None = None
        wanted = {0: 0, 1: 0}
        if how == "cursor":
            wanted = {index: data.draw(st.integers(0, end)) for index, end in self.ends.items()}
            positions = {
                index: CursorPosition(offset)
                for index, offset in wanted.items()
                if partitions is None or index in partitions
            }
        self.fill(wanted)
        walk = SnapshotWalk(TableSnapshot(self.table, DELIVERY_BYTES, self.now), partitions, positions)
        follower: Conflator | RingCursor
        if how == "snapshot then stream":
            follower = RingCursor(self.ring, asked)
            follower.begin_with(walk)
            assert follower.behind == 0
        else:
            follower = Conflator(self.ring, asked, self.ticker)
            follower.begin_with(walk, 0)
        client = Client(follower, 0, partitions, whole=False, snapshot=True)
        if positions is None:
            client.base, client.begin = self.snapshot(partitions), len(self.lines)
        if positions is not None:
            client.state = self.truth([line for line in self.lines if line.offset < wanted[line.partition]], partitions)
            client.counted = -1  # what a snapshot stands for is counted by nobody
        self.clients.append(client)

    @rule(after=st.floats(0, 1.5))
    def tick(self, after: float) -> None:
        self.now += after
        if self.ticker is not None:
            self.ticker.tick()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), permits=st.sampled_from([None, None, 1, 3]), times=st.integers(1, 4))
    def take(self, data: st.DataObject, permits: int | None, times: int) -> None:
        client = data.draw(st.sampled_from(self.clients))
        for _ in range(times):
            if not self.step(client, permits):
                break

    def step(self, client: Client, permits: int | None) -> bool:
        event = client.follower.take(permits)
        if event is None:
            return False
        found: dict[str, Any]
        if isinstance(event, Slice):
            assert client.whole, "the snapshot comes first"
            found = json.loads(b"{" + event.matching(self.filter, 0).members() + b"}")
        else:
            assert isinstance(event, Latest)
            found = json.loads(b"{" + event.write_members() + b"}")
            assert bool(event.cursor) == event.last
            assert found["cursor"] == event.cursor
            assert event.write_sse().count(b"\n\n") == 1
            keys = [record["key"] for record in found["records"]]
            assert len(set(keys)) == len(keys), "a key at most once"
            client.whole = event.last
            if client.counted >= 0 and not event.snapshot:
                client.counted += event.conflated + event.count
        assert isinstance(event, Slice) or len(found["records"]) == event.count
        assert permits is None or event.count <= permits
        for record in found["records"]:
            assert client.partitions is None or record["partition"] in client.partitions
            client.state[record["key"]] = record.get("value")
        if isinstance(event, Latest) and event.last:
            self.holds(client, event)
        return True

    def holds(self, client: Client, event: Latest) -> None:
        """It knows the latest of all keys, as of its cursor. A key that changed while a tick was given in parts comes
        with the next tick, which the cursor leaves to come."""
        positions = Cursor.parse(event.cursor).positions
        lines = [line for line in self.lines[client.begin :] if line.offset < positions[line.partition].offset]
        truth = client.base | self.truth(lines, client.partitions)
        late = (
            set()
            if event.snapshot
            else {one.key for one in self.lines if one.offset >= positions[one.partition].offset}
        )

        def latest(state: dict[str, int | None]) -> dict[str, int]:
            return {key: value for key, value in state.items() if value is not None and key not in late}

        assert latest(client.state) == latest(truth)

    @invariant()
    def the_table_adds_up(self) -> None:
        table = self.table
        if table is None:
            return
        kept = table.all()
        assert [one.version for one in kept] == sorted(one.version for one in kept)
        truth = {line.key: (line.partition, line.offset) for line in self.lines[self.filled :]}
        if self.filled == 0 and all(offset == 0 for offset in table.filled_from.values()):
            assert {(one.partition, one.offset) for one in kept} == set(truth.values())

    def teardown(self) -> None:
        for client in self.clients:
            for _ in range(1000):
                self.now += 2.0
                assert self.ticker is not None
                self.ticker.tick()
                if not self.step(client, None):
                    break
            truth = client.base | self.truth(self.lines[client.begin :], client.partitions)
            known = {key: value for key, value in client.state.items() if value is not None}
            assert known == {key: value for key, value in truth.items() if value is not None}
            if isinstance(client.follower, Conflator):
                assert client.follower.behind == 0
                if not client.snapshot and client.partitions is None:
                    assert client.counted == sum(map(self.matches, self.lines[client.begin :]))


TestHub = Hub.TestCase
TestHub.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_key_that_changes_while_a_tick_is_given_comes_with_the_next_one() -> None:
    """What the state machine found once: three parts of a tick, and a write between the first two."""
    hub = Hub()
    hub.make_table(None)
    assert hub.table is not None and hub.ticker is not None
    asked = SubscribeRequest(topics=(TOPIC,), policy=Policy.CONFLATE)
    client = Client(Conflator(hub.ring, asked, hub.ticker), 0, None)
    hub.clients.append(client)
    hub.tick(1.25)
    hub.write([0], None)
    hub.write([1, 2, 3, 6, 5, 4], None)
    assert hub.step(client, None)
    hub.write([1], None)
    assert [hub.step(client, 1) for _ in range(3)] == [True] * 3
    hub.teardown()
    assert client.state["k1"] == 7


def test_what_does_not_fit_is_said() -> None:
    ring = Ring(TOPIC, TOPIC_ID, {0: CursorPosition(0)}, DELIVERY_BYTES)
    table = LatestTable(ring, Encoding(Values.AUTO), 3, 1 << 20)

    def write(first: int, values: list[bytes | None], keys: list[bytes]) -> None:
        source = Source(batch_of(0, range(first, first + len(values)), values, keys=keys))
        ring.add(source)
        table.apply(source)

    write(0, [b"1", None, b"3"], [b"a", b"b", b"c"])
    assert not table.lossy
    write(3, [b"4"], [b"d"])  # the key that was deleted goes
    assert (len(table), table.lossy, table.forgot_dead) == (3, False, True)
    write(4, [b"5"], [b"e"])  # then the one that was not written for longest
    assert (len(table), table.lossy) == (3, True)
    assert [kept.offset for kept in table.all()] == [2, 3, 4]
    assert table.bytes == sum(ENTRY_OVERHEAD + 1 + len(kept.fragment) for kept in table.all())
    table.cut(0, 4)
    assert [kept.offset for kept in table.all()] == [2, 3]


def test_those_in_step_share_what_is_made_for_them() -> None:
    ring = Ring(TOPIC, TOPIC_ID, {0: CursorPosition(0)}, DELIVERY_BYTES)
    table = LatestTable(ring, Encoding(Values.AUTO), 1000, 1 << 20)
    now = [0.0]
    ticker = Ticker(table, 1.0, DELIVERY_BYTES, lambda: now[0])
    conflators = [Conflator(ring, CONFLATED, ticker) for _ in range(10)]
    for turn in range(3):
        source = Source(batch_of(0, range(turn * 20, turn * 20 + 20), [b"1"] * 20, keys=[b"%d" % n for n in range(20)]))
        ring.add(source)
        table.apply(source)
        assert all(one.take() is None for one in conflators), "not before it is time"
        now[0] += 1.0
        ticker.tick()
        had: list[list[object]] = [[] for _ in conflators]
        for events, one in zip(had, conflators, strict=True):
            while (event := one.take()) is not None:
                events.append(event)
                if len(events) == 2:  # late: what came meanwhile is for the next tick
                    ring.add(late := Source(batch_of(0, [10_000 + table.version], [b"2"], keys=[b"late"])))
                    table.apply(late)
        assert len(had[0]) > 1
        assert all(len(events) == len(had[0]) for events in had)
        assert all(left is right for events in had for left, right in zip(events, had[0], strict=True))
