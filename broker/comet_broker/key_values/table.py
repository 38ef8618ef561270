"""The last record of each key of one partition, in a private SQLite database.

    keys   key ─► revision (offset of its last record), live (False: a tombstone), the record, earlier revisions
    open   records of transactions that are not decided yet, by producer, epoch and offset

The database has no name and no journal: SQLite keeps it in memory up to its cache, and in a deleted file beyond, so
that memory is bounded and nothing is left after a crash. It is derived from the log. An error of SQLite ends it.

Owned by a KeyView, used by one thread at a time.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from struct import Struct, iter_unpack
from typing import Final, NamedTuple

from comet.records import CompactionPlan
from comet.records.expiry import has_expired
from comet_broker import limits

_REVISION: Final = Struct("<q")
_PAGE_BYTES: Final = 4096

_SCHEMA: Final = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA secure_delete = OFF",
    f"PRAGMA page_size = {_PAGE_BYTES}",
    f"PRAGMA max_page_count = {limits.KEY_TABLE_BYTES_MAX // _PAGE_BYTES}",
    f"PRAGMA cache_size = -{limits.KEY_TABLE_CACHE_BYTES // 1024}",
    # With row numbers: new rows come at the end, and the tree of keys is small, so that most of it fits into the cache.
    """CREATE TABLE keys (key BLOB PRIMARY KEY, revision INTEGER NOT NULL, live INTEGER NOT NULL, record BLOB NOT NULL,
       expires_us INTEGER NOT NULL, packed BLOB NOT NULL, earlier BLOB NOT NULL)""",
    """CREATE TABLE open (producer INTEGER, epoch INTEGER, revision INTEGER, key BLOB NOT NULL, live INTEGER NOT NULL,
       record BLOB NOT NULL, expires_us INTEGER NOT NULL, packed BLOB NOT NULL,
       PRIMARY KEY (producer, epoch, revision)) WITHOUT ROWID""",
    "CREATE INDEX open_keys ON open (key)",
    "BEGIN",  # never committed: a commit would only cost time
)
# A transaction's record may come after a later one of the same key: the greater offset is the last.
_PUT: Final = """INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, x'') ON CONFLICT (key) DO UPDATE SET
    earlier = substr(CAST(keys.packed || keys.earlier AS BLOB), 1, 504), revision = excluded.revision,
    live = excluded.live, record = excluded.record, expires_us = excluded.expires_us, packed = excluded.packed
    WHERE excluded.revision > keys.revision"""
_COMMIT: Final = """INSERT INTO keys SELECT key, revision, live, record, expires_us, packed, x'' FROM open
    WHERE producer = ? AND epoch = ? ORDER BY revision ON CONFLICT (key) DO UPDATE SET
    earlier = substr(CAST(keys.packed || keys.earlier AS BLOB), 1, 504), revision = excluded.revision,
    live = excluded.live, record = excluded.record, expires_us = excluded.expires_us, packed = excluded.packed
    WHERE excluded.revision > keys.revision"""
_FROM: Final = "SELECT key, revision, live, record, expires_us FROM keys WHERE key >= ? ORDER BY key LIMIT ?"
_BETWEEN: Final = """SELECT key, revision, live, record, expires_us FROM keys WHERE key >= ? AND key < ?
    ORDER BY key LIMIT ?"""

assert (limits.KEY_HISTORY_MAX - 1) * _REVISION.size == 504, "the bytes of earlier revisions, as in the statements"


def overflow_to(folder: Path) -> None:
    """Has SQLite make its unnamed files in this folder, for the process. A version without this old setting makes them
    in the system's temporary folder."""
    quoted = str(folder.resolve()).replace("'", "''")
    with closing(sqlite3.connect("")) as database:
        database.execute(f"PRAGMA temp_store_directory = '{quoted}'")


class KeyRecord(NamedTuple):
    """A record of a key: its offset, whether it has a value, the encoded Record of the protocol, its expiry time."""

    key: bytes
    revision: int
    live: bool
    record: bytes
    expires_us: int = 0  # 0: never

    def counts(self, now_us: int) -> bool:
        """Whether the key has this value."""
        return self.live and not self.expired(now_us)

    def expired(self, now_us: int) -> bool:
        return has_expired(self.expires_us, now_us)


class KeyTable:
    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False, cached_statements=16)
        weakref.finalize(self, self._db.close)  # of a simulated broker that was killed; Python 3.13 warns of it
        for statement in _SCHEMA:
            self._db.execute(statement)
        self._execute = self._db.execute
        self.any_open = False  # records of undecided transactions

    # ---- writing

    def put(self, row: KeyRecord) -> None:
        self._execute(_PUT, (*row, _REVISION.pack(row.revision)))

    def put_many(self, rows: Iterable[KeyRecord]) -> None:
        self._db.executemany(_PUT, ((*row, _REVISION.pack(row.revision)) for row in rows))

    def put_open(self, producer_id: int, epoch: int, rows: Iterable[KeyRecord]) -> None:
        """Keeps the records of a transaction until it is decided."""
        self._db.executemany(
            "INSERT OR REPLACE INTO open VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            ((producer_id, epoch, row.revision, *(row.key, *row[2:]), _REVISION.pack(row.revision)) for row in rows),
        )
        self.any_open = True

    def decide(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        """A transaction has ended: its records count, or never did."""
        if not self.any_open:
            return
        if commit:
            self._execute(_COMMIT, (producer_id, epoch))
        self._execute("DELETE FROM open WHERE producer = ? AND epoch = ?", (producer_id, epoch))
        self.any_open = self._execute("SELECT 1 FROM open LIMIT 1").fetchone() is not None

    def forget(self, plan: CompactionPlan) -> None:
        """Removes the tombstones and expired records that a compaction takes out of the log. May block."""
        self._execute("DELETE FROM keys WHERE live = 0 AND revision < ?", (plan.tombstones_end,))
        self._execute(
            "DELETE FROM keys WHERE expires_us BETWEEN 1 AND ? AND revision < ?", (plan.now_us, plan.clean_end)
        )

    # ---- reading

    def last(self, key: bytes) -> KeyRecord | None:
        row = self._execute("SELECT revision, live, record, expires_us FROM keys WHERE key = ?", (key,)).fetchone()
        return None if row is None else KeyRecord(key, row[0], row[1] != 0, row[2], row[3])

    def is_open(self, key: bytes) -> bool:
        """Whether an undecided transaction has written the key."""
        return (
            self.any_open and self._execute("SELECT 1 FROM open WHERE key = ? LIMIT 1", (key,)).fetchone() is not None
        )

    def range(self, prefix: bytes, after: bytes | None, limit: int) -> list[KeyRecord]:
        """The next keys with this prefix in their order, tombstones included."""
        start = prefix if after is None else max(prefix, after + b"\0")  # the first key behind it
        end = _end_of(prefix)
        found = self._execute(_FROM, (start, limit)) if end is None else self._execute(_BETWEEN, (start, end, limit))
        return [KeyRecord(key, revision, live != 0, *rest) for key, revision, live, *rest in found]

    def revisions(self, key: bytes) -> list[int]:
        """The offsets of the key's last records, the newest first."""
        row = self._execute("SELECT revision, earlier FROM keys WHERE key = ?", (key,)).fetchone()
        return [] if row is None else [row[0], *(one for (one,) in iter_unpack("<q", row[1]))]

    def close(self) -> None:
        """Frees memory and disk. May block."""
        self._db.close()


def _end_of(prefix: bytes) -> bytes | None:
    """The first key behind all keys with this prefix; None: there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
