"""Delivery of notices to webhooks and by e-mail: a few at once, each with a bounded number of attempts.

    outstanding notice ─► one task for each channel ─► attempts, with pauses that grow ─► Delivered, in the journal

The gateway that evaluates delivers. When it ends, the next one finds what is outstanding and begins again, so a notice
comes at least once; its id tells a repetition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

from comet.errors import CometError
from comet_gateway.alerts.journal import Delivered, Notice, Outstanding, Record
from comet_gateway.alerts.rule import label
from comet_gateway.alerts.senders import Senders
from comet_gateway.alerts.webhook import DeliveryFailed

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 5
PAUSES_S: Final = (1.0, 4.0, 15.0, 60.0)  # between them
AT_ONCE: Final = 8
STORE_AGAIN_S: Final = 2.0
ERROR_CHARS_MAX: Final = 300

assert len(PAUSES_S) == ATTEMPTS_MAX - 1

Write = Callable[[list[Record]], Awaitable[object]]
Sleep = Callable[[float], Awaitable[object]]


class Deliveries:
    """The deliveries under way of a gateway that evaluates. Closed when it no longer does."""

    def __init__(
        self, senders: Senders, write: Write, clock_us: Callable[[], int], sleep: Sleep = asyncio.sleep
    ) -> None:
        self._senders = senders
        self._write = write
        self._clock_us = clock_us
        self._sleep = sleep
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    def begin(self, outstanding: Iterable[Outstanding]) -> None:
        """Starts those that are not under way."""
        for one in outstanding:
            for at in one.left:
                key = (one.notice.id, at)
                if key not in self._tasks:
                    task = self._tasks[key] = asyncio.create_task(self._deliver(one.notice, at), name="alerts: deliver")
                    task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: tuple[str, int], _: asyncio.Task[None]) -> None:
        self._tasks.pop(key, None)

    async def _deliver(self, notice: Notice, at: int) -> None:
        channel = notice.rule.channels[at]
        error = ""
        attempts = 0
        while attempts < ATTEMPTS_MAX:
            attempts += 1
            try:
                async with self._slots:
                    await self._senders.send(channel, notice)
            except DeliveryFailed as failed:
                error = str(failed)[:ERROR_CHARS_MAX]
                if not failed.again or attempts == ATTEMPTS_MAX:
                    break
                await self._sleep(PAUSES_S[attempts - 1])
            else:
                error = ""
                break
        await self._finish(delivered(notice, at, error, attempts, self._clock_us()))

    async def _finish(self, record: Delivered) -> None:
        """Writes the end, again while no broker takes it: a delivery that ended without it would begin again."""
        while True:
            try:
                await self._write([record])
            except CometError as error:
                log.warning("alerts: the end of a delivery is not stored yet: %s", error)
                await self._sleep(STORE_AGAIN_S)
            else:
                return

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def delivered(notice: Notice, at: int, error: str, attempts: int, now_us: int) -> Delivered:
    """The record of the end of a delivery; without an error a success."""
    outcome = "failed" if error else "delivered"
    rule = notice.rule
    return Delivered(notice.id, at, label(rule.channels[at]), rule.name, outcome, attempts, now_us, error)  # type: ignore[arg-type] # one of the words
