"""The tables of latest values of one topic: fills them from the log, ticks, and drops unused ones. Owned by a feed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakSet

from comet_gateway.http.client_disconnect import Flight, together
from comet_gateway.http.problems import Problem
from comet_gateway.push.catchup import Log
from comet_gateway.push.chunk import Source
from comet_gateway.push.conflator import Conflator
from comet_gateway.push.events import Missing
from comet_gateway.push.latest_fanout import TableSnapshot, Ticker
from comet_gateway.push.latest_table import Encoding, Filling, LatestTable
from comet_gateway.push.ring import Ring
from comet_gateway.records.cursor import CursorPosition

if TYPE_CHECKING:
    from comet_gateway.config import Limits

FILL_BYTES: Final = 256 * 1024  # of the log, read at once
SNAPSHOT_AGE_S: Final = 1.0  # within which a snapshot is shared
SNAPSHOTS_MAX: Final = 2  # of one table in memory; more would be fresher, but take more memory
# Ticks are further apart than requested by this: with 250 ms a client sees four a second and never five, even if one
# arrives late and the next at once. A subscriber that is later with a tick skips the next one (EARLY).
PACE: Final = 1.1


class TickWaiter(Protocol):
    """A subscriber that can wait for a tick."""

    @property
    def follower(self) -> object: ...
    @property
    def armed(self) -> bool: ...
    def awake(self) -> None: ...


class Clockwork:
    """A ticker with its timer, and its waiting subscribers."""

    def __init__(self, ticker: Ticker) -> None:
        self.ticker = ticker
        self.users = 0
        self._armed: list[TickWaiter] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_s = asyncio.get_running_loop().time()

    def arm(self, subscriber: TickWaiter) -> None:
        self._armed.append(subscriber)
        if self._timer is None:
            # One timer for all, so that later subscribers are in step; and from tick to tick, so that a late tick
            # does not bring the next one nearer.
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._ticked_s + self.ticker.interval_s * PACE, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._ticked_s = asyncio.get_running_loop().time()
        self.ticker.tick()
        armed, self._armed = self._armed, []
        for subscriber in armed:
            follower = subscriber.follower
            if not subscriber.armed:
                continue
            if isinstance(follower, Conflator) and follower.waits:
                self.arm(subscriber)
            else:
                subscriber.awake()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed.clear()


class Table:
    """One table, with its tickers and snapshots."""

    def __init__(self, table: LatestTable) -> None:
        self.latest = table
        self.users = 0
        self.filling: Flight[None] | None = None  # shared by all that wait for it
        self.snapshots: WeakSet[TableSnapshot] = WeakSet()
        self.newest: TableSnapshot | None = None
        self.clockworks: dict[int, Clockwork] = {}
        self.idle: asyncio.TimerHandle | None = None

    def landed(self, filling: Flight[None]) -> None:
        if self.filling is filling:
            self.filling = None


class Tables:
    def __init__(self, ring: Ring, history: Log, limits: Limits, room: Callable[[], bool]) -> None:
        self._ring = ring
        self._log = history
        self._limits = limits
        self._room = room  # whether there is room for another table
        self._tables: dict[Encoding, Table] = {}  # subscribers with the same filter share one

    def __len__(self) -> int:
        return len(self._tables)

    # ---- arriving records

    def applied(self, source: Source) -> None:
        for table in self._tables.values():
            table.latest.apply(source)

    def skipped(self, missing: Missing) -> None:
        if missing.reason == "truncated":
            for table in self._tables.values():
                table.latest.cut(missing.partition, missing.first)

    # ---- users

    def use(self, encoding: Encoding) -> Table:
        """A table, to be returned with `leave`. Raises Problem."""
        table = self._tables.get(encoding)
        if table is None:
            if not self._room():
                raise Problem("TOO_MANY_REQUESTS", "limit of tables of latest values on this gateway reached")
            latest = LatestTable(self._ring, encoding, self._limits.table_keys_max, self._limits.table_bytes_max)
            table = self._tables[encoding] = Table(latest)
        table.users += 1
        if table.idle is not None:
            table.idle.cancel()
            table.idle = None
        return table

    def leave(self, table: Table) -> None:
        table.users -= 1
        if not table.users:
            loop = asyncio.get_running_loop()
            table.idle = loop.call_later(self._limits.feed_idle_s, self._drop, table)

    def spare(self) -> bool:
        """Drops an unused table, if there is one, to make room."""
        table = next((table for table in self._tables.values() if not table.users), None)
        if table is None:
            return False
        assert table.idle is not None
        table.idle.cancel()
        self._drop(table)
        return True

    def _drop(self, table: Table) -> None:
        if not table.users and self._tables.get(table.latest.encoding) is table:
            del self._tables[table.latest.encoding]

    def clockwork(self, table: Table, interval_ms: int) -> Clockwork:
        """A ticker, to be returned with `stop`."""
        found = table.clockworks.get(interval_ms)
        if found is None:
            clock = asyncio.get_running_loop().time
            ticker = Ticker(table.latest, interval_ms / 1000, self._limits.delivery_bytes, clock)
            found = table.clockworks[interval_ms] = Clockwork(ticker)
        found.users += 1
        return found

    def stop(self, table: Table, clockwork: Clockwork) -> None:
        clockwork.users -= 1
        if not clockwork.users:
            clockwork.close()
            del table.clockworks[round(clockwork.ticker.interval_s * 1000)]

    def close(self) -> None:
        for table in self._tables.values():
            for clockwork in table.clockworks.values():
                clockwork.close()
            if table.idle is not None:
                table.idle.cancel()
        self._tables.clear()

    # ---- snapshots

    async def snapshot(self, table: Table, since: Mapping[int, CursorPosition] | None = None) -> TableSnapshot:
        """The latest record of each key of the whole log, or of records written since. Raises Unavailable if no leader
        answers."""
        while table.latest.lacks(since):
            filling = table.filling
            if filling is None or filling.over:
                name = f"gateway: fill a table of {self._ring.topic}"
                filling = table.filling = Flight(self._fill(table.latest, since), name, table.landed)
            await filling.wait()
        loop = asyncio.get_running_loop()
        newest = table.newest
        fresh = newest is not None and loop.time() - newest.taken_s < SNAPSHOT_AGE_S
        if newest is None or not self._covers(newest, since) or not (fresh or len(table.snapshots) >= SNAPSHOTS_MAX):
            newest = table.newest = TableSnapshot(table.latest, self._limits.delivery_bytes, loop.time())
            table.snapshots.add(newest)
            loop.call_later(SNAPSHOT_AGE_S, self._forget, table, newest)
        return newest

    @staticmethod
    def _forget(table: Table, snapshot: TableSnapshot) -> None:
        """Drops a snapshot from sharing, except while there are too many."""
        if table.newest is snapshot and len(table.snapshots) < SNAPSHOTS_MAX:
            table.newest = None

    @staticmethod
    def _covers(snapshot: TableSnapshot, since: Mapping[int, CursorPosition] | None) -> bool:
        """Whether a snapshot has all records since, and is recent."""
        if since is None:
            return snapshot.whole
        begins, ends = snapshot.filled_from, snapshot.positions
        return all(
            (snapshot.whole or position.offset >= begins.get(index, 0))
            and (index not in ends or position.offset <= ends[index].offset)
            for index, position in since.items()
        )

    async def _fill(self, latest: LatestTable, since: Mapping[int, CursorPosition] | None) -> None:
        if since is None:
            wanted = await self._log.earliest(self._ring.topic)
        else:
            wanted = {index: position.offset for index, position in since.items()}
        ends = latest.filled_from
        begin = {index: offset for index, offset in wanted.items() if offset < ends.get(index, 0)}
        filling = latest.filling(begin)
        most = self._limits.table_scan_records_max // max(len(begin), 1)
        ways = {index: max(offset, ends[index] - most) for index, offset in begin.items()}
        filling.short = ways != begin
        await together(self._scan(filling, index, at, ends[index]) for index, at in ways.items())
        latest.filled(filling)
        latest.whole = latest.whole or since is None

    async def _scan(self, filling: Filling, partition: int, offset: int, end: int) -> None:
        position = CursorPosition(offset)
        while position.offset < end:
            piece = await self._log.read_soon(self._ring, partition, position, FILL_BYTES)
            for source in piece.sources:
                filling.apply(source, end)
            position = piece.following

    def statistics(self) -> dict[str, Any]:
        return {
            str(encoding): {
                "keys": len(table.latest), "bytes": table.latest.bytes, "complete": not table.latest.lossy,
                "users": table.users, "snapshots": len(table.snapshots),
            }
            for encoding, table in self._tables.items()
        }  # fmt: skip


class Needs:
    """The table and its ticker that a subscriber keeps alive."""

    def __init__(self, tables: Tables) -> None:
        self.clockwork: Clockwork | None = None
        self._tables = tables
        self._table: Table | None = None

    def table(self, encoding: Encoding) -> Table:
        if self._table is None:
            self._table = self._tables.use(encoding)
        return self._table

    def tick(self, encoding: Encoding, interval_ms: int) -> Clockwork:
        self.clockwork = self._tables.clockwork(self.table(encoding), interval_ms)
        return self.clockwork

    def close(self) -> None:
        if self._table is not None:
            if self.clockwork is not None:
                self._tables.stop(self._table, self.clockwork)
            self._tables.leave(self._table)
        self._table = self.clockwork = None
