"""Acknowledgements of a share group's member, batched into frames of ranges.

    ack, nack, reject, extend ─► offsets per kind ─► after the loop's turn one Acknowledge of ranges per kind
                                                    ◄── Acknowledged: kept, except for lost ranges

A caller that awaits one gets the result of its own record. Failures that are not awaited are logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterable
from typing import Final, TypeAlias

from comet import limits
from comet.client.client import Client
from comet.client.connection import Connection
from comet.errors import Closed, CometError, LimitExceeded, LockExpired, Timeout
from comet.types import TopicPartition
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb

log = logging.getLogger("comet")

ACCEPT: Final = groups_pb.ACKNOWLEDGE_TYPE_ACCEPT
RELEASE: Final = groups_pb.ACKNOWLEDGE_TYPE_RELEASE
REJECT: Final = groups_pb.ACKNOWLEDGE_TYPE_REJECT
EXTEND: Final = groups_pb.ACKNOWLEDGE_TYPE_EXTEND

AckKey: TypeAlias = "tuple[groups_pb.AcknowledgeType, int, str]"  # kind, delay_ms, reason


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Offsets as ranges [first, end), in order.

    >>> ranges_of([5, 1, 2, 3, 2])
    [(1, 4), (5, 6)]
    """
    found: list[tuple[int, int]] = []
    first = end = -1
    for offset in sorted(offsets):
        if offset == end:
            end += 1
        elif offset > end or first < 0:
            if first >= 0:
                found.append((first, end))
            first, end = offset, offset + 1
    if first >= 0:
        found.append((first, end))
    return found


class Acknowledge:
    """One Acknowledge frame, from its first record until its answer."""

    __slots__ = ("_error", "_lost", "_waiters", "done", "offsets")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.done = False
        self._lost: list[tuple[int, int]] = []
        self._error: CometError | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def finish(self, lost: list[tuple[int, int]], error: CometError | None) -> bool:
        """Handles the answer; returns whether a caller waits for it."""
        self.done, self._lost, self._error = True, lost, error
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        return bool(self._waiters)

    def wait(self) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def check(self, offset: int) -> None:
        """Raises the error of one record, unless it is acknowledged."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        if any(first <= offset < end for first, end in self._lost):
            raise LockExpired(f"the lock of record {offset} expired: another member has it, or it was dead-lettered")


class PendingAcknowledgement:
    """The pending acknowledgement of a record. Awaited it returns once that is kept, and raises LockExpired if the
    lock is lost."""

    __slots__ = ("_acknowledge", "_offset")

    def __init__(self, acknowledge: Acknowledge, offset: int) -> None:
        self._acknowledge = acknowledge
        self._offset = offset

    def __await__(self) -> Generator[None, None, None]:
        if not self._acknowledge.done:
            yield from self._acknowledge.wait()
        self._acknowledge.check(self._offset)


class Lot:
    """The locks of one partition on one connection; they end with it."""

    def __init__(
        self, client: Client, connection: Connection, subscription: int, tp: TopicPartition, handle: int,
        lock_s: float,
    ) -> None:  # fmt: skip
        self.held: dict[int, float] = {}  # offset: end of its lock, as far as known here
        self.connection = connection
        self._client = client
        self._subscription = subscription
        self._handle = handle
        self._tp = tp
        self._lock_s = lock_s
        self._pending: dict[AckKey, Acknowledge] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def over(self) -> bool:
        """Handles the end of the stream, which ends all locks."""
        return self.connection.lost is not None

    def acknowledge(
        self, kind: groups_pb.AcknowledgeType, offset: int, delay_ms: int = 0, reason: str = ""
    ) -> PendingAcknowledgement:
        """Adds an acknowledgement to the next frame."""
        key = kind, delay_ms, reason
        acknowledge = self._pending.get(key)
        if acknowledge is None:
            if not self._pending:
                asyncio.get_running_loop().call_soon(self._flush)
            acknowledge = self._pending[key] = Acknowledge()
        acknowledge.offsets.append(offset)
        if kind != EXTEND:
            self.held.pop(offset, None)
        return PendingAcknowledgement(acknowledge, offset)

    def extend(self, before: float) -> None:
        """Renews all locks that end before that time."""
        for offset, ends in self.held.items():
            if ends < before:
                self.acknowledge(EXTEND, offset)

    async def acknowledged(self) -> None:
        """Returns once all acknowledgements are answered."""
        self._flush()
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _flush(self) -> None:
        pending, self._pending = self._pending, {}
        for key, acknowledge in pending.items():
            task = self._client.spawn(self._send(key, acknowledge))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _send(self, key: AckKey, acknowledge: Acknowledge) -> None:
        kind, delay_ms, reason = key
        ranges = ranges_of(acknowledge.offsets)
        frame = groups_pb.Acknowledge(
            subscription=self._subscription, partition=self._handle, kind=kind,
            firsts=[first for first, _ in ranges], ends=[end for _, end in ranges], delay_ms=delay_ms, reason=reason,
        )  # fmt: skip
        lost: list[tuple[int, int]] = []
        error: CometError | None = Closed("the consumer was closed before the acknowledgement was confirmed")
        until = asyncio.get_running_loop().time() + self._lock_s
        try:
            if self.over:
                raise LockExpired("the record's connection was lost, and the lock with it")
            answer = await self._request(frame)
            lost, error = list(zip(answer.lost_firsts, answer.lost_ends, strict=True)), None
        except CometError as problem:
            error = _unknown(problem) if problem.retriable else problem
        finally:
            awaited = acknowledge.finish(lost, error)
        if kind == EXTEND and error is None:
            self._extended(acknowledge.offsets, lost, until)
        if not awaited and (lost or error is not None):
            self._report(kind, len(acknowledge.offsets), lost, error)

    async def _request(self, acknowledge: groups_pb.Acknowledge) -> groups_pb.Acknowledged:
        """Returns the leader's answer; retries while too many requests wait there."""
        while True:
            try:
                return (
                    await self.connection.call(pb.ClientFrame(acknowledge=acknowledge), limits.COMMIT_TIMEOUT_MS)
                ).acknowledged
            except LimitExceeded as error:
                await asyncio.sleep(max(error.retry_after_ms, limits.BACKOFF_FIRST_MS) / 1000)

    def _extended(self, offsets: Iterable[int], lost: list[tuple[int, int]], until: float) -> None:
        for offset in offsets:
            if offset in self.held:
                self.held[offset] = until
        for first, end in lost:
            for offset in range(first, end):
                self.held.pop(offset, None)

    def _report(
        self, kind: groups_pb.AcknowledgeType, count: int, lost: list[tuple[int, int]], error: CometError | None
    ) -> None:
        what = groups_pb.AcknowledgeType.Name(kind).removeprefix("ACKNOWLEDGEMENT_").lower()
        why = error if error is not None else f"the locks of {lost} expired; these come again, or were dead-lettered"
        log.warning("comet: %s/%d: %s of %d records: %s", *self._tp, what, count, why)


def _unknown(error: CometError) -> CometError:
    return Timeout(f"the outcome of the acknowledgement is unknown, so the record may come again: {error.message}")
