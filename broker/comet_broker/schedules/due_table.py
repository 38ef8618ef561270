"""The schedules of one partition by the time when they are to be looked at, in a private SQLite database.

It is derived: its owner fills it from the keys of the log when it begins to lead, and changes it with each change of a
schedule. The database has no name and no journal, as that of the keys (`key_values.table`): memory is bounded, and
nothing is left after a crash.

Owned by a Keeper, on the loop's thread: each call concerns a few rows.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Iterable
from typing import Final, NamedTuple

from comet.v1 import schedules_pb2 as pb
from comet_broker import limits
from comet_broker.schedules.changes import calendar_name, due_us, is_due_once

_SCHEMA: Final = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
    f"PRAGMA cache_size = -{limits.SCHEDULE_TABLE_CACHE_BYTES // 1024}",
    """CREATE TABLE schedules (key BLOB PRIMARY KEY, due_us INTEGER, size INTEGER NOT NULL, recurs INTEGER NOT NULL,
       calendar TEXT NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX by_time ON schedules (due_us) WHERE due_us IS NOT NULL",
    "CREATE INDEX by_calendar ON schedules (calendar) WHERE calendar <> ''",
    "BEGIN",  # never committed: a commit would only cost time
)


class DueSchedule(NamedTuple):
    key: bytes
    due_us: int
    size: int  # of its record in the log


class DueTable:
    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._db.close)  # of a simulated broker that was killed; Python 3.13 warns of it
        for statement in _SCHEMA:
            self._db.execute(statement)
        self.count = 0
        self.recurring = 0

    def put(self, key: bytes, schedule: pb.Schedule) -> None:
        self.remove(key)
        self.put_new([(key, schedule)])

    def put_new(self, found: Iterable[tuple[bytes, pb.Schedule]]) -> None:
        """Adds schedules that are not in the table."""
        rows = [(key, due_us(one), one.ByteSize(), int(not is_due_once(one)), calendar_name(one)) for key, one in found]
        self._db.executemany("INSERT INTO schedules VALUES (?, ?, ?, ?, ?)", rows)
        self.count += len(rows)
        self.recurring += sum(row[3] for row in rows)

    def remove(self, key: bytes) -> None:
        found = self._db.execute("DELETE FROM schedules WHERE key = ? RETURNING recurs", (key,)).fetchall()
        self.count -= len(found)
        self.recurring -= sum(recurs for (recurs,) in found)

    def defer(self, key: bytes, until_us: int) -> None:
        """Does not look at it before then."""
        self._db.execute("UPDATE schedules SET due_us = ? WHERE key = ? AND due_us IS NOT NULL", (until_us, key))

    def next_us(self) -> int | None:
        """When the next one is due."""
        found: int | None = self._db.execute("SELECT min(due_us) FROM schedules WHERE due_us IS NOT NULL").fetchone()[0]
        return found

    def due(self, now_us: int, limit: int) -> list[DueSchedule]:
        """Those that are due, the first ones first."""
        found = self._db.execute(
            "SELECT key, due_us, size FROM schedules WHERE due_us <= ? ORDER BY due_us LIMIT ?", (now_us, limit)
        )
        return [DueSchedule(*row) for row in found]

    def due_count(self, now_us: int) -> int:
        found: int = self._db.execute("SELECT count(*) FROM schedules WHERE due_us <= ?", (now_us,)).fetchone()[0]
        return found

    def of_calendar(self, name: str) -> list[bytes]:
        return [key for (key,) in self._db.execute("SELECT key FROM schedules WHERE calendar = ?", (name,))]

    def close(self) -> None:
        self._db.close()
