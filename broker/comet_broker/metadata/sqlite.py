"""The file of the embedded store: one SQLite database that holds the current state and no history.

    state   one row: schema, revision, last_lease, items, digest, crc
    item    key (UTF-8), value, create_revision, mod_revision, lease, crc
    lease   id, ttl_ms, crc

SQLite checks neither pages nor rows, so each row carries the CRC-32C of its columns, and `digest` is the XOR of them
all: a changed, lost or resurrected row is found when the file is opened. The write-ahead log is synced at each commit
(synchronous=FULL). Checkpoints are made here and not by SQLite itself, because SQLite does not report a failed one.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from comet.errors import DataFolderTaken, DiskFull, StoreDamaged, UnsupportedVersion
from comet_broker.metadata.keyspace import FIRST_REVISION, Draft, Keyspace
from comet_broker.metadata.store import KeyValue, StoreUnavailable

APPLICATION_ID: Final = 0x434F4D54  # "COMT"
SCHEMA: Final = 1
CHECKPOINT_BYTES: Final = 4 << 20  # of the write-ahead log, after which it is folded into the file

_CREATE: Final = """
    CREATE TABLE state (schema INTEGER, revision INTEGER, last_lease INTEGER, items INTEGER, digest INTEGER,
                        crc INTEGER);
    CREATE TABLE item (key BLOB PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER NOT NULL,
                       mod_revision INTEGER NOT NULL, lease INTEGER NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE lease (id INTEGER PRIMARY KEY, ttl_ms INTEGER NOT NULL, crc INTEGER NOT NULL);
"""


def item_crc(item: KeyValue) -> int:
    key = item.key.encode()
    numbers = struct.pack("<qqqq", item.create_revision, item.mod_revision, item.lease, len(key))
    return crc32c(item.value, crc32c(key, crc32c(numbers)))


def lease_crc(lease: int, ttl_ms: int) -> int:
    return crc32c(struct.pack("<qq", lease, ttl_ms))


def state_crc(revision: int, last_lease: int, items: int, digest: int) -> int:
    return crc32c(struct.pack("<qqqq", revision, last_lease, items, digest))


def log_of(path: Path) -> Path:
    """SQLite's write-ahead log of a database file."""
    return path.with_name(path.name + "-wal")


def size_of(path: Path) -> int:
    """The size of a file in bytes; 0 if it is missing."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def connect(path: Path) -> sqlite3.Connection:
    """Opens the file for this process alone; defects of the file show when it is read."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
    pragmas = (
        "locking_mode = EXCLUSIVE",  # no other process; and no shared-memory file beside it
        "synchronous = FULL",
        "fullfsync = ON",  # on macOS an ordinary fsync stops at the drive's cache
        "wal_autocheckpoint = 0",
        "trusted_schema = OFF",
        "temp_store = MEMORY",
    )
    try:
        for pragma in pragmas:
            database.execute(f"PRAGMA {pragma}")
    except sqlite3.Error:
        database.close()
        raise
    return database


def create(path: Path) -> None:
    """Writes an empty store. The caller renames it once it is complete and synced."""
    path.touch(mode=0o600, exist_ok=False)
    database = connect(path)
    try:
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(f"BEGIN; {_CREATE} COMMIT;")
        state = (FIRST_REVISION, 0, 0, 0)
        database.execute("INSERT INTO state VALUES (?, ?, ?, ?, ?, ?)", (SCHEMA, *state, state_crc(*state)))
    finally:
        database.close()  # folds the write-ahead log into the file and removes it


class StoreFile:
    """An open store file. Used by one thread at a time; `write` and `close` block on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed: sqlite3.Error | None = None
        self._items = 0
        self._digest = 0
        with _reading(path):
            self._database = connect(path)

    def load(self) -> Keyspace:
        """Reads everything and checks it. Raises StoreDamaged, UnsupportedVersion or DataFolderTaken."""
        with _reading(self.path):
            keyspace = self._load()
        # Removes a commit that a crash left unfinished, so that the log never has more than one.
        self._checkpoint()
        return keyspace

    def write(self, draft: Draft) -> None:
        """Makes a draft durable. Raises DiskFull if nothing was written, StoreUnavailable if the outcome is unknown;
        after that every further write raises StoreUnavailable."""
        if self.failed is not None:
            raise StoreUnavailable(f"{self.path.name} failed ({self.failed}); restart the broker to recover")
        items, digest = self._after(draft)
        try:
            self._commit(draft, items, digest)
        except sqlite3.Error as error:
            self._undo(error, draft.base_revision)
        self._items, self._digest = items, digest
        self._checkpoint_when_due()

    def structure_problems(self) -> str:
        """The defects that SQLite finds in pages, trees and indexes; empty if there are none."""
        rows = self._database.execute("PRAGMA integrity_check(5)").fetchall()
        return "" if rows == [("ok",)] else "; ".join(str(row[0]) for row in rows)

    def log_frames(self) -> int:
        """The number of frames of the write-ahead log that SQLite can read; folds them into the file."""
        _, frames, _ = self._database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        assert isinstance(frames, int)
        return max(frames, 0)  # -1: there is no log

    def copy_to(self, path: Path) -> None:
        """Writes the committed state into a new file of its own, not yet synced."""
        path.touch(mode=0o600)
        target = sqlite3.connect(path)
        try:
            self._database.backup(target)
        finally:
            target.close()

    def close(self) -> None:
        """Folds the write-ahead log into the file. After a failure SQLite does it on closing: it writes every page
        again, and so does not rely on a failed sync."""
        try:
            if self.failed is None:
                self._checkpoint()
        finally:
            self._database.close()

    # ---- reading

    def _load(self) -> Keyspace:
        database = self._database
        if database.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
            raise StoreDamaged(f"{self.path} is not a metadata file of Comet")
        rows = database.execute("SELECT schema, revision, last_lease, items, digest, crc FROM state").fetchall()
        if len(rows) != 1:
            raise StoreDamaged(f"{self.path} has {len(rows)} state rows")
        schema, revision, last_lease, count, digest, crc = rows[0]
        if schema != SCHEMA:
            raise UnsupportedVersion(f"{self.path} has format {schema}; this version of Comet reads {SCHEMA}")
        if crc != state_crc(revision, last_lease, count, digest):
            raise StoreDamaged(f"{self.path}: the state row fails its checksum")
        leases = dict(self._checked_leases())
        items = list(self._checked_items(revision, leases))
        found = 0
        for item in items:
            found ^= item_crc(item)
        for lease, ttl_ms in leases.items():
            found ^= lease_crc(lease, ttl_ms)
        if (len(items), found) != (count, digest):
            raise StoreDamaged(
                f"{self.path}: rows are missing or were not written ({len(items)} of {count} keys found)"
            )
        self._items, self._digest = count, digest
        keyspace = Keyspace(revision, last_lease)
        keyspace.load(items, leases)
        return keyspace

    def _checked_leases(self) -> Iterator[tuple[int, int]]:
        for lease, ttl_ms, crc in self._database.execute("SELECT id, ttl_ms, crc FROM lease"):
            if not isinstance(ttl_ms, int) or crc != lease_crc(lease, ttl_ms):
                raise StoreDamaged(f"{self.path}: lease {lease} fails its checksum")
            yield lease, ttl_ms

    def _checked_items(self, revision: int, leases: dict[int, int]) -> Iterator[KeyValue]:
        query = "SELECT key, value, create_revision, mod_revision, lease, crc FROM item ORDER BY key"
        for key, value, *numbers, crc in self._database.execute(query):
            sound = isinstance(key, bytes) and isinstance(value, bytes) and all(isinstance(n, int) for n in numbers)
            item = KeyValue(key.decode(), value, *numbers) if sound else None
            if item is None or crc != item_crc(item):
                raise StoreDamaged(f"{self.path}: key {key!r} fails its checksum")
            if item.mod_revision > revision or (item.lease and item.lease not in leases):
                raise StoreDamaged(f"{self.path}: key {key!r} does not fit the state row")
            yield item

    # ---- writing

    def _after(self, draft: Draft) -> tuple[int, int]:
        """The number of items after the draft, and the XOR of all rows' checksums."""
        items, digest = self._items, self._digest
        for key, item in draft.items.items():
            old = draft.base.items.get(key)
            items += (item is not None) - (old is not None)
            digest ^= (item_crc(item) if item is not None else 0) ^ (item_crc(old) if old is not None else 0)
        for lease, ttl_ms in draft.leases.items():
            # A lease is granted or ended, never changed, so its row exists either before or after.
            digest ^= lease_crc(lease, ttl_ms if ttl_ms is not None else draft.base.leases[lease])
        return items, digest

    def _commit(self, draft: Draft, items: int, digest: int) -> None:
        execute, many = self._database.execute, self._database.executemany
        execute("BEGIN IMMEDIATE")
        many("INSERT OR REPLACE INTO item VALUES (?, ?, ?, ?, ?, ?)", _rows(draft.items.values()))
        many("DELETE FROM item WHERE key = ?", [(key.encode(),) for key, item in draft.items.items() if item is None])
        granted = [(lease, ttl, lease_crc(lease, ttl)) for lease, ttl in draft.leases.items() if ttl is not None]
        many("INSERT INTO lease VALUES (?, ?, ?)", granted)
        many("DELETE FROM lease WHERE id = ?", [(lease,) for lease, ttl in draft.leases.items() if ttl is None])
        state = (draft.revision, draft.last_lease, items, digest)
        execute(
            "UPDATE state SET revision = ?, last_lease = ?, items = ?, digest = ?, crc = ?", (*state, state_crc(*state))
        )
        execute("COMMIT")

    def _undo(self, error: sqlite3.Error, revision: int) -> None:
        """Raises DiskFull after a full disk that was rolled back, the one failure that leaves the file unchanged; else
        StoreUnavailable."""
        try:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            if _primary(error) == sqlite3.SQLITE_FULL and self._revision() == revision:
                raise DiskFull("the disk is full: the change to the cluster's metadata was not made") from error
        except sqlite3.Error:
            pass
        # Never retried on this connection: a second sync after a failed one may succeed without writing to disk.
        self.failed = error
        raise StoreUnavailable(f"writing {self.path.name} failed: {error}") from error

    def _revision(self) -> int:
        (revision,) = self._database.execute("SELECT revision FROM state").fetchone()
        assert isinstance(revision, int)
        return revision

    def _checkpoint_when_due(self) -> None:
        if size_of(log_of(self.path)) >= CHECKPOINT_BYTES:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Folds the write-ahead log into the file. The commits in it are durable with or without this."""
        try:
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            if _primary(error) != sqlite3.SQLITE_FULL:  # no space in the file: the log keeps growing until there is
                self.failed = error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns the errors of SQLite, and of undecodable rows, into Comet's while a file is read."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if _primary(error) == sqlite3.SQLITE_BUSY:
            raise DataFolderTaken(f"another process has {path} open") from error
        raise StoreDamaged(f"{path} cannot be read: {error}") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError, struct.error) as error:
        raise StoreDamaged(f"{path} cannot be read: {error}") from error


def _rows(items: Iterable[KeyValue | None]) -> list[tuple[Any, ...]]:
    return [
        (item.key.encode(), item.value, item.create_revision, item.mod_revision, item.lease, item_crc(item))
        for item in items
        if item is not None
    ]


def _primary(error: sqlite3.Error) -> int:
    """SQLite's primary result code: the low byte of the extended one. 0 for errors that Python's module raised."""
    code = getattr(error, "sqlite_errorcode", 0)
    assert isinstance(code, int)
    return code & 0xFF
