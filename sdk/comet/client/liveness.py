"""Watches for silence of the broker at the other end of a connection; comet.wire.liveness has the rule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from comet.wire.liveness import OF_BROKERS, Liveness, LivenessVerdict
from comet.wire.transport import Stream
from comet.wire.wire_stream import WireStream

# A broker that has missed a heartbeat: other brokers are asked about it. If the cluster has given it up, the connection
# is closed at once.
SUSPECT_S: Final = OF_BROKERS.silence_s / 2

assert OF_BROKERS.heartbeat_s + OF_BROKERS.check_s < SUSPECT_S


class BrokerWatch:
    """Checks the stream of a connection every `check_s`, and calls back with the verdict. Owned by the connection, from
    the Welcome until it fails."""

    def __init__(self, stream: Stream, checked: Callable[[LivenessVerdict], None]) -> None:
        self.liveness = Liveness(OF_BROKERS, 0.0)
        self._wire = stream if isinstance(stream, WireStream) else None
        self._checked = checked
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.liveness = Liveness(OF_BROKERS, asyncio.get_running_loop().time())
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def silent_s(self) -> float:
        return self.liveness.silent_s

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(OF_BROKERS.check_s, self._check)

    def _check(self) -> None:
        self._schedule()
        if self._wire is not None and self._wire.heard:
            self._wire.heard = False
            self.liveness.received += 1  # a part of a frame
        self._checked(self.liveness.check(asyncio.get_running_loop().time()))
