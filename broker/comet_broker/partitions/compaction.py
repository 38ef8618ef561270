"""Compaction of one partition on this broker: the leader plans, every replica works by the plan.

    housekeeping's timer ─┬─ leads?  plan_compaction ─► the plan as a batch in the log
                          └─ a committed plan is due  ─► a task: Round.step after step, at the broker's rate

A replica whose digest differs from the leader's has other records than the leader: its log counts as damaged below the
plan's end, and is fetched again. So does what a round cannot read. A round that fails is begun again after RETRY_S.

A leader changes no segment while a follower copies records below the plan's end: the follower would keep older records
whose tombstones it does not get. After FOLLOWERS_S_MAX the round goes on, and the follower starts over.

Owned by a Partition. One partition of a broker at a time works, so that its memory is that of one round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol, TypeVar

from comet import records
from comet.errors import CometError, Unavailable
from comet_broker.core.compaction import LastPlan, overdue_us, plan_compaction
from comet_broker.core.watermarks import Watermarks
from comet_broker.partitions.context import PartitionContext, Replica
from comet_broker.partitions.flushing import Flushing
from comet_broker.partitions.readers import Readers
from comet_broker.storage.compaction import CannotCompact, DamagedSource, Rewritten, Round

RETRY_S: Final = 60.0
FOLLOWERS_S_MAX: Final = 3600.0  # that a round waits for followers

log = logging.getLogger(__name__)
T = TypeVar("T")


class Leadership(Protocol):
    def behind(self, offset: int) -> list[int]: ...
    def end_following(self, brokers: Iterable[int], error: CometError) -> None: ...


class CompactedPartition(Replica, Protocol):
    """The partition."""

    context: PartitionContext
    watermarks: Watermarks
    readers: Readers
    flushing: Flushing

    @property
    def leads(self) -> bool: ...
    @property
    def settled(self) -> bool: ...
    @property
    def leadership(self) -> Leadership | None: ...
    def append_control(self, batch: bytes) -> None: ...


class FollowersBehind(CannotCompact):
    """A follower copies what would be changed."""


class PartitionCompaction:
    def __init__(self, partition: CompactedPartition, lock: asyncio.Lock) -> None:
        self._idle = asyncio.Event()
        self._idle.set()
        self._partition = partition
        self._lock = lock
        self._again_at = 0.0  # after a failure
        self._compared = -1  # the plan whose digest was compared
        self._waiting_since: float | None = None  # for followers

    def check(self) -> None:
        """Called by housekeeping's timer: plans, and begins what is due. Raises DiskFull or LogFailed."""
        partition = self._partition
        storage = partition.log
        if partition.closed is not None or storage.failed is not None or not self._idle.is_set():
            return
        notes = storage.compaction.notes
        planned = notes.planned
        if planned is not None and planned.offset < partition.watermarks.committed:
            self._compare()
        if notes.due is None:
            if storage.config.compacts:
                self._plan()
        elif (
            not partition.context.compacting.locked()
            and partition.context.clock.monotonic() >= self._again_at
            and not self._must_wait(notes.due.plan.clean_end)
        ):
            self._idle.clear()
            partition.context.tasks.spawn(self._run(), f"compact {partition}")

    def behind_s(self) -> float:
        """How long compaction is overdue: since the plan that is due, or since `max_compaction_lag_ms` was exceeded."""
        storage = self._partition.log
        if not storage.config.compacts:
            return 0.0
        notes, now_us = storage.compaction.notes, self._partition.context.clock.wall_us()
        due_us = now_us if notes.due is None else notes.due.plan.now_us
        overdue = overdue_us(storage.segments.facts()[:-1], storage.config, now_us, notes.clean_end)
        return max(now_us - due_us, overdue, 0) / 1e6

    # ---- the leader's part

    def _plan(self) -> None:
        partition = self._partition
        storage = partition.log
        if not partition.leads or not partition.settled or storage.lost:
            return
        notes, last = storage.compaction.notes, None
        if notes.planned is not None:
            applied = notes.applied
            known = applied is not None and applied.offset == notes.planned.offset
            last = LastPlan(
                notes.planned.plan,
                notes.planned.offset if known else -1,
                applied.digest if known and applied is not None else 0,
                applied.tombstones if known and applied is not None else 1,
            )
        limit = min(partition.watermarks.committed, partition.watermarks.last_stable_offset, storage.flushed_end)
        plan = plan_compaction(
            storage.segments.facts()[:-1], storage.config, partition.context.clock.wall_us(), limit, last
        )
        if plan is not None:
            log.info("compacts %s up to offset %d", partition, plan.clean_end)
            partition.append_control(records.encode_plan(plan))

    # ---- every replica's part

    def _compare(self) -> None:
        """Compares the leader's digest of the plan that was carried out last here with that of this replica."""
        partition, notes = self._partition, self._partition.log.compaction.notes
        planned = notes.planned
        if planned is None or planned.offset == self._compared:
            return
        self._compared = planned.offset
        if notes.differs(planned.plan) and not partition.leads:
            end = planned.plan.clean_end if notes.applied is None else notes.applied.clean_end
            log.error("%s has other records than its leader below offset %d: they are fetched again", partition, end)
            partition.log.state.quarantine(partition.log.log_start, end)
            partition.context.disqualify(partition)

    def _must_wait(self, clean_end: int) -> bool:
        """Whether followers of this leader are still to copy records below `clean_end`."""
        partition, now = self._partition, self._partition.context.clock.monotonic()
        leadership = partition.leadership
        behind = [] if leadership is None else leadership.behind(clean_end)
        if leadership is None or not behind:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < FOLLOWERS_S_MAX:
            return True
        leadership.end_following(behind, Unavailable(f"{partition} is compacted; follow again", retry_after_ms=100))
        return False

    async def _run(self) -> None:
        partition = self._partition
        context = partition.context
        try:
            if context.compacting.locked():
                return  # another partition was quicker: the next check
            async with context.compacting:
                await self._carry_out()
        except FollowersBehind as error:
            log.info("%s is not compacted yet: %s", partition, error)
        except (CannotCompact, CometError, OSError) as error:
            self._again_at = context.clock.monotonic() + RETRY_S
            if partition.closed is None:
                log.warning("%s is not compacted: %s", partition, error)
            if isinstance(error, DamagedSource):
                partition.log.state.quarantine(error.first, error.end)
                context.disqualify(partition)
        finally:
            self._idle.set()

    async def ended(self) -> None:
        """Returns once no round works on the files of the partition, which is closed."""
        await self._idle.wait()

    async def _carry_out(self) -> None:
        partition = self._partition
        context, compaction = partition.context, partition.log.compaction
        async with self._lock:
            if partition.closed is not None:
                return
            begun = compaction.begin(partition.watermarks.committed, context.compaction_memory)
        if begun is None:
            partition.flushing.start()  # perhaps a segment waits for its sync
            return
        read_bytes = 0
        try:
            while (done := await self._on_worker(begun.step)) is not True:
                if isinstance(done, Rewritten):
                    await self._swap_in(done, begun.clean_end)
                elif self._partition_closed():
                    return
                compaction.read_bytes += begun.read_bytes - read_bytes
                await asyncio.sleep((begun.read_bytes - read_bytes) / context.compaction_rate)
                read_bytes = begun.read_bytes
            await self._end(begun)
        finally:
            await self._on_worker(begun.release)

    def _partition_closed(self) -> bool:
        return self._partition.closed is not None

    async def _on_worker(self, function: Callable[[], T]) -> T:
        """Waits for the end of it also when it is cancelled: nothing else uses the round meanwhile."""
        running = asyncio.ensure_future(self._partition.context.worker.run(function))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    async def _swap_in(self, rewritten: Rewritten, clean_end: int) -> None:
        partition = self._partition
        compaction, worker = partition.log.compaction, partition.context.worker
        async with self._lock:
            if partition.closed is not None or not compaction.holds(rewritten):
                raise CannotCompact("its segments have changed meanwhile")
            await worker.run(partial(compaction.prepare, rewritten))
            if self._must_wait(clean_end):
                raise FollowersBehind("a follower copies it")
            try:
                compaction.swap_in(rewritten)
                await worker.run(partial(compaction.settle, rewritten))
            except OSError as error:
                compaction.poison(error)
                raise

    async def _end(self, begun: Round) -> None:
        partition = self._partition
        async with self._lock:
            if partition.closed is not None:
                return
            applied = begun.applied()
            # With the log's old form go its aborted transactions: none of their records may be in memory.
            partition.readers.tail.drop_before(applied.clean_end)
            partition.log.compaction.end(applied)
            log.info("compacted %s up to offset %d: %d records gone", partition, applied.clean_end, applied.removed)
            await partition.context.worker.run(partition.log.compaction.write_notes)
