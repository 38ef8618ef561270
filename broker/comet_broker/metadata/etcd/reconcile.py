"""Comparison of the changes that a watch has seen with a listing. Pure.

A live stream can still have lost a change: versions of etcd had such bugs. So from time to time the keys are listed and
compared with the watch's. A change may be on its way; if the same one is still missing at the next listing, it is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from comet_broker.metadata.store import WatchEvent


class Reconciler:
    """The state of one watch: key -> mod_revision. Owned by the watch."""

    def __init__(self) -> None:
        self._known: dict[str, int] | None = None  # None until the first listing
        self._since = 0  # the revision of the first listing
        self._missing: frozenset[tuple[str, int]] = frozenset()

    def seen(self, events: Iterable[WatchEvent]) -> None:
        if self._known is None:
            return
        for event in events:
            if event.revision <= self._since:
                continue  # was in the listing already
            if event.item is None:
                self._known.pop(event.key, None)
            else:
                self._known[event.key] = event.revision

    def lost(self, listing: Mapping[str, int], revision: int) -> frozenset[str]:
        """The keys whose changes the watch has missed; `listing` holds all keys at `revision`, read from the majority
        after all calls of `seen`."""
        if self._known is None:
            self._known, self._since = dict(listing), revision
            return frozenset()
        known = self._known
        missing = frozenset(
            (key, listing.get(key, 0))
            for key in known.keys() | listing.keys()
            if known.get(key, 0) != listing.get(key, 0)
        )
        lost = frozenset(key for key, _ in missing & self._missing)
        self._missing = missing
        return lost
