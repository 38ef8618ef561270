"""Members of a share group that come, go and acknowledge as they like, while leaders come and go: nothing is lost, and
nothing that was acknowledged comes again."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from random import Random
from typing import Any

import pytest

from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as groups
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from tests.integration.local_cluster import LocalCluster, until
from tests.integration.share_client import EARLIEST, acquired
from tests.integration.stream_client import Client

RECORDS = 600
KEYS = 40
ACCEPT, RELEASE, REJECT = (
    groups.ACKNOWLEDGE_TYPE_ACCEPT,
    groups.ACKNOWLEDGE_TYPE_RELEASE,
    groups.ACKNOWLEDGE_TYPE_REJECT,
)
KEEP = groups.ACKNOWLEDGE_TYPE_UNSPECIFIED


class Book:
    """What all members together have seen."""

    def __init__(self, *, by_key: bool) -> None:
        self.by_key = by_key
        self.done: set[int] = set()  # accepted or rejected, and told that it is kept
        self.said: set[int] = set()  # the same, said and perhaps not heard
        self.held: dict[int, tuple[int, object]] = {}  # offset -> epoch and member
        self.rejected: set[int] = set()
        self.over = False  # the leader says that all is acknowledged

    def given(self, member: object, epoch: int, offset: int) -> None:
        assert offset not in self.done, f"{offset} was acknowledged for good, and is given again"
        for other, (since, holder) in self.held.items():
            if since != epoch:
                continue
            assert other != offset, f"{offset} is given to {member} while {holder} has it"
            assert not (self.by_key and other % KEYS == offset % KEYS), f"{offset} and {other} have one key"
        if self.by_key:
            earlier = set(range(offset % KEYS, offset, KEYS))
            assert earlier <= self.said, f"{offset} comes before {earlier - self.said}"
        self.held[offset] = (epoch, member)

    def free(self, member: object, *offsets: int) -> None:
        for offset in offsets or [one for one, (_, holder) in self.held.items() if holder is member]:
            if self.held.get(offset, (0, None))[1] is member:
                del self.held[offset]


class Worker:
    """One member: joins wherever the leader is, takes, and acknowledges in a random way."""

    def __init__(self, cluster: LocalCluster, book: Book, random: Random) -> None:
        self.cluster = cluster
        self.book = book
        self.random = random

    async def run(self) -> None:
        while not self.book.over:
            leader = self.cluster.leader("t")
            if not leader:
                await asyncio.sleep(0)
                continue
            client = Client(self.cluster.brokers[leader])
            with contextlib.suppress(TimeoutError):  # it has had nothing to do for a while, and goes
                await self.live(client, self.random.randint(3, 30))
            self.book.free(self)
            client.session.close()

    async def live(self, client: Client, frames: int) -> None:
        client.send(attach=pb.Attach(topic="t"))
        handle = 0
        options = groups.ShareOptions(
            by_key=self.book.by_key, start=EARLIEST, deliveries_max=250, dead_letter="dead", lock_ms=60_000
        )
        asked: dict[int, tuple[int, list[int]]] = {}
        while frames and not self.book.over:
            async with asyncio.timeout(0.3):
                frame = await client.session.writer.next_frame()
            if frame is None:
                return
            answer = pb.ServerFrame.FromString(frame)
            match answer.WhichOneof("frame"):
                case "attached":
                    handle = answer.attached.partition
                    share = groups.ShareSubscribe(
                        subscription=1, group="g", partitions=[handle], in_flight_max=20, options=options
                    )
                    client.send(share_subscribe=share)
                case "share_delivery":
                    frames -= 1
                    self.acknowledge(client, handle, answer.share_delivery, asked)
                case "acknowledged":
                    kind, offsets = asked.pop(answer.request)
                    assert not answer.acknowledged.lost_firsts, "nobody else acknowledges what is acquired by this one"
                    if kind != RELEASE:
                        self.book.done.update(offsets)
                        self.book.rejected.update(offsets if kind == REJECT else ())
                case "error":
                    return

    def acknowledge(self, client: Client, handle: int, shared: groups.ShareDelivery, asked: dict[int, Any]) -> None:
        offsets = [offset for offset, _, _ in acquired(shared)]
        for offset in offsets:
            self.book.given(self, shared.leader_epoch, offset)
        self.random.shuffle(offsets)
        while offsets:
            count = self.random.randint(1, len(offsets))
            chosen, offsets = offsets[:count], offsets[count:]
            kind = self.random.choices([ACCEPT, RELEASE, REJECT, KEEP], [12, 4, 1, 1])[0]
            if kind == KEEP:
                continue  # until the stream ends
            if kind != RELEASE:
                self.book.said.update(chosen)
            self.book.free(self, *chosen)
            request = client.send(
                acknowledge=groups.Acknowledge(
                    subscription=1,
                    partition=handle,
                    kind=kind,
                    firsts=chosen,
                    ends=[one + 1 for one in chosen],
                    delay_ms=self.random.choice([0, 0, 10]) if kind == RELEASE else 0,
                )
            )
            asked[request] = (kind, chosen)


def acknowledged(cluster: LocalCluster) -> bool:
    leader = cluster.leader("t")
    found = cluster.brokers[leader].shares.describe("g") if leader else []
    return bool(found) and found[0].floor == RECORDS


async def restart_leaders(cluster: LocalCluster, book: Book) -> None:
    for number in range(3):
        await until(lambda number=number: len(book.done) >= (number + 1) * RECORDS // 5, "members work")  # type: ignore[misc]
        leader = cluster.leader("t")
        if leader:
            await cluster.stop(leader)
            await cluster.start(leader)
    await until(lambda: acknowledged(cluster), f"all is acknowledged, and not {len(book.done)} of {RECORDS}")
    book.over = True


@pytest.mark.parametrize("by_key", [False, True])
async def test_nothing_is_lost_and_nothing_acknowledged_comes_again(tmp_path: Path, *, by_key: bool) -> None:
    random = Random(by_key)
    async with LocalCluster(tmp_path) as cluster:
        for name in ("t", "dead"):
            await cluster.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name=name, partitions=1))
        await until(lambda: cluster.leader("t") != 0 and cluster.leader("dead") != 0, "somebody leads")
        for first in range(0, RECORDS, 60):
            records = [pb.Record(key=b"%d" % (one % KEYS), value=b"%d" % one) for one in range(first, first + 60)]
            request = pb.PublishRequest(topic="t", records=records, acks=types.ACKS_ALL)
            await cluster.call("comet.v1.Comet/Publish", request)
        book = Book(by_key=by_key)
        workers = [Worker(cluster, book, Random(random.random())) for _ in range(6)]
        async with asyncio.timeout(60):
            await asyncio.gather(restart_leaders(cluster, book), *(worker.run() for worker in workers))
        assert book.said == set(range(RECORDS))
        dead: set[int] = set()

        async def all_buried() -> bool:
            fetched = await cluster.call(
                "comet.v1.Comet/Fetch", pb.FetchRequest(topic="dead", records_max=10_000, wait_ms=100)
            )
            assert isinstance(fetched, pb.FetchResponse)
            dead.update(int(record.value) for record in fetched.records)
            return dead >= book.rejected

        async with asyncio.timeout(20):
            while not await all_buried():  # noqa: ASYNC110 - the call waits
                await asyncio.sleep(0)
        assert dead <= book.said, "nobody gave up on it"
