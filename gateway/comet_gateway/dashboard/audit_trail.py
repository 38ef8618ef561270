"""The newest events of the audit log of the brokers, followed while a page shows them.

    hub ──► the last EVENTS_MAX records of the topic, then new ones ──► events in memory ──► the page, once a second

One subscription serves all pages. It ends a while after the last of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import Any, Final

import msgspec

from comet.errors import CometError, Forbidden, TopicNotFound
from comet.types import AUDIT_TOPIC, AtOffset
from comet_gateway.dashboard.broker_pool import ANSWER_S
from comet_gateway.dashboard.sources import Sources
from comet_gateway.http.problems import Problem
from comet_gateway.push import subscribe_request as push
from comet_gateway.push.chunk import Slice
from comet_gateway.push.events import Failed, Lost
from comet_gateway.records.cursor import Cursor, CursorPosition
from comet_web import facts
from comet_web.page_request import PageRequest

log = logging.getLogger("comet.gateway")

EVENTS_MAX: Final = 1_000
IDLE_S: Final = 60.0  # until an unused trail ends
AGAIN_S: Final = 5.0  # between two attempts to follow the topic
TEXT_CHARS_MAX: Final = 500  # of one field; the records have all
FIRST_WAIT_S: Final = 1.0  # of a page for the first events
INT_MAX: Final = 2**53


class AuditFeed:
    """Owned by the sources; on their loop."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._events: deque[facts.AuditRecord] = deque(maxlen=EVENTS_MAX)
        self._state = "filling"
        self._reason = ""
        self._older = 0
        self._topic_id = b""
        self._next: dict[int, int] = {}  # offsets, by partition
        self._ends: dict[int, int] = {}  # up to which the first content reaches
        self._viewed_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self.known = asyncio.Event()  # the first content, or why there is none

    def begin(self) -> None:
        """Follows the topic, for a while."""
        loop = asyncio.get_running_loop()
        self._viewed_s = loop.time()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="gateway: follow the audit log")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def snapshot(self, now_us: int) -> facts.AuditTrail:
        events = tuple(reversed(self._events))
        return facts.AuditTrail(now_us, AUDIT_TOPIC, self._state, self._reason, events, EVENTS_MAX, self._older)

    # ---- following

    async def _run(self) -> None:
        try:
            while not self._idle():
                await self._attempt()
                await asyncio.sleep(AGAIN_S)
        finally:
            self._task = None
            self._forget()

    def _idle(self) -> bool:
        return asyncio.get_running_loop().time() - self._viewed_s >= IDLE_S

    async def _attempt(self) -> None:
        try:
            await self._follow()
        except TopicNotFound:
            await self._absent()
        except Forbidden as error:
            self._forget()
            self._fail("denied", error.message)
        except CometError as error:
            self._fail("failed", error.message)
        except Problem as problem:
            self._fail("failed", problem.detail)
        except Exception:
            log.exception("gateway: the audit log cannot be followed")
            self._fail("failed", "unexpected error; see the gateway's log")

    def _fail(self, state: str, reason: str = "") -> None:
        self._state, self._reason = state, reason
        self.known.set()

    async def _absent(self) -> None:
        """The gateway sees no topic: brokers keep none, or the gateway may not read it."""
        self._forget()
        try:
            async with asyncio.timeout(ANSWER_S):
                numbers = await self._sources.sampler.query(lambda admin: admin.statistics())
        except (CometError, TimeoutError):
            self._fail("hidden")
            return
        self._fail("hidden" if numbers.get("audit") else "off")

    def _forget(self) -> None:
        self._events.clear()
        self._next.clear()
        self._ends.clear()
        self._older, self._topic_id, self._state, self._reason = 0, b"", "filling", ""
        self.known.clear()

    async def _follow(self) -> None:
        subscription = await self._sources.hub.subscribe(await self._request())
        self._settle()
        try:
            while not self._idle():
                try:
                    async with asyncio.timeout(IDLE_S):
                        event = await subscription.next()
                except TimeoutError:
                    continue
                if isinstance(event, Slice):
                    self._take(event)
                    self._settle()
                    await asyncio.sleep(0)  # lets other tasks run
                elif isinstance(event, Lost):
                    self._older += event.count
                elif isinstance(event, Failed):
                    raise TopicNotFound(event.detail) if event.code == TopicNotFound.code else _error(event)
        finally:
            subscription.close()

    async def _request(self) -> push.SubscribeRequest:
        """From the position reached, at first from the last events."""
        admin = self._sources.backend.admin
        info = await admin.describe_topic(AUDIT_TOPIC)
        first, last = await asyncio.gather(admin.offsets(AUDIT_TOPIC, "earliest"), admin.offsets(AUDIT_TOPIC, "latest"))
        if info.id != self._topic_id:
            self._forget()
            self._topic_id = info.id
        for partition, end in last.items():
            if partition not in self._next:
                begin = first.get(partition, 0)
                self._next[partition] = max(begin, end - EVENTS_MAX)
                self._older += self._next[partition] - begin
                self._ends[partition] = end
        for partition, offset in self._next.items():  # the hub waits where a read is denied
            await self._sources.backend.reader.fetch(AUDIT_TOPIC, partition, AtOffset(offset), records_max=1)
        positions = {partition: CursorPosition(offset) for partition, offset in self._next.items()}
        return push.SubscribeRequest(
            topics=(AUDIT_TOPIC,),
            policy=push.Policy.DROP_OLDEST,
            cursors={AUDIT_TOPIC: Cursor(info.id, positions)},
        )

    def _settle(self) -> None:
        if all(self._next[partition] >= end for partition, end in self._ends.items()):
            self._state, self._reason = "live", ""
            self.known.set()

    def _take(self, part: Slice) -> None:
        batch, begin, end = part.columns
        columns = (batch.values, batch.timestamps, batch.offsets)
        for value, timestamp_us, offset in zip(*(column[begin:end] for column in columns), strict=True):
            if len(self._events) == EVENTS_MAX:
                self._older += 1
            self._events.append(event_of(value, part.partition, offset, timestamp_us))
            self._next[part.partition] = offset + 1


def _error(event: Failed) -> Exception:
    if event.code == Forbidden.code:
        return Forbidden(event.detail)
    return Problem(event.code, event.detail, retry_after_ms=event.retry_after_ms)


def event_of(value: bytes | None, partition: int, offset: int, time_us: int) -> facts.AuditRecord:
    """The event in a record's value. A value of another form is an event without a kind."""
    try:
        found = msgspec.json.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict):
        shown = (value or b"")[:TEXT_CHARS_MAX].decode("utf-8", "replace")
        return facts.AuditRecord(partition, offset, time_us, "", message=shown)
    request = found.get("request")
    return facts.AuditRecord(
        partition,
        offset,
        time_us,
        event=_text(found, "event"),
        broker=_number(found, "broker"),
        principal=_text(found, "principal"),
        credential=_text(found, "credential"),
        address=_text(found, "address"),
        operation=_text(found, "operation"),
        kind=_text(found, "kind"),
        name=_text(found, "name"),
        code=_text(found, "code"),
        message=_text(found, "message"),
        count=_number(found, "count"),
        dry_run=found.get("dry_run") is True,
        request=msgspec.json.encode(request).decode()[:TEXT_CHARS_MAX] if request else "",
        via=_text(found, "via"),
    )


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    return value[:TEXT_CHARS_MAX] if isinstance(value, str) else ""


def _number(found: dict[str, Any], name: str) -> int:
    value = found.get(name)
    return value if isinstance(value, int) and 0 <= value < INT_MAX else 0


async def audit(sources: Sources, _: PageRequest) -> facts.AuditTrail:
    """The loader of the page."""
    feed = sources.part(AuditFeed)
    feed.begin()
    try:
        async with asyncio.timeout(FIRST_WAIT_S):
            await feed.known.wait()
    except TimeoutError:
        pass  # the page shows that events are loading
    return feed.snapshot(time.time_ns() // 1_000)
