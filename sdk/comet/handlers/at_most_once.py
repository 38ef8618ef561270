"""At most once: the offset is committed, and confirmed, before the handler is called.

Records in progress when the process dies are not processed again: COMMITTED_AHEAD_RECORDS at most, or one batch if the
handler takes batches. Each chunk costs one commit, so larger chunks are faster.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from comet import limits
from comet.errors import Closed, CometError, CorruptRecords, GroupError
from comet.handlers.binding import Binding, Item, items_of
from comet.handlers.serving import GroupServing, Host, Stopped, settling
from comet.types import TopicPartition
from comet.wire.corrupt import range_of

log = logging.getLogger("comet")


class AtMostOnce(GroupServing):
    """Commits before it calls the handler: records in progress when the process dies are not processed again."""

    def __init__(self, host: Host, one: Binding) -> None:
        super().__init__(host, one)
        self._busy: TopicPartition | None = None
        self._idle = asyncio.Event()

    async def _serve(self) -> None:
        while (batch := await self.take()) is not None:
            tp, chunk = TopicPartition(batch.topic, batch.partition), list[Item]()
            life, records = self.life(tp), 0
            for item in items_of(self.one, batch):
                chunk.append(item)
                records += 1 if not self.one.whole else len(batch)
                if records >= limits.COMMITTED_AHEAD_RECORDS:
                    await self._commit_and_handle(tp, life, chunk)
                    chunk, records = [], 0
            if chunk:
                await self._commit_and_handle(tp, life, chunk)

    async def _set_aside_corrupt(self, error: CorruptRecords) -> None:
        tp = TopicPartition(error.details["topic"], int(error.details["partition"]))
        if not self.policy.dead_letter and self.policy.on_error == "stop":
            self.one.failure(error)  # may raise: then the offset stays before it
        if await self._commit(tp, self.life(tp), range_of(error)[1]):
            await super()._set_aside_corrupt(error)

    async def _commit_and_handle(self, tp: TopicPartition, life: int, chunk: list[Item]) -> None:
        if self.stopping or self.life(tp) != life:
            return
        self._busy = tp
        try:
            if not await self._commit(tp, life, chunk[-1].end):
                return
            for item in chunk:  # committed, so now or never: also when the app stops or the partition is lost
                with contextlib.suppress(Stopped):
                    await settling(self, item.batch)(item, life)
        finally:
            self._busy = None
            self._idle.set()
            self._idle = asyncio.Event()

    async def _commit(self, tp: TopicPartition, life: int, end: int) -> bool:
        """Commits and waits for the confirmation; False if the partition is assigned to another member."""
        assert self.source is not None
        while not self.stopping and self.life(tp) == life:
            try:
                with self.committing():
                    await self.source.commit({tp: end})
            except GroupError as error:
                log.warning("comet: skipped %s/%d at %d, assigned to another member: %s", *tp, end, error)
                return False
            except CometError as error:
                if isinstance(error, Closed):
                    return False
                log.warning("comet: commit of %s/%d at %d is retried: %s", *tp, end, error)
                await asyncio.sleep(limits.BACKOFF_MAX_MS / 1000)
            else:
                return True
        return False

    async def _finish(self, tps: list[TopicPartition]) -> None:
        while self._busy in tps:
            await self._idle.wait()
