"""Share groups at the leader of a partition, frame by frame, against a broker in this process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as groups
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet_broker import limits
from comet_broker.broker import Broker
from comet_broker.core.share_record import SHARES
from tests.integration.held_clock import HeldClock
from tests.integration.share_client import Member, acquired
from tests.integration.stream_client import Call, Client
from tests.integration.test_isolation import Transactional

RELEASE, REJECT, EXTEND = (
    groups.ACKNOWLEDGE_TYPE_RELEASE,
    groups.ACKNOWLEDGE_TYPE_REJECT,
    groups.ACKNOWLEDGE_TYPE_EXTEND,
)


@pytest.fixture
async def handle(broker: Broker, topic: types.Topic) -> int:
    return await Client(broker).attach()


async def produce(broker: Broker, handle: int, *values: bytes, **identity: Any) -> None:
    """One batch."""
    client = Client(broker)
    client.produce(handle, *values, **identity)
    await client.answer()
    client.session.close()


async def test_records_are_shared_out_and_acknowledged_for_good(broker: Broker, handle: int) -> None:
    await produce(broker, handle, b"a", b"b", b"c")
    member = Member(broker)
    assert (await member.share(handle)).share_subscribed.subscription == 1
    assert await member.take(3) == [(0, b"a", 1), (1, b"b", 1), (2, b"c", 1)]
    assert await member.acknowledge(handle, 2, 0) == []
    assert await member.acknowledge(handle, 0, 9) == [(0, 1), (9, 10)], "once only, and only what was acquired"
    member.session.close()
    again = Member(broker)
    await again.share(handle)
    assert await again.take(1) == [(1, b"b", 2)]


async def test_members_take_turns_and_none_gets_what_another_has(broker: Broker, handle: int) -> None:
    members = [Member(broker) for _ in range(5)]
    for member in members:
        await member.share(handle, in_flight=50)
    await produce(broker, handle, *(b"%d" % number for number in range(100)))
    got = []
    for _ in range(20):
        for member in members:
            got += [[one for frame in member.now() for one in acquired(frame)]]
        await asyncio.sleep(0)
    offsets = sorted(offset for taken in got for offset, _, _ in taken)
    assert offsets == list(range(100))
    shares = [sum(len(taken) for taken in got[number::5]) for number in range(5)]
    assert min(shares) >= 10, "each has something to do"


async def test_one_record_at_a_time_goes_to_one_member_after_the_other(broker: Broker, handle: int) -> None:
    members = [Member(broker) for _ in range(3)]
    for member in members:
        await member.share(handle)
        assert member.now() == []
    takers = []
    for number in range(6):
        await produce(broker, handle, b"%d" % number)
        for _ in range(3):
            takers += [at for at, member in enumerate(members) if member.now()]
            await asyncio.sleep(0)
    assert takers == [0, 1, 2, 0, 1, 2]


async def test_a_member_holds_no_more_than_it_asked_for(broker: Broker, handle: int) -> None:
    await produce(broker, handle, *[b"x"] * 20)
    member = Member(broker)
    await member.share(handle, in_flight=8)
    assert [offset for offset, _, _ in await member.take(8)] == list(range(8))
    assert member.now() == []
    await member.acknowledge(handle, 0)
    assert member.now() == [], "a batch is not sent again for one record"
    await member.acknowledge(handle, 1, 2)
    assert [offset for offset, _, _ in await member.take(3)] == [8, 9, 10]


async def test_what_a_stream_had_is_free_when_it_ends(broker: Broker, handle: int) -> None:
    await produce(broker, handle, b"a", b"b")
    first, second = Member(broker), Member(broker)
    await first.share(handle)
    await first.take(2)
    await second.share(handle)
    assert second.now() == []
    first.session.close()
    assert await second.take(2) == [(0, b"a", 2), (1, b"b", 2)]
    assert await second.acknowledge(handle, 0, 1) == []


async def test_an_ended_subscription_gives_its_records_back(broker: Broker, handle: int) -> None:
    await produce(broker, handle, b"a")
    first, second = Member(broker), Member(broker)
    await first.share(handle)
    await first.take(1)
    await second.share(handle)
    first.send(unsubscribe=pb.Unsubscribe(subscription=1))
    await first.other()
    assert await second.take(1) == [(0, b"a", 2)]
    assert await first.acknowledge(handle, 0) == [(0, 1)], "it is another's now"


async def test_a_lock_that_runs_out_goes_to_another(broker: Broker, handle: int, clock: HeldClock) -> None:
    await produce(broker, handle, b"a", b"b")
    first, second = Member(broker), Member(broker)
    clock.hold()
    await first.share(handle, lock_ms=100)
    await first.take(2)
    assert await first.acknowledge(handle, 1) == []
    await second.share(handle, lock_ms=100)
    assert second.now() == []
    clock.advance(0.11)
    assert await second.take(1) == [(0, b"a", 2)]
    assert await first.acknowledge(handle, 0) == [(0, 1)]
    assert await second.acknowledge(handle, 0) == []


async def test_an_extended_lock_is_kept(broker: Broker, handle: int, clock: HeldClock) -> None:
    await produce(broker, handle, b"a", b"b")
    first, second = Member(broker), Member(broker)
    clock.hold()
    await first.share(handle, lock_ms=400)
    await first.take(2)
    await second.share(handle, lock_ms=400)
    waiting = asyncio.ensure_future(second.take(1))
    for _ in range(20):
        assert await first.acknowledge(handle, 0, kind=EXTEND) == []
        clock.advance(0.05)
        await asyncio.wait([waiting], timeout=0.05)
    assert await waiting == [(1, b"b", 2)], "only what was not extended"
    assert await first.acknowledge(handle, 0) == []


async def test_released_records_come_again_when_they_are_due(broker: Broker, handle: int, clock: HeldClock) -> None:
    await produce(broker, handle, b"a", b"b")
    member = Member(broker)
    await member.share(handle)
    await member.take(2)
    loop = asyncio.get_running_loop()
    clock.hold()
    await member.acknowledge(handle, 0, kind=RELEASE, delay_ms=150)
    await member.acknowledge(handle, 1, kind=RELEASE)
    assert await member.take(1) == [(1, b"b", 2)]
    start = loop.time()
    clock.go_on()
    assert await member.take(1) == [(0, b"a", 2)]
    assert loop.time() - start >= 0.15


async def test_by_key_one_event_of_a_key_is_out_at_a_time(broker: Broker, handle: int) -> None:
    await produce(broker, handle, b"0", b"1", b"2", b"3", b"4", keys=[b"a", b"a", b"b", None, b"a"])
    first, second = Member(broker), Member(broker)
    await first.share(handle, by_key=True)
    assert [offset for offset, _, _ in await first.take(3)] == [0, 2, 3]
    await second.share(handle, by_key=True)
    assert second.now() == []
    await first.acknowledge(handle, 0, kind=RELEASE)
    taker, got = await any_of(first, second)
    assert got == [(0, b"0", 2)], "the same one again, before its followers"
    await taker.acknowledge(handle, 0)
    taker, got = await any_of(first, second)
    assert got == [(1, b"1", 1)]


async def any_of(*members: Member) -> tuple[Member, list[tuple[int, bytes | None, int]]]:
    """What comes next, and to whom."""
    async with asyncio.timeout(30):
        while True:
            for member in members:
                for shared in member.now():
                    return member, acquired(shared)
            await asyncio.sleep(0)


async def test_a_new_group_begins_where_its_first_member_says(broker: Broker, handle: int) -> None:
    await produce(broker, handle, b"a", b"b", b"c")
    late, at = Member(broker), Member(broker)
    await late.share(handle, group="late", start=types.Position(latest=True))
    await at.share(handle, group="at", start=types.Position(offset=1))
    assert await at.take(2) == [(1, b"b", 1), (2, b"c", 1)]
    await produce(broker, handle, b"d")
    assert await late.take(1) == [(3, b"d", 1)]


async def test_members_agree_on_how_they_share(broker: Broker, handle: int) -> None:
    first, second = Member(broker), Member(broker)
    await first.share(handle, deliveries_max=3)
    refused = await second.share(handle, deliveries_max=4)
    assert refused.error.error.code == types.ERROR_CODE_INVALID_ARGUMENT
    first.session.close()
    assert (await second.share(handle, deliveries_max=4)).share_subscribed.subscription == 1, "nobody is there any more"


@pytest.mark.parametrize(
    "share",
    [
        groups.ShareSubscribe(group="", in_flight_max=1),
        groups.ShareSubscribe(group="g/x", in_flight_max=1),
        groups.ShareSubscribe(group="g"),
        groups.ShareSubscribe(group="g", in_flight_max=1 << 20),
        groups.ShareSubscribe(group="g", in_flight_max=1, options=groups.ShareOptions(deliveries_max=251)),
        groups.ShareSubscribe(group="g", in_flight_max=1, options=groups.ShareOptions(lock_ms=1)),
        groups.ShareSubscribe(group="g", in_flight_max=1, options=groups.ShareOptions(dead_letter="t")),
    ],
)
async def test_nonsense_is_refused(broker: Broker, handle: int, share: groups.ShareSubscribe) -> None:
    member = Member(broker)
    share.partitions.append(handle)
    member.send(share_subscribe=share)
    assert (await member.answer()).error.error.code == types.ERROR_CODE_INVALID_ARGUMENT


async def test_an_acknowledge_that_says_nothing_is_refused(broker: Broker, handle: int) -> None:
    member = Member(broker)
    await member.share(handle)
    for acknowledge in (
        groups.Acknowledge(subscription=1, partition=handle, firsts=[1], ends=[2]),
        groups.Acknowledge(subscription=1, partition=handle, kind=RELEASE, firsts=[1]),
        groups.Acknowledge(subscription=1, partition=handle, kind=RELEASE, delay_ms=1 << 30),
        groups.Acknowledge(subscription=1, partition=handle, kind=RELEASE, firsts=[2], ends=[2]),
        groups.Acknowledge(subscription=1, partition=handle, kind=RELEASE, firsts=[5, 0], ends=[0, 5]),
        groups.Acknowledge(subscription=1, partition=handle, kind=RELEASE, firsts=[-(1 << 60)], ends=[1 << 60]),
        groups.Acknowledge(subscription=1, partition=handle, kind=RELEASE, firsts=[0] * 30_000, ends=[1] * 30_000),
    ):
        member.send(acknowledge=acknowledge)
        assert (await member.answer()).error.error.code == types.ERROR_CODE_INVALID_ARGUMENT
    assert await member.acknowledge(handle, 5, subscription=7) == [(5, 6)], "what has ended has nothing"


# ---- dead letters


async def test_dead_records_go_where_the_group_wants_them(broker: Broker, handle: int, call: Call) -> None:
    await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="dead", partitions=1))
    await produce(broker, handle, b"bad", b"worse", keys=[b"k", None], headers=[[("h", b"1")], None])
    member = Member(broker)
    await member.share(handle, dead_letter="dead", deliveries_max=2)
    await member.take(2)
    assert await member.acknowledge(handle, 0, kind=REJECT, reason="no such account") == []
    await member.acknowledge(handle, 1, kind=RELEASE)
    await member.take(1)
    await member.acknowledge(handle, 1, kind=RELEASE)
    found: list[pb.Record] = []
    while len(found) < 2:
        fetched = await call("comet.v1.Comet/Fetch", pb.FetchRequest(topic="dead", wait_ms=1_000))
        found = list(fetched.records)
    first, second = sorted(found, key=lambda record: record.value)
    assert (first.key, first.value, first.timestamp_us) == (b"k", b"bad", 1_000)
    assert [(header.name, header.value) for header in first.headers] == [
        ("h", b"1"),
        ("comet-dead-letter-topic", b"t"),
        ("comet-dead-letter-partition", b"0"),
        ("comet-dead-letter-offset", b"0"),
        ("comet-dead-letter-group", b"g"),
        ("comet-dead-letter-attempts", b"1"),
        ("comet-dead-letter-reason", b"no such account"),
    ]
    assert not second.HasField("key")
    assert second.headers[-1].value == b"it was delivered 2 times; it was released each time"
    (status,) = broker.shares.describe("g")
    while status.dead:
        await asyncio.sleep(0)
        (status,) = broker.shares.describe("g")
    assert (status.floor, status.dead_lettered) == (2, 2)


async def test_a_missing_dead_letter_topic_holds_up_nobody(broker: Broker, handle: int, call: Call) -> None:
    await produce(broker, handle, b"bad", b"good")
    member = Member(broker)
    await member.share(handle, dead_letter="dead")
    await member.take(2)
    await member.acknowledge(handle, 0, kind=REJECT)
    await member.acknowledge(handle, 1)
    (status,) = broker.shares.describe("g")
    while not status.problem:
        await asyncio.sleep(0)
        (status,) = broker.shares.describe("g")
    assert (status.floor, status.dead) == (2, 1)
    assert "dead" in broker.statistics()["shares"]["partitions"][0]["problem"]
    await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="dead", partitions=1))
    fetched = await call("comet.v1.Comet/Fetch", pb.FetchRequest(topic="dead", wait_ms=5_000))
    assert [record.value for record in fetched.records] == [b"bad"]


# ---- who may acquire


async def test_who_may_have_been_replaced_acquires_nothing(
    broker: Broker, handle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a broker that stood still, and does not know yet that another leads: that one may have had acknowledged what
    this one would acquire again."""
    await produce(broker, handle, b"a")
    member = Member(broker)
    with monkeypatch.context() as patch:
        patch.setattr(broker.membership, "suspended", True)
        await member.share(handle)
        for _ in range(10):
            await asyncio.sleep(0)
            assert member.now() == []
    assert [value for _, value, _ in await member.take(1)] == [b"a"]


# ---- what is kept


async def test_an_acknowledged_answer_means_that_it_is_in_the_store(broker: Broker, handle: int) -> None:
    await produce(broker, handle, *[b"x"] * 10)
    member = Member(broker)
    await member.share(handle)
    await member.take(10)
    await member.acknowledge(handle, 0, 1, 5)
    (item,) = (await broker.guard.range(SHARES)).items
    assert item.key.endswith("/0/g")
    kept = broker.shares.describe("g")[0]
    assert (kept.floor, kept.acknowledged, kept.in_flight) == (2, 1, 7)
    assert b'"floor":2' in item.value


async def test_what_is_kept_of_a_deleted_topic_goes_with_it(broker: Broker, handle: int, call: Call) -> None:
    member = Member(broker)
    await member.share(handle)
    await call("comet.v1.Admin/DeleteTopic", admin.DeleteTopicRequest(name="t"))
    while (await broker.guard.range(SHARES)).items:  # noqa: ASYNC110 - nothing tells when it is done
        await asyncio.sleep(0)
    while not member.ended:
        answer = await member.answer()
        assert answer.error.subscription == 1
        member.ended.append(answer.error)
    assert broker.statistics()["shares"]["partition_count"] == 0


async def test_a_deleted_group_is_forgotten(broker: Broker, handle: int) -> None:
    await produce(broker, handle, b"a")
    member = Member(broker)
    await member.share(handle)
    await member.take(1)
    await member.acknowledge(handle, 0)
    member.session.close()
    assert await broker.shares.delete("g") == 1
    again = Member(broker)
    await again.share(handle)
    assert await again.take(1) == [(0, b"a", 1)]


async def test_members_of_a_group_that_is_deleted_under_them_begin_anew(broker: Broker, handle: int) -> None:
    await produce(broker, handle, b"a", b"b")
    member = Member(broker)
    await member.share(handle)
    await member.take(2)
    await broker.shares.delete("g")
    accept = groups.ACKNOWLEDGE_TYPE_ACCEPT
    member.send(acknowledge=groups.Acknowledge(subscription=1, partition=handle, kind=accept, firsts=[0], ends=[1]))
    answer = await member.other()
    assert answer.error.error.code == types.ERROR_CODE_NOT_LEADER
    while not member.ended:
        member.ended.append((await member.answer()).error)
    assert (member.ended[0].subscription, member.ended[0].partition) == (1, handle)
    await member.share(handle)
    assert await member.take(2) == [(0, b"a", 1), (1, b"b", 1)]


async def test_deleted_records_are_passed_over(broker: Broker, handle: int, call: Call) -> None:
    await produce(broker, handle, b"a", b"b")
    await produce(broker, handle, b"c")
    member = Member(broker)
    await member.share(handle, in_flight=1)
    await member.take(1)
    await call("comet.v1.Admin/DeleteRecords", admin.DeleteRecordsRequest(name="t", before_offset=2))
    await member.acknowledge(handle, 0)
    assert await member.take(1) == [(2, b"c", 1)]


async def test_damaged_records_are_passed_over_and_counted(broker: Broker, handle: int) -> None:
    for value in (b"a", b"b", b"c"):
        await produce(broker, handle, value)
    broker.topics.partition("t", 0).log.state.quarantine(0, 1)
    member = Member(broker)
    await member.share(handle)
    assert await member.take(2) == [(1, b"b", 1), (2, b"c", 1)]
    assert await member.acknowledge(handle, 1, 2) == []
    assert broker.shares.describe("g")[0].floor == 3
    assert broker.statistics()["shares"]["partitions"][0]["lost"] == 1


async def test_batches_larger_than_a_read_are_read_all_the_same(broker: Broker, handle: int) -> None:
    large = [bytes([number]) * 300_000 for number in range(4)]
    await produce(broker, handle, *large)
    await produce(broker, handle, b"small")
    member = Member(broker)
    await member.share(handle)
    assert [value for _, value, _ in await member.take(5)] == [*large, b"small"]
    await member.acknowledge(handle, 0, 2, kind=RELEASE)
    await produce(broker, handle, b"new")
    assert {offset for offset, _, _ in await member.take(3)} == {0, 2, 5}


async def test_many_groups_and_partitions_keep_few_chunks(broker: Broker, call: Call) -> None:
    await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="wide", partitions=70))
    member = Member(broker)
    handles = [await member.attach("wide", index) for index in range(70)]
    for at in handles:
        await produce(broker, at, b"a", b"b")
    await member.share(*handles, in_flight=1_000)
    assert len(await member.take(140)) == 140
    assert len(broker.shares.chunks) <= limits.SHARE_CHUNKS_MAX
    for at in handles:
        await member.acknowledge(at, 0, 1)
    assert broker.shares.journal.transactions < broker.shares.journal.writes, "partitions share transactions"
    assert {status.floor for status in broker.shares.describe("g")} == {2}


async def test_an_error_that_nobody_has_thought_of_ends_one_group_at_one_partition(
    broker: Broker, handle: int, topic: types.Topic
) -> None:
    member = Member(broker)
    other = await member.attach(partition=1)
    await member.share(handle, other)
    (state,) = [state for state in broker.shares._states.values() if state.partition.handle == handle]
    state.shares.window.again.append(("a", "b"))  # type: ignore[arg-type]  # which cannot be
    await produce(broker, handle, b"lost?")
    await produce(broker, other, b"fine")
    assert [value for _, value, _ in await member.take(1)] == [b"fine"]
    while not member.ended:
        member.ended.append((await member.answer()).error)
    assert (member.ended[0].partition, member.ended[0].error.code) == (handle, types.ERROR_CODE_INTERNAL)
    (shown,) = broker.env.failures.all()
    assert shown.kind == "share" and "t/" in shown.name
    await member.share(handle, other)
    assert [value for _, value, _ in await member.take(1)] == [b"lost?"]
    broker.env.tasks.failed.clear()


# ---- transactions


async def test_nobody_is_given_what_was_aborted_or_is_not_decided(broker: Broker, handle: int) -> None:
    writer = Transactional(broker)
    await writer.attach()
    await writer.open()
    member = Member(broker)
    await member.share(handle)
    await writer.write(handle, b"a", b"b")
    await produce(broker, handle, b"plain")
    assert member.now() == []
    await writer.end(commit=False)
    assert await member.take(1) == [(2, b"plain", 1)]
    await writer.write(handle, b"c")
    await produce(broker, handle, b"behind")
    assert member.now() == []
    await writer.end(commit=True)
    assert await member.take(2) == [(4, b"c", 1), (5, b"behind", 1)]
    assert await member.acknowledge(handle, 2, 4, 5) == []
    await produce(broker, handle, b"last")
    assert await member.take(1) == [(7, b"last", 1)]
    assert broker.shares.describe("g")[0].floor == 7, "markers and what was aborted are nobody's"
