"""The groups of one slot: members, assignments and positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from comet.errors import CometError, Unavailable
from comet.v1 import groups_pb2 as pb
from comet_broker.coordination.journal import Operation, Written
from comet_broker.coordination.positions import Admitted
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
        self.on_evicted: list[Callable[[str, str], None]] = []  # called with group and member, whenever one is put out

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

    # ---- for transactions: await learn_ends(commit), then in one turn admit(commit), look at `refused`, and write

    async def learn_ends(self, commit: pb.Commit) -> None:
        """Makes sure that how far the logs reach is known here, as far as `admit` will ask."""
        raise Unavailable("groups are not here yet")

    def admit(self, commit: pb.Commit) -> Admitted:
        """Checks the fences of a commit as of now; what does not pass is in `refused`. Changes nothing.

        Raises MemberUnknown, MemberFenced, GroupNotFound or GroupNotEmpty.
        """
        raise Unavailable("groups are not here yet")

    def write(self, admitted: Admitted, operations: Sequence[Operation], done: Written) -> None:
        """One write of the journal with the admitted positions and `operations`: both or neither. In the same turn as
        `admit`. After done(None), `admitted.committed()` is the answer."""
        raise Unavailable("groups are not here yet")
