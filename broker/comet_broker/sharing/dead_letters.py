"""Writes dead letters: dead records go to their group's dead-letter topic, unchanged, with headers about the reason.

    comet-dead-letter-topic, -partition, -offset    the origin of the record
    comet-dead-letter-group, -attempts, -reason     the group, the number of deliveries, and the reason

For a record in an unreadable batch, a note is written: these headers, without key and value, and

    comet-dead-letter-end                           the offset behind it

The leader of the record writes it as any producer does, acks=all, through the leader of the dead-letter topic. Only
after the acknowledgement the record is removed from the group's state. Errors are retried, and shown in the statistics;
meanwhile the record stays, and delays no other. A crash between the acknowledgement and the storing of that removal
writes the record twice.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from comet import records
from comet.errors import CometError, CorruptBatch, DataLoss, OffsetOutOfRange, Unavailable
from comet.v1 import records_pb2 as pb
from comet.v1.types_pb2 import ACKS_ALL
from comet_broker.core.shares import Dead, Shares
from comet_broker.partitions.partition import Partition
from comet_broker.sharing.context import Agreed, ShareContext
from comet_broker.sharing.stored_state import StoredState

log = logging.getLogger(__name__)

RETRY_S: Final = 0.2
RETRY_S_MAX: Final = 10.0
TOGETHER_MAX: Final = 32  # under way at once
READ_BYTES: Final = 64 << 10
PREFIX: Final = "comet-dead-letter-"


class DeadState(Protocol):
    """The part of a SharePartition that its dead letters need."""

    @property
    def partition(self) -> Partition: ...
    @property
    def group(self) -> str: ...
    @property
    def agreed(self) -> Agreed: ...
    @property
    def shares(self) -> Shares: ...
    @property
    def closed(self) -> CometError | None: ...
    @property
    def stored(self) -> StoredState: ...


class DeadLetters:
    """Owned by one SharePartition. Runs while there are dead records and a dead-letter topic."""

    def __init__(self, state: DeadState, context: ShareContext) -> None:
        self.problem = ""  # why dead records are not written yet
        self._state = state
        self._context = context
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        state = self._state
        if self._task is None and state.shares.window.dead and state.agreed.dead_letter and state.closed is None:
            self._task = self._context.env.tasks.spawn(self._run(), f"dead letters of {state}")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        state, pause_s = self._state, RETRY_S
        try:
            while state.closed is None and state.shares.window.dead and state.agreed.dead_letter:
                chosen = list(state.shares.window.dead.items())[:TOGETHER_MAX]
                written = await asyncio.gather(*(self._write(offset, dead) for offset, dead in chosen))
                if all(written):
                    pause_s, self.problem = RETRY_S, ""
                    continue
                self._later([offset for (offset, _), done in zip(chosen, written, strict=True) if not done])
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)
        finally:
            self._task = None

    def _later(self, offsets: list[int]) -> None:
        """Postpones these records: the others are still written."""
        dead = self._state.shares.window.dead
        for offset in offsets:
            if offset in dead:
                dead[offset] = dead.pop(offset)

    async def _write(self, offset: int, dead: Dead) -> bool:
        """Writes one dead letter. True if it need not be written any more."""
        state = self._state
        try:
            record = await self._record(offset)
            if record is not None:
                await self._publish(record, offset, dead)
        except CometError as error:
            if self.problem != error.message:
                log.warning(
                    "%s: dead record %d is not written yet: %s",
                    state,
                    offset,
                    error,
                    extra={"group": state.group, "offset": offset, **state.partition.log_fields},
                )
            self.problem = error.message
            return False
        except Exception as error:  # noqa: BLE001 - records that are being written with it must not be written again
            self._context.env.tasks.report(f"writing dead record {offset} of {state}", error)
            self.problem = f"unexpected error: {error!r}"
            return False
        state.shares.window.buried(offset)
        state.stored.changed()
        return True

    async def _record(self, offset: int) -> pb.Record | None:
        """The record from the log; None if it is gone."""
        reader, partition = self._context.reader, self._state.partition
        if offset >= partition.high_watermark:  # it was below the high watermark of an earlier leader
            raise Unavailable(f"the new leader of {partition} does not know its high watermark yet")
        try:
            extent = partition.log.extent(offset, partition.high_watermark)
            try:
                data, size, _ = await reader.read(extent, READ_BYTES)
            finally:
                extent.release()
        except OffsetOutOfRange:
            return None
        except OSError as error:
            raise reader.unreadable(partition, error) from error
        except CometError as error:
            shown = partition.explain(error)
            if isinstance(shown, DataLoss):
                log.error(
                    "%s: dead record %d is damaged and cannot be written to the dead-letter topic",
                    self._state,
                    offset,
                    extra={"group": self._state.group, "offset": offset, **self._state.partition.log_fields},
                )
                return None
            raise shown from error
        try:
            return _find(data[:size], offset)
        except CorruptBatch as error:  # in a log that was written before leaders checked columns
            log.error(
                "%s: dead record %d cannot be read, and a note is written instead: %s",
                self._state,
                offset,
                error,
                extra={"group": self._state.group, "offset": offset, **self._state.partition.log_fields},
            )
            return pb.Record(headers=[pb.Header(name=PREFIX + "end", value=str(offset + 1).encode())])

    async def _publish(self, record: pb.Record, offset: int, dead: Dead) -> None:
        state = self._state
        for name, value in (
            ("topic", state.partition.topic),
            ("partition", str(state.partition.index)),
            ("offset", str(offset)),
            ("group", state.group),
            ("attempts", str(dead.attempts)),
            ("reason", dead.reason),
        ):
            record.headers.add(name=PREFIX + name, value=value.encode())
        request = pb.PublishRequest(topic=state.agreed.dead_letter, records=[record], acks=ACKS_ALL)
        await self._context.publish(request)


def _find(data: memoryview, offset: int) -> pb.Record | None:
    for batch in records.iterate(data, check=False):
        if offset >= batch.header.next_offset:
            continue
        batch.check()
        for at, value, key, headers, when in zip(
            batch.offsets, batch.values, batch.keys, batch.headers, batch.timestamps, strict=True
        ):
            if at == offset:
                return pb.Record(
                    key=key,
                    value=value,
                    timestamp_us=when,
                    headers=[pb.Header(name=name, value=content) for name, content in headers],
                )
        return None
    return None
