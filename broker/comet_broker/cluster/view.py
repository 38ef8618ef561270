"""This broker's view of the cluster: one listing, then one watch, kept in step with the metadata store.

    load ─► listing ─► ClusterState ─► follow ─► watch ─► apply ─► applied, listeners
                          ▲                        │
                          └── listing, difference ◄┴─ history forgotten, store silent, a minute gone by

The view only moves forward in the store's revisions: older events and listings are dropped, from any source.
Differences that a listing shows are applied as if the watch had reported them, deletions as well, so that listeners
need not know the source.

A listing of another history is refused (`Judge`): the store was restored from a snapshot, emptied or exchanged. The
view then stops, and the store is listed once a second until it is the right one again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol

from comet.errors import Closed, Unavailable
from comet_broker.core.cluster import CLUSTER, ClusterState
from comet_broker.core.lineage import Floor
from comet_broker.metadata.store import (
    Compacted,
    KeyValue,
    MetadataStore,
    RangeResult,
    Reconnected,
    StoreUnavailable,
    WatchEvent,
    close_watch,
)
from comet_broker.ports import WirePeer
from comet_broker.tasks import Tasks
from comet_broker.waiters import Progress

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 2.0
RECONCILE_S: Final = 60.0
REFUSED_S: Final = 1.0
PROBLEMS_MAX: Final = 1_000

Listener = Callable[[Sequence[str]], None]


class HistoryJudge(Protocol):
    """Decides whether a listing belongs to the history that this broker knows."""

    @property
    def floor(self) -> Floor:
        """The current floor."""

    async def admit(self, listing: RangeResult, known: Floor) -> bool:
        """`known` is the floor when the listing was requested. Raises StoreUnavailable."""


class ClusterView:
    """Owned by the broker; used on its event loop. `state` is one object that changes between two awaits only."""

    def __init__(
        self, store: MetadataStore, tasks: Tasks, *, judge: HistoryJudge | None = None, reconcile_s: float = RECONCILE_S
    ) -> None:
        self.state = ClusterState()
        self.cluster_id = ""  # set at the start
        self.applied = Progress()
        self.problems: dict[str, str] = {}  # keys with unreadable values; their earlier values still count
        self._store = store
        self._tasks = tasks
        self._reconcile_s = reconcile_s
        self._judge = judge
        self._refused = False  # the last listing was refused
        self._interrupts = 0
        self._watching: AsyncIterator[Sequence[WatchEvent]] | None = None
        self._known: dict[str, int] = {}  # key -> mod_revision
        self._listeners: list[Listener] = []

    def address_of(self, broker: int) -> str | None:
        """Where a broker takes requests of other brokers; None if it is not registered."""
        found = self.state.brokers.get(broker)
        return None if found is None else found.value.brokers_address

    def wire_of(self, broker: int) -> WirePeer | None:
        """Where a broker takes streams of other brokers over the wire; None if it does not."""
        found = self.state.brokers.get(broker)
        address = None if found is None else found.value.brokers_wire_address
        return None if address is None else WirePeer(address, broker, self.cluster_id)

    def whereabouts(self, broker: int) -> dict[str, str]:
        """The address of a broker for clients, as details of an error."""
        found = self.state.brokers.get(broker)
        if found is None:
            return {}
        record = found.value
        details = {"leader": broker, "host": record.host, "port": record.port, "wire_port": record.wire_port}
        return {name: str(value) for name, value in details.items()}

    def broker_epochs(self) -> dict[int, int]:
        """Of all registered brokers, by id."""
        return {broker: found.create_revision for broker, found in self.state.brokers.items()}

    def folders(self) -> dict[int, str]:
        """The data folders of all registered brokers, by id."""
        return {broker: found.value.folder for broker, found in self.state.brokers.items()}

    def listen(self, callback: Listener) -> None:
        """Calls the listener after every batch of changes, with the changed keys, in the order of revisions."""
        self._listeners.append(callback)

    async def load(self) -> ClusterState:
        """The current view; waits for the store to answer, and to be the right one."""
        self._take_listing(await self._admitted())
        return self.state

    async def check(self) -> bool:
        """Judges the store without using its data; waits for it to answer."""
        return await self._list() is not None

    def interrupt(self) -> None:
        """Ignores the rest of the watch, when the store is not trusted."""
        self._refused = True
        self._interrupts += 1
        watch = self._watching
        if watch is not None:
            self._tasks.spawn(close_watch(watch), "end the watch")

    async def follow(self) -> None:
        """Applies every change after `load`, until the store is closed. A task of its own."""
        assert self.state.revision > 0, "load comes first"
        reconciling = self._tasks.keep(self._reconcile, "reconcile the view")
        try:
            await self._tasks.persist(self._follow, "follow the cluster")
        except Closed:
            log.info("the metadata store is closed, and no longer followed")
        finally:
            reconciling.cancel()
            self.applied.fail(Unavailable("this broker no longer follows the metadata store"))

    async def _follow(self) -> None:
        while True:
            try:
                await self._watch()
            except Compacted:
                log.info("the metadata store has compacted revision %d: listing again", self.state.revision + 1)
            except (Reconnected, StoreUnavailable) as error:
                log.warning("the metadata store cannot be watched: %s", error)
                await asyncio.sleep(RETRY_S)
            self._take_listing(await self._admitted())

    # ---- from the store

    async def _watch(self) -> None:
        watch = self._watching = self._store.watch(CLUSTER, self.state.revision + 1)
        try:
            async for events in watch:
                if self._refused:
                    return
                self._take_events(events)
        finally:
            self._watching = None
            await close_watch(watch)

    async def _fetch_listing(self) -> RangeResult | None:
        """A listing; None if it is of another history. Raises StoreUnavailable."""
        known, interrupts = Floor() if self._judge is None else self._judge.floor, self._interrupts
        listing = await self._store.range(CLUSTER)
        if self._interrupts > interrupts:
            raise StoreUnavailable("it was distrusted during the listing")
        self._refused = self._judge is not None and not await self._judge.admit(listing, known)
        return None if self._refused else listing

    async def _admitted(self) -> RangeResult:
        """A listing of the right history; tries once a second until there is one."""
        while True:
            listing = await self._list()
            if listing is not None:
                return listing
            await asyncio.sleep(REFUSED_S)

    async def _list(self) -> RangeResult | None:
        """As `_fetch_listing`, with retries while the store does not answer."""
        delay_s = RETRY_S
        while True:
            try:
                return await self._fetch_listing()
            except StoreUnavailable as error:
                log.warning("the metadata store cannot be listed, trying again: %s", error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_S_MAX)

    async def _reconcile(self) -> None:
        """Finds changes that a watch has lost. It should lose none, but a view that stays wrong costs too much."""
        while True:
            await asyncio.sleep(self._reconcile_s)
            if self._refused:
                continue  # `follow` keeps asking
            before = self.state.revision
            try:
                listing = await self._fetch_listing()
            except StoreUnavailable:
                continue
            except Closed:
                return
            if listing is None:
                self.interrupt()
                continue
            if listing.revision < before:
                log.error("the metadata store has gone back from revision %d to %d", before, listing.revision)
            missed = self._take_listing(listing)
            if missed and listing.revision == before:
                log.error("the watch has lost changes of %s", missed)

    # ---- into the view

    def _take_events(self, events: Sequence[WatchEvent]) -> None:
        news = [event for event in events if event.revision > self.state.revision]
        if news:
            self._apply([(event.key, event.item) for event in news], news[-1].revision)

    def _take_listing(self, listing: RangeResult) -> list[str]:
        """Applies the differences to the view; none if the listing is older."""
        if listing.revision < self.state.revision:
            return []
        found = {item.key: item for item in listing.items}
        changes: list[tuple[str, KeyValue | None]] = [(key, None) for key in self._known if key not in found]
        changes += [(key, item) for key, item in found.items() if self._known.get(key) != item.mod_revision]
        self._apply(changes, listing.revision)
        return [key for key, _ in changes]

    def _apply(self, changes: Sequence[tuple[str, KeyValue | None]], revision: int) -> None:
        assert revision >= self.state.revision
        for key, item in changes:
            if item is None:
                self._known.pop(key, None)
            else:
                self._known[key] = item.mod_revision
            self._apply_one(key, item)
        self.state.revision = revision
        if changes:
            keys = [key for key, _ in changes]
            for callback in list(self._listeners):
                try:
                    callback(keys)
                except Exception as error:  # noqa: BLE001 - the other listeners get this change, and later ones
                    self._tasks.report("a listener of the cluster's view", error)
        self.applied.reach(revision)

    def _apply_one(self, key: str, item: KeyValue | None) -> None:
        """Applies one value. An unreadable value has no mod_revision here, so no compare-and-swap on the old one
        succeeds."""
        self.problems.pop(key, None)
        try:
            self.state.apply(key, item)
        except Exception as error:  # noqa: BLE001 - an error of one key must not stop the others
            if item is None:
                return  # an unknown key
            log.error("cannot read the value of %s in the metadata store: %s", key, error)
            if len(self.problems) < PROBLEMS_MAX:
                self.problems[key] = str(error)
