"""Commits of one member: at most one in flight; of the entries that come meanwhile only the latest.

add(entries) ─► pending ─┐                 ┌─► answered: the committed offsets
add(entries) ─► pending ─┴► one Commit ────┼─► refused entries: dropped, or retried if the refusal is temporary
                                         └─► an error: all waiters get it; due entries are committed again
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from comet import limits
from comet.client.client import Client
from comet.client.retry import Backoff
from comet.errors import Closed, CometError, Internal, MemberUnknown, StaleGeneration
from comet.groups.member import Member
from comet.types import TopicPartition
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from comet.wire.protobuf import error_from_pb

log = logging.getLogger("comet")


class OffsetToCommit(NamedTuple):
    """An offset to commit, and the generation since which the partition is assigned."""

    tp: TopicPartition
    topic_id: bytes
    since: int
    offset: int
    epoch: int | None
    expected: int | None = None  # the committed offset that the coordinator must have now


class Waiter(NamedTuple):
    """A caller that waits for the commits of some partitions."""

    answered: asyncio.Future[None]
    tps: frozenset[TopicPartition]
    until: float


def commit_frame(member: Member, entries: Iterable[OffsetToCommit]) -> groups_pb.Commit:
    """The Commit request for the entries."""
    frame = groups_pb.Commit(group=member.group, member=member.state.member, generation=member.state.generation)
    topics: dict[tuple[str, bytes], list[OffsetToCommit]] = {}
    for entry in entries:
        topics.setdefault((entry.tp.topic, entry.topic_id), []).append(entry)
    for (topic, topic_id), found in topics.items():
        of_topic = frame.topics.add(topic=topic, topic_id=topic_id)
        for entry in sorted(found, key=lambda entry: entry.tp):
            of_topic.offsets.add(
                partition=entry.tp.partition, offset=entry.offset, leader_epoch=entry.epoch, expected=entry.expected
            )
    return frame


class Commits:
    """The commits of one member. Owned by a consumer."""

    def __init__(self, client: Client, member: Member, committed: Callable[[TopicPartition, int, int], None]) -> None:
        self.sent = 0
        self._client = client
        self._member = member
        self._committed = committed  # called with (partition, since, offset)
        self._pending: dict[TopicPartition, OffsetToCommit] = {}
        self._waiters: list[Waiter] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, entries: Iterable[OffsetToCommit]) -> None:
        """Commits as soon as possible, without waiting."""
        for entry in entries:
            known = self._pending.get(entry.tp)
            if known is None or (known.since, known.offset) < (entry.since, entry.offset):
                self._pending[entry.tp] = entry
        if self._pending and self._task is None:
            self._task = self._client.spawn(self._run())
            self._task.add_done_callback(self._ended)

    async def commit(self, entries: Iterable[OffsetToCommit]) -> None:
        """Returns once all entries are committed. Raises the error of one that is not."""
        wanted = list(entries)
        if not wanted:
            return
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()
        until = loop.time() + limits.COMMIT_TIMEOUT_MS / 1000
        self._waiters.append(Waiter(answered, frozenset(entry.tp for entry in wanted), until))
        self.add(wanted)
        await answered

    async def _run(self) -> None:
        backoff = Backoff(self._client.random, max_ms=limits.BACKOFF_MAX_MS)
        while self._pending:
            pending, self._pending = self._pending, {}
            waiters, self._waiters = self._waiters, []
            failed: dict[TopicPartition, CometError] = dict.fromkeys(pending, _closed())
            try:
                failed = await self._send(pending)
            except CometError as error:
                failed = dict.fromkeys(pending, error)
                self._member.check_membership(error)
                if all(waiter.answered.done() for waiter in waiters):
                    log.warning(
                        "comet: group %s: commit failed: %s",
                        self._member.group,
                        error,
                        extra={"group": self._member.group},
                    )
            else:
                waiters = self._once_more(pending, waiters, failed)
            finally:
                _answer(waiters, failed)
            if any(error.retriable for error in failed.values()):
                await asyncio.sleep(backoff.next_s())
            else:
                backoff.reset()

    def _once_more(
        self,
        pending: dict[TopicPartition, OffsetToCommit],
        waiters: list[Waiter],
        failed: dict[TopicPartition, CometError],
    ) -> list[Waiter]:
        """Requeues temporarily refused entries and their waiters; returns the other waiters."""
        now = asyncio.get_running_loop().time()
        again = {tp for tp, error in failed.items() if error.retriable and tp in pending}
        remaining = [waiter for waiter in waiters if waiter.tps & again and waiter.until > now]
        self._waiters[:0] = remaining
        for tp in {tp for waiter in remaining for tp in waiter.tps & again}:
            entry = pending[tp]
            newer = self._pending.get(tp)
            if newer is None or (newer.since, newer.offset) < (entry.since, entry.offset):
                self._pending[tp] = entry
        return [waiter for waiter in waiters if waiter not in remaining]

    async def _send(self, pending: dict[TopicPartition, OffsetToCommit]) -> dict[TopicPartition, CometError]:
        member = self._member
        # Partitions lost since the commit was queued are assigned to other members.
        entries = [entry for entry in pending.values() if member.state.holds(entry.tp, entry.since)]
        failed: dict[TopicPartition, CometError] = {
            tp: _stale(tp) for tp in pending.keys() - {entry.tp for entry in entries}
        }
        if not entries:
            return failed
        if not member.state.member:
            raise MemberUnknown(f"not a member of group {member.group!r} now; uncommitted records come again")
        self.sent += 1
        frame = pb.ClientFrame(commit=commit_frame(member, entries))
        answer = (await member.coordinator.request(frame, limits.COMMIT_TIMEOUT_MS)).committed
        for refused in answer.refused:
            tp = TopicPartition(refused.topic, refused.partition)
            error = failed[tp] = error_from_pb(refused.error)
            if tp in pending:
                if not isinstance(error, StaleGeneration) and not error.retriable:
                    log.error(
                        "comet: group %s: commit of %s/%d refused: %s",
                        member.group,
                        *tp,
                        error,
                        extra={"group": member.group},
                    )
                member.refused_offset(tp, pending[tp].since, error)
        for topic in answer.topics:
            for entry in topic.offsets:
                found = pending.get(TopicPartition(topic.topic, entry.partition))
                if found is not None:
                    self._committed(found.tp, found.since, entry.offset)
        return failed

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        problem: CometError | None = _closed() if task.cancelled() else None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error(
                "comet: group %s: unexpected error in commits",
                self._member.group,
                exc_info=error,
                extra={"group": self._member.group},
            )
            problem = Internal(f"unexpected error in commits: {error!r}")
        if problem is not None:
            waiters, self._waiters = self._waiters, []
            _answer(waiters, {tp: problem for waiter in waiters for tp in waiter.tps})
        elif self._pending:
            self.add(())


def _answer(waiters: Iterable[Waiter], failed: dict[TopicPartition, CometError]) -> None:
    for answered, tps, _ in waiters:
        if answered.done():
            continue
        error = next((failed[tp] for tp in sorted(tps) if tp in failed), None)
        if error is None:
            answered.set_result(None)
        else:
            answered.set_exception(error)
            answered.exception()


def _closed() -> Closed:
    return Closed("the consumer was closed before the commit was confirmed")


def _stale(tp: TopicPartition) -> StaleGeneration:
    topic, partition = tp
    return StaleGeneration(f"{topic}/{partition} is no longer assigned to this member; uncommitted records come again")
