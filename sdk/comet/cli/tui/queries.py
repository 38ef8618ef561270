"""Queries of `comet tui`: the state of the cluster, details of a topic or a group, and the last records of a topic.

statistics ─► each known broker by itself, with a timeout: rates, topics that it leads, groups that it coordinates
lists      ─► a broker that has just answered, else any: brokers, topics, groups
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import comet
from comet.cli._scan import ScanRange, TopicScan
from comet.encryption.keyring import Keyring
from comet.entities import ClusterInfo, TopicDetails, TopicInfo
from comet.errors import CometError, DecryptionError, Unavailable
from comet.types import GroupSummary

T = TypeVar("T")
Connect = Callable[[str], comet.Admin]

BROKER_S: Final = 1.5  # timeout of the statistics of a broker
ANSWER_MS: Final = 4_000  # timeout of any other request
RECORDS_MAX: Final = 200  # the last ones that are shown
RECORDS_BYTES_MAX: Final = 4 << 20


def connect(address: str) -> comet.Admin:
    return comet.Admin(address, timeout_ms=ANSWER_MS, name="tui")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The answers of one round. `statistics` are those of the brokers that answered, `failures` the errors of the
    others."""

    cluster: ClusterInfo
    topics: Sequence[TopicInfo]
    groups: Sequence[GroupSummary]
    statistics: Mapping[int, Mapping[str, Any]]
    failures: Mapping[int, CometError]


class ClusterQueries:
    """Owned by one app, which makes one query at a time. Has a client for the bootstrap addresses and one for each
    broker, so that a silent broker costs no other one's figures."""

    def __init__(self, bootstrap: str, connect: Connect = connect) -> None:
        self._connect = connect
        self._any = connect(bootstrap)
        self._by_address: dict[str, comet.Admin] = {}
        self._brokers: dict[int, str] = {}  # addresses
        self._answering: list[comet.Admin] = []

    async def close(self) -> None:
        for admin in (self._any, *self._by_address.values()):
            await admin.close()

    async def query(self, question: Callable[[comet.Admin], Awaitable[T]]) -> T:
        """Queries a broker that answered last; if it is gone by now, any. Raises CometError."""
        if self._answering:
            try:
                return await question(self._answering[0])
            except Unavailable:
                self._answering = []
        return await question(self._any)

    async def snapshot(self) -> Snapshot:
        """The state of the cluster. Raises CometError if no broker answers."""
        statistics, failures = await self._statistics()
        cluster = await self.query(lambda admin: admin.describe_cluster())
        new = {one.id: f"{one.host}:{one.port}" for one in cluster.brokers}
        if new != self._brokers:
            await self._take(new)
            statistics, failures = await self._statistics()
        topics = await self.query(lambda admin: admin.list_topics())
        groups = await self.query(lambda admin: admin.list_groups())
        return Snapshot(cluster, topics, groups, statistics, failures)

    async def _take(self, brokers: dict[int, str]) -> None:
        for address in self._by_address.keys() - brokers.values():
            await self._by_address.pop(address).close()
        self._brokers = brokers

    async def _statistics(self) -> tuple[dict[int, Mapping[str, Any]], dict[int, CometError]]:
        """Of all known brokers at once."""
        answers: dict[int, Mapping[str, Any]] = {}
        failures: dict[int, CometError] = {}

        async def of(broker: int, address: str) -> None:
            if address not in self._by_address:
                self._by_address[address] = self._connect(address)
            try:
                async with asyncio.timeout(BROKER_S):
                    answers[broker] = await self._by_address[address].statistics(brief=True, topics=True, groups=True)
            except CometError as error:
                failures[broker] = error
            except TimeoutError:
                failures[broker] = Unavailable(f"broker {broker} at {address} does not answer")

        await asyncio.gather(*(of(broker, address) for broker, address in self._brokers.items()))
        self._answering = [self._by_address[self._brokers[broker]] for broker in answers]
        return answers, failures


@dataclass(frozen=True, slots=True)
class RecentRecord:
    """A record as it is shown; `value` None is a tombstone."""

    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    problem: str = ""  # why its value cannot be shown


class RecentRecords:
    """The last records of a topic, newest first, read again when something was written. Owned by one screen."""

    def __init__(self, queries: ClusterQueries, reader: comet.Reader, topic: str) -> None:
        self._queries = queries
        self._reader = reader
        self._topic = topic
        self._state: object = None
        self._records: list[RecentRecord] = []

    async def newest(self) -> Sequence[RecentRecord]:
        """At most RECORDS_MAX records, and about RECORDS_BYTES_MAX bytes. Raises CometError."""
        info = await self._queries.query(lambda admin: admin.describe_topic(self._topic))
        reachable = [one for one in info.partitions if one.log_end is not None]
        if not reachable:
            raise Unavailable(f"no leader of topic {self._topic!r} answers")
        state = [(one.partition, one.log_start, one.high_watermark, one.last_stable_offset) for one in reachable]
        if (info.id, state) != self._state:
            self._records = await self._read(info, [one.partition for one in reachable])
            self._state = info.id, state
        return self._records

    async def _read(self, info: TopicDetails, partitions: list[int]) -> list[RecentRecord]:
        wanted = ScanRange.of("earliest", "latest", partitions)
        scan = TopicScan(self._reader, info, wanted, backward=True, limit=RECORDS_MAX)
        found: list[RecentRecord] = []
        async for hits in scan.hits():
            found += map(_recent, hits)
            if scan.bytes >= RECORDS_BYTES_MAX:
                break
        return found


def _recent(hit: comet.MergedRecord) -> RecentRecord:
    batch, at = hit.batch, hit.number
    key, time_us = batch.keys[at], batch.timestamps[at]
    try:
        record = hit.record
    except DecryptionError as error:
        return RecentRecord(batch.partition, hit.offset, time_us, key, None, error.message)
    return RecentRecord(record.partition, record.offset, record.timestamp_us, record.key, record.value)


def reader(bootstrap: str, keyring: Keyring | None) -> comet.Reader:
    return comet.Reader(bootstrap, timeout_ms=ANSWER_MS, encryption=keyring, name="tui")
