"""The metadata store for this broker's parts, as long as its history continues what the data folder knows.

    listing of cluster/ ─► judge ─┬─ same history ──────► the floor rises, and is written once a second
                                  └─ other history ─────► distrust: every call is refused from then on
    transact ─► + compare of cluster/lineage ─► an answer from an earlier revision, or another lineage ─► judge

A store that was restored from a snapshot, emptied or exchanged is recognised before anything is read from it or written
to it. The broker then leads, follows and coordinates nothing, and logs it every ten seconds. It trusts the store again
when a listing continues from the floor: the operator has restored the right store.

Owned by the broker. The view's watch bypasses the guard, which judges its events.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

import msgspec

from comet.errors import Closed, Unavailable
from comet_broker.cluster.metadata_floor import read_floor, write_floor
from comet_broker.core.cluster import (
    BROKERS,
    CLUSTER,
    ID,
    LINEAGE,
    PARTITIONS,
    BrokerRecord,
    ClusterState,
    LineageEntry,
    PartitionId,
    PartitionState,
    broker_key,
)
from comet_broker.core.lineage import (
    MARK_BITS,
    Floor,
    LineageFinding,
    PartitionChange,
    Seen,
    extended,
    intending,
    is_older,
    judge,
    overtaken,
    raised,
    seen_in,
    with_revisions,
)
from comet_broker.metadata.store import (
    Compacted,
    Compare,
    Delete,
    KeyValue,
    MetadataStore,
    Put,
    RangeResult,
    Reconnected,
    StoreUnavailable,
    TransactionResult,
    WatchEvent,
    close_watch,
)
from comet_broker.ports import Clock, Files, Worker
from comet_broker.storage.data_folder import read_identity
from comet_broker.tasks import Tasks

log = logging.getLogger(__name__)

WRITE_S: Final = 1.0
RETRY_MS: Final = 1_000
REMIND_S: Final = 10.0
TICK_S: Final = 2.0
HISTORY_S: Final = 5.0
ATTEMPTS_MAX: Final = 8  # of one transaction, while others register
ADVICE: Final = (
    "This broker neither leads, follows nor coordinates until the metadata store is the right one again: restore it,"
    " or accept its current content with 'comet cluster recover' (docs/operating.md)"
)
UNTRUSTED: Final = "the metadata store went back in time, was emptied or exchanged"
RESTART: Final = (
    "an operator has recovered the metadata store, and this broker still runs with the state of the earlier one:"
    " restart it"
)


class StoreGuard:
    """A MetadataStore. `reason` says why it is not trusted; empty if it is."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        me: int,
        files: Files,
        worker: Worker,
        random: Random,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self.inner = store
        self.reason = ""
        self.older = False  # the folder is a copy from before this broker's last registration
        self.floor = Floor()
        self.distrusted: list[Callable[[], None]] = []  # called on the loop, in this order
        self.trusted: list[Callable[[], None]] = []
        self.distrusts = 0
        self.registered: dict[int, str] = {}  # the addresses of the other brokers in the last listing
        self._me = me
        self._files = files
        self._worker = worker
        self._random = random
        self._clock = clock
        self._tasks = tasks
        self.judged = False  # a listing was accepted: there is a view of this history
        self._lineage = 0  # the key's mod_revision as far as it is known
        self._epochs: dict[str, int] = {}  # of the partitions that are here: the floor's
        self._last_change = PartitionChange()  # the floor's `changed`
        self._trusting = asyncio.Event()
        self._trusting.set()
        self._written: Floor | None = None
        self._writing = asyncio.Lock()
        self._reminding: asyncio.Task[None] | None = None
        self._ticked_at = 0.0
        self._changed = False  # partitions have, since the newest entry of the lineage

    def open(self) -> None:
        """Reads the folder's floor. Blocks. Raises StoreDamaged."""
        identity = read_identity(self._files)
        self._written = read_floor(self._files)
        self.floor = self._written or Floor(cluster_id="" if identity is None else identity.cluster_id)
        self._epochs = dict(self.floor.epochs)
        self._last_change = self.floor.changed

    def known(self) -> Floor:
        """The floor with the epochs of the partitions that are here."""
        return msgspec.structs.replace(self.floor, epochs=dict(self._epochs), changed=self._last_change)

    def check_trust(self) -> None:
        """Raises Unavailable while the store is not trusted."""
        if self.reason:
            raise Unavailable(f"broker {self._me}: {self.reason}", retry_after_ms=RETRY_MS)

    def statistics(self) -> dict[str, object]:
        return {"trusted": not self.reason, "reason": self.reason, "distrusts": self.distrusts}

    async def find_cluster(self) -> str:
        """The cluster's id; the first broker creates it. A broker whose folder belongs to a cluster does not: a store
        without an id has lost its data then."""
        while True:
            item = await self.inner.get(ID)
            if item is not None:
                return item.value.decode()
            if self.floor.cluster_id:
                return self.floor.cluster_id
            cluster_id = f"{self._random.getrandbits(128):032x}".encode()
            await self.inner.transact([Compare(ID, 0)], [Put(ID, cluster_id)])

    # ---- judging

    async def admit(self, listing: RangeResult, known: Floor) -> bool:
        """Whether a listing of `cluster/` continues from what was known when it was requested; if so, learns from it.
        Raises StoreUnavailable."""
        distrusts = self.distrusts
        seen = await self._with_history(seen_in(listing.items, listing.revision), self._last_change)
        if self.distrusts > distrusts:
            return False
        self.registered = registered_in(listing.items, self._me)
        news = listing.revision >= self.floor.revision  # else the watch was faster
        epochs, changed = (self._epochs, self._last_change) if news else ({}, PartitionChange())
        verdict = judge(msgspec.structs.replace(known, epochs=epochs, changed=changed), seen)
        if verdict.finding is LineageFinding.RECOVERED and self.judged:
            self.distrust(RESTART)
            return False
        if not verdict.sound:
            self.distrust(f"{UNTRUSTED}: {verdict.why}")
            return False
        if verdict.finding is LineageFinding.RECOVERED:
            log.warning("an operator has recovered the metadata store: this broker goes on with it")
            self.floor = msgspec.structs.replace(self.floor, revision=0)
            self._epochs.clear()
            self._last_change = PartitionChange()
        if not self.judged:
            self.older = bool(known.cluster_id) and is_older(known, seen, self._me)
            self.judged = True
        for change in seen.changes.values():
            self._note_change(change)
        self._raise(seen)
        self._trust()
        return True

    async def _with_history(self, seen: Seen, change: PartitionChange) -> Seen:
        """Adds the first write that the store has at `change`, if the partition was written since."""
        if not overtaken(change, seen):
            return seen
        event = await self._first_event(PARTITIONS + change.partition, change.revision)
        if event is None:
            return seen
        if event.item is None:
            return replace(seen, then=PartitionChange(change.partition, event.revision))
        try:
            then = PartitionChange.of(change.partition, event.revision, PartitionState.decode(event.item.value))
        except msgspec.DecodeError:
            return seen
        return replace(seen, then=then)

    async def _first_event(self, key: str, from_revision: int) -> WatchEvent | None:
        """The key's first event from that revision on; None if the store has compacted it."""
        watch = self.inner.watch(key, from_revision)
        try:
            async with asyncio.timeout(HISTORY_S):
                async for events in watch:
                    for event in events:
                        if event.key == key:
                            return event
        except Compacted:
            return None
        except (Reconnected, TimeoutError) as error:
            raise StoreUnavailable(f"it did not return the events of revision {from_revision}") from error
        finally:
            await close_watch(watch)
        raise Closed("the metadata store is closed")

    async def learn(self, floor: Floor, broker: int) -> None:
        """Takes a warning from another broker that does not trust the store. If its floor contradicts the store's
        listing, it becomes this broker's floor, too, until the right store is back. Raises StoreUnavailable."""
        known = self.floor  # it rises during the request
        listing = await self.inner.range(CLUSTER)
        listed = seen_in(listing.items, listing.revision)
        seen = await self._with_history(listed, floor.changed)
        same = floor.cluster_id == self.floor.cluster_id
        if self.reason or not same or floor.recoveries < self.floor.recoveries or judge(floor, seen).sound:
            return
        own = judge(known, listed)
        if own.finding is not LineageFinding.SAME:  # this broker knows as much, and has not checked yet
            self.distrust(f"{UNTRUSTED}: {own.why}" if own.why else RESTART)
            return
        self.floor = msgspec.structs.replace(
            self.floor, mark=floor.mark, revision=floor.revision, recoveries=floor.recoveries
        )
        self._last_change = floor.changed
        self._epochs.update({tp: epoch for tp, epoch in floor.epochs.items() if seen.epochs.get(tp, epoch) < epoch})
        self.distrust(f"{UNTRUSTED}: broker {broker} knows a later state")

    def moved(self, keys: Sequence[str], state: ClusterState) -> None:
        """Follows the view in the same history."""
        if self.reason:
            return
        changed = [_tp_of(key) for key in keys if key.startswith(PARTITIONS)]
        for tp in changed:
            found = state.partitions.get(tp)
            if found is not None:
                self._note_change(PartitionChange.of(f"{tp[0]}/{tp[1]}", found.mod_revision, found.value))
            if found is not None and self._me in found.value.holders:
                self._epochs[f"{tp[0]}/{tp[1]}"] = found.value.epoch
            else:
                self._epochs.pop(f"{tp[0]}/{tp[1]}", None)
        self._changed = self._changed or bool(changed)
        if state.revision <= self.floor.revision:
            return  # an answer was faster
        if LINEAGE not in keys:
            self.floor = msgspec.structs.replace(self.floor, revision=state.revision)
            return
        entries = () if state.lineage is None else with_revisions(state.lineage.value, state.lineage.mod_revision)
        seen = Seen(state.cluster_id, entries, state.revision, {})
        verdict = judge(msgspec.structs.replace(self.floor, epochs={}), seen)
        if verdict.finding is LineageFinding.SAME:
            self._raise(seen)
            self._changed = False
        else:
            self.distrust(f"{UNTRUSTED}: {verdict.why}" if verdict.why else RESTART)

    def _note_change(self, change: PartitionChange) -> None:
        if change.revision > self._last_change.revision:
            self._last_change = change

    def wrote(self, tp: PartitionId, epoch: int) -> None:
        """Checks the epoch of records in a log here against the view's."""
        name = f"{tp[0]}/{tp[1]}"
        known = self._epochs.get(name, epoch)
        if known < epoch:
            self._epochs[name] = epoch
            self.distrust(
                f"{UNTRUSTED}: partition {name} is in epoch {known} there, and its log has records of epoch {epoch}"
            )

    def _raise(self, seen: Seen) -> None:
        if seen.revision >= self.floor.revision:
            self.floor = raised(self.floor, seen)
            self._lineage = seen.entries[-1].revision if seen.entries else 0

    def distrust(self, reason: str) -> None:
        """Refuses all reads and writes of the store from now on."""
        if self.reason:
            self.reason = reason
            return
        self.reason = reason
        self.distrusts += 1
        self._trusting.clear()
        log.error("%s. %s", reason, ADVICE)
        self._reminding = self._tasks.spawn(self._remind(), "remind of an untrusted metadata store")
        for callback in list(self.distrusted):
            callback()

    def _trust(self) -> None:
        if not self.reason:
            return
        log.warning("the metadata store continues from what this broker knows, and is trusted again")
        self.reason = ""
        self._trusting.set()
        if self._reminding is not None:
            self._reminding.cancel()
            self._reminding = None
        for callback in list(self.trusted):
            callback()

    async def _remind(self) -> None:
        while True:
            await asyncio.sleep(REMIND_S)
            log.error("%s. %s", self.reason, ADVICE)

    # ---- registering

    async def enter(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        """Registers, with an entry in the lineage in the same transaction. The folder stores the entry's mark before
        the store does, so a kill between the two does not look like an older folder."""
        for _ in range(ATTEMPTS_MAX):
            entries = await self._entries()
            mark = self._mark(entries)
            self.floor = intending(self.floor, mark)
            await self.write()
            result = await self._add(LineageEntry(self._me, mark), entries, compares, operations)
            if result is not None:
                return result
        raise StoreUnavailable(f"other brokers registered {ATTEMPTS_MAX} times meanwhile")

    def _mark(self, entries: Sequence[LineageEntry]) -> str:
        """A mark that no entry has: a duplicate would look like a history that has branched."""
        known = {entry.mark for entry in entries}
        while (mark := f"{self._random.getrandbits(MARK_BITS):016x}") in known:
            pass
        return mark

    async def _entries(self) -> tuple[LineageEntry, ...]:
        """The current lineage, if it continues from what is known."""
        self._check()
        known = self.floor
        found = await self.inner.range(LINEAGE)
        self._check()
        seen = seen_in([item for item in found.items if item.key == LINEAGE], found.revision)
        seen = Seen(known.cluster_id, seen.entries, seen.revision, {})
        verdict = judge(msgspec.structs.replace(known, epochs={}), seen)
        if verdict.finding is not LineageFinding.SAME:
            self.distrust(f"{UNTRUSTED}: {verdict.why}" if verdict.why else RESTART)
            self._check()
        self._raise(seen)
        return seen.entries

    async def _add(
        self,
        entry: LineageEntry,
        entries: Sequence[LineageEntry],
        compares: Sequence[Compare],
        operations: Sequence[Put | Delete],
    ) -> TransactionResult | None:
        """None if the lineage has changed meanwhile: nothing was written."""
        known = entries[-1].revision if entries else 0
        put = Put(LINEAGE, extended(entries, entry).encode())
        result = await self.inner.transact([*compares, Compare(LINEAGE, known)], [*operations, put])
        self._check()
        if not result.applied:
            now = await self._entries()
            return result if (now[-1].revision if now else 0) == known else None
        if result.revision > self.floor.revision:
            self.floor = msgspec.structs.replace(self.floor, mark=entry.mark, revision=result.revision)
            self._lineage = result.revision
        self._changed = False
        await self.write()
        self._check()
        return result

    async def tick(self) -> None:
        """Adds an entry if partitions have changed since the newest one: a snapshot from before the change lacks it."""
        now = self._clock.monotonic()
        if not self._changed or self.reason or now - self._ticked_at < TICK_S:
            return
        self._ticked_at = now
        entries = await self._entries()
        mark = self._mark(entries)
        await self._add(LineageEntry(self._me, mark, tick=True), entries, [], [])

    # ---- the floor's file

    async def keep(self, controls: Callable[[], bool]) -> None:
        """Writes the floor, at most once a second, and ticks if this broker is the controller. A task of its own."""
        while True:
            await asyncio.sleep(WRITE_S)
            await self.write()
            if controls():
                with contextlib.suppress(StoreUnavailable, Closed):
                    await self.tick()

    async def write(self) -> None:
        """Writes the floor; retried later if the disk fails, and until then the folder knows less."""
        async with self._writing:
            floor = self.known()
            if self.reason or floor == self._written or not floor.cluster_id:
                return
            try:
                await self._worker.run(lambda: write_floor(self._files, floor))
            except OSError as error:
                log.warning("cannot write the floor of the metadata store: %s", error)
            else:
                self._written = floor

    # ---- MetadataStore

    def _check(self) -> None:
        if self.reason:
            raise StoreUnavailable(self.reason)

    async def ready(self) -> None:
        """Returns once the store is trusted."""
        await self._trusting.wait()

    async def get(self, key: str) -> KeyValue | None:
        self._check()
        found = await self.inner.get(key)
        self._check()
        return found

    async def range(self, prefix: str) -> RangeResult:
        self._check()
        known = self.floor.revision
        found = await self.inner.range(prefix)
        self._check()
        self._check_revision(found.revision, known)
        return found

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        """Runs a transaction in the known history only: checks registrations meanwhile before it retries."""
        for _ in range(ATTEMPTS_MAX):
            self._check()
            known, lineage = self.floor.revision, self._lineage
            more = [Compare(LINEAGE, lineage)] if operations else []
            result = await self.inner.transact([*compares, *more], operations)
            self._check()
            self._check_revision(result.revision, known)
            if not operations:
                return result
            if result.applied:
                if self._lineage == lineage and result.revision > self.floor.revision:
                    self.floor = msgspec.structs.replace(self.floor, revision=result.revision)
                return result
            now = await self._entries()
            if (now[-1].revision if now else 0) == lineage:
                return result
        raise StoreUnavailable(f"other brokers registered {ATTEMPTS_MAX} times meanwhile")

    def _check_revision(self, revision: int, known: int) -> None:
        """Checks an answer's revision; `known` was the highest one when the request was sent."""
        if revision < known:
            self.distrust(f"{UNTRUSTED}: it answered at revision {revision} after revision {known}")
            self._check()

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        return self.inner.watch(prefix, from_revision)

    async def grant_lease(self, ttl_ms: int) -> int:
        self._check()
        return await self.inner.grant_lease(ttl_ms)

    async def keep_alive(self, lease: int) -> int:
        self._check()
        ttl_ms = await self.inner.keep_alive(lease)
        self._check()
        return ttl_ms

    async def revoke_lease(self, lease: int) -> None:
        self._check()
        await self.inner.revoke_lease(lease)

    async def close(self) -> None:
        await self.inner.close()


def registered_in(items: Iterable[KeyValue], me: int) -> dict[int, str]:
    found = {}
    for item in items:
        if item.key.startswith(BROKERS) and item.key != broker_key(me):
            with contextlib.suppress(msgspec.DecodeError):
                record = BrokerRecord.decode(item.value)
                found[int(item.key.removeprefix(BROKERS))] = record.brokers_address
    return found


def _tp_of(key: str) -> PartitionId:
    topic_id, _, index = key.removeprefix(PARTITIONS).partition("/")
    return topic_id, int(index)
