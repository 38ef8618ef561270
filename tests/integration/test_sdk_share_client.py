"""comet.ShareClient against three brokers in one process: whoever leads, whoever dies, whoever is cancelled."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from google.protobuf.message import Message

import comet
from comet.errors import Unavailable
from comet_broker.ports import PeerChannel
from comet_broker.rpc.local_channel import LocalChannel
from tests.integration.local_cluster import LocalCluster, until

ACQUIRE, ACKNOWLEDGE = "comet.v1.Comet/Acquire", "comet.v1.Comet/Acknowledge"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        yield one


@pytest.fixture
async def shares(cluster: LocalCluster) -> AsyncIterator[comet.ShareClient]:
    async with admin(cluster) as one:
        await one.create_topic("t", partitions=6, replicas=3)
    await until(
        lambda: {cluster.leader("t", index) for index in range(6)} == {1, 2, 3}, "each of the brokers leads some"
    )
    async with comet.ShareClient(cluster.addresses, connect=cluster.network.connect, random=Random(1)) as one_more:
        yield one_more


def admin(cluster: LocalCluster) -> comet.Admin:
    return comet.Admin(cluster.addresses, connect=cluster.network.connect)


async def publish(cluster: LocalCluster, count: int, partitions: int = 6) -> None:
    """So many to each of the first partitions."""
    async with comet.Producer(cluster.addresses, connect=cluster.network.connect, acks="all") as producer:
        for index in range(partitions):
            for number in range(count):
                await producer.publish("t", b"%d" % number, partition=index, key=b"k", headers={"h": "x"})


def tokens(found: list[comet.AcquiredRecord]) -> list[str]:
    return [record.token for record in found]


def ids_of(found: list[comet.AcquiredRecord]) -> set[tuple[int, int]]:
    return {(record.partition, record.offset) for record in found}


def calling(cluster: LocalCluster) -> int:
    return sum(len(broker.shares.calls) for broker in cluster.brokers.values())


async def test_all_partitions_are_acquired_from_and_acknowledged(
    cluster: LocalCluster, shares: comet.ShareClient
) -> None:
    await publish(cluster, 5)
    found: list[comet.AcquiredRecord] = []
    while len(found) < 30:
        some = await shares.acquire("g", "t", records_max=7, start="earliest")
        assert 1 <= len(some) <= 7
        found += some
    assert ids_of(found) == {(index, offset) for index in range(6) for offset in range(5)}
    one = found[0]
    assert (one.topic, one.key, one.headers, one.delivery_count) == ("t", b"k", [("h", b"x")], 1)
    assert one.value == b"%d" % one.offset
    assert await shares.acquire("g", "t") == []
    assert await shares.ack(tokens(found)) == [None] * 30
    assert await shares.ack(tokens(found)) == [None] * 30, "said again"
    (refused,) = {type(error) for error in await shares.nack(tokens(found))}
    assert refused is comet.LockExpired


async def test_no_broker_is_left_out(cluster: LocalCluster, shares: comet.ShareClient) -> None:
    await publish(cluster, 4)
    got = [(await shares.acquire("g", "t", records_max=1, start="earliest"))[0].partition for _ in range(12)]
    assert {cluster.leader("t", index) for index in got[:3]} == {1, 2, 3}
    assert len(set(got)) == 6, "nor a partition"


async def test_the_first_record_is_waited_for_wherever_it_comes(
    cluster: LocalCluster, shares: comet.ShareClient
) -> None:
    for index in range(6):
        waiting = asyncio.ensure_future(shares.acquire("g", "t", wait_ms=20_000, start="earliest"))
        await until(lambda: calling(cluster) == 3, "all leaders are asked")
        async with comet.Producer(cluster.addresses, connect=cluster.network.connect) as producer:
            await producer.publish("t", b"x", partition=index)
        found = await waiting
        assert [record.partition for record in found] == [index]
        assert await shares.ack(tokens(found)) == [None]
        await until(lambda: calling(cluster) == 0, "nobody waits any more")
    assert await shares.acquire("g", "t", wait_ms=1) == []


async def test_many_who_wait_get_each_record_once(cluster: LocalCluster, shares: comet.ShareClient) -> None:
    waiting = [
        asyncio.ensure_future(shares.acquire("g", "t", records_max=1, wait_ms=20_000, start="earliest"))
        for _ in range(12)
    ]
    await until(lambda: calling(cluster) == 36, "all wait")
    await publish(cluster, 2)
    found = [record for one in await asyncio.gather(*waiting) for record in one]
    assert len(ids_of(found)) == len(found) == 12
    assert {record.delivery_count for record in found} == {1}


async def test_a_call_that_is_cancelled_locks_nothing(cluster: LocalCluster, shares: comet.ShareClient) -> None:
    """At whichever step: no delivery is counted but those that came, and nothing stays acquired."""
    await publish(cluster, 3)
    random = Random(2)
    came: Counter[tuple[int, int]] = Counter()
    cancelled = 0
    for _ in range(100):
        call = asyncio.ensure_future(shares.acquire("g", "t", start="earliest", deliveries_max=250))
        for _ in range(random.randrange(80)):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        if call.cancelled():
            cancelled += 1
            continue
        found = call.result()
        came.update(ids_of(found))
        assert await shares.nack(tokens(found)) == [None] * len(found)
    assert 10 <= cancelled <= 90
    await until(lambda: not in_flight(cluster), "all is handed back")
    last = await shares.acquire("g", "t", deliveries_max=250)
    assert {(record.partition, record.offset): record.delivery_count - 1 for record in last} == {
        (index, offset): came[index, offset] for index in range(6) for offset in range(3)
    }


def in_flight(cluster: LocalCluster) -> int:
    return sum(status.in_flight for broker in cluster.brokers.values() for status in broker.shares.describe("g"))


async def test_tokens_are_good_for_any_client(cluster: LocalCluster, shares: comet.ShareClient) -> None:
    await publish(cluster, 1)
    found = await shares.acquire("g", "t", start="earliest")
    async with comet.ShareClient(cluster.addresses, connect=cluster.network.connect) as other:
        assert await other.extend(tokens(found)) == [None] * 6
        assert await other.reject(tokens(found[:1]), reason="no") == [None]
        assert await other.nack(tokens(found[1:2])) == [None]
        assert await other.ack(tokens(found[2:])) == [None] * 4
    assert ids_of(await shares.acquire("g", "t")) == ids_of(found[1:2])


async def test_what_is_no_token_spoils_nothing(cluster: LocalCluster, shares: comet.ShareClient) -> None:
    await publish(cluster, 1, partitions=1)
    (record,) = await shares.acquire("g", "t", start="earliest")
    wrong, late, right = await shares.ack(["nonsense", record.token[:-1], record.token])
    assert isinstance(wrong, comet.InvalidArgument)
    assert isinstance(late, comet.InvalidArgument)
    assert right is None
    (other,) = await shares.ack([record.token], group="h")
    assert isinstance(other, comet.InvalidArgument)
    assert "group 'g'" in str(other)
    assert await shares.ack([record.token], group="g") == [None]


async def test_with_the_leader_its_locks_end_and_attempts_are_counted_on(
    cluster: LocalCluster, shares: comet.ShareClient
) -> None:
    await publish(cluster, 4, partitions=1)
    found = await shares.acquire("g", "t", records_max=3, start="earliest")
    assert await shares.ack(tokens(found[:1])) == [None]
    await cluster.stop(cluster.leader("t", 0))
    late = await shares.ack(tokens(found[1:]))
    assert [type(error) for error in late] == [comet.LockExpired] * 2
    again = await shares.acquire("g", "t", wait_ms=20_000)
    assert [(record.offset, record.delivery_count) for record in again] == [(1, 2), (2, 2), (3, 1)]
    assert await shares.ack(tokens(again)) == [None] * 3
    assert await shares.acquire("g", "t") == []


async def test_brokers_that_are_rolled_lose_nothing_and_acknowledged_stays_acknowledged(
    cluster: LocalCluster, shares: comet.ShareClient
) -> None:
    await publish(cluster, 20)
    acknowledged: list[tuple[int, int]] = []

    async def work() -> None:
        while len(set(acknowledged)) < 120:
            found = await shares.acquire(
                "g", "t", records_max=5, wait_ms=200, lock_ms=1_000, deliveries_max=100, start="earliest"
            )
            answers = await shares.ack(tokens(found))
            acknowledged.extend(
                (record.partition, record.offset) for record, error in zip(found, answers, strict=True) if error is None
            )
            assert not [error for error in answers if error is not None and not isinstance(error, comet.LockExpired)]

    workers = [asyncio.create_task(work()) for _ in range(3)]
    for number in (1, 2, 3):
        await cluster.stop(number)
        await cluster.start(number)
    await asyncio.gather(*workers)
    assert len(acknowledged) == len(set(acknowledged)), "what was acknowledged never came again"


async def test_a_group_is_known_to_the_cluster(cluster: LocalCluster, shares: comet.ShareClient) -> None:
    await publish(cluster, 2)
    found = await shares.acquire("g", "t", records_max=12, start="earliest")
    await shares.ack(tokens(found)[:5])
    async with admin(cluster) as one:
        (summary,) = await one.list_groups()
        assert (summary.name, summary.topics, summary.members) == ("g", ("t",), 0)
        lags = (await one.describe_group("g")).lags
        assert [lag.partition for lag in lags] == list(range(6))
        assert sum(lag.in_flight for lag in lags) == len(found) - 5
        assert sum(lag.lag for lag in lags) == 12 - 5
        await one.delete_group("g")
        assert await one.list_groups() == []
    assert {type(error) for error in await shares.ack(tokens(found)[5:])} <= {comet.LockExpired}
    anew: list[comet.AcquiredRecord] = []
    while len(anew) < 12:
        anew += await shares.acquire("g", "t", wait_ms=10_000, start="earliest")
    assert {record.delivery_count for record in anew} == {1}, "a group that is made again begins anew"


# ---- answers that do not come


class DeafChannel(LocalChannel):
    """Loses the answer to the calls of a method, as often as told; they take effect."""

    losing: dict[str, int]

    async def unary(
        self, method: str, request: Message, response: type[Message], timeout_s: float, acting: Any = None
    ) -> Message:
        answer = await super().unary(method, request, response, timeout_s)
        if self.losing.get(method, 0):
            self.losing[method] -= 1
            raise Unavailable("the connection broke")
        return answer


def deaf(cluster: LocalCluster, losing: dict[str, int], address: str) -> PeerChannel:
    broker = cluster.network.brokers.get(address)
    if broker is None:
        return cluster.network.connect(address)
    channel = DeafChannel(broker)
    channel.losing = losing
    return channel


@pytest.mark.parametrize("kind", ["ack", "nack", "reject", "extend"])
async def test_an_acknowledgement_whose_answer_is_lost_is_said_again(
    cluster: LocalCluster, shares: comet.ShareClient, kind: str
) -> None:
    await publish(cluster, 1)
    losing = {ACKNOWLEDGE: 4}
    connect: Callable[[str], Any] = functools.partial(deaf, cluster, losing)
    async with comet.ShareClient(cluster.addresses, connect=connect) as other:
        found = await other.acquire("g", "t", start="earliest")
        assert await getattr(other, kind)(tokens(found)) == [None] * len(found)
    assert losing[ACKNOWLEDGE] == 0


async def test_what_was_acquired_with_a_lost_answer_comes_again_in_time(
    cluster: LocalCluster, shares: comet.ShareClient
) -> None:
    await publish(cluster, 2, partitions=1)
    connect: Callable[[str], Any] = functools.partial(deaf, cluster, {ACQUIRE: 3})
    async with comet.ShareClient(cluster.addresses, connect=connect) as other:
        found = await other.acquire("g", "t", wait_ms=20_000, lock_ms=300, start="earliest")
        assert [(record.offset, record.delivery_count) for record in found] == [(0, 2), (1, 2)]


async def test_limits_and_terms_are_told_at_once(cluster: LocalCluster, shares: comet.ShareClient) -> None:
    await publish(cluster, 1)
    assert len(await shares.acquire("g", "t", start="earliest")) == 6
    with pytest.raises(comet.InvalidArgument, match=r"the members of group .* use"):
        await shares.acquire("g", "t", lock_ms=1_000)
    with pytest.raises(comet.TopicNotFound):
        await shares.acquire("g", "nothing")
    for more in ({"records_max": 0}, {"records_max": 10_001}, {"lock_ms": 1}, {"wait_ms": -1}, {"start": "nonsense"}):
        with pytest.raises(comet.InvalidArgument):
            await shares.acquire("g", "t", **more)


async def test_a_closed_client_says_so(cluster: LocalCluster, shares: comet.ShareClient) -> None:
    waiting = asyncio.ensure_future(shares.acquire("g", "t", wait_ms=20_000))
    await until(lambda: calling(cluster) == 3, "it waits")
    await shares.close()
    with pytest.raises(comet.Closed):
        await waiting
    with pytest.raises(comet.Closed):
        await shares.acquire("g", "t")
    with pytest.raises(comet.Closed):
        await shares.ack([])
