"""A client's metadata cache: the brokers, and the leader and replicas of each partition.

    topic(name) ─► cached ─► the answer
                └► unknown ─► fetched at once
                └► proved wrong ─► the next round: all such topics in one request, with a growing wait between rounds

So a thousand partitions that lose their leader cost a few requests, and one that has no leader for long is looked
up four times a second. An answer may be older than the cache; the leader epoch decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from comet import limits
from comet.client.retry import Backoff
from comet.entities import BrokerInfo, PartitionInfo, TopicInfo
from comet.errors import Closed, CometError, TopicNotFound
from comet.types import check_topic_name
from comet.v1 import records_pb2 as pb
from comet.wire import protobuf

T = TypeVar("T")
Fetch = Callable[[list[str]], Awaitable[pb.FetchMetadataResponse]]
Topics = dict[str, TopicInfo]


class Directory:
    """The metadata of topics and brokers. Owned by one client."""

    def __init__(self, fetch: Fetch, random: Random) -> None:
        self.brokers: dict[int, BrokerInfo] = {}
        self._fetch = fetch
        self._topics: Topics = {}  # the cache
        self._newest: Topics = {}  # the newest answers, also of forgotten topics
        self._doubted: set[str] = set()
        self._hinted: set[tuple[str, int]] = set()
        self._fetching: dict[str, asyncio.Task[Topics]] = {}
        self._next: tuple[set[str], asyncio.Task[Topics]] | None = None  # the round that has not begun
        self._rounds = Backoff(random, max_ms=limits.ROUTE_BACKOFF_MAX_MS, free=1)
        self._outage = Backoff(random)  # of fetches, while no broker answers
        self._not_before = 0.0
        self._listeners: list[Callable[[TopicInfo], None]] = []

    # ---- fetching

    async def topic(self, name: str) -> TopicInfo:
        """A topic, from the cache or else fetched. Raises TopicNotFound."""
        known = self._topics.get(name)
        if known is not None:
            return known
        check_topic_name(name)
        task = self._fetching.get(name)
        if task is None:
            task = self._fetching[name] = self._in_round(name) if name in self._doubted else self._now(name)
        found = (await share(task)).get(name)
        if found is None:
            raise TopicNotFound(f"topic {name!r} does not exist; create it first, e.g. with: comet topic create {name}")
        return found

    def _now(self, name: str) -> asyncio.Task[Topics]:
        return _start(self._look_up({name}), f"comet: look up {name}")

    def _in_round(self, name: str) -> asyncio.Task[Topics]:
        if self._next is None:
            names: set[str] = set()
            self._next = names, _start(self._round(names), "comet: look up")
        self._next[0].add(name)
        return self._next[1]

    async def _round(self, names: set[str]) -> Topics:
        loop = asyncio.get_running_loop()
        if loop.time() > self._not_before + 2 * limits.ROUTE_BACKOFF_MAX_MS / 1000:
            self._rounds.reset()  # it has been quiet for a while
        await asyncio.sleep(max(self._not_before - loop.time(), 0))
        self._next = None
        wait_s = self._rounds.next_s()
        self._not_before = loop.time() + wait_s
        return await self._look_up(names)

    async def _look_up(self, names: set[str]) -> Topics:
        try:
            found = await self.fetch(names)
        except CometError as error:
            wait_s = self._outage.next_s(error.retry_after_ms)
            self._not_before = max(asyncio.get_running_loop().time() + wait_s, self._not_before)
            self._doubted.update(names)
            raise
        finally:
            for name in names:
                self._fetching.pop(name, None)
        self._outage.reset()
        return found

    async def fetch(self, names: Iterable[str]) -> Topics:
        """Fetches topics now, and caches the answer."""
        wanted = sorted(names)
        answer = await self._fetch(wanted)
        self._take(wanted, answer)
        return {name: self._topics[name] for name in wanted if name in self._topics}

    def _take(self, wanted: list[str], answer: pb.FetchMetadataResponse) -> None:
        if answer.brokers:
            self.brokers = {broker.id: protobuf.broker_from_pb(broker) for broker in answer.brokers}
        found = {topic.name: protobuf.topic_from_pb(topic) for topic in answer.topics}
        for name in wanted:
            self._doubted.discard(name)
            if name not in found:
                self._topics.pop(name, None)
                self._newest.pop(name, None)
        for name, reported in found.items():
            info = self._topics[name] = self._newest[name] = newest(self._newest.get(name), reported)
            self._hinted.difference_update([(name, partition.partition) for partition in info.partitions])
            for listener in list(self._listeners):
                listener(info)

    def listen(self, listener: Callable[[TopicInfo], None]) -> None:
        """Notifies the listener of every answer about a topic."""
        if listener not in self._listeners:
            self._listeners.append(listener)

    # ---- invalidation

    def forget(self, name: str, seen: TopicInfo | None = None) -> None:
        """Forgets a topic, or only the `seen` metadata of it, so that it is fetched again."""
        if seen is None or self._topics.get(name) is seen:
            self._topics.pop(name, None)
            self._doubted.add(name)

    def forget_all(self) -> None:
        """Forgets all topics: after a failed connection, leaders may have changed."""
        self._doubted.update(self._topics)
        self._topics.clear()

    def misled(self, name: str, partition: int, broker: int, error: CometError) -> None:
        """Handles a broker's answer that it does not lead a partition. If it names the leader, that is used at once,
        but only once until the next fetch: two brokers might name each other."""
        info = self._topics.get(name)
        if info is None or partition >= len(info.partitions):
            return
        known = info.partitions[partition]
        if known.leader != broker:
            return  # newer metadata came meanwhile
        hint = _hint(error)
        if hint is None or hint.id == broker or (name, partition) in self._hinted:
            self.forget(name)
            return
        self._hinted.add((name, partition))
        self.brokers[hint.id] = replace(self.brokers.get(hint.id, hint), host=hint.host, port=hint.port)
        partitions = list(info.partitions)
        partitions[partition] = replace(known, leader=hint.id)
        self._topics[name] = replace(info, partitions=tuple(partitions))

    # ---- brokers

    def address(self, broker: int | None) -> str | None:
        known = None if broker is None else self.brokers.get(broker)
        return None if known is None else f"{known.host}:{known.port}"

    @property
    def addresses(self) -> list[str]:
        return [f"{broker.host}:{broker.port}" for broker in self.brokers.values()]

    def topics(self) -> list[str]:
        """The topics fetched so far."""
        return list(self._newest)

    async def close(self) -> None:
        tasks = {*self._fetching.values(), *([self._next[1]] if self._next else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def newest(known: TopicInfo | None, reported: TopicInfo) -> TopicInfo:
    """The reported topic, with cached partitions of a later leader epoch: brokers learn of changes one by one."""
    if known is None or known.id != reported.id:
        return reported
    later = {partition.partition: partition for partition in known.partitions}

    def pick(partition: PartitionInfo) -> PartitionInfo:
        other = later.get(partition.partition, partition)
        return other if other.leader_epoch > partition.leader_epoch else partition

    return replace(reported, partitions=tuple(map(pick, reported.partitions)))


def _hint(error: CometError) -> BrokerInfo | None:
    """The leader that an error names."""
    details = error.details
    try:
        broker, host, port = int(details["leader"]), details["host"], int(details["port"])
    except (KeyError, ValueError):
        return None
    return BrokerInfo(broker, host, port, "") if broker and host else None


def _start(work: Any, name: str) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(mark_retrieved)
    return task


async def share(task: asyncio.Task[T]) -> T:
    """Waits for a task that others wait for too: being cancelled does not cancel it."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():  # by close(), not by the caller's own cancellation
            raise Closed("the client was closed") from None
        raise


def mark_retrieved(task: asyncio.Task[Any]) -> None:
    """Marks a shared task's error as retrieved: waiting callers get it, and there may be none left."""
    if not task.cancelled():
        task.exception()
