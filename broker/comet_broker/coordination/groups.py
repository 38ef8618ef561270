"""The groups of one slot: members, assignments and positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from comet.errors import CometError, Unavailable
from comet.v1 import groups_pb2 as pb
from comet_broker.metadata.store import KeyValue

if TYPE_CHECKING:
    from comet_broker.broker import Broker
    from comet_broker.coordination.coordinator import Slot
    from comet_broker.coordination.desk import Desk


class Groups:
    """Owned by the slot."""

    def __init__(self, slot: Slot, broker: Broker) -> None:
        self._slot = slot
        self._broker = broker

    def load(self, items: Mapping[str, KeyValue]) -> None:
        """Takes over what stands below the slot's prefix, by the rest of the key."""

    def close(self, error: CometError) -> None:
        """The slot is another broker's: every member is told to look for it."""

    def join(self, seat: Desk, request: int, join: pb.Join) -> None:
        raise Unavailable("groups are not here yet")

    def heartbeat(self, seat: Desk, heartbeat: pb.Heartbeat) -> None:
        raise Unavailable("groups are not here yet")

    def leave(self, seat: Desk, request: int, leave: pb.Leave) -> None:
        raise Unavailable("groups are not here yet")

    def release(self, seat: Desk, request: int, release: pb.Release) -> None:
        raise Unavailable("groups are not here yet")

    def seat_closed(self, seat: Desk) -> None:
        """A stream is over."""

    async def commit(self, commit: pb.Commit) -> pb.Committed:
        raise Unavailable("groups are not here yet")

    async def fetch_committed(self, fetch: pb.FetchCommitted) -> pb.Committed:
        raise Unavailable("groups are not here yet")
