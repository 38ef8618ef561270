"""The channel `tail`: the new records of a topic, for a page. It samples if there are too many, and reports that.

    {"rows": [row, …], "seen": 120394, "matched": 120394, "shown": 2100, "lost": 0, "unread": 0, "one_in": 1,
     "shown_in": 57.3, "rate": 50012.0, "matching": 50012.0, "text": "50.0 k records/s · …"}

`rows` are the newest since the last event, newest first; all numbers but rates are counts since the channel was opened.

    seen       received while it was open
    lost       of those, never read: this subscriber was too slow, or they were deleted from the log
    unread     of those, not checked against the filters, for lack of time
    matched    of the checked ones, those that match the filters
    shown      sent as rows; the other matching ones were left out
    one_in     one record of `one_in` was checked, over the last WINDOW_S; one matching record of `shown_in` was sent
    rate       records per second, over the last WINDOW_S; `matching`: of those that match, estimated

Without filters only the records shown are decoded. After a control frame with {"rows": false} a client gets counts
only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from time import perf_counter
from typing import Any, Final

from comet.filters.search_filters import Filters
from comet_gateway.dashboard import topic_records
from comet_gateway.dashboard.channel_session import ChannelSession
from comet_gateway.http.problems import Problem
from comet_gateway.push.chunk import Slice
from comet_gateway.push.events import Event, Failed, Lost
from comet_gateway.push.subscribe_request import Policy, SubscribeRequest
from comet_gateway.push.subscription import Subscription
from comet_gateway.search.fields import Fields
from comet_gateway.search.filters import Batch
from comet_web.facts import WINDOW_S
from comet_web.views import records as view

TICK_S: Final = 0.1  # between two events
FULL_TICK_S: Final = (
    0.15  # after an event that left records out: faster updates are unreadable, and each costs the page a redraw
)
QUIET_S: Final = 1.0  # until an event without new records: rates fall
ROWS: Final = 30  # of one event
FILTER_S: Final = 0.006  # of one tick, to check records against the filters
BUFFER: Final = 100_000  # records
DRAIN_EVENTS: Final = 64  # handled before other tasks run


class Tail:
    """Counts and samples records, without hub and socket. Pure, except for the given clock."""

    def __init__(self, filters: Filters, clock: Callable[[], float] = perf_counter) -> None:
        self.seen = self.lost = self.unread = self.matched = self.shown = 0
        self.rows_wanted = True
        self._offered = 0  # of the matching, while rows were wanted
        self._filters = filters
        self._clock = clock
        self._new: deque[tuple[Batch, int, int]] = deque()
        self._new_records = 0
        began = clock()
        self._forgotten = 0  # matched since the last event, too old to be shown
        # Time, and the counts seen, checked, matched, offered and shown by then.
        self._past: deque[tuple[float, int, int, int, int, int]] = deque([(began, 0, 0, 0, 0, 0)])

    def add(self, event: Event) -> None:
        if isinstance(event, Lost):
            self.seen += event.count
            self.lost += event.count
        elif isinstance(event, Slice):
            self.seen += event.count
            self._new.append(event.columns)
            self._new_records += event.count
            if not self._filters:
                self._forget()

    def _forget(self) -> None:
        """Drops records that will not be shown, as enough newer ones exist."""
        while self._new_records - (first := self._new[0][2] - self._new[0][1]) >= ROWS:
            self._new.popleft()
            self._new_records -= first
            self.matched += first
            self._forgotten += first

    def sample(self) -> tuple[list[tuple[Batch, int]], dict[str, Any]]:
        """The rows to show, newest first, and the counts."""
        before = self.matched
        found = self._matching() if self._filters else self._newest()
        before -= self._forgotten
        self._offered += self.matched - before if self.rows_wanted else 0
        self._forgotten = 0
        self._new.clear()
        self._new_records = 0
        rows = found if self.rows_wanted else []
        self.shown += len(rows)
        return rows, self._numbers()

    def _newest(self) -> list[tuple[Batch, int]]:
        self.matched += self._new_records
        found = (
            (batch, number) for batch, begin, end in reversed(self._new) for number in range(end - 1, begin - 1, -1)
        )
        return [one for one, _ in zip(found, range(ROWS), strict=False)]

    def _matching(self) -> list[tuple[Batch, int]]:
        """The newest records that match; older ones are not checked if time runs out."""
        found: list[tuple[Batch, int]] = []
        until = self._clock() + FILTER_S
        for batch, begin, end in reversed(self._new):
            if self._clock() > until:
                self.unread += end - begin
                continue
            numbers = self._filters.found(batch, begin, end)
            self.matched += len(numbers)
            found += [(batch, number) for number in reversed(numbers)][: ROWS - len(found)]
        return found

    def _numbers(self) -> dict[str, Any]:
        now = self._clock()
        checked = self.seen - self.lost - self.unread
        past = self._past
        while len(past) > 1 and past[1][0] <= now - WINDOW_S:
            past.popleft()
        began, seen, checked_then, matched_then, offered_then, shown_then = past[0]
        past.append((now, self.seen, checked, self.matched, self._offered, self.shown))
        seconds, received, newly_checked = max(now - began, TICK_S), self.seen - seen, checked - checked_then
        one_in = 1.0 if received <= newly_checked else received / max(newly_checked, 1)
        matched, offered, shown = self.matched - matched_then, self._offered - offered_then, self.shown - shown_then
        return {
            "seen": self.seen,
            "lost": self.lost,
            "unread": self.unread,
            "matched": self.matched,
            "shown": self.shown,
            "one_in": round(one_in, 1),
            "shown_in": round(offered / max(shown, 1), 1) if offered > shown else 1.0,
            "rate": round(received / seconds, 1),
            "matching": round(matched * one_in / seconds, 1),
        }


async def tail(session: ChannelSession, params: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    """Events of the tail, as the client reads them. Raises Problem, CometError."""
    query = topic_records.texts(params)
    topic = query.get("topic", "")
    selection = topic_records.selected({**query, "start": "live"})
    fields = Fields.of(query.get("fields", ""))
    request = SubscribeRequest(
        topics=(topic,),
        partitions=frozenset(selection.partitions) or None,
        policy=Policy.DROP_OLDEST,
        buffer=min(BUFFER, session.sources.config.limits.buffer_max),
    )
    await session.sources.backend.catalog.topic(topic)
    subscription = await session.sources.hub.subscribe(request)
    try:
        chosen = Tail(selection.filters)
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await _gather(subscription, chosen)
            for message in session.received():
                chosen.rows_wanted = message.get("rows") is not False
            rows, counts = chosen.sample()
            previews = (topic_records.preview(batch, number, fields) for batch, number in rows)
            shown = [view.wire(view.row(topic, preview)) for preview in previews]
            text = view.tail_summary(counts, filtered=bool(selection.filters))
            yield {"rows": shown, "text": text, **counts}
            tick = FULL_TICK_S if len(rows) == ROWS else TICK_S
            await asyncio.sleep(max(began + tick - loop.time(), TICK_S / 2))
    finally:
        subscription.close()


async def _gather(subscription: Subscription, chosen: Tail) -> None:
    """Takes all waiting records; waits up to QUIET_S for the first."""
    try:
        async with asyncio.timeout(QUIET_S):
            _take(await subscription.next(), chosen)
    except TimeoutError:
        return
    while subscription.ready():
        for _ in range(DRAIN_EVENTS):
            _take(await subscription.next(), chosen)
            if not subscription.ready():
                return
        await asyncio.sleep(0)


def _take(event: Event, chosen: Tail) -> None:
    if isinstance(event, Failed):
        raise Problem(event.code, event.detail, retry_after_ms=event.retry_after_ms, more=event.more)
    chosen.add(event)
