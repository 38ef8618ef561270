"""One partition on this broker: admits batches, appends them, decides when they are durable and visible.

    produce(batch) ─► verify ─► producer check ─► Log.append ─► [flush=always: wait for the shared fsync]
                                                             └► high watermark moves ─► idle readers wake

Nothing here awaits between the decision to append and the append itself. The high watermark is the end of the
log, or with flush=always the end of what is on disk, so that nobody reads a record that a power cut could take
back. It never moves back.

Owned by the broker's table of topics; everything runs on the loop's thread, fsync on the worker's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from comet import records
from comet.errors import CometError, CorruptBatch, LogFailed, RecordTooLarge
from comet.records import BatchHeader
from comet.types import Flush, PartitionStatus, TopicConfig
from comet_broker import limits
from comet_broker.core.tail import Tail, TailBudget
from comet_broker.ports import Clock, Worker
from comet_broker.storage.log import Log
from comet_broker.tasks import Tasks

log = logging.getLogger(__name__)

_OFFSET_DELTAS: Final = int(records.Flag.OFFSET_DELTAS)  # a plain int: enum arithmetic costs a microsecond

Durable = Callable[[CometError | None], None]


class Waiter(Protocol):
    """Somebody who has read all there is."""

    def advanced(self) -> None: ...
    def partition_closed(self, error: CometError) -> None: ...


@dataclass(frozen=True, slots=True)
class Accepted:
    """A batch that is in the log, now or since an earlier attempt."""

    base_offset: int
    end_offset: int
    append_time_us: int


class Partition:
    def __init__(
        self,
        handle: int,
        topic: str,
        topic_id: bytes,
        index: int,
        storage: Log,
        *,
        clock: Clock,
        worker: Worker,
        tasks: Tasks,
        tail_budget: TailBudget,
        leader_epoch: int = 1,
    ) -> None:
        self.handle = handle
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = storage
        self.leader_epoch = leader_epoch
        self.tail = Tail(handle, tail_budget)
        self.readers = 0  # cursors in any state: while there are none, the tail keeps nothing
        self.idle: dict[Any, Waiter] = {}  # keyed by cursor or call; woken once, then gone
        self.closed: CometError | None = None
        self.high_watermark = self._durable_end()
        self._clock = clock
        self._worker = worker
        self._tasks = tasks
        self._waiting: deque[tuple[int, Durable]] = deque()  # acknowledgements held back for the fsync
        self._flush_task: asyncio.Task[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._appended_batches = 0
        self._appended_records = 0
        self._appended_bytes = 0

    # ---- writing

    def produce(self, batch: memoryview) -> Accepted:
        """Appends one batch as it came from a producer. Raises a CometError and changes nothing."""
        if self.closed is not None:
            raise self.closed
        header = records.verify(batch, 0, stamped=False)
        self._admit(header, batch)
        duplicate = self.log.producers.check(header)
        if duplicate is not None:
            end = duplicate.base_offset + header.last_offset_delta + 1
            return Accepted(duplicate.base_offset, end, duplicate.append_time_us)
        appended = self.log.append(header, batch, self.leader_epoch)
        end = appended.base_offset + header.last_offset_delta + 1
        assert end == self.log.log_end
        if self.readers:
            self.tail.push(appended.base_offset, end, appended.stamp, batch[records.STAMP_BYTES :])
        self._appended_batches += 1
        self._appended_records += header.record_count
        self._appended_bytes += header.length
        self._appended_one()
        return Accepted(appended.base_offset, end, appended.append_time_us)

    def _admit(self, header: BatchHeader, batch: memoryview) -> None:
        """What a producer may send; `records.verify` has seen to what a batch may be."""
        if header.length != len(batch):
            raise CorruptBatch(f"the frame holds {len(batch)} bytes, its batch says {header.length}")
        if header.length > limits.BATCH_BYTES_MAX:
            raise RecordTooLarge(
                f"a batch of {header.length} bytes is over the broker's {limits.BATCH_BYTES_MAX}; send smaller batches"
            )
        if header.flags & _OFFSET_DELTAS:
            raise CorruptBatch("a producer does not choose offsets: OFFSET_DELTAS is not allowed in produce")
        record_bytes_max = self.log.config.record_bytes_max
        if header.body_size > record_bytes_max:
            # Only a batch with so large a body can hold a record that is too large: look at its offsets.
            largest = records.decode(batch, check=False).value_over(record_bytes_max)
            if largest is not None:
                raise RecordTooLarge(
                    f"a record of {largest} bytes is over record_bytes_max={record_bytes_max} of topic {self.topic!r}",
                    details={"record_bytes_max": str(record_bytes_max)},
                )

    def _appended_one(self) -> None:
        match self.log.config.flush:
            case Flush.ALWAYS:
                self._start_flush()
            case Flush.INTERVAL:
                if self._flush_timer is None and self._flush_task is None:
                    delay_s = self.log.config.flush_interval_ms / 1000
                    self._flush_timer = asyncio.get_running_loop().call_later(delay_s, self._start_flush)
                self._advance()
            case Flush.OS:
                self._advance()

    # ---- durability

    def _durable_end(self) -> int:
        return self.log.flushed_end if self.log.config.flush is Flush.ALWAYS else self.log.log_end

    def when_durable(self, end_offset: int, done: Durable) -> bool:
        """True if an acknowledgement may go out now; else `done` is called once, when it may or never will."""
        if self.high_watermark >= end_offset:
            return True
        if self.log.failed is not None:
            done(self.log.failed)
            return False
        self._waiting.append((end_offset, done))
        return False

    def _start_flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._flush_task is None and self.closed is None:
            self._flush_task = self._tasks.spawn(self._flush(), f"flush {self.topic}/{self.index}")

    async def _flush(self) -> None:
        """Syncs until nothing is left that must be; with flush=always one fsync serves all who came meanwhile."""
        try:
            while True:
                await self.sync()
                if self.log.failed is not None or self.log.flushed_end >= self.log.log_end:
                    return
                if self.log.config.flush is not Flush.ALWAYS:
                    break
        finally:
            self._flush_task = None
        if self.log.config.flush is Flush.INTERVAL and self.closed is None:
            self._appended_one()

    async def sync(self) -> None:
        ticket = self.log.start_sync()
        if ticket is None:
            return
        error: OSError | None = None
        try:
            await self._worker.run(ticket.run)
        except OSError as caught:
            error = caught
        self.log.finish_sync(ticket, error)
        if self.log.failed is not None:
            log.error("log of %s/%d failed and takes no more writes: %s", self.topic, self.index, self.log.failed)
            self._release(self.log.failed)
        self._advance()

    def _advance(self) -> None:
        durable = self._durable_end()
        if durable <= self.high_watermark:
            return
        self.high_watermark = durable
        waiting = self._waiting
        while waiting and waiting[0][0] <= durable:
            waiting.popleft()[1](None)
        if self.idle:
            woken, self.idle = self.idle, {}
            for waiter in woken.values():
                waiter.advanced()

    def _release(self, error: CometError) -> None:
        while self._waiting:
            self._waiting.popleft()[1](error)

    # ---- life

    def configure(self, config: TopicConfig) -> None:
        self.log.configure(config)
        if self.log.flushed_end < self.log.log_end:
            self._appended_one()

    def housekeeping(self) -> None:
        """Called by a timer: rolls by age, deletes by retention. A full disk must not stop the timer."""
        if self.closed is not None or self.log.failed is not None:
            return
        self.log.maybe_roll()
        if self.log.unfinished:
            self._start_flush()  # with flush=os nothing else would ever finish a sealed segment
        before = self.log.log_start
        after = self.log.apply_retention(self._clock.wall_us())
        assert after >= before, "the log's start never goes back"

    async def close(self, error: CometError) -> None:
        """Stops the partition: who waits for it gets `error`. Its files are closed, not deleted."""
        if self.closed is not None:
            return
        self.closed = error
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self._release(error)
        woken, self.idle = self.idle, {}
        for waiter in woken.values():
            waiter.partition_closed(error)
        self.tail.clear()
        if self._flush_task is not None:
            await asyncio.wait([self._flush_task])  # its fsync is under way on the worker
        try:
            await self._worker.run(self.log.close)
        except (OSError, LogFailed) as caught:
            log.error("closing the log of %s/%d: %s", self.topic, self.index, caught)

    def status(self) -> PartitionStatus:
        numbers = self.log.statistics()
        return PartitionStatus(
            index=self.index,
            log_start=self.log.log_start,
            log_end=self.log.log_end,
            high_watermark=self.high_watermark,
            bytes=numbers["bytes"],
            segments=numbers["segments"],
            failed=self.log.failed is not None,
            lost=self.log.lost,
        )

    def statistics(self) -> dict[str, Any]:
        return {
            **self.log.statistics(),
            "topic": self.topic,
            "partition": self.index,
            "leader_epoch": self.leader_epoch,
            "high_watermark": self.high_watermark,
            "readers": self.readers,
            "acks_waiting": len(self._waiting),
            "appended_batches": self._appended_batches,
            "appended_records": self._appended_records,
            "appended_bytes": self._appended_bytes,
            "tail_bytes": self.tail.used_bytes,
        }
