"""The frames that a follower writes to one leader: progress, requests and heartbeats."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from comet.errors import CometError
from comet.wire.transport import Stream
from comet_broker.streams.pump import Pump

if TYPE_CHECKING:
    from comet_broker.replication.follower import LeaderLink

log = logging.getLogger(__name__)


class ProgressWriter(Pump):
    """Owned by the LeaderLink of that leader, for as long as its stream is open."""

    def __init__(self, link: LeaderLink, stream: Stream) -> None:
        super().__init__(stream.write)
        self._link = link
        self._stream = stream
        self._called = False

    def soon(self) -> None:
        """Writes in the next turn of the loop."""
        if not self._called and not self.busy:
            self._called = True
            asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        self._called = False
        self.advance()

    def next(self) -> bytes | None:
        return self._link.next_report()

    def rested(self) -> None:
        return

    def write_failed(self, error: Exception) -> None:
        if not isinstance(error, CometError):
            log.error("writing to broker %d failed", self._link.leader, exc_info=error)
        self._stream.cancel()  # the reader learns why
