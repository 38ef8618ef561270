"""One stream of a client within its quota: what it sends is read later, and what it gets is sent later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import ceil
from typing import Final

from comet.v1 import records_pb2 as pb
from comet_broker.access.quotas import ClientUsage
from comet_broker.streams.answers import AnswerQueue, Replies

LOOK_S: Final = 1.0  # between two looks at a quota that may have changed, and two notices to a client


class Pacing:
    """Owned by one session; on the loop.

    heard   counts as a heartbeat of the stream's members of groups
    """

    def __init__(self, usage: ClientUsage, answers: AnswerQueue, replies: Replies, heard: Callable[[], None]) -> None:
        self.usage = usage
        self.pause: Callable[[], Awaitable[None]] | None = None  # to be awaited before more is read
        self._answers = answers
        self._replies = replies
        self._heard = heard
        self._timer: asyncio.TimerHandle | None = None  # until deliveries may go on

    def received(self, size: int, *, batch: bool) -> None:
        """Counts a frame of a client with a quota."""
        if self.usage.received(size, batch=batch):
            self.pause = self._until_paid

    async def _until_paid(self) -> None:
        """The client is told how long it takes, and its members, whose heartbeats lie unread, count as heard."""
        while not self._replies.closed and (wait_s := self.usage.read_later_s()) > 0:
            if not self._answers.frames:
                self._replies.answer(pb.ServerFrame(acks=pb.ProduceAcks(throttled_ms=ceil(wait_s * 1000))))
            await self.usage.wait(min(wait_s, LOOK_S))
            self._heard()
        self.pause = None

    def sends_later(self) -> bool:
        """Whether deliveries are to wait; the writer is roused when they may go on."""
        if self._timer is None:
            wait_s = self.usage.send_later_s()
            if wait_s <= 0:
                return False
            wait_s = min(wait_s, LOOK_S)
            self.usage.throttled_s += wait_s
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._send_again)
        return True

    def _send_again(self) -> None:
        self._timer = None
        self._replies.rouse()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
