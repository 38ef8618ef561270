"""Fires the schedules of one partition of `__schedules` that are due.

    due ─► chosen ─► read ─┬─► records ─► their topics ─┐
                           └─► what becomes of them ─► `__schedules` ─► one transaction ─► noted

The records and the new states of their schedules are committed together, or not at all, so that a schedule fires once
for each of its times, also if another broker goes on with it.

A topic that cannot be written for now puts off its own schedules alone. A topic that prefers availability takes no
transactions: its records are published first, under an idempotency key.

Owned by a Keeper, for one leadership; on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from comet.errors import (
    CometError,
    Forbidden,
    InvalidArgument,
    PartitionNotFound,
    TopicNotFound,
    TransactionAborted,
)
from comet.schedules.calendars import Calendar
from comet.types import SCHEDULES_TOPIC
from comet.v1 import records_pb2 as records_pb
from comet.v1 import schedules_pb2 as pb
from comet.v1.types_pb2 import ACKS_ALL
from comet_broker import limits
from comet_broker.env import Env
from comet_broker.schedules.changes import Fired, fired, paused
from comet_broker.schedules.store import ScheduleStore, state_of
from comet_broker.schedules.transaction import FiringTransactions, Publish, published

log = logging.getLogger(__name__)

BACK_OFF_S: Final = 0.5  # of a topic that cannot be written
BACK_OFF_S_MAX: Final = 10.0
HEADER_BYTES: Final = 128  # that firing adds to a record, about; it also bounds how many small records come at once

assert limits.SCHEDULE_TICK_BYTES_MAX // HEADER_BYTES + limits.SCHEDULE_TICK_MAX <= limits.PUBLISH_RECORDS_MAX


class Targets(Protocol):
    """The topics that get records, and the rights to write them."""

    def refusal(self, schedule: pb.Schedule) -> str:
        """Why the schedule must not fire, such as that its author may not write to the topic; empty: it may."""

    def is_available(self, topic: str) -> bool:
        """Whether the topic prefers availability, so that it takes no transactions."""


@dataclass(slots=True)
class FiringCounts:
    """Of one broker."""

    fired: int = 0  # records
    skipped: int = 0  # late times without a record
    paused: int = 0  # schedules
    cancelled: int = 0
    put_off: int = 0  # attempts that a topic refused for now


@dataclass(slots=True)
class _Trouble:
    """A topic that could not be written."""

    until: float = 0.0  # it is not tried before
    pause_s: float = BACK_OFF_S
    singly: bool = False  # one of its schedules in a transaction, to find the one that is refused


@dataclass(slots=True)
class _Round:
    """What one transaction writes."""

    records: dict[str, list[records_pb.Record]] = field(default_factory=lambda: defaultdict(list))
    keys: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))  # of the schedules, by topic
    states: dict[bytes, pb.Schedule | None] = field(default_factory=dict)
    fired: int = 0
    skipped: int = 0


class Firing:
    def __init__(
        self,
        env: Env,
        store: ScheduleStore,
        *,
        transactions: FiringTransactions,
        publish: Publish,
        targets: Targets,
        calendars: Callable[[], Mapping[str, Calendar]],
        counts: FiringCounts,
    ) -> None:
        self.transactions = transactions
        self._clock = env.clock
        self._store = store
        self._publish = publish
        self._targets = targets
        self._calendars = calendars
        self.counts = counts
        self._troubles: dict[str, _Trouble] = {}  # by topic

    async def fire_due(self) -> None:
        """One transaction, if something is due."""
        now_us = self._clock.wall_us()
        keys = self._chosen(now_us)
        if not keys:
            return
        async with self._store.taken(keys):
            found, _ = await self._store.read(keys)
            for key in set(keys).difference(found):
                self._store.table.remove(key)
            batch = await self._batch(found, now_us)
            if batch.states:
                await self._write(batch)

    # ---- what is due

    def _chosen(self, now_us: int) -> list[bytes]:
        """The schedules of the next transaction."""
        found: list[bytes] = []
        size = 0
        singly: set[str] = set()
        now = self._clock.monotonic()
        for one in self._store.table.due(now_us, limits.SCHEDULE_TICK_MAX):
            topic = one.key.decode().partition("/")[0]
            trouble = self._troubles.get(topic)
            if trouble is not None and trouble.until > now:
                self._store.table.defer(one.key, now_us + int(1e6 * (trouble.until - now)) + 1)
                continue
            if topic in singly or self._store.is_busy(one.key):
                continue
            if found and size + one.size > limits.SCHEDULE_TICK_BYTES_MAX:
                break
            if trouble is not None and trouble.singly:
                singly.add(topic)
            found.append(one.key)
            size += one.size
        return found

    async def _batch(self, found: Mapping[bytes, pb.Schedule], now_us: int) -> _Round:
        calendars = self._calendars()
        batch = _Round()
        first: list[Coroutine[Any, Any, None]] = []  # topics without transactions
        room = limits.SCHEDULE_TICK_BYTES_MAX
        for key, schedule in found.items():
            size = schedule.record.ByteSize() + HEADER_BYTES
            most = min(max(room // size, 1), limits.SCHEDULE_LATE_RECORDS_MAX)
            refusal = self._targets.refusal(schedule)
            done = Fired((), paused(schedule, refusal)) if refusal else fired(schedule, now_us, calendars, most)
            room = max(room - len(done.records) * size, 0)
            if done.records and self._targets.is_available(schedule.topic):
                first.append(self._publish_first(batch, key, schedule, done))
                continue
            self._add(batch, key, done)
            if done.records:
                batch.records[schedule.topic].extend(done.records)
                batch.keys[schedule.topic].append(key)
        await asyncio.gather(*first)
        return batch

    @staticmethod
    def _add(batch: _Round, key: bytes, done: Fired) -> None:
        batch.states[key] = done.after
        batch.fired += len(done.records)
        batch.skipped += done.skipped

    async def _publish_first(self, batch: _Round, key: bytes, schedule: pb.Schedule, done: Fired) -> None:
        """To a topic that takes no transactions. A repetition for the same times is recognized by its key."""
        request = records_pb.PublishRequest(
            topic=schedule.topic,
            records=done.records,
            acks=ACKS_ALL,
            idempotency_key=f"{SCHEDULES_TOPIC}-{self._store.partition.index}-{schedule.revision}"
            f"-{done.records[0].timestamp_us}-{len(done.records)}",
        )
        try:
            await published(self._publish, request)
        except CometError as error:
            if _is_for_good(error):
                batch.states[key] = paused(schedule, _refused(schedule.topic, error))
            else:
                self._put_off(schedule.topic, error)
        else:
            self._troubles.pop(schedule.topic, None)
            self._add(batch, key, done)

    # ---- the transaction

    async def _write(self, batch: _Round) -> None:
        await self.transactions.begin()
        self._store.check_led()
        states = [state_of(key, after) for key, after in batch.states.items()]
        own = records_pb.PublishRequest(
            topic=SCHEDULES_TOPIC, partition=self._store.partition.index, records=states, forwarded=True
        )
        topics = list(batch.records)
        requests = [records_pb.PublishRequest(topic=topic, records=batch.records[topic]) for topic in topics]
        results = await asyncio.gather(
            *(self.transactions.publish(request) for request in (own, *requests)), return_exceptions=True
        )
        errors = [one for one in results if isinstance(one, BaseException)]
        if errors:
            await self.transactions.abort()
            for error in errors:
                if not isinstance(error, CometError):
                    raise error
            if isinstance(results[0], CometError):
                raise results[0]
            for topic, result in zip(topics, results[1:], strict=True):
                if isinstance(result, CometError):
                    await self._refuse(topic, batch.keys[topic], result)
            return
        try:
            await self.transactions.end(commit=True)
        except TransactionAborted as error:
            log.warning("schedules of %s fire again: %s", self._store.partition, error)
            return
        self._note(batch)

    def _note(self, batch: _Round) -> None:
        """What was committed."""
        for topic in batch.records:
            self._troubles.pop(topic, None)
        for key, after in batch.states.items():
            self._store.stored(key, after)
        self.counts.fired += batch.fired
        self.counts.skipped += batch.skipped
        self.counts.paused += sum(one is not None and one.paused for one in batch.states.values())

    # ---- topics that refuse

    def _put_off(self, topic: str, error: CometError) -> None:
        """Its schedules stay due."""
        trouble = self._troubles.setdefault(topic, _Trouble())
        trouble.until = self._clock.monotonic() + trouble.pause_s
        trouble.pause_s = min(2 * trouble.pause_s, BACK_OFF_S_MAX)
        self.counts.put_off += 1
        log.warning("schedules of topic %s fire later: %s", topic, error, extra={"topic": topic})

    async def _refuse(self, topic: str, keys: Sequence[bytes], error: CometError) -> None:
        """After an abort: those of a topic that cannot be written come later. Of a topic that refuses a record for good
        they come singly, and the one that is refused is paused. The others come again at once."""
        if not _is_for_good(error):
            self._put_off(topic, error)
        elif len(keys) > 1:
            self._troubles.setdefault(topic, _Trouble()).singly = True
        else:
            (key,) = keys
            found, _ = await self._store.read([key])
            await self._store.write(key, paused(found[key], _refused(topic, error)))
            self.counts.paused += 1


def _is_for_good(error: CometError) -> bool:
    """Whether the topic will refuse the record again."""
    return isinstance(error, InvalidArgument | TopicNotFound | PartitionNotFound | Forbidden)


def _refused(topic: str, error: CometError) -> str:
    return f"topic {topic} refused its record: {error}"
