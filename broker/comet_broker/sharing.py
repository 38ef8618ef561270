"""Shared groups on the leader's side: one stream's part in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comet.errors import Unavailable
from comet.v1 import groups_pb2 as pb

if TYPE_CHECKING:
    from comet_broker.broker import Broker
    from comet_broker.coordination.desk import Line
    from comet_broker.feed import Feed


class Sharing:
    """Owned by the stream's desk."""

    def __init__(self, broker: Broker, line: Line, feed: Feed) -> None:
        self._broker = broker
        self._line = line
        self._feed = feed

    def share(self, request: int, share: pb.Share) -> None:
        raise Unavailable("shared groups are not here yet")

    def settle(self, request: int, settle: pb.Settle) -> None:
        raise Unavailable("shared groups are not here yet")

    def next_frame(self) -> bytes | None:
        """A delivery to this stream, if there is one now."""
        return None

    def close(self) -> None:
        """The stream is over: what was leased to it is free again."""
