"""The cluster as this broker sees it: one listing, then one watch, kept in step with the metadata store for ever.

    load ─► listing ─► ClusterState ─► follow ─► watch ─► apply ─► applied, listeners
                          ▲                        │
                          └── listing, difference ◄┴─ history forgotten, store silent, a minute gone by

The picture only moves forward in the store's revisions: events and listings from the past are dropped, whoever sends
them. What a listing shows to be different from the picture is applied as if the watch had said so, deletions as well,
so that nobody who listens has to know which of the two it was.

A listing of another history is refused (`Judge`): the store was restored from a snapshot, emptied or exchanged. The
picture then stands still, and the store is listed once a second until it is the right one again.
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
from comet_broker.streams.waiters import Progress
from comet_broker.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 2.0
RECONCILE_S: Final = 60.0
REFUSED_S: Final = 1.0
PROBLEMS_MAX: Final = 1_000

Listener = Callable[[Sequence[str]], None]


class HistoryJudge(Protocol):
    """Says whether a listing belongs to the history that this broker knows."""

    @property
    def floor(self) -> Floor:
        """What is known now."""

    async def admit(self, listing: RangeResult, known: Floor) -> bool:
        """`known` is what was known when the listing was asked for. Raises StoreUnavailable."""


class ClusterView:
    """Owned by the broker; used on its event loop. `state` is one object that changes between two awaits only."""

    def __init__(
        self, store: MetadataStore, tasks: Tasks, *, judge: HistoryJudge | None = None, reconcile_s: float = RECONCILE_S
    ) -> None:
        self.state = ClusterState()
        self.applied = Progress()
        self.problems: dict[str, str] = {}  # keys whose value this version cannot read; what they held before stands
        self._store = store
        self._tasks = tasks
        self._reconcile_s = reconcile_s
        self._judge = judge
        self._refused = False  # the last listing was
        self._interrupts = 0
        self._watching: AsyncIterator[Sequence[WatchEvent]] | None = None
        self._known: dict[str, int] = {}  # key -> mod_revision
        self._listeners: list[Listener] = []

    def listen(self, callback: Listener) -> None:
        """Calls it after every batch of changes, with the keys that changed, in the order of revisions."""
        self._listeners.append(callback)

    async def load(self) -> ClusterState:
        """The picture as it stands now; waits for the store to answer, and to be the right one."""
        self._take_listing(await self._admitted())
        return self.state

    async def look(self) -> bool:
        """Judges the store, without taking anything from it; waits for it to answer."""
        return await self._list() is not None

    def interrupt(self) -> None:
        """The store is not to be trusted: what its watch says any more is not heard."""
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
            log.info("the metadata store is closed; it is no longer followed")
        finally:
            reconciling.cancel()
            self.applied.fail(Unavailable("this broker no longer follows the metadata store"))

    async def _follow(self) -> None:
        while True:
            try:
                await self._watch()
            except Compacted:
                log.info("the metadata store has forgotten revision %d: listing again", self.state.revision + 1)
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

    async def _ask(self) -> RangeResult | None:
        """A listing; None: it is of another history. Raises StoreUnavailable."""
        known, interrupts = Floor() if self._judge is None else self._judge.floor, self._interrupts
        listing = await self._store.range(CLUSTER)
        if self._interrupts > interrupts:
            raise StoreUnavailable("it was found to be the wrong one while it was listed")
        self._refused = self._judge is not None and not await self._judge.admit(listing, known)
        return None if self._refused else listing

    async def _admitted(self) -> RangeResult:
        """A listing of the right history; the store is asked once a second until there is one."""
        while True:
            listing = await self._list()
            if listing is not None:
                return listing
            await asyncio.sleep(REFUSED_S)

    async def _list(self) -> RangeResult | None:
        """As `_ask`, again and again while the store does not answer."""
        delay_s = RETRY_S
        while True:
            try:
                return await self._ask()
            except StoreUnavailable as error:
                log.warning("the metadata store cannot be listed, trying again: %s", error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_S_MAX)

    async def _reconcile(self) -> None:
        """Finds what a watch has lost: none should, but a view that is wrong for good costs too much to trust that."""
        while True:
            await asyncio.sleep(self._reconcile_s)
            if self._refused:
                continue  # `follow` asks again and again
            before = self.state.revision
            try:
                listing = await self._ask()
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

    # ---- into the picture

    def _take_events(self, events: Sequence[WatchEvent]) -> None:
        news = [event for event in events if event.revision > self.state.revision]
        if news:
            self._apply([(event.key, event.item) for event in news], news[-1].revision)

    def _take_listing(self, listing: RangeResult) -> list[str]:
        """Applies what differs from the picture; nothing if the listing is older."""
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
                except Exception as error:  # noqa: BLE001 - the others are to hear of it, and of what comes after
                    self._tasks.report("a listener of the cluster's view", error)
        self.applied.reach(revision)

    def _apply_one(self, key: str, item: KeyValue | None) -> None:
        """A value that cannot be read is kept out: no compare-and-swap based on what it held before can succeed."""
        self.problems.pop(key, None)
        try:
            self.state.apply(key, item)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one key, the others are followed
            if item is None:
                return  # a key of which nothing was known
            log.error("what the metadata store has under %s cannot be read: %s", key, error)
            if len(self.problems) < PROBLEMS_MAX:
                self.problems[key] = str(error)
