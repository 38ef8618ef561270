"""A conflating subscriber gets the latest record of each key at each tick: its position is a version of the table.

It has the interface of a RingCursor, but no position in the log: all that it has not been given is in the table.
Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import deque

from comet_gateway.push.events import Event, Failed
from comet_gateway.push.latest_fanout import EARLY, SnapshotWalk, Ticker
from comet_gateway.push.latest_table import LatestTable
from comet_gateway.push.ring import Ring
from comet_gateway.push.subscribe_request import PASSED_MAX, SubscribeRequest


class Conflator:
    """A conflating subscriber of one feed's table. Owned by a subscription."""

    def __init__(self, ring: Ring, request: SubscribeRequest, ticker: Ticker) -> None:
        self.ring = ring
        self.partitions = request.partitions
        self.values = request.values
        self.ticker = ticker
        self.delivered = 0
        self.dropped = 0
        self.conflated = 0
        self.failed: Failed | None = None
        self.over = False
        self.first: deque[Event] = deque()
        self.walk: SnapshotWalk | None = None
        self._behind_at_first = 0
        self.version = self.table.version
        # Matching records received by the last tick that it was given completely.
        self._passed = self.table.count(self.partitions)
        self._cursor_after = ring.total  # records received when it last got a cursor
        self._done = ticker.number
        self._done_s = ticker.clock()  # time of the first part of the last tick
        self._began_s: float | None = None  # time of the first part of the tick in progress

    @property
    def table(self) -> LatestTable:
        return self.ticker.table

    def begin_with(self, walk: SnapshotWalk, behind: int) -> None:
        """Starts with a snapshot, which replaces `behind` records written since its position."""
        self.walk = walk
        self.version = walk.snapshot.version
        self._passed = walk.snapshot.matched(self.partitions)
        self._behind_at_first = behind

    def cursor(self) -> str:
        return self.ring.cursor()

    @property
    def live(self) -> bool:
        return self.walk is None

    @property
    def number(self) -> int:
        return self.ring.head  # it needs no item of the ring

    @property
    def behind(self) -> int:
        """Matching records received since it was last given records."""
        return self.table.count(self.partitions) - self._passed

    @property
    def _stale(self) -> bool:
        """Whether the client needs a cursor behind records that do not match: it does not look at them again when it
        reconnects."""
        return self.table.encoding.filter is not None and self.ring.total - self._cursor_after >= PASSED_MAX

    @property
    def waits(self) -> bool:
        """Whether there is nothing for it, at any tick."""
        return self.version == self.table.version and self.failed is None and not self._stale

    @property
    def idle(self) -> bool:
        """Whether it has been given this tick completely, and has no other event."""
        return self._done == self.ticker.number and self.walk is None and self.failed is None and not self.first

    def take(self, permits: int | None = None) -> Event | None:
        if self.first:
            return self.first.popleft()
        if self.walk is not None:
            return self._take_walk(self.walk, permits)
        failed = self.failed is not None
        changed = self.version != self.table.version or self._stale
        if changed and (permits is None or permits > 0) and (failed or self._due()):
            return self._take_tick(permits)
        if failed and not self.over:
            self.over = True
            return self.failed
        return None

    def _take_walk(self, walk: SnapshotWalk, permits: int | None) -> Event | None:
        event = walk.take(permits)
        if event is not None:
            self.delivered += event.count
            if event.last:
                self.conflated += max(self._behind_at_first - walk.given, 0)
                self.walk = None
                self._done, self._done_s = self.ticker.number, self.ticker.clock()
        return event

    def _due(self) -> bool:
        ticker = self.ticker
        if (
            self._began_s is None
            and ticker.number != self._done
            and ticker.time - self._done_s < EARLY * ticker.interval_s
        ):
            self._done = ticker.number  # the last time was late
        return ticker.number != self._done

    def _take_tick(self, permits: int | None) -> Event | None:
        ticker = self.ticker
        part = ticker.part(self.version, self._passed, self.partitions)
        if permits is not None and part.event.count > permits:
            part = ticker.some(self.version, self._passed, self.partitions, permits)
        event = part.event
        self.version = part.to
        self.delivered += event.count
        self.conflated += event.conflated
        self._passed += event.count + event.conflated
        if self._began_s is None:
            self._began_s = ticker.clock()
        stale = self._stale
        if event.last:
            self._done, self._done_s, self._began_s = ticker.number, self._began_s, None
            if event.count or stale:
                self._cursor_after = self.ring.total
        return event if event.count or stale else self.take(permits)
