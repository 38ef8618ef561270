"""What the embedded store promises beyond the contract: durability, damage found, a full disk survived."""

from __future__ import annotations

import asyncio
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from comet.errors import Closed, DataFolderTaken, DiskFull, StoreDamaged, UnsupportedVersion
from comet_broker.metadata.embedded import BACKUP_INTERVAL_S, EmbeddedStore
from comet_broker.metadata.examine import backup_of
from comet_broker.metadata.sqlite import APPLICATION_ID, log_of
from comet_broker.metadata.store import Compacted, KeyValue, LeaseLost, Put, StoreUnavailable
from comet_broker.system import SystemClock
from comet_testing.simulation.clock import SimClock
from comet_testing.simulation.loop import SimLoop, run
from comet_testing.simulation.worker import SimWorker, WorkerPace

T = TypeVar("T")
State = tuple[tuple[KeyValue, ...], int]
Opener = Callable[[], Coroutine[Any, Any, EmbeddedStore]]


class CountingWorker:
    """Counts what goes to the disk, and can refuse it as a full disk does."""

    def __init__(self) -> None:
        self.runs = 0
        self.full = False
        self._worker = SimWorker(Random(3), WorkerPace())

    async def run(self, function: Callable[[], T]) -> T:
        self.runs += 1
        if self.full:
            raise DiskFull("not one byte more")
        return await self._worker.run(function)


def simulate(path: Path, scenario: Callable[[Opener], Coroutine[Any, Any, T]]) -> T:
    """Runs a scenario on virtual time; it opens the store at the path as often as it likes."""

    async def main(loop: SimLoop) -> T:
        opened: list[EmbeddedStore] = []

        async def open_store() -> EmbeddedStore:
            opened.append(await EmbeddedStore.open(path, SimClock(loop), worker=CountingWorker()))
            return opened[-1]

        try:
            return await scenario(open_store)
        finally:
            for store in opened:
                await store.close()

    return run(main)


async def state_of(store: EmbeddedStore) -> State:
    listing = await store.range("")
    return listing.items, listing.revision


def read(path: Path) -> State:
    async def scenario(open_store: Opener) -> State:
        return await state_of(await open_store())

    return simulate(path, scenario)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


def fill(path: Path) -> State:
    """A closed store with keys that were put, replaced, deleted, and held by a lease."""

    async def scenario(open_store: Opener) -> State:
        store = await open_store()
        lease = await store.grant_lease(60_000)
        for n in range(40):
            await store.transact([], [Put(f"/topics/{n % 30}", b"%d" % n * 20), Put("/last", b"%d" % n, lease)])
        return await state_of(store)

    return simulate(path, scenario)


# ---- what is there after a restart


def test_a_store_opened_again_is_as_it_was(path: Path) -> None:
    assert fill(path) == read(path) == read(path)


def test_revisions_and_leases_go_on_after_a_restart(path: Path) -> None:
    async def scenario(open_store: Opener) -> None:
        store = await open_store()
        lease = await store.grant_lease(2000)
        await store.transact([], [Put("a", b"", lease)])
        before = (await store.range("")).revision
        await asyncio.sleep(1.9)
        await store.close()

        store = await open_store()
        with pytest.raises(Compacted) as caught:
            await anext(store.watch("", before))
        assert caught.value.compact_revision == before + 1
        await asyncio.sleep(1.9)
        assert await store.get("a") is not None, "a lease has its whole time again after a restart"
        watch = store.watch("", before + 1)
        (gone,) = await anext(watch)
        assert (gone.key, gone.item, gone.revision) == ("a", None, before + 1)
        with pytest.raises(LeaseLost):
            await store.keep_alive(lease)
        assert await store.grant_lease(1000) > lease

    simulate(path, scenario)


def test_what_was_acknowledged_is_in_the_files_at_once(path: Path, tmp_path: Path) -> None:
    """The files are copied while the store is open, which is what a kill leaves behind."""

    async def scenario(open_store: Opener) -> list[State]:
        store = await open_store()
        states = []
        for n in range(25):
            await store.transact([], [Put(f"{n % 5}", bytes(100 * n))])
            _copy_store(path, tmp_path / f"{n}.db")
            states.append(await state_of(store))
        return states

    for n, state in enumerate(simulate(path, scenario)):
        assert read(tmp_path / f"{n}.db") == state


def test_changes_that_come_together_share_a_sync(path: Path) -> None:
    async def main(loop: SimLoop) -> int:
        worker = CountingWorker()
        store = await EmbeddedStore.open(path, SimClock(loop), worker=worker)
        opened = worker.runs
        await asyncio.gather(*(store.transact([], [Put(f"{n}", b"")]) for n in range(500)))
        synced = worker.runs - opened
        assert (await store.range("")).revision == 501
        await store.close()
        return synced

    assert run(main) <= 2


def test_the_file_is_private(path: Path) -> None:
    fill(path)
    assert [file.stat().st_mode & 0o077 for file in (path, backup_of(path))] == [0, 0]


async def test_it_runs_on_a_thread_of_its_own(path: Path) -> None:
    store = await EmbeddedStore.open(path, SystemClock())
    results = await asyncio.gather(*(store.transact([], [Put(f"{n}", b"x")]) for n in range(100)))
    assert sorted(result.revision for result in results) == list(range(2, 102))
    await store.close()
    store = await EmbeddedStore.open(path, SystemClock())
    assert len((await store.range("")).items) == 100
    await store.close()


def test_one_store_has_one_owner(path: Path) -> None:
    async def scenario(open_store: Opener) -> None:
        await open_store()
        with pytest.raises(DataFolderTaken):
            await open_store()

    simulate(path, scenario)


# ---- damage


def test_no_flipped_bit_changes_what_is_read(path: Path) -> None:
    """Every flip is found, or lies where nothing is kept; the damaged file is left as it was found."""
    state = fill(path)
    sound = path.read_bytes()
    random = Random(11)
    found = 0
    for position in [*range(100), *range(100, len(sound), 41)]:
        data = bytearray(sound)
        data[position] ^= 1 << random.randrange(8)
        path.write_bytes(data)
        try:
            assert read(path) == state, f"byte {position}"
        except (StoreDamaged, UnsupportedVersion):
            found += 1
            assert path.read_bytes() == data, f"byte {position}"
    assert found > 100


def test_no_truncation_goes_unnoticed(path: Path) -> None:
    fill(path)
    sound = path.read_bytes()
    for size in range(0, len(sound), 509):
        path.write_bytes(sound[:size])
        with pytest.raises(StoreDamaged):
            read(path)


def test_a_damaged_log_loses_at_most_the_commit_that_may_be_unfinished(path: Path, tmp_path: Path) -> None:
    """In the last commit damage cannot be told from a crash in the middle of it; anywhere before, it is found."""

    async def scenario(open_store: Opener) -> list[State]:
        store = await open_store()
        states = []
        for n in range(6):
            await store.transact([], [Put("a", b"%d" % n)])
            states.append(await state_of(store))
        _copy_store(path, tmp_path / "killed.db")
        return states

    states = simulate(path, scenario)
    killed, damaged = tmp_path / "killed.db", tmp_path / "damaged.db"
    sound = log_of(killed).read_bytes()
    found = 0
    for position in [*range(64), *range(64, len(sound), 97)]:
        for file in tmp_path.glob("damaged.db*"):
            file.unlink()
        _copy_store(killed, damaged)
        data = bytearray(sound)
        data[position] ^= 0x10
        log_of(damaged).write_bytes(data)
        try:
            assert read(damaged) in states[-2:], f"byte {position}"
        except StoreDamaged:
            found += 1
            assert log_of(damaged).read_bytes() == data
    assert found > 100


def test_the_way_back_is_in_the_error(path: Path) -> None:
    state = fill(path)
    read(path)  # opening it makes a backup
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(StoreDamaged) as caught:
        read(path)
    assert str(backup_of(path)) in caught.value.message
    assert caught.value.details["restore"] in caught.value.message
    subprocess.run(caught.value.details["restore"], shell=True, check=True)
    assert read(path) == state
    assert path.with_name(path.name + ".damaged").stat().st_size == 5000


def test_a_store_that_vanished_is_not_taken_for_a_new_one(path: Path) -> None:
    state = fill(path)
    path.unlink()
    with pytest.raises(StoreDamaged, match="is missing") as caught:
        read(path)
    subprocess.run(caught.value.details["restore"], shell=True, check=True)
    assert read(path) == state


def test_without_a_backup_the_error_says_so(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(StoreDamaged, match="no backup"):
        read(path)
    assert path.read_bytes() == b""


def test_what_a_crash_left_of_a_new_store_is_made_anew(path: Path) -> None:
    path.with_name("metadata.db.copy").write_bytes(b"half a store")
    assert read(path) == ((), 1)


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"SQLite format 3\0" + bytes(4080)])
def test_files_of_another_kind_are_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreDamaged):
        read(path)


def test_a_database_of_another_program_is_refused(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE things (name TEXT)")
    database.close()
    with pytest.raises(StoreDamaged, match="not a metadata file of Comet"):
        read(path)


def test_a_store_of_a_later_version_is_refused(path: Path) -> None:
    fill(path)
    _alter(path, "UPDATE state SET schema = 2")
    with pytest.raises(UnsupportedVersion, match="format 2"):
        read(path)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM item WHERE key = CAST('/topics/3' AS BLOB)",
        "UPDATE item SET value = x'00' WHERE key = CAST('/topics/3' AS BLOB)",
        "UPDATE item SET mod_revision = 1000",
        "UPDATE item SET lease = 99",
        "UPDATE item SET key = CAST(key AS TEXT)",
        "DELETE FROM lease",
        "UPDATE lease SET ttl_ms = 'soon'",
        "UPDATE state SET revision = 2",
        "UPDATE state SET revision = 'two'",
        "UPDATE state SET digest = digest + 1",
        "DELETE FROM state",
        "INSERT INTO state SELECT * FROM state",
        "DROP TABLE lease",
    ],
)
def test_rows_that_nobody_wrote_are_found(path: Path, statement: str) -> None:
    """As after a page that came back in an older version, or was never written: sound to SQLite, wrong all the same."""
    fill(path)
    _alter(path, statement)
    with pytest.raises(StoreDamaged):
        read(path)


# ---- the backup


def test_the_backup_follows_while_the_store_is_open(path: Path, tmp_path: Path) -> None:
    async def scenario(open_store: Opener) -> None:
        store = await open_store()
        await store.transact([], [Put("early", b"")])
        await asyncio.sleep(BACKUP_INTERVAL_S)
        await store.transact([], [Put("late", b"")])
        await store.transact([], [Put("later", b"")])  # waits for the writer, and so for the backup before it
        shutil.copyfile(backup_of(path), tmp_path / "backup.db")

    simulate(path, scenario)
    assert [item.key for item in read(tmp_path / "backup.db")[0]] == ["early", "late"]


def test_closing_leaves_a_backup_of_the_last_state(path: Path, tmp_path: Path) -> None:
    state = fill(path)
    shutil.copyfile(backup_of(path), tmp_path / "backup.db")
    assert read(tmp_path / "backup.db") == state


# ---- disks that refuse


def test_a_full_disk_refuses_changes_and_heals(path: Path) -> None:
    async def scenario(open_store: Opener) -> State:
        store = await open_store()
        lease = await store.grant_lease(1000)
        await store.transact([], [Put("kept", b"1"), Put("leased", b"", lease)])
        before = await state_of(store)
        with _full_disk(store):
            for _ in range(3):
                with pytest.raises(DiskFull):
                    await store.transact([], [Put("big", bytes(100_000))])
        assert await state_of(store) == before
        await store.transact([], [Put("big", bytes(100_000))])
        return await state_of(store)

    state = simulate(path, scenario)
    assert [item.key for item in state[0]] == ["big", "kept", "leased"]


def test_a_lease_that_ends_while_the_disk_is_full_takes_its_keys_along_later(path: Path) -> None:
    async def main(loop: SimLoop) -> None:
        worker = CountingWorker()
        store = await EmbeddedStore.open(path, SimClock(loop), worker=worker)
        lease = await store.grant_lease(1000)
        await store.transact([], [Put("leased", b"", lease), Put("kept", b"")])
        worker.full = True
        await asyncio.sleep(1.5)
        assert await store.get("leased") is not None
        with pytest.raises(LeaseLost):
            await store.keep_alive(lease)
        worker.full = False
        await asyncio.sleep(1.1)
        assert [item.key for item in (await store.range("")).items] == ["kept"]
        await store.close()
        assert not loop.unhandled

    run(main)


def test_closing_goes_on_when_nobody_waits_for_it(path: Path) -> None:
    async def scenario(open_store: Opener) -> None:
        store = await open_store()
        change = asyncio.ensure_future(store.transact([], [Put("a", b"")]))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing
        assert (await change).applied
        await store.close()
        assert not log_of(path).exists()

    simulate(path, scenario)


def test_after_a_failed_write_nothing_more_is_written(path: Path) -> None:
    """What reached the disk is unknown then, so the store says so, for good; what was acknowledged is still there."""

    async def scenario(open_store: Opener) -> State:
        store = await open_store()
        await store.transact([], [Put("acknowledged", b"1")])
        before = await state_of(store)
        with _files_limited_to(log_of(path).stat().st_size + 100), pytest.raises(StoreUnavailable):
            await store.transact([], [Put("unknown", b"2")])
        with pytest.raises(StoreUnavailable):
            await store.transact([], [Put("later", b"3")])
        assert await state_of(store) == before, "reads go on"
        assert store.statistics()["failed"] == 1
        await store.close()
        return await state_of(await open_store())

    items, _ = simulate(path, scenario)
    keys = [item.key for item in items]
    assert "acknowledged" in keys
    assert "later" not in keys


def test_when_the_writer_is_cancelled_everyone_is_told(path: Path) -> None:
    async def scenario(open_store: Opener) -> None:
        store = await open_store()
        watch = store.watch("", 2)
        waiting = asyncio.ensure_future(anext(watch, None))
        calls = [asyncio.ensure_future(store.transact([], [Put(f"{n}", b"")])) for n in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert store._writer is not None
        store._writer.cancel()
        with suppress(asyncio.CancelledError):
            await store._writer
        for call in calls:
            with pytest.raises(StoreUnavailable):
                await call
        assert await waiting is None
        with pytest.raises(Closed):
            await store.get("0")

    simulate(path, scenario)
    assert len(read(path)[0]) in {0, 3}


# ---- helpers


def _copy_store(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    shutil.copyfile(log_of(source), log_of(target))


def _alter(path: Path, statement: str) -> None:
    """Changes a closed store behind its back, as damage would that SQLite cannot see."""
    database = sqlite3.connect(path, isolation_level=None)
    assert database.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    database.execute(statement)
    database.close()


@contextmanager
def _full_disk(store: EmbeddedStore) -> Iterator[None]:
    """SQLite takes no new page, which it reports as it does a full disk."""
    database = store._file._database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")
    try:
        yield
    finally:
        database.execute("PRAGMA max_page_count = 1000000")


@contextmanager
def _files_limited_to(size: int) -> Iterator[None]:
    """No file of this process may grow beyond the size: a write fails half-way with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
