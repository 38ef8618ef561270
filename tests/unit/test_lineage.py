"""Noticing that a metadata store went back in time: the verdict, the floor's file, and what a guarded store refuses."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest

from comet.errors import StoreDamaged, Unavailable
from comet_broker.cluster.metadata_floor import FILE, read_floor, write_floor
from comet_broker.cluster.store_guard import StoreGuard
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import ID, LINEAGE, Lineage, LineageEntry, PartitionState, partition_key
from comet_broker.core.lineage import (
    ENTRIES_MAX,
    Floor,
    LineageFinding,
    PartitionChange,
    Seen,
    extended,
    intending,
    is_older,
    judge,
    raised,
    with_revisions,
)
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import (
    OPERATIONS_MAX,
    TRANSACTION_BYTES_MAX,
    Compare,
    Put,
    RangeResult,
    StoreUnavailable,
)
from comet_broker.storage.memory import MemoryFiles
from comet_broker.tasks import Tasks
from comet_testing.simulation.clock import SimClock
from comet_testing.simulation.loop import SimLoop, run

TP = ("0f" * 16, 0)


def entries(*revisions: int) -> tuple[LineageEntry, ...]:
    return tuple(LineageEntry(1, f"m{revision}", revision) for revision in revisions)


def seen(*revisions: int, at: int, cluster: str = "c", **epochs: int) -> Seen:
    return Seen(cluster, entries(*revisions), at, epochs)


def floor(mark: int, at: int, **more: Any) -> Floor:
    return Floor("c", f"m{mark}" if mark else "", at, **more)


@pytest.mark.parametrize(
    ("known", "found", "finding"),
    [
        (Floor(), seen(5, at=9, cluster="other"), LineageFinding.SAME),  # of no cluster yet
        (floor(5, 9), seen(5, at=9), LineageFinding.SAME),
        (floor(5, 9), seen(5, 10, 20, at=30), LineageFinding.SAME),
        (floor(0, 9), seen(at=9), LineageFinding.SAME),  # a version without a lineage
        (floor(0, 9), seen(12, at=15), LineageFinding.SAME),
        (floor(5, 9), seen(5, at=9, cluster=""), LineageFinding.EMPTIED),
        (floor(5, 9), seen(5, at=9, cluster="d"), LineageFinding.EXCHANGED),
        (floor(5, 9), seen(5, at=8), LineageFinding.WENT_BACK),
        (floor(5, 9), seen(3, at=9), LineageFinding.WENT_BACK),  # the mark is missing
        (floor(5, 9), seen(at=20), LineageFinding.WENT_BACK),
        (floor(5, 9), seen(3, 7, at=20), LineageFinding.WENT_BACK),
        (floor(5, 9), seen(5, 8, at=20), LineageFinding.WENT_BACK),  # another registration where there was none
        (floor(5, 9), seen(5, 9, at=20), LineageFinding.WENT_BACK),
        (floor(5, 9, epochs={"p": 3}), seen(5, at=9, p=3), LineageFinding.SAME),
        (floor(5, 9, epochs={"p": 3}), seen(5, at=9), LineageFinding.SAME),  # deleted
        (floor(5, 9, epochs={"p": 3}), seen(5, at=9, p=2), LineageFinding.WENT_BACK),
    ],
)
def test_a_store_is_judged_by_what_the_folder_knows(known: Floor, found: Seen, finding: LineageFinding) -> None:
    verdict = judge(known, found)
    assert verdict.finding is finding
    assert bool(verdict.why) == (not verdict.sound)


def test_a_mark_that_was_dropped_long_ago_is_not_missed() -> None:
    kept = entries(*range(1000, 1000 + ENTRIES_MAX))
    assert judge(floor(5, 9), Seen("c", kept, 5000, {})).finding is LineageFinding.SAME
    assert judge(floor(5, 1100), Seen("c", kept, 5000, {})).finding is LineageFinding.WENT_BACK


def test_a_recovery_is_a_continuation_for_those_that_know_no_more_than_was_asked_for_and_only_once() -> None:
    recovered = Seen("c", (*entries(3), LineageEntry(1, "r1", 10, recovery=1, below=500)), 10, {})
    assert judge(floor(5, 500), recovered).finding is LineageFinding.RECOVERED
    assert judge(floor(5, 501), recovered).finding is LineageFinding.WENT_BACK, "it was not asked, and knows more"
    accepted = raised(floor(5, 500), recovered)
    assert accepted.recoveries == 1 and judge(accepted, recovered).finding is LineageFinding.SAME
    # It went back once more, to the recovery or to before it: what was accepted then was another history.
    later = raised(accepted, Seen("c", (*recovered.entries, *entries(40)), 45, {}))
    assert judge(later, recovered).finding is LineageFinding.WENT_BACK
    assert judge(later, seen(3, at=9)).finding is LineageFinding.WENT_BACK


def test_a_folder_that_was_put_back_from_a_copy_does_not_know_its_own_last_registration() -> None:
    before = intending(Floor("c"), "a")
    found = Seen("c", (LineageEntry(1, "a", 4), LineageEntry(2, "x", 5), LineageEntry(1, "b", 6)), 9, {})
    assert is_older(before, found, 1)
    assert not is_older(intending(before, "b"), found, 1), "a kill before or after the transaction makes no difference"
    assert not is_older(intending(intending(before, "b"), "never sent"), found, 1)
    assert not is_older(Floor("c"), found, 3)
    ticked = Seen("c", (*found.entries, LineageEntry(1, "t", 8, tick=True)), 9, {})
    assert not is_older(intending(before, "b"), ticked, 1)


def test_entries_are_bounded_and_get_their_revisions_from_the_key() -> None:
    lineage = Lineage()
    for number in range(ENTRIES_MAX + 5):
        lineage = extended(with_revisions(lineage, number + 1), LineageEntry(1, str(number)))
        lineage = Lineage.decode(lineage.encode())
    found = with_revisions(lineage, ENTRIES_MAX + 6)
    assert len(found) == ENTRIES_MAX
    assert [entry.revision for entry in found] == list(range(7, ENTRIES_MAX + 7))


def test_the_floor_is_read_as_it_was_written_and_a_damaged_one_is_refused() -> None:
    files = MemoryFiles(Random(1))
    assert read_floor(files) is None
    known = floor(5, 9, mine=("a", "b"), epochs={"p/0": 3}, recoveries=2)
    write_floor(files, known)
    assert read_floor(files) == known
    files.write_atomic(FILE, files.read_all(FILE).replace(b"m5", b"m6"))
    with pytest.raises(StoreDamaged, match="delete the file"):
        read_floor(files)


# ---- the guard


class Inline:
    async def run(self, function: Any) -> Any:
        return function()


class Guarded:
    """A guard with its view, over a store that can be set back."""

    def __init__(self, loop: SimLoop, broker: int = 1, files: MemoryFiles | None = None) -> None:
        self.loop = loop
        self.clock = SimClock(loop)
        self.store = MemoryStore(self.clock)
        self.files = files or MemoryFiles(Random(1))
        self.tasks = Tasks()
        self.guard = StoreGuard(
            self.store,
            me=broker,
            files=self.files,
            worker=Inline(),
            random=Random(broker),
            clock=self.clock,
            tasks=self.tasks,
        )
        self.view = ClusterView(self.store, self.tasks, judge=self.guard)
        self.guard.open()

    async def start(self) -> None:
        await self.guard.find_cluster()
        assert await self.view.check()
        await self.view.load()
        self.view.listen(lambda keys: self.guard.moved(keys, self.view.state))
        self.guard.distrusted.append(self.view.interrupt)
        self.tasks.spawn(self.view.follow(), "follow")
        await self.settle()

    async def settle(self) -> None:
        await asyncio.sleep(0.001)

    async def put(self, key: str, value: bytes = b"") -> int:
        return (await self.guard.transact([], [Put(key, value)])).revision

    async def go_back(self, snapshot: Any) -> None:
        self.store.restore(snapshot)
        await self.settle()


def guarded(scenario: Any) -> Any:
    def test() -> None:
        async def main(loop: SimLoop) -> None:
            one = Guarded(loop)
            try:
                await scenario(one)
                assert not one.tasks.failed
            finally:
                await one.tasks.close()
                await one.store.close()

        run(main)

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


@guarded
async def test_a_registration_adds_an_entry_and_the_folder_knows_its_mark_first(one: Guarded) -> None:
    await one.start()
    result = await one.guard.enter([Compare("k", 0)], [Put("k", b"")])
    assert result.applied
    item = await one.store.get(LINEAGE)
    assert item is not None
    (entry,) = with_revisions(Lineage.decode(item.value), item.mod_revision)
    known = read_floor(one.files)
    assert known is not None
    assert (known.mark, known.revision, known.mine) == (entry.mark, result.revision, (entry.mark,))
    assert not (await one.guard.enter([Compare("k", 0)], [Put("k", b"")])).applied, "what it compares comes first"
    assert (await one.store.get(LINEAGE)) == item


@guarded
async def test_a_transaction_may_be_as_large_as_without_a_guard(one: Guarded) -> None:
    await one.start()
    keys = [f"{number}" for number in range(OPERATIONS_MAX)]
    size = (TRANSACTION_BYTES_MAX - sum(map(len, keys))) // OPERATIONS_MAX
    done = await one.guard.transact([Compare(key, 0) for key in keys], [Put(key, bytes(size)) for key in keys])
    assert done.applied


@guarded
async def test_a_store_that_went_back_is_refused_at_the_next_transaction_and_takes_nothing(one: Guarded) -> None:
    await one.start()
    snapshot = one.store.snapshot()
    await one.guard.enter([], [Put("k", b"")])
    one.store.restore(snapshot, quietly=True)
    with pytest.raises(StoreUnavailable, match="went back"):
        await one.put("more")
    assert await one.store.get("more") is None
    for call in (one.guard.get("k"), one.guard.range("k"), one.guard.grant_lease(1000), one.guard.keep_alive(1)):
        with pytest.raises(StoreUnavailable, match="went back"):
            await call
    with pytest.raises(Unavailable, match="went back"):
        one.guard.check_trust()


@guarded
async def test_a_store_without_a_new_registration_is_refused_by_its_revision(one: Guarded) -> None:
    await one.start()
    await one.guard.enter([], [Put("k", b"")])
    snapshot = one.store.snapshot()
    await one.put("a")
    await one.put("b")
    one.store.restore(snapshot, quietly=True)
    with pytest.raises(StoreUnavailable, match="went back"):
        await one.put("c")


@guarded
async def test_a_listing_of_a_store_that_went_back_changes_nothing_and_the_right_one_is_trusted_again(
    one: Guarded,
) -> None:
    await one.start()
    snapshot = one.store.snapshot()
    await one.guard.enter([], [Put(partition_key(TP), PartitionState(1, 3, (1,), {1: 2}).encode())])
    await one.settle()
    right, revision = one.store.snapshot(), one.view.state.revision
    await one.go_back(snapshot)
    await asyncio.sleep(2)
    assert "went back" in one.guard.reason
    assert one.view.state.revision == revision and TP in one.view.state.partitions
    waiting = asyncio.ensure_future(one.guard.ready())
    await one.go_back(right)
    await asyncio.sleep(3)
    assert waiting.done() and not one.guard.reason
    await one.put("more")


@guarded
async def test_an_emptied_store_gets_no_new_id(one: Guarded) -> None:
    one.files.make_folder("topics")
    await one.start()
    await one.guard.enter([], [Put("k", b"")])
    await one.go_back(MemoryStore(one.clock).snapshot())
    await asyncio.sleep(2)
    assert "no cluster id" in one.guard.reason
    again = Guarded(one.loop, files=one.files)
    assert await again.guard.find_cluster() == one.guard.floor.cluster_id
    assert await again.store.get(ID) is None
    assert not await again.view.check()
    await again.tasks.close()
    await again.store.close()


@guarded
async def test_others_that_register_are_no_reason_for_a_refusal(one: Guarded) -> None:
    await one.start()
    other = StoreGuard(
        one.store,
        me=2,
        files=MemoryFiles(Random(2)),
        worker=Inline(),
        random=Random(2),
        clock=one.clock,
        tasks=one.tasks,
    )
    other.open()
    for number in range(5):
        assert (await one.guard.enter([], [Put("one", b"")])).applied
        assert (await other.enter([], [Put("other", b"")])).applied
        revision = await one.put("x", b"%d" % number)
        assert (await other.transact([Compare("x", revision)], [Put("y", b"")])).applied
        assert not (await other.transact([Compare("x", revision - 1)], [Put("y", b"")])).applied
    assert not one.guard.reason and not other.reason


@guarded
async def test_a_change_of_a_partition_without_a_registration_gets_an_entry_of_its_own(one: Guarded) -> None:
    """So that a snapshot from before it can be told from one that is newer, however many revisions follow."""
    await one.start()
    await one.guard.enter([], [Put("k", b"")])
    await one.settle()
    snapshot = one.store.snapshot()
    await one.put(partition_key(TP), PartitionState(1, 1, (1, 2), {1: 2}).encode())
    await one.settle()
    await asyncio.sleep(2)
    await one.guard.tick()
    await one.guard.write()
    known = read_floor(one.files)
    assert known is not None
    one.store.restore(snapshot, quietly=True)
    for number in range(10):
        await one.store.transact([], [Put("x", b"%d" % number)])
    item = await one.store.get(LINEAGE)
    assert item is not None
    found = Seen(known.cluster_id, with_revisions(Lineage.decode(item.value), item.mod_revision), 1000, {})
    assert judge(known, found).finding is LineageFinding.WENT_BACK


@guarded
async def test_a_store_that_went_back_is_noticed_though_its_revision_has_grown_beyond_the_floor(one: Guarded) -> None:
    """Leases that nobody renews expire in a restored store, and each lifts its revision."""
    await one.start()
    key = partition_key(TP)
    await one.guard.enter([], [Put(key, PartitionState(1, 3, (1, 2), {1: 2, 2: 3}).encode())])
    await one.settle()
    snapshot = one.store.snapshot()
    await one.guard.transact([], [Put(key, PartitionState(1, 3, (1, 2), {1: 2}).encode())])
    await one.settle()
    one.store.restore(snapshot)
    for number in range(5):
        await one.store.transact([], [Put(f"{number}", b"")])
    await asyncio.sleep(3)
    assert "does not have the change" in one.guard.reason
    with pytest.raises(StoreUnavailable, match="went back"):
        await one.put("more")


@pytest.mark.parametrize("lease_changes", [0, 5])
@pytest.mark.parametrize("running", [True, False])
def test_a_store_that_went_back_and_changed_the_same_partition_is_noticed(lease_changes: int, running: bool) -> None:
    """A broker that knows no more than the snapshot leads there: what this one knows is under what that one wrote."""

    @guarded
    async def scenario(one: Guarded) -> None:
        await one.start()
        key = partition_key(TP)
        await one.guard.enter([], [Put(key, PartitionState(1, 3, (1, 2), {1: 2, 2: 3}).encode())])
        await one.settle()
        snapshot = one.store.snapshot()
        await one.guard.transact([], [Put(key, PartitionState(1, 3, (1, 2), {1: 2}).encode())])
        await one.settle()
        await one.guard.write()
        one.store.restore(snapshot)
        for number in range(lease_changes):
            await one.store.transact([], [Put(f"{number}", b"")])
        for epoch in (4, 5):
            await one.store.transact([], [Put(key, PartitionState(2, epoch, (1, 2), {2: 3}).encode())])
        if running:
            await asyncio.sleep(3)
            assert "does not have the change" in one.guard.reason
        again = Guarded(one.loop, files=one.files)
        again.guard.inner = again.view._store = one.store
        assert not await again.view.check()
        assert "does not have the change" in again.guard.reason
        await again.tasks.close()

    scenario()


@guarded
async def test_changes_of_a_partition_since_are_no_reason_for_a_refusal(one: Guarded) -> None:
    await one.start()
    key = partition_key(TP)
    for epoch in range(3, 6):
        await one.guard.enter([], [Put(key, PartitionState(1, epoch, (1, 2), {1: 2, 2: 3}).encode())])
        await one.settle()
        await one.guard.write()
        again = Guarded(one.loop, files=one.files)
        again.guard.inner = again.view._store = one.store
        for later in range(2):
            await one.store.transact([], [Put(key, PartitionState(1, epoch, (1, 2), {1: later}).encode())])
        assert await again.view.check(), again.guard.reason
        await again.tasks.close()


@guarded
async def test_a_history_that_was_forgotten_proves_nothing(one: Guarded) -> None:
    one.store = one.guard.inner = one.view._store = MemoryStore(one.clock, history_revisions_max=2)
    await one.start()
    key = partition_key(TP)
    await one.guard.enter([], [Put(key, PartitionState(1, 3, (1, 2), {1: 2, 2: 3}).encode())])
    await one.settle()
    await one.guard.write()
    for epoch in range(4, 9):
        await one.store.transact([], [Put(key, PartitionState(2, epoch, (1, 2), {2: 3}).encode())])
    again = Guarded(one.loop, files=one.files)
    again.guard.inner = again.view._store = one.store
    assert await again.view.check(), again.guard.reason
    await again.tasks.close()


@guarded
async def test_a_log_with_records_of_a_later_epoch_is_as_good_as_a_floor(one: Guarded) -> None:
    await one.start()
    await one.guard.enter([], [Put(partition_key(TP), PartitionState(1, 3, (1,), {1: 2}).encode())])
    await one.settle()
    one.guard.wrote(TP, 3)
    assert not one.guard.reason
    one.guard.wrote(TP, 4)
    assert "epoch 4" in one.guard.reason
    await asyncio.sleep(3)
    assert "epoch 4" in one.guard.reason or "was in 4" in one.guard.reason, "it does not come back by itself"


@guarded
async def test_a_warning_counts_where_this_broker_knows_less_and_lowers_nothing_where_it_knows_more(
    one: Guarded,
) -> None:
    await one.start()
    await one.guard.enter([], [Put("k", b"")])
    await one.settle()
    right, known = one.store.snapshot(), one.guard.floor
    await one.guard.learn(known, 2)
    await one.guard.learn(Floor("another cluster", "mark", 1000), 2)
    assert not one.guard.reason
    more = msgspec.structs.replace(known, mark="later", revision=known.revision + 10)
    one.store.restore(MemoryStore(one.clock).snapshot(), quietly=True)
    await one.guard.learn(msgspec.structs.replace(more, mark="earlier", revision=1), 2)
    assert "no cluster id" in one.guard.reason and one.guard.floor == known
    one.store.restore(right)
    await asyncio.sleep(3)
    assert not one.guard.reason, "it looked again, and all was well"
    await one.guard.learn(more, 2)
    assert "broker 2 knows a later state" in one.guard.reason and one.guard.floor.mark == "later"
    await asyncio.sleep(3)
    assert one.guard.reason, "what it was told counts until the store is the right one"


HELD = PartitionState(1, 3, (1, 2), {1: 2, 2: 3})


@pytest.mark.parametrize(
    "more",
    [
        {"changed": PartitionChange(f"{TP[0]}/{TP[1]}", 1_000, 2, 3, (2,))},
        {"epochs": {f"{TP[0]}/{TP[1]}": 4}},
        {"revision": 1_000},
    ],
)
def test_each_thing_that_another_broker_knows_counts_until_the_store_is_the_right_one(more: dict[str, Any]) -> None:
    @guarded
    async def scenario(one: Guarded) -> None:
        await one.start()
        await one.guard.enter([], [Put(partition_key(TP), HELD.encode())])
        await one.settle()
        await one.guard.learn(msgspec.structs.replace(one.guard.known(), **more), 2)
        assert "broker 2 knows a later state" in one.guard.reason
        await asyncio.sleep(5)
        assert one.guard.reason

    scenario()


@guarded
async def test_a_warning_that_comes_while_the_store_goes_on_counts_as_well(one: Guarded) -> None:
    """What this broker learns while it lists the store is no sign that the store went back, and hides none."""
    await one.start()
    await one.guard.enter([], [Put("k", b"")])
    await one.settle()
    more = msgspec.structs.replace(one.guard.floor, mark="later", revision=one.guard.floor.revision + 10)
    listed = one.store.range

    async def late(prefix: str) -> RangeResult:
        found = await listed(prefix)
        for number in range(20):
            await one.guard.transact([], [Put("x", b"%d" % number)])
        return found

    one.store.range = late  # type: ignore[method-assign]
    await one.guard.learn(more, 2)
    one.store.range = listed  # type: ignore[method-assign]
    assert "broker 2 knows a later state" in one.guard.reason
    await asyncio.sleep(5)
    assert one.guard.reason
