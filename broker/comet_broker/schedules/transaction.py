"""The transactions of one partition of `__schedules`, one after the other, under a transactional id of its own.

    begin ─► the epoch of the next transaction: from the coordinator, or left by the transaction before
    publish ─► records of it, to any topic
    end ─► asked again until the coordinator answers, as the outcome decides what has fired

The first `begin` of a new leader fences the leader before it, and ends what that has left open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from comet.errors import CometError, NotCoordinator, Timeout, Unavailable
from comet.v1 import groups_pb2 as groups
from comet.v1 import records_pb2 as pb
from comet.v1.types_pb2 import ACKS_ALL
from comet_broker.coordination.transaction_calls import TransactionCalls

log = logging.getLogger(__name__)

TIMEOUT_MS: Final = 10_000  # an open transaction holds back the readers of its topics
PUBLISH_S_MAX: Final = 3.0
PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 2.0

Publish: TypeAlias = Callable[[pb.PublishRequest], Awaitable[pb.PublishResponse]]


async def published(publish: Publish, request: pb.PublishRequest) -> pb.PublishResponse:
    """The answer of a publish, within the time that the other schedules of the partition may have to wait for it."""
    try:
        async with asyncio.timeout(PUBLISH_S_MAX):
            return await publish(request)
    except TimeoutError:
        raise Unavailable(f"topic {request.topic} did not take its records within {PUBLISH_S_MAX:g} s") from None


class FiringTransactions:
    def __init__(self, transactional_id: str, calls: TransactionCalls, publish: Publish) -> None:
        self._id = transactional_id
        self._calls = calls
        self._publish = publish
        self._producer_id = 0
        self._epoch: int | None = None  # of the next transaction

    async def begin(self) -> None:
        if self._epoch is None:
            opening = groups.OpenTransactions(transactional_id=self._id, timeout_ms=TIMEOUT_MS)
            opened = await self._calls.open(opening)
            self._producer_id, self._epoch = opened.producer_id, opened.epoch

    async def publish(self, request: pb.PublishRequest) -> pb.PublishResponse:
        """Writes the transaction's records of one topic, in one request for each topic."""
        assert self._epoch is not None
        request.transactional, request.acks = True, ACKS_ALL
        request.producer_id, request.producer_epoch, request.sequence = self._producer_id, self._epoch, 0
        return await published(self._publish, request)

    async def end(self, *, commit: bool) -> None:
        """Raises the coordinator's refusal: then nothing of it counts."""
        assert self._epoch is not None
        ending = groups.EndTransaction(
            transactional_id=self._id, producer_id=self._producer_id, epoch=self._epoch, commit=commit
        )
        self._epoch = None
        pause_s = PAUSE_S
        while True:
            try:
                ended = await self._calls.end(ending)
            except (NotCoordinator, Timeout, Unavailable) as error:
                log.info("the end of transaction %d of %s is asked for again: %s", ending.epoch, self._id, error)
            else:
                self._epoch = ended.next_epoch
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def abort(self) -> None:
        """As far as the coordinator answers: the next `begin` does it otherwise."""
        if self._epoch is None:
            return
        try:
            async with asyncio.timeout(PAUSE_S_MAX):
                await self.end(commit=False)
        except (CometError, TimeoutError) as error:
            log.info("the abort of a transaction of %s is left to the next one: %s", self._id, error)
