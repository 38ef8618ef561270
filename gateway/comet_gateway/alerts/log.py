"""The topic of the journal: one partition, which every gateway follows from its beginning, and any of them writes.

    write ─► the topic (acks=all) ─► follow ─► AlertBook, the same in all gateways

The topic is made with the first rule, and has no retention: checkpoints bound it. Until it exists, a gateway looks for
it every few seconds and does nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import comet
from comet.errors import CometError, OffsetOutOfRange, Timeout, TopicExists, TopicNotFound, Unavailable
from comet.settings.topic import NO_LIMIT, TOPIC_SETTINGS
from comet.types import ALERTS_TOPIC
from comet_gateway.alerts.journal import AlertBook, Checkpoint, Notice, Record, encode

log = logging.getLogger(__name__)

AGAIN_S: Final = 2.0  # between two looks for the topic, or attempts to follow it
APPLIED_S: Final = 10.0  # that a change waits for this gateway to have it
CHECKPOINT_RECORDS: Final = 2_000  # of the journal, before a checkpoint replaces them
CHECKPOINT_BYTES_MAX: Final = 1_000_000  # topics take a larger record by default
WAITING: Final = "the alerts are being read; try again in a moment"


class AlertLog:
    """Follows and writes the journal. `on_notice` gets each notice that becomes due while it follows."""

    def __init__(
        self, bootstrap: str, admin: comet.Admin, producer: comet.Producer, on_notice: Callable[[Notice], None]
    ) -> None:
        self.book = AlertBook()
        self.problem = ""  # why the journal cannot be followed
        self.exists: bool | None = None  # whether there is a topic; None: not known
        self._bootstrap = bootstrap
        self._admin = admin
        self._producer = producer
        self._on_notice = on_notice
        self._end = 0  # of the log when following began
        self._changed = asyncio.Condition()
        self._look = asyncio.Event()

    # ---- following

    async def follow(self) -> None:
        """Runs until it is cancelled."""
        while True:
            try:
                await self._follow()
            except TopicNotFound:
                self.exists, self.problem = False, ""
                self.book = AlertBook()
            except OffsetOutOfRange:  # records were deleted after a checkpoint that this gateway has not read
                self.book = AlertBook()
                continue
            except CometError as error:
                if error.message != self.problem and not isinstance(error, Unavailable):  # which readiness tells
                    log.warning("alerts cannot be read: %s", error)
                self.problem = error.message
            self._look.clear()
            try:
                async with asyncio.timeout(AGAIN_S):
                    await self._look.wait()
            except TimeoutError:
                pass

    async def _follow(self) -> None:
        info = await self._admin.describe_topic(ALERTS_TOPIC)
        end = info.partitions[0].log_end
        if end is None:
            raise Unavailable(f"topic {ALERTS_TOPIC} has no leader")
        book = AlertBook()
        self._end = end
        async with comet.Consumer(
            self._bootstrap, ALERTS_TOPIC, start="earliest", partitions=[0], name="alerts"
        ) as consumer:
            self.book, self.exists, self.problem = book, True, ""
            await self._tell()
            async for record in consumer:
                known = book.next >= end
                notice = book.take(record.offset, record.value)
                if book.next >= end and not book.complete:
                    log.warning(
                        "alerts: the journal begins at a later record and has no checkpoint; older rules are lost"
                    )
                    book.settle()
                if notice is not None and known:  # not one of the past
                    self._on_notice(notice)
                await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Waits for the followed state. Raises Timeout."""
        try:
            async with asyncio.timeout(APPLIED_S), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError:
            raise Timeout(
                "the change is not in this gateway's state of the alerts yet; look again before a retry"
            ) from None

    @property
    def ready(self) -> bool:
        """Whether the state is that of the whole log, as far as it went when following began."""
        return self.exists is False or (bool(self.exists) and self.book.complete and self.book.next >= self._end)

    # ---- writing

    async def write(self, records: Sequence[Record]) -> None:
        """Writes records and waits until this gateway has applied them. Raises CometError, of which a time-out leaves
        open whether they are written."""
        if not records:
            return
        sent = [await self._producer.send(ALERTS_TOPIC, encode(record), partition=0) for record in records]
        last = max([(await one).offset for one in sent])
        book = self.book
        await self._until(lambda: self.book.next > last or self.book is not book)

    async def create(self) -> None:
        """Makes the topic if it is missing. Raises CometError."""
        if self.exists:
            return
        try:
            retention: dict[str, Any] = {name: NO_LIMIT for name in TOPIC_SETTINGS if name.startswith("retention")}
            await self._admin.create_topic(ALERTS_TOPIC, partitions=1, **retention)
            log.info("alerts: topic %s created", ALERTS_TOPIC)
        except TopicExists:
            pass
        self._look.set()
        await self._until(lambda: bool(self.exists) and self.ready)

    async def checkpoint(self) -> None:
        """Writes the state and deletes the records before it, if there are many. Raises CometError."""
        book = self.book
        if book.records < CHECKPOINT_RECORDS or not book.complete:
            return
        through = book.next - 1
        image = encode(Checkpoint(through, book.image()))
        if len(image) > CHECKPOINT_BYTES_MAX:
            log.warning("alerts: the state takes %d bytes, so the journal keeps all records", len(image))
            book.records = 0
            return
        await self._producer.publish(ALERTS_TOPIC, image, partition=0)
        await self._admin.delete_records(ALERTS_TOPIC, 0, through + 1)
