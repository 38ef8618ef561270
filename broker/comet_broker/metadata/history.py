"""The recent changes of a keyspace, which watches read. Pure, bounded by revisions and by bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from comet_broker.metadata.store import Compacted, WatchEvent

HISTORY_REVISIONS_MAX: Final = 10_000
HISTORY_BYTES_MAX: Final = 16 << 20


class History:
    """The events of consecutive revisions; the oldest are dropped beyond the limits."""

    def __init__(self, revision: int, revisions_max: int = HISTORY_REVISIONS_MAX) -> None:
        """`revision` is the keyspace's present one: earlier changes are unknown."""
        assert revisions_max > 0
        self.compact_revision = revision + 1  # the oldest revision that can be watched from
        self.bytes = 0
        self._revisions_max = revisions_max
        self._revisions: deque[tuple[WatchEvent, ...]] = deque()

    @property
    def next_revision(self) -> int:
        return self.compact_revision + len(self._revisions)

    def append(self, events: tuple[WatchEvent, ...]) -> None:
        assert events
        assert all(event.revision == self.next_revision for event in events)
        self._revisions.append(events)
        self.bytes += _bytes(events)
        while len(self._revisions) > self._revisions_max or (
            self.bytes > HISTORY_BYTES_MAX and len(self._revisions) > 1
        ):
            self.bytes -= _bytes(self._revisions.popleft())
            self.compact_revision += 1

    def since(self, revision: int) -> Iterator[Sequence[WatchEvent]]:
        """The events of every revision from this one on; raises Compacted. Must not be kept across an append."""
        if revision < self.compact_revision:
            raise Compacted(self.compact_revision)
        return islice(self._revisions, revision - self.compact_revision, None)


def _bytes(events: Sequence[WatchEvent]) -> int:
    return sum(len(event.key) + (len(event.item.value) if event.item is not None else 0) for event in events)
