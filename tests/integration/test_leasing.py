"""Records of shared groups leased and settled without a stream, against a broker in this process."""

from __future__ import annotations

import asyncio

import pytest

from comet.errors import Draining, GroupNotFound, InvalidArgument, LimitExceeded, PartitionNotFound, TopicNotFound
from comet.v1 import admin_pb2 as admin
from comet.v1 import events_pb2 as pb
from comet.v1 import groups_pb2 as groups
from comet.v1 import types_pb2 as types
from comet_broker import limits
from comet_broker.broker import Broker
from tests.integration.group_client import Member as GroupMember
from tests.integration.held_clock import HeldClock
from tests.integration.lease_client import EXTEND, REJECT, RELEASE, RETURN, lease, offsets, request, settle
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


async def test_records_are_leased_and_settled_for_good(call: Call, handle: int) -> None:
    await publish(call, b"a", b"b", b"c")
    leased = await lease(call)
    assert [(one.offset, one.value, one.attempt) for one in leased] == [(0, b"a", 1), (1, b"b", 1), (2, b"c", 1)]
    assert len({one.lease for one in leased}) == 1
    assert await lease(call) == []
    assert await settle(call, [leased[2], leased[0]]) == [True, True]
    assert await settle(call, [leased[1]], RELEASE) == [True]
    (again,) = await lease(call)
    assert (again.offset, again.attempt) == (1, 2)
    assert await settle(call, [leased[1], again]) == [False, True], "it is leased under another number"


async def test_a_broker_that_has_yet_to_hear_of_a_topic_waits_for_it(
    broker: Broker, call: Call, handle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(call, b"a")
    topics = broker.view.state.topics
    topic = topics["t"]

    async def hear(name: str) -> None:
        topics[name] = topic

    monkeypatch.setattr(broker, "look_for_topic", hear)
    del topics["t"]
    leased = await lease(call)
    assert [one.value for one in leased] == [b"a"]
    del topics["t"]
    assert await settle(call, leased) == [True]


async def test_a_settlement_that_is_said_again_is_answered_alike(call: Call, handle: int) -> None:
    await publish(call, b"a", b"b", b"c")
    one, two, three = await lease(call)
    for _ in range(3):
        assert await settle(call, [one]) == [True]
        assert await settle(call, [two], RELEASE) == [True]
        assert await settle(call, [three], REJECT, reason="bad") == [True]
    assert await settle(call, [one], RELEASE) == [False], "that is something else"
    assert await settle(call, [two]) == [False]
    (again,) = await lease(call)
    assert again.offset == 1
    assert await settle(call, [two], RELEASE) == [True], "said before, and it changes nothing"
    assert await lease(call) == []
    assert await settle(call, [again]) == [True]


async def test_nobody_settles_what_was_not_leased_to_it(call: Call, handle: int) -> None:
    await publish(call, b"a", b"b")
    one, two = await lease(call)
    assert await settle(call, [one._replace(lease=one.lease ^ 1)]) == [False]
    assert await settle(call, [one._replace(offset=7)]) == [False]
    assert await settle(call, [one._replace(topic_id=bytes(16))]) == [False]
    assert await settle(call, [one._replace(partition=1)]) == [False]
    assert await settle(call, [one], group="other") == [False]
    assert await settle(call, [one, two]) == [True, True]


async def test_a_lease_that_runs_out_goes_to_another_call(call: Call, handle: int, clock: HeldClock) -> None:
    await publish(call, b"a", b"b")
    clock.hold()
    first = await lease(call, lease_ms=100)
    assert await settle(call, first[1:]) == [True]
    clock.go_on()
    again = await lease(call, lease_ms=100, wait_ms=10_000)
    assert [(one.offset, one.attempt) for one in again] == [(0, 2)]
    assert await settle(call, first) == [False, True]


async def test_an_extended_lease_is_kept(call: Call, handle: int, clock: HeldClock) -> None:
    await publish(call, b"a", b"b")
    clock.hold()
    one, two = await lease(call, lease_ms=400)
    waiting = asyncio.ensure_future(lease(call, lease_ms=400, wait_ms=20_000))
    for _ in range(20):
        assert await settle(call, [one], EXTEND) == [True]
        clock.advance(0.05)
        await asyncio.wait([waiting], timeout=0.05)
    assert offsets(await waiting) == [1]
    assert await settle(call, [one, two]) == [True, False]


async def test_what_nobody_has_seen_comes_back_uncounted(call: Call, handle: int) -> None:
    await publish(call, b"a", b"b")
    for _ in range(8):
        leased = await lease(call, attempts_max=1)
        assert [(one.offset, one.attempt) for one in leased] == [(0, 1), (1, 1)]
        assert await settle(call, leased, RETURN) == [True, True]


async def test_what_is_handed_back_later_waits_for_it(call: Call, handle: int, clock: HeldClock) -> None:
    await publish(call, b"a")
    loop = asyncio.get_running_loop()
    (one,) = await lease(call)
    clock.hold()
    assert await settle(call, [one], RELEASE, delay_ms=150) == [True]
    assert await lease(call) == []
    began = loop.time()
    clock.go_on()
    assert offsets(await lease(call, wait_ms=10_000)) == [0]
    assert loop.time() - began >= 0.15


async def test_a_call_waits_for_its_first_record(call: Call, broker: Broker, handle: int) -> None:
    waiting = asyncio.ensure_future(lease(call, wait_ms=20_000))
    await until(lambda: len(broker.shares.calls) == 1, "it waits")
    assert await lease(call, wait_ms=1) == []
    await publish(call, b"a", partition=1)
    assert [(one.partition, one.offset) for one in await waiting] == [(1, 0)]
    assert not broker.shares.calls


async def test_a_call_that_is_given_up_has_leased_nothing(call: Call, broker: Broker, handle: int) -> None:
    for _ in range(3):
        waiting = asyncio.ensure_future(lease(call, wait_ms=20_000))
        await until(lambda: len(broker.shares.calls) == 1, "it waits")
        waiting.cancel()
        await asyncio.wait([waiting])
    assert not broker.shares.calls
    assert [state["callers"] for state in broker.shares.statistics()["partitions"]] == [0, 0]
    await publish(call, b"a")
    assert [(one.offset, one.attempt) for one in await lease(call)] == [(0, 1)]


async def test_looking_takes_nothing(call: Call, broker: Broker, handle: int) -> None:
    peek = request(wait_ms=20_000, peek=True)
    waiting = asyncio.ensure_future(call("comet.v1.Comet/Lease", peek))
    await until(lambda: len(broker.shares.calls) == 1, "it waits")
    await publish(call, b"a", partition=1)
    assert [(one.partition, len(one.records), one.batches) for one in (await waiting).ranges] == [(1, 0, b"")]
    assert [(one.partition, one.attempt) for one in await lease(call)] == [(1, 1)]
    assert not (await call("comet.v1.Comet/Lease", request(peek=True))).ranges


async def test_calls_take_no_more_than_they_ask_for(call: Call, handle: int) -> None:
    await publish(call, *[b"x" * 1000] * 30)
    await publish(call, *[b"y" * 1000] * 30, partition=1)
    assert len(await lease(call, 7)) == 7
    assert len(await lease(call, 40)) == 40, "from both partitions, one after the other"
    small = await lease(call, 100, bytes_max=3000)
    assert 1 <= len(small) <= 3
    assert len(await lease(call, 100, bytes_max=1)) == 1, "whatever its size"
    assert {one.partition for one in await lease(call, 100, partitions=[1])} <= {1}


async def test_no_partition_is_left_out(call: Call, handle: int) -> None:
    await publish(call, *[b"x"] * 10)
    await publish(call, *[b"y"] * 10, partition=1)
    got = [(await lease(call, 1))[0].partition for _ in range(10)]
    assert sorted(got) == [0] * 5 + [1] * 5


async def test_members_and_calls_share_fairly(call: Call, broker: Broker, handle: int) -> None:
    member = Member(broker)
    await member.share(handle, in_flight=1000)
    client = Client(broker)
    client.produce(handle, *[b"x"] * 100)
    await client.answer()
    called = await lease(call, 100)
    assert 40 <= len(called) <= 60, "half of what there is"
    got: list[int] = []
    while len(got) + len(called) < 100:
        got += [offset for offset, _, _ in await member.take(len(member.frames) or 100 - len(called))]
    assert sorted(got + offsets(called)) == list(range(100))
    member.session.close()
    again = await lease(call, 100)
    assert sorted(offsets(again)) == sorted(got), "what a call has stays leased"
    assert {one.attempt for one in again} == {2}


async def test_the_first_one_in_decides(call: Call, broker: Broker, handle: int) -> None:
    await publish(call, b"a")
    (one,) = await lease(call, lease_ms=20_000)
    with pytest.raises(InvalidArgument, match="share by"):
        await lease(call, lease_ms=10_000)
    other = Member(broker)
    await other.share(handle, lease_ms=10_000)
    assert other.frames == []
    await settle(call, [one])
    assert await lease(call, lease_ms=10_000) == [], "nobody has anything of it now"


async def test_what_makes_no_sense_is_refused(call: Call, handle: int) -> None:
    for more, error in (
        ({"group": ""}, InvalidArgument),
        ({"topic": "nix"}, TopicNotFound),
        ({"partitions": [2]}, PartitionNotFound),
        ({"count": limits.LEASE_RECORDS_MAX + 1}, InvalidArgument),
        ({"lease_ms": 1}, InvalidArgument),
        ({"dead_letter": "t"}, InvalidArgument),
        ({"attempts_max": 251}, InvalidArgument),
    ):
        with pytest.raises(error):
            await lease(call, **more)
    await publish(call, b"a")
    (one,) = await lease(call)
    for kind in (groups.SETTLEMENT_UNSPECIFIED, 9):
        with pytest.raises(InvalidArgument):
            await settle(call, [one], kind)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        await settle(call, [one], RELEASE, delay_ms=limits.SHARE_DELAY_MS_MAX + 1)
    with pytest.raises(InvalidArgument):
        await call(
            "comet.v1.Comet/SettleLeases",
            groups.SettleLeasesRequest(
                group="g", topic="t", settlements=[groups.LeaseSettlement(kind=RELEASE, firsts=[3], ends=[3])]
            ),
        )


async def test_leases_without_a_stream_are_limited(call: Call, handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SHARE_TICKETS_MAX", 3)
    await publish(call, *[b"x"] * 10)
    held = [(await lease(call, 1, partitions=[0]))[0] for _ in range(3)]
    with pytest.raises(LimitExceeded):
        await lease(call, 1, partitions=[0])
    assert await settle(call, held[:1]) == [True]
    assert len(await lease(call, 1, partitions=[0])) == 1


async def test_calls_that_wait_are_limited(
    call: Call, broker: Broker, handle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEASE_CALLS_MAX", 1)
    waiting = asyncio.ensure_future(lease(call, wait_ms=20_000))
    await until(lambda: len(broker.shares.calls) == 1, "it waits")
    with pytest.raises(LimitExceeded):
        await lease(call)
    await publish(call, b"a")
    assert len(await waiting) == 1


async def test_a_broker_that_stops_lets_nobody_wait(call: Call, broker: Broker, handle: int) -> None:
    waiting = asyncio.ensure_future(lease(call, wait_ms=30_000))
    await until(lambda: len(broker.shares.calls) == 1, "it waits")
    await broker.drain()
    with pytest.raises(Draining):
        async with asyncio.timeout(30):
            await waiting
    with pytest.raises(Draining):
        await lease(call)


async def test_dead_records_go_where_the_group_wants_them(call: Call, handle: int) -> None:
    await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="dead", partitions=1))
    await publish(call, b"a", b"b")
    one, two = await lease(call, dead_letter="dead", attempts_max=1)
    await settle(call, [one], REJECT, reason="no good")
    await settle(call, [two], RELEASE)
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
        leased = await lease(call, by_key=True)
        assert offsets(leased) == expected
        assert await lease(call, by_key=True) == []
        await settle(call, leased)


# ---- the group


async def describe(call: Call, name: str = "g") -> admin.DescribeGroupResponse:
    answer = await call("comet.v1.Admin/DescribeGroup", admin.DescribeGroupRequest(name=name))
    assert isinstance(answer, admin.DescribeGroupResponse)
    return answer


async def test_a_group_without_members_is_listed_and_described(call: Call, handle: int) -> None:
    await publish(call, *[b"x"] * 5)
    leased = await lease(call, 3)
    await settle(call, leased[:1])
    listed = await call("comet.v1.Admin/ListGroups", admin.ListGroupsRequest())
    (summary,) = listed.groups
    assert (summary.name, summary.kind, summary.members) == ("g", groups.GROUP_KIND_SHARED, 0)
    assert list(summary.topics) == ["t"]
    found = await describe(call)
    assert found.summary == summary
    assert [(lag.partition, lag.committed, lag.lag, lag.in_flight) for lag in found.lags] == [
        (0, 1, 4, 2),
        (1, 0, 0, 0),
    ]


async def test_a_group_is_there_until_it_is_deleted(call: Call, broker: Broker, handle: int) -> None:
    await publish(call, b"a", b"b")
    one, two = await lease(call)
    await settle(call, [one])
    assert await lease(call) == [], "and its leader believes for a while that it stands"
    await call("comet.v1.Admin/DeleteGroup", admin.DeleteGroupRequest(name="g"))
    with pytest.raises(GroupNotFound):
        await describe(call)
    assert [(again.offset, again.attempt) for again in await lease(call)] == [(0, 1), (1, 1)], "it begins anew"
    assert await settle(call, [two]) == [False], "that was the other group's"
    assert (await describe(call)).summary.name == "g"


async def test_a_deleted_topic_is_not_the_groups_any_more(call: Call, broker: Broker, handle: int) -> None:
    await publish(call, b"a")
    leased = await lease(call)
    await call("comet.v1.Admin/DeleteTopic", admin.DeleteTopicRequest(name="t"))
    await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="t", partitions=1))
    assert await settle(call, leased) == [False]
    group = broker.coordinator.of("g").groups.find("g")
    assert group is not None
    await until(lambda: not group.machine.leased, "its coordinator hears of it")
    assert list((await describe(call)).summary.topics) == []
    await publish(call, b"new")
    assert [one.value for one in await lease(call)] == [b"new"]
    assert list((await describe(call)).summary.topics) == ["t"]


async def test_a_partitioned_group_cannot_be_leased_from(call: Call, broker: Broker, handle: int) -> None:
    with pytest.raises(GroupNotFound):
        await describe(call)  # now its coordinator has loaded
    member = GroupMember(broker, "g")
    await member.join("t")
    with pytest.raises(InvalidArgument, match="other kind"):
        await lease(call)


async def test_the_state_stays_while_leases_are_open_and_goes_in_the_end(
    call: Call, broker: Broker, handle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comet_broker.sharing import state, table

    monkeypatch.setattr(table, "TICK_S", 0.01)
    monkeypatch.setattr(state, "IDLE_TICKS_MAX", 3)
    monkeypatch.setattr(limits, "SHARE_TOLD_S", 0.05)
    await publish(call, b"a")
    leased = await lease(call)
    kept = broker.shares.describe("g")
    ticked = asyncio.get_running_loop().time() + 0.3
    await until(lambda: asyncio.get_running_loop().time() > ticked, "many ticks")
    assert [one.partition for one in broker.shares.describe("g") if one.in_flight] == [0], kept
    assert await settle(call, leased) == [True]
    await until(lambda: not broker.shares.describe("g"), "nobody needs it")
    assert await settle(call, leased) == [False], "long forgotten"
    assert await lease(call) == [], "but it is done"
