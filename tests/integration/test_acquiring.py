"""Records of share groups acquired and acknowledged without a stream, against a broker in this process."""

from __future__ import annotations

import asyncio

import pytest

from comet.errors import Draining, GroupNotFound, InvalidArgument, LimitExceeded, PartitionNotFound, TopicNotFound
from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as groups
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet_broker import limits
from comet_broker.broker import Broker
from tests.integration.acquire_client import EXTEND, REJECT, RELEASE, RETURN, acknowledge, acquire, offsets, request
from tests.integration.group_client import Member as GroupMember
from tests.integration.held_clock import HeldClock
from tests.integration.local_cluster import until
from tests.integration.share_client import Member
from tests.integration.stream_client import Call, Client


@pytest.fixture
async def handle(broker: Broker, topic: types.Topic) -> int:
    return await Client(broker).attach()


async def publish(call: Call, *values: bytes, partition: int = 0, topic: str = "t") -> None:
    """Each in a batch of its own."""
    for value in values:
        record = pb.Record(value=value)
        await call("comet.v1.Comet/Publish", pb.PublishRequest(topic=topic, records=[record], partition=partition))


async def test_records_are_acquired_and_acknowledged_for_good(call: Call, handle: int) -> None:
    await publish(call, b"a", b"b", b"c")
    acquired = await acquire(call)
    assert [(one.offset, one.value, one.delivery_count) for one in acquired] == [
        (0, b"a", 1),
        (1, b"b", 1),
        (2, b"c", 1),
    ]
    assert len({one.lock_id for one in acquired}) == 1
    assert await acquire(call) == []
    assert await acknowledge(call, [acquired[2], acquired[0]]) == [True, True]
    assert await acknowledge(call, [acquired[1]], RELEASE) == [True]
    (again,) = await acquire(call)
    assert (again.offset, again.delivery_count) == (1, 2)
    assert await acknowledge(call, [acquired[1], again]) == [False, True], "it is acquired under another number"


async def test_a_broker_that_has_yet_to_hear_of_a_topic_waits_for_it(
    broker: Broker, call: Call, handle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(call, b"a")
    topics = broker.view.state.topics
    topic = topics["t"]

    async def hear(name: str) -> None:
        topics[name] = topic

    monkeypatch.setattr(broker.topics, "wait_for", hear)
    del topics["t"]
    acquired = await acquire(call)
    assert [one.value for one in acquired] == [b"a"]
    del topics["t"]
    assert await acknowledge(call, acquired) == [True]


async def test_an_acknowledgement_that_is_said_again_is_answered_alike(call: Call, handle: int) -> None:
    await publish(call, b"a", b"b", b"c")
    one, two, three = await acquire(call)
    for _ in range(3):
        assert await acknowledge(call, [one]) == [True]
        assert await acknowledge(call, [two], RELEASE) == [True]
        assert await acknowledge(call, [three], REJECT, reason="bad") == [True]
    assert await acknowledge(call, [one], RELEASE) == [False], "that is something else"
    assert await acknowledge(call, [two]) == [False]
    (again,) = await acquire(call)
    assert again.offset == 1
    assert await acknowledge(call, [two], RELEASE) == [True], "said before, and it changes nothing"
    assert await acquire(call) == []
    assert await acknowledge(call, [again]) == [True]


async def test_nobody_acknowledges_what_was_not_acquired_to_it(call: Call, handle: int) -> None:
    await publish(call, b"a", b"b")
    one, two = await acquire(call)
    assert await acknowledge(call, [one._replace(lock_id=one.lock_id ^ 1)]) == [False]
    assert await acknowledge(call, [one._replace(offset=7)]) == [False]
    assert await acknowledge(call, [one._replace(topic_id=bytes(16))]) == [False]
    assert await acknowledge(call, [one._replace(partition=1)]) == [False]
    assert await acknowledge(call, [one], group="other") == [False]
    assert await acknowledge(call, [one, two]) == [True, True]


async def test_a_lock_that_runs_out_goes_to_another_call(call: Call, handle: int, clock: HeldClock) -> None:
    await publish(call, b"a", b"b")
    clock.hold()
    first = await acquire(call, lock_ms=100)
    assert await acknowledge(call, first[1:]) == [True]
    clock.go_on()
    again = await acquire(call, lock_ms=100, wait_ms=10_000)
    assert [(one.offset, one.delivery_count) for one in again] == [(0, 2)]
    assert await acknowledge(call, first) == [False, True]


async def test_an_extended_lock_is_kept(call: Call, handle: int, clock: HeldClock) -> None:
    await publish(call, b"a", b"b")
    clock.hold()
    one, two = await acquire(call, lock_ms=400)
    waiting = asyncio.ensure_future(acquire(call, lock_ms=400, wait_ms=20_000))
    for _ in range(20):
        assert await acknowledge(call, [one], EXTEND) == [True]
        clock.advance(0.05)
        await asyncio.wait([waiting], timeout=0.05)
    assert offsets(await waiting) == [1]
    assert await acknowledge(call, [one, two]) == [True, False]


async def test_what_nobody_has_seen_comes_back_uncounted(call: Call, handle: int) -> None:
    await publish(call, b"a", b"b")
    for _ in range(8):
        acquired = await acquire(call, deliveries_max=1)
        assert [(one.offset, one.delivery_count) for one in acquired] == [(0, 1), (1, 1)]
        assert await acknowledge(call, acquired, RETURN) == [True, True]


async def test_what_is_handed_back_later_waits_for_it(call: Call, handle: int, clock: HeldClock) -> None:
    await publish(call, b"a")
    loop = asyncio.get_running_loop()
    (one,) = await acquire(call)
    clock.hold()
    assert await acknowledge(call, [one], RELEASE, delay_ms=150) == [True]
    assert await acquire(call) == []
    began = loop.time()
    clock.go_on()
    assert offsets(await acquire(call, wait_ms=10_000)) == [0]
    assert loop.time() - began >= 0.15


async def test_a_call_waits_for_its_first_record(call: Call, broker: Broker, handle: int) -> None:
    waiting = asyncio.ensure_future(acquire(call, wait_ms=20_000))
    await until(lambda: len(broker.shares.calls) == 1, "it waits")
    assert await acquire(call, wait_ms=1) == []
    await publish(call, b"a", partition=1)
    assert [(one.partition, one.offset) for one in await waiting] == [(1, 0)]
    assert not broker.shares.calls


async def test_a_call_that_is_given_up_has_acquired_nothing(call: Call, broker: Broker, handle: int) -> None:
    for _ in range(3):
        waiting = asyncio.ensure_future(acquire(call, wait_ms=20_000))
        await until(lambda: len(broker.shares.calls) == 1, "it waits")
        waiting.cancel()
        await asyncio.wait([waiting])
    assert not broker.shares.calls
    assert [state["callers"] for state in broker.shares.statistics()["partitions"]] == [0, 0]
    await publish(call, b"a")
    assert [(one.offset, one.delivery_count) for one in await acquire(call)] == [(0, 1)]


async def test_looking_takes_nothing(call: Call, broker: Broker, handle: int) -> None:
    peek = request(wait_ms=20_000, peek=True)
    waiting = asyncio.ensure_future(call("comet.v1.Comet/Acquire", peek))
    await until(lambda: len(broker.shares.calls) == 1, "it waits")
    await publish(call, b"a", partition=1)
    assert [(one.partition, len(one.records), one.batches) for one in (await waiting).ranges] == [(1, 0, b"")]
    assert [(one.partition, one.delivery_count) for one in await acquire(call)] == [(1, 1)]
    assert not (await call("comet.v1.Comet/Acquire", request(peek=True))).ranges


async def test_calls_take_no_more_than_they_ask_for(call: Call, handle: int) -> None:
    await publish(call, *[b"x" * 1000] * 30)
    await publish(call, *[b"y" * 1000] * 30, partition=1)
    assert len(await acquire(call, 7)) == 7
    assert len(await acquire(call, 40)) == 40, "from both partitions, one after the other"
    small = await acquire(call, 100, bytes_max=3000)
    assert 1 <= len(small) <= 3
    assert len(await acquire(call, 100, bytes_max=1)) == 1, "whatever its size"
    assert {one.partition for one in await acquire(call, 100, partitions=[1])} <= {1}


async def test_no_partition_is_left_out(call: Call, handle: int) -> None:
    await publish(call, *[b"x"] * 10)
    await publish(call, *[b"y"] * 10, partition=1)
    got = [(await acquire(call, 1))[0].partition for _ in range(10)]
    assert sorted(got) == [0] * 5 + [1] * 5


async def test_members_and_calls_share_fairly(call: Call, broker: Broker, handle: int) -> None:
    member = Member(broker)
    await member.share(handle, in_flight=1000)
    client = Client(broker)
    client.produce(handle, *[b"x"] * 100)
    await client.answer()
    called = await acquire(call, 100)
    assert 40 <= len(called) <= 60, "half of what there is"
    got: list[int] = []
    while len(got) + len(called) < 100:
        got += [offset for offset, _, _ in await member.take(len(member.frames) or 100 - len(called))]
    assert sorted(got + offsets(called)) == list(range(100))
    member.session.close()
    again = await acquire(call, 100)
    assert sorted(offsets(again)) == sorted(got), "what a call has stays acquired"
    assert {one.delivery_count for one in again} == {2}


async def test_the_first_one_in_decides(call: Call, broker: Broker, handle: int) -> None:
    await publish(call, b"a")
    (one,) = await acquire(call, lock_ms=20_000)
    with pytest.raises(InvalidArgument, match=r"the members of group .* use"):
        await acquire(call, lock_ms=10_000)
    other = Member(broker)
    await other.share(handle, lock_ms=10_000)
    assert other.frames == []
    await acknowledge(call, [one])
    assert await acquire(call, lock_ms=10_000) == [], "nobody has anything of it now"


async def test_what_makes_no_sense_is_refused(call: Call, handle: int) -> None:
    for more, error in (
        ({"group": ""}, InvalidArgument),
        ({"topic": "nix"}, TopicNotFound),
        ({"partitions": [2]}, PartitionNotFound),
        ({"count": limits.ACQUIRE_RECORDS_MAX + 1}, InvalidArgument),
        ({"lock_ms": 1}, InvalidArgument),
        ({"dead_letter": "t"}, InvalidArgument),
        ({"deliveries_max": 251}, InvalidArgument),
    ):
        with pytest.raises(error):
            await acquire(call, **more)
    await publish(call, b"a")
    (one,) = await acquire(call)
    for kind in (groups.ACKNOWLEDGE_TYPE_UNSPECIFIED, 9):
        with pytest.raises(InvalidArgument):
            await acknowledge(call, [one], kind)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        await acknowledge(call, [one], RELEASE, delay_ms=limits.SHARE_DELAY_MS_MAX + 1)
    with pytest.raises(InvalidArgument):
        await call(
            "comet.v1.Comet/Acknowledge",
            groups.AcknowledgeRequest(
                group="g", topic="t", acknowledgements=[groups.Acknowledgement(kind=RELEASE, firsts=[3], ends=[3])]
            ),
        )


async def test_locks_without_a_stream_are_limited(call: Call, handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SHARE_TICKETS_MAX", 3)
    await publish(call, *[b"x"] * 10)
    held = [(await acquire(call, 1, partitions=[0]))[0] for _ in range(3)]
    with pytest.raises(LimitExceeded):
        await acquire(call, 1, partitions=[0])
    assert await acknowledge(call, held[:1]) == [True]
    assert len(await acquire(call, 1, partitions=[0])) == 1


async def test_calls_that_wait_are_limited(call: Call, broker: Broker, handle: int) -> None:
    broker.in_flight.waiting_max = 1
    waiting = asyncio.ensure_future(acquire(call, wait_ms=20_000))
    await until(lambda: len(broker.shares.calls) == 1, "it waits")
    with pytest.raises(LimitExceeded):
        await acquire(call)
    await publish(call, b"a")
    assert len(await waiting) == 1


async def test_a_broker_that_stops_lets_nobody_wait(call: Call, broker: Broker, handle: int) -> None:
    waiting = asyncio.ensure_future(acquire(call, wait_ms=30_000))
    await until(lambda: len(broker.shares.calls) == 1, "it waits")
    await broker.drain()
    with pytest.raises(Draining):
        async with asyncio.timeout(30):
            await waiting
    with pytest.raises(Draining):
        await acquire(call)


async def test_dead_records_go_where_the_group_wants_them(call: Call, handle: int) -> None:
    await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="dead", partitions=1))
    await publish(call, b"a", b"b")
    one, two = await acquire(call, dead_letter="dead", deliveries_max=1)
    await acknowledge(call, [one], REJECT, reason="no good")
    await acknowledge(call, [two], RELEASE)
    found: dict[bytes, dict[str, bytes]] = {}
    while len(found) < 2:
        fetched = await call("comet.v1.Comet/Fetch", pb.FetchRequest(topic="dead", wait_ms=10_000))
        found = {record.value: {one.name: one.value for one in record.headers} for record in fetched.records}
    assert found[b"a"]["comet-dead-letter-reason"] == b"no good"
    assert found[b"b"]["comet-dead-letter-attempts"] == b"1"


async def test_by_key_one_event_of_a_key_is_out_at_a_time(call: Call, handle: int) -> None:
    records = [pb.Record(value=b"%d" % number, key=b"k%d" % (number % 2)) for number in range(6)]
    await call("comet.v1.Comet/Publish", pb.PublishRequest(topic="t", records=records, partition=0))
    for expected in ([0, 1], [2, 3], [4, 5], []):
        acquired = await acquire(call, by_key=True)
        assert offsets(acquired) == expected
        assert await acquire(call, by_key=True) == []
        await acknowledge(call, acquired)


# ---- the group


async def describe(call: Call, name: str = "g") -> admin.DescribeGroupResponse:
    answer = await call("comet.v1.Admin/DescribeGroup", admin.DescribeGroupRequest(name=name))
    assert isinstance(answer, admin.DescribeGroupResponse)
    return answer


async def test_a_group_without_members_is_listed_and_described(call: Call, handle: int) -> None:
    await publish(call, *[b"x"] * 5)
    acquired = await acquire(call, 3)
    await acknowledge(call, acquired[:1])
    listed = await call("comet.v1.Admin/ListGroups", admin.ListGroupsRequest())
    (summary,) = listed.groups
    assert (summary.name, summary.kind, summary.members) == ("g", groups.GROUP_KIND_SHARE, 0)
    assert list(summary.topics) == ["t"]
    found = await describe(call)
    assert found.summary == summary
    assert [(lag.partition, lag.committed, lag.lag, lag.in_flight) for lag in found.lags] == [
        (0, 1, 4, 2),
        (1, 0, 0, 0),
    ]


async def test_a_group_is_there_until_it_is_deleted(call: Call, broker: Broker, handle: int) -> None:
    await publish(call, b"a", b"b")
    one, two = await acquire(call)
    await acknowledge(call, [one])
    assert await acquire(call) == [], "and its leader believes for a while that it stands"
    await call("comet.v1.Admin/DeleteGroup", admin.DeleteGroupRequest(name="g"))
    with pytest.raises(GroupNotFound):
        await describe(call)
    assert [(again.offset, again.delivery_count) for again in await acquire(call)] == [(0, 1), (1, 1)], "it begins anew"
    assert await acknowledge(call, [two]) == [False], "that was the other group's"
    assert (await describe(call)).summary.name == "g"


async def test_a_deleted_topic_is_not_the_groups_any_more(call: Call, broker: Broker, handle: int) -> None:
    await publish(call, b"a")
    acquired = await acquire(call)
    await call("comet.v1.Admin/DeleteTopic", admin.DeleteTopicRequest(name="t"))
    await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="t", partitions=1))
    assert await acknowledge(call, acquired) == [False]
    group = broker.coordinator.of("g").groups.find("g")
    assert group is not None
    await until(lambda: not group.machine.acquired, "its coordinator hears of it")
    assert list((await describe(call)).summary.topics) == []
    await publish(call, b"new")
    assert [one.value for one in await acquire(call)] == [b"new"]
    assert list((await describe(call)).summary.topics) == ["t"]


async def test_a_consumer_group_cannot_be_acquired_from(call: Call, broker: Broker, handle: int) -> None:
    with pytest.raises(GroupNotFound):
        await describe(call)  # now its coordinator has loaded
    member = GroupMember(broker, "g")
    await member.join("t")
    with pytest.raises(InvalidArgument, match="is a consumer group"):
        await acquire(call)


async def test_the_state_stays_while_locks_are_open_and_goes_in_the_end(
    call: Call, broker: Broker, handle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comet_broker.sharing import state, table

    monkeypatch.setattr(table, "TICK_S", 0.01)
    monkeypatch.setattr(state, "IDLE_TICKS_MAX", 3)
    monkeypatch.setattr(limits, "SHARE_ANSWERS_S", 0.05)
    await publish(call, b"a")
    acquired = await acquire(call)
    kept = broker.shares.describe("g")
    ticked = asyncio.get_running_loop().time() + 0.3
    await until(lambda: asyncio.get_running_loop().time() > ticked, "many ticks")
    assert [one.partition for one in broker.shares.describe("g") if one.in_flight] == [0], kept
    assert await acknowledge(call, acquired) == [True]
    await until(lambda: not broker.shares.describe("g"), "nobody needs it")
    assert await acknowledge(call, acquired) == [False], "long forgotten"
    assert await acquire(call) == [], "but it is done"
