"""The receivers of the frames that a broker sends on one connection without a request.

deliveries, aborted transactions ─► the sink of the partition
acquired records ─────────────────► the share partition
assignments, evictions ───────────► the listener of the group
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from comet.errors import CometError
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb


class Sink(Protocol):
    """One subscribed partition. Must not wait and must not raise."""

    def delivered(self, batches: memoryview, high_watermark: int, leader_epoch: int) -> None: ...
    def aborted(self, transactions: Sequence[groups_pb.AbortedTransaction]) -> None:
        """Names aborted transactions in the deliveries that follow."""

    def ended(self, error: CometError) -> None: ...


class SharePartition(Protocol):
    """One partition of a share group. Must not wait and must not raise."""

    def shared(self, shared: groups_pb.ShareDelivery) -> None: ...
    def ended(self, error: CometError) -> None: ...


# Gets the assignments and evictions of a group.
Listener = Callable[[pb.ServerFrame], None]


class Subscribers:
    """Owned by a connection; its users enter and remove themselves. Partitions are named by their handle."""

    def __init__(self) -> None:
        self.sinks: dict[int, Sink] = {}
        self.share_partitions: dict[int, SharePartition] = {}
        self.listeners: dict[str, Listener] = {}  # one for each group: a client is a member once
        self._subscription = 0

    def next_subscription(self) -> int:
        self._subscription += 1
        return self._subscription

    def receive(self, kind: str, frame: pb.ServerFrame) -> None:
        """Passes a frame on; one that no subscriber waits for is dropped."""
        match kind:
            case "delivery":
                delivery = frame.delivery
                if (sink := self.sinks.get(delivery.partition)) is not None:
                    sink.delivered(memoryview(delivery.batches), delivery.high_watermark, delivery.leader_epoch)
            case "share_delivery":
                if (shared := self.share_partitions.get(frame.share_delivery.partition)) is not None:
                    shared.shared(frame.share_delivery)
            case "aborted":
                if (sink := self.sinks.get(frame.aborted.partition)) is not None:
                    sink.aborted(frame.aborted.transactions)
            case "assignment" | "evicted":
                group = frame.assignment.group or frame.evicted.group
                if (listener := self.listeners.get(group)) is not None:
                    listener(frame)

    def end(self, handle: int, error: CometError) -> None:
        """Ends the subscription of a partition that the broker no longer serves."""
        ended = self.sinks.pop(handle, None) or self.share_partitions.pop(handle, None)
        if ended is not None:
            ended.ended(error)

    def clear(self) -> None:
        self.sinks.clear()
        self.share_partitions.clear()
        self.listeners.clear()
