"""Delayed records on their way to the cluster, which keeps each as a schedule until it is due.

    send(delay=, due=) ─► queue of its topic ─► one request at a time, for all that wait ─► receipts
                                ▲                        │
                                └── a little later ◄─────┘ a retriable error, or no answer

A record has an id of its own, and a broker stores an id once. So a request is repeated until its answer has come.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from comet import limits
from comet.client.client import Client
from comet.client.retry import Backoff
from comet.errors import CometError, Internal, Timeout, Unavailable
from comet.producer.delayed_record import DelayedRecord
from comet.producer.delivery import wait, wake
from comet.types import ScheduledReceipt
from comet.v1 import schedules_pb2 as schedules
from comet.wire.acting import ActingFor
from comet.wire.protobuf import error_from_pb

log = logging.getLogger("comet")

_PUT: Final = "comet.v1.Admin/PutSchedules"


class DelayedSends:
    """Stores the delayed records of a producer, which owns it. `finished` is called with each that is done."""

    def __init__(self, client: Client, finished: Callable[[DelayedRecord], None]) -> None:
        self._client = client
        self._finished = finished
        # Of each topic and author, while their task runs.
        self._queues: dict[tuple[str, ActingFor | None], deque[DelayedRecord]] = {}
        self._pending: dict[int, DelayedRecord] = {}  # not done, by identity
        self._timer: asyncio.TimerHandle | None = None

    def add(self, record: DelayedRecord) -> None:
        self._pending[id(record)] = record
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(record.deadline, self._expire)
        queue = self._queues.get((record.topic, record.acting))
        if queue is None:
            queue = self._queues[record.topic, record.acting] = deque()
            self._client.spawn(self._run(record.topic, record.acting, queue))
        queue.append(record)

    def acting_for(self, acting: ActingFor) -> ActingSends:
        return ActingSends(self, acting)

    async def flush(self) -> None:
        """Waits until all records so far are stored or failed."""
        for record in [*self._pending.values()]:
            if not record.done:
                await wait(record)

    def close(self, error: CometError) -> None:
        """Fails what is not stored yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for record in [*self._pending.values()]:
            self._end(record, error=error)

    # ---- one topic

    async def _run(self, topic: str, acting: ActingFor | None, queue: deque[DelayedRecord]) -> None:
        """Runs while records of the topic wait."""
        backoff = Backoff(self._client.random)
        try:
            while records := _next(queue):
                wait_ms = await self._store(topic, acting, records)
                queue.extend(record for record in records if not record.done)
                if wait_ms is None:
                    backoff.reset()
                else:
                    await asyncio.sleep(backoff.next_s(wait_ms))
        except Exception as error:
            log.error("comet: unexpected error while storing delayed records of %s", topic, exc_info=error)
            for record in [one for one in self._pending.values() if (one.topic, one.acting) == (topic, acting)]:
                self._end(record, error=Internal(f"unexpected error while storing a delayed record: {error!r}"))
        finally:
            del self._queues[topic, acting]

    async def _store(self, topic: str, acting: ActingFor | None, records: Sequence[DelayedRecord]) -> int | None:
        """One request, and its outcome for each record. Returns the broker's advice for how long to wait if some of
        them are not done."""
        request = schedules.PutSchedulesRequest(topic=topic, schedules=[one.put for one in records if one.put])
        left_s = max(one.deadline for one in records) - asyncio.get_running_loop().time()
        timeout_ms = min(max(round(left_s * 1000), 1), limits.DELAYED_PATIENCE_MS)
        results: Sequence[schedules.SchedulePutResult | CometError]
        try:
            answer = await self._client.unary(_PUT, request, schedules.PutSchedulesResponse, timeout_ms, acting=acting)
            results = answer.results
            if len(results) != len(records):
                raise Internal(f"{len(results)} results for {len(records)} schedules")
        except CometError as error:
            results = [error] * len(records)
        advice: list[int] = []
        for record, result in zip(records, results, strict=True):
            if not isinstance(result, CometError) and result.HasField("error"):
                result = error_from_pb(result.error)  # noqa: PLW2901
            if not isinstance(result, CometError):
                self._end(record, receipt=_receipt(topic, result))
            elif result.retriable or isinstance(result, Timeout):
                record.problem = _worse(record.problem, result)
                advice.append(result.retry_after_ms)
            else:
                self._end(record, error=result)
        return max(advice, default=None)

    # ---- outcomes

    def _end(
        self, record: DelayedRecord, *, receipt: ScheduledReceipt | None = None, error: CometError | None = None
    ) -> None:
        if record.done:
            return  # it had expired
        del self._pending[id(record)]
        record.done, record.receipt, record.error, record.put = True, receipt, error, None
        self._finished(record)
        wake(record)

    def _expire(self) -> None:
        """Fails records that are late, and sets the timer for the next one."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for record in [*self._pending.values()]:
            if record.deadline <= now:
                self._end(record, error=_too_late(record.problem))
        deadlines = [record.deadline for record in self._pending.values()]
        self._timer = loop.call_at(min(deadlines), self._expire) if deadlines else None


class ActingSends:
    """Stores delayed records of a producer for a user of a gateway, who is their author."""

    def __init__(self, inner: DelayedSends, acting: ActingFor) -> None:
        self._inner = inner
        self._acting = acting

    def add(self, record: DelayedRecord) -> None:
        record.acting = self._acting
        self._inner.add(record)

    def acting_for(self, acting: ActingFor) -> ActingSends:
        return ActingSends(self._inner, acting)

    async def flush(self) -> None:
        await self._inner.flush()

    def close(self, error: CometError) -> None:
        self._inner.close(error)


def _next(queue: deque[DelayedRecord]) -> list[DelayedRecord]:
    """Takes the records of the next request out of the queue."""
    return list(_taken(queue))


def _taken(queue: deque[DelayedRecord]) -> Iterator[DelayedRecord]:
    count = size = 0
    while queue and count < limits.DELAYED_RECORDS_MAX:
        if queue[0].done:
            queue.popleft()  # it has expired
            continue
        size += queue[0].size
        if count and size > limits.DELAYED_BYTES_MAX:
            return
        count += 1
        yield queue.popleft()


def _receipt(topic: str, result: schedules.SchedulePutResult) -> ScheduledReceipt:
    found = result.schedule
    return ScheduledReceipt(topic, found.id, found.next_us or None, not result.created)


def _worse(before: CometError | None, error: CometError) -> CometError:
    """The error that says more about whether a request may have been done."""
    return before if before is not None and _unknown(before) and not _unknown(error) else error


def _unknown(error: CometError) -> bool:
    return error.outcome_unknown or isinstance(error, Unavailable)


def _too_late(problem: CometError | None) -> CometError:
    if problem is None or _unknown(problem):
        why = "" if problem is None else f": {problem.message}"
        return Timeout(f"no broker has answered in time; the delayed record may or may not have been stored{why}")
    return problem
